"""The answer to whether two programs compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mugraph.verifier.certificate import Certificate, Outcome
from mugraph.verifier.counterexamples import Counterexample


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The answer to whether two programs compute the same.

    `counterexample` is the witness of programs that are different, None for all others. `properties` are identities and
    properties of operators that made equal what the tests cannot; the certificate is then of the graphs that were left to test.
    `domain` names the part of the inputs on which equality holds where that is not known to be all of them; `question` says
    what was asked of the tensors that the functions bring along.

    Of functions that were asked about for ranges of sizes, `sizes` are those at which they were tested, by the names of the
    dimensions, and `claim` says what equality there decides, where functions are equivalent; the certificate is that of the sizes
    with the largest error bound. Functions that are different are so at the last of `sizes`.
    """

    certificate: Certificate
    counterexample: Counterexample | None = None
    properties: tuple[str, ...] = ()
    domain: str = ""
    question: str = ""
    sizes: tuple[Mapping[str, int], ...] = ()
    claim: str = ""

    def __repr__(self) -> str:
        """One line: the answer with its bound or reason, the inputs that it is limited to, and the sizes that it is for."""
        limits = f"; only where both are defined: {self.domain}" if self.domain else ""
        return f"<Verdict: {self.certificate.in_words}{limits}{f'; {self.claim}' if self.claim else ''}>"

    @property
    def outcome(self) -> Outcome:
        """Equivalent, different, or undecided."""
        return self.certificate.outcome

    @property
    def equivalent(self) -> bool | None:
        """True or False where the question is decided, else None."""
        return _ANSWERS[self.outcome]

    @property
    def error_bound(self) -> float | None:
        """The probability that a pair which is not equivalent is accepted; None where none can be stated."""
        return self.certificate.error_bound

    @property
    def reason(self) -> str:
        """Why there is no bound or no answer; empty when there is nothing to explain."""
        return self.certificate.reason

    def refuted(self, witness: Counterexample) -> Verdict:
        """The same with a witness of the difference."""
        certificate = replace(self.certificate, outcome=Outcome.DIFFERENT, error_bound=None, reason=str(witness))
        return replace(self, certificate=certificate, counterexample=witness)

    def undecided(self, reason: str) -> Verdict:
        """The same without an answer."""
        certificate = replace(self.certificate, outcome=Outcome.UNDECIDED, error_bound=None, reason=f"undecided: {reason}")
        return replace(self, certificate=certificate)


_ANSWERS = {Outcome.EQUIVALENT: True, Outcome.DIFFERENT: False, Outcome.UNDECIDED: None}
