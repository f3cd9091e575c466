"""What a verification did and what it proves: a record from which anyone can repeat it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mugraph import __version__
from mugraph.algebra.fields import FieldPair
from mugraph.errors import InvalidInput
from mugraph.ir.graph import Graph
from mugraph.verifier.bounds import REDRAWS, Difference

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One random test: inputs, omega and random functions follow from the certificate's seed and the number of the draw."""

    draw: int
    p: int
    q: int
    omega: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """The evidence for (or against) the equivalence of two kernel graphs.

    `left` and `right` are digests of the graphs. `difference` bounds degree and coefficients of their difference, and is
    None where an operator in `semantics` takes them outside the theorem for rational programs. `error_bound` is the
    probability, over the verifier's random draws, that two graphs which differ agree in all `rounds`; None means that no
    such probability can be stated, and `reason` why. `accepted` means that every round agreed and that the bound, if there
    is one, is at most `max_error`.
    """

    left: str
    right: str
    seed: int
    max_error: float
    rounds: tuple[Round, ...]
    redraws: int
    difference: Difference | None
    semantics: tuple[tuple[str, str], ...]
    error_bound: float | None
    accepted: bool
    reason: str
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        fields = asdict(self)
        fields["rounds"] = [asdict(entry) for entry in self.rounds]
        fields["semantics"] = dict(self.semantics)
        return {"format": FORMAT, "claim": self.claim, **fields}

    @property
    def claim(self) -> str:
        """What was shown, in a sentence."""
        if not self.accepted:
            return "nothing: the graphs were not found equivalent"
        if self.error_bound is not None:
            return f"every output element is the same rational function of the inputs, up to an error of {self.error_bound:.3g}"
        return f"{len(self.rounds)} random tests at full size agreed; no probability of error is claimed"

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Certificate:
        """Read a certificate; raises InvalidInput, naming the entry, when it is malformed or contradicts itself."""
        if not isinstance(record, Mapping):
            raise InvalidInput(f"certificate: expected an object, found {type(record).__name__}")
        if record.get("format") != FORMAT:
            raise InvalidInput(f"certificate: format {record.get('format')!r} is not {FORMAT}; use the mugraph that wrote it")
        try:
            certificate = cls(
                left=str(record["left"]),
                right=str(record["right"]),
                seed=int(record["seed"]),
                max_error=float(record["max_error"]),
                rounds=tuple(_round(entry) for entry in record["rounds"]),
                redraws=int(record["redraws"]),
                difference=None if record["difference"] is None else _difference(record["difference"]),
                semantics=tuple((str(name), str(text)) for name, text in record["semantics"].items()),
                error_bound=None if record["error_bound"] is None else float(record["error_bound"]),
                accepted=bool(record["accepted"]),
                reason=str(record["reason"]),
                version=str(record["version"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"certificate: entry missing or of the wrong type ({error})") from None
        certificate.check()
        return certificate

    def check(self) -> None:
        """Whether the entries agree with each other; raises InvalidInput naming the first that does not."""
        for entry in self.rounds:
            pair = FieldPair(entry.p, entry.q)
            if entry.omega % pair.p == 1 or pow(entry.omega, pair.q, pair.p) != 1:
                raise InvalidInput(f"certificate: omega = {entry.omega} of draw {entry.draw} does not have order {entry.q}")
        draws = [entry.draw for entry in self.rounds]
        if draws != sorted(set(draws)) or (draws and draws[-1] >= len(draws) + REDRAWS):
            raise InvalidInput(f"certificate: rounds of the draws {draws} are not distinct tests in order")
        bound = None if self.difference is None else self.difference.error_bound(len(self.rounds))
        if self.error_bound is not None and (bound is None or not math.isclose(self.error_bound, bound, rel_tol=1e-9)):
            raise InvalidInput(f"certificate: error_bound {self.error_bound} does not follow from its entries ({bound} does)")
        if self.accepted and (not self.rounds or (self.error_bound is not None and self.error_bound > self.max_error)):
            raise InvalidInput("certificate: accepted, though its rounds do not reach max_error")


def digest(graph: Graph) -> str:
    """What identifies a graph in a certificate: the SHA-256 of its text."""
    return hashlib.sha256(str(graph).encode()).hexdigest()


def _difference(record: Mapping[str, Any]) -> Difference:
    return Difference(int(record["degree"]), int(record["coefficient_bits"]))


def _round(record: Mapping[str, Any]) -> Round:
    return Round(int(record["draw"]), int(record["p"]), int(record["q"]), int(record["omega"]))
