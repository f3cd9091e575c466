"""Equivalence of muGraphs by random tests over finite fields, at full size (paper, section 5)."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass, field

from mugraph.algebra.families import Q_BITS, FieldFamily
from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir.graph import Graph
from mugraph.verifier.bounds import Difference, difference_of
from mugraph.verifier.certificate import Certificate, digest
from mugraph.verifier.counterexamples import Counterexample, floating_point_counterexample
from mugraph.verifier.roots import TooManyRadicands
from mugraph.verifier.semantics import Semantics, beyond_rational, meanings
from mugraph.verifier.slices import Slice, shared_slice
from mugraph.verifier.trials import Trials, input_shapes

_LAWS_ELEMENTS = 1 << 26
"""Tests for which no bound can be stated are repeated until this many elements of inputs were drawn, ..."""
_LAWS_ROUNDS = (2, 32)
"""... but at least and at most so many times."""
_ROOTS_ROUNDS = 40
"""Tests without a bound where there are roots: with one root of each number, each hides a wrong sign in every second draw."""
_LAWS_FAMILY = FieldFamily(Q_BITS[0], 840)
_NEITHER_LAW_ALONE = (
    "the programs agree by sqrt(x y) = sqrt(x) sqrt(y) and sqrt(x)**2 = x together, or with exp(x + y) = exp(x) exp(y), and only "
    "each of the first by itself has one; take the roots of products in the same way in both programs"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of `verify_graphs`.

    `equivalent` is True when every test agreed and reached `max_error` or no bound exists; `error_bound` is that of the
    certificate. Otherwise `counterexample` says where the graphs differ; it is None when the question stayed undecided,
    and `reason` says why. `properties` are those of operators by which a prover made equal what the tests cannot; the
    certificate is then of the graphs that were left to test.
    """

    equivalent: bool
    counterexample: Counterexample | None
    certificate: Certificate
    properties: tuple[str, ...] = ()

    @property
    def error_bound(self) -> float | None:
        """The probability that a pair which is not equivalent is accepted; None where none can be stated."""
        return self.certificate.error_bound

    @property
    def reason(self) -> str:
        """Why there is no bound or no answer; empty when there is nothing to explain."""
        return self.certificate.reason


def check_max_error(max_error: object) -> None:
    """Raises InvalidInput unless 0 < max_error < 1."""
    if not (isinstance(max_error, (int, float)) and 0 < max_error < 1):
        raise InvalidInput(f"max_error must lie between 0 and 1, not {max_error!r}")


def verify_graphs(a: Graph, b: Graph, *, max_error: float = 2**-40, seed: int = 0, budget: float | None = None) -> Verdict:
    """Whether two kernel graphs (with graph-defined nodes or without) compute the same outputs, inputs taken in order.

    Both are evaluated on independent random inputs over random fields, at full size but for axes that are proved parallel,
    until the bound on the error is at most `max_error`, or the `budget` in seconds is spent (one test is always run).
    Where no bound can be had, a fixed number of tests decides; fewer, where the budget ends before, leave the question open.
    A pair whose slices agreed before, because it is another size of its parallel axes, is not tested again, and a graph is not
    tested against itself. Element types and names do not matter. Raises InvalidInput unless 0 < max_error < 1.
    """
    check_max_error(max_error)
    signature = _signature_mismatch(a, b)
    if signature is not None:
        return _refused(a, b, max_error, seed, signature)
    if digest(a) == digest(b):
        return Verdict(True, None, _of_itself(a, max_error, seed))
    deadline = None if budget is None else time.monotonic() + budget
    return _Verification(a, b, max_error, seed, deadline).run()


def recheck(certificate: Certificate, a: Graph, b: Graph) -> None:
    """Repeat an accepted verification from its record. Raises InvalidInput, naming what does not match."""
    certificate.check()
    for name, graph, recorded in (("left", a, certificate.left), ("right", b, certificate.right)):
        if digest(graph) != recorded:
            raise InvalidInput(f"certificate: the {name} graph is not the one that was verified")
    mismatch = _signature_mismatch(a, b)
    if mismatch is not None:
        raise InvalidInput(f"certificate: {mismatch}")
    if certificate.untested:
        again = _of_itself(a, certificate.max_error, certificate.seed)
    else:
        again = _Verification(a, b, certificate.max_error, certificate.seed, None).tested().certificate
    for name in ("axes", "difference", "semantics", "rounds", "error_bound", "accepted"):
        if getattr(again, name) != getattr(certificate, name):
            raise InvalidInput(f"certificate: {name!r} is not what repeating the verification gives")


def _signature_mismatch(a: Graph, b: Graph) -> Counterexample | None:
    for what, left, right in (
        ("input", input_shapes(a), input_shapes(b)),
        ("output", [t.shape for t in a.output_tensors], [t.shape for t in b.output_tensors]),
    ):
        if len(left) != len(right):
            return Counterexample(f"one takes or gives {len(left)} {what}s, the other {len(right)}")
        for number, (shape, other) in enumerate(zip(left, right, strict=True)):
            if shape != other:
                return Counterexample(f"{what} {number} has shape {list(shape)} in one and {list(other)} in the other")
    return None


@dataclass(frozen=True, slots=True)
class _Agreement:
    """Tests that accepted a pair of slices, and so accept every pair of graphs with these slices: at other sizes, that is."""

    trials: Trials
    difference: Difference | None
    reason: str
    error_bound: float | None


@functools.lru_cache(maxsize=64)
def _agreements(left: Graph, right: Graph, max_error: float, seed: int) -> list[_Agreement]:
    """What is known of two slices: nothing at first, and later at most one agreement."""
    return []


@dataclass(slots=True)
class _Verification:
    """One pair of graphs on the way to a verdict."""

    left: Graph
    right: Graph
    max_error: float
    seed: int
    deadline: float | None
    slice: Slice = field(init=False)
    difference: Difference | None = field(init=False)
    trials: Trials = field(init=False)
    obstacle: str = ""
    """Why tests with a bound do not decide."""

    def __post_init__(self) -> None:
        self.slice = shared_slice(self.left, self.right)

    def run(self) -> Verdict:
        """What is known of the slices, or else what tests say."""
        known = _agreements(self.slice.left, self.slice.right, self.max_error, self.seed)
        if known:
            self.trials, self.difference = known[0].trials, known[0].difference
            return Verdict(True, None, self.certificate(True, known[0].reason, known[0].error_bound))
        verdict = self.tested()
        if verdict.equivalent:
            known.append(_Agreement(self.trials, self.difference, verdict.reason, verdict.error_bound))
        return verdict

    def tested(self) -> Verdict:
        """What tests say."""
        return self.freely() or self.by_roots() or self.by_laws()

    def freely(self) -> Verdict | None:
        """The verdict of tests under free semantics, of which only square roots may know better; None if so."""
        self.difference = difference_of(self.slice.left, self.slice.right)
        rounds = None if self.difference is None else self.difference.rounds_for(self.max_error)
        if self.difference is None or rounds is None:
            self.obstacle = "the degrees are too large for these fields; verify parts of the program apart"
            return None
        found = self.tests(Semantics.FREE, self.difference.family, rounds, count=self.difference.exponentials)
        if isinstance(found, str):
            return self.undecided(found)
        if found is None:
            return self.agreed_with_bound()
        return None if "sqrt" in self.outside_lax else self.refuted(found)

    def by_roots(self) -> Verdict | None:
        """The verdict of tests in which roots square back, where they agree."""
        if self.obstacle:
            return None
        self.difference = difference_of(self.slice.left, self.slice.right, roots=True)
        rounds = None if self.difference is None else self.difference.rounds_for(self.max_error)
        if self.difference is None or rounds is None:
            self.obstacle = "the degrees of their square roots are too large; verify parts of the program apart"
            return None
        found = self.tests(Semantics.ROOTS, self.difference.family, rounds)
        if found is None:
            return self.agreed_with_bound()
        self.obstacle = found.removeprefix("undecided: ") if isinstance(found, str) else _NEITHER_LAW_ALONE
        return None

    def by_laws(self) -> Verdict:
        """The verdict of tests under all laws, without a bound."""
        wanted = self.rounds_without_bound()
        found = self.tests(Semantics.LAWS, _LAWS_FAMILY, wanted)
        if isinstance(found, str):
            return self.undecided(found)
        if found is not None:
            return self.refuted(found)
        if (tests := len(self.trials.rounds)) < wanted:  # one root of each number may hide what the other shows
            return self.undecided(
                f"undecided: the budget ended after {tests} of {wanted} tests, for which no bound can be stated"
            )
        return self.agreed(f"no bound: {self.obstacle}")

    def rounds_without_bound(self) -> int:
        """How many tests under all laws are to agree."""
        if "sqrt" in self.outside_lax:
            return _ROOTS_ROUNDS
        elements = sum(math.prod(shape) for shape in input_shapes(self.slice.left))
        least, most = _LAWS_ROUNDS
        return min(most, max(least, _LAWS_ELEMENTS // max(1, elements)))

    @property
    def outside_lax(self) -> frozenset[str]:
        """Operators that are no rational functions."""
        return beyond_rational(self.left) | beyond_rational(self.right)

    def tests(
        self, semantics: Semantics, family: FieldFamily, rounds: int, *, count: bool = False
    ) -> Counterexample | str | None:
        """Run tests: the first difference, None when all agreed, or why the question stays open; one is run in any case."""
        self.trials = Trials(self.slice.left, self.slice.right, semantics, family, self.seed, count, self.deadline)
        while len(self.trials.rounds) < rounds and not self.late:
            try:
                found = self.trials.test()
            except (UndefinedInField, TooManyRadicands) as error:
                return f"undecided: {error}"
            if found is not None:
                return found
        return None

    @property
    def late(self) -> bool:
        return bool(self.trials.rounds) and self.deadline is not None and time.monotonic() > self.deadline

    def agreed_with_bound(self) -> Verdict:
        assert self.difference is not None
        bound = self.difference.error_bound(len(self.trials.rounds))
        if bound > self.max_error:
            tests = len(self.trials.rounds)
            return self.undecided(
                f"undecided: the budget ended after {tests} tests, which bound the error by {bound:.3g} only", bound
            )
        return Verdict(True, None, self.certificate(True, "", bound))

    def agreed(self, reason: str) -> Verdict:
        return Verdict(True, None, self.certificate(True, reason))

    def undecided(self, reason: str, bound: float | None = None) -> Verdict:
        return Verdict(False, None, self.certificate(False, reason, bound))

    def refuted(self, found: Counterexample) -> Verdict:
        visible = floating_point_counterexample(self.slice.left, self.slice.right, self.seed)
        if visible is not None:
            visible = visible.repeated(input_shapes(self.left))
            return Verdict(False, visible, self.certificate(False, str(visible)))
        reason = f"{found}; no difference was found in float64, so the programs may agree by a law that fields do not model"
        if self.obstacle:
            reason = f"{reason}; {self.obstacle}"
        return Verdict(False, found, self.certificate(False, reason))

    def certificate(self, accepted: bool, reason: str, error_bound: float | None = None) -> Certificate:
        bounded = self.trials.semantics is not Semantics.LAWS
        return Certificate(
            left=digest(self.left),
            right=digest(self.right),
            seed=self.seed,
            max_error=self.max_error,
            rounds=tuple(self.trials.rounds),
            redraws=self.trials.invalid,
            axes=self.slice.axes,
            difference=self.difference if bounded else None,
            semantics=meanings(self.outside_lax, self.trials.semantics),
            error_bound=error_bound,
            accepted=accepted,
            reason=reason,
        )


def _refused(a: Graph, b: Graph, max_error: float, seed: int, found: Counterexample) -> Verdict:
    """The verdict on graphs that cannot be compared."""
    certificate = Certificate(digest(a), digest(b), seed, max_error, (), 0, (), None, (), None, False, found.text)
    return Verdict(False, found, certificate)


def _of_itself(graph: Graph, max_error: float, seed: int) -> Certificate:
    """What there is to say of a graph and itself."""
    same = digest(graph)
    return Certificate(same, same, seed, max_error, (), 0, (), None, (), 0.0, True, "")
