"""What a verification did and what it proves: a record from which anyone can repeat it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import FieldPair
from mugraph.errors import InvalidInput
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_to_json
from mugraph.verifier.bounds import Difference, Function, Terms
from mugraph.verifier.float_report import FloatReport
from mugraph.verifier.parallel_axes import ParallelAxis
from mugraph.version import __version__

FORMAT = 6


class Outcome(StrEnum):
    """The answer to whether two programs compute the same.

    `equivalent` comes with a bound on its error, `different` with a witness that anyone can replay; all else is `undecided`.
    """

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


class Tests(StrEnum):
    """What became of the random tests that were wanted: all agreed, time ended before, one differed, or none has a value."""

    AGREED = "agreed"
    UNFINISHED = "unfinished"
    DIFFERED = "differed"
    IMPOSSIBLE = "impossible"


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

    `left` and `right` are digests of the graphs. `axes` are those along which both graphs are proved to treat all slices alike,
    so that the tests ran on one slice. `difference` bounds the size of the graphs' difference, and is None where the tests
    assumed laws of operators in `semantics` for which there is no theorem. `error_bound` is the probability, over the
    verifier's random draws, that two graphs which differ agree in all `rounds`; None means that no such probability can be
    stated, and `reason` why. The `outcome` is equivalent where every round agreed and the bound is at most `max_error`; a graph
    and itself need no rounds. `tests` says how they ended, whether there is a bound or not. `readings`
    are the constants that were read as another number than the float that was written: the number, and the float. `floats` is
    what comparing the kernels with float64 found, None where none were run.
    """

    left: str
    right: str
    seed: int
    max_error: float
    rounds: tuple[Round, ...]
    redraws: int
    axes: tuple[ParallelAxis, ...]
    difference: Difference | None
    semantics: tuple[tuple[str, str], ...]
    error_bound: float | None
    outcome: Outcome
    tests: Tests
    reason: str
    readings: tuple[tuple[str, float], ...] = ()
    version: str = __version__
    floats: FloatReport | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        record = asdict(replace(self, floats=None))
        record["semantics"] = dict(self.semantics)
        record["readings"] = [{"constant": constant, "written": written.hex()} for constant, written in self.readings]
        record["floats"] = None if self.floats is None else self.floats.to_json()
        if self.difference is not None:
            record["theorem_2"] = _finite(self.difference.theorem_2())
        return {"format": FORMAT, "claim": self.claim, "accepted": self.accepted, **record}

    @property
    def accepted(self) -> bool:
        """Whether the graphs were found equivalent, with a bound on the error of saying so."""
        return self.outcome is Outcome.EQUIVALENT

    @property
    def agreed(self) -> bool:
        """Whether all tests that were wanted agreed, with a bound or without."""
        return self.tests is Tests.AGREED

    @property
    def claim(self) -> str:
        """What was shown, in a sentence; of real numbers, so that it says nothing of rounding."""
        if self.untested:
            return "the graphs are one and the same"
        if self.outcome is Outcome.DIFFERENT:
            return "the graphs are different: there are inputs at which they are"
        if not self.accepted and self.agreed:
            return f"{len(self.rounds)} random tests agreed at full size of all axes but parallel ones; no error is claimed"
        if not self.accepted:
            return "nothing: the graphs were not found equivalent"
        functions = [] if self.difference is None else [function.name for function in self.difference.functions]
        kind = "function with the properties in `semantics`" if self.difference and self.difference.properties else "function"
        whatever = f", whatever {kind} stands for {', '.join(functions)}" if functions else ""
        sizes = ", at any size of the parallel axes" if any(not axis.sums for axis in self.axes) else ""
        equal = f"every output element is the same function of real inputs wherever both are defined{whatever}{sizes}"
        return f"{equal}; a pair that is not passes with probability at most {self.error_bound:.3g} over the recorded draw"

    @property
    def untested(self) -> bool:
        """Whether the two graphs are one, so that no test was needed."""
        return self.left == self.right and not self.rounds

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Certificate:
        """Read a certificate; raises InvalidInput, naming the entry, when it is malformed or contradicts itself."""
        if not isinstance(record, Mapping):
            raise InvalidInput(f"certificate: expected an object, found {type(record).__name__}")
        if type(number := record.get("format")) is int and number > FORMAT:
            raise InvalidInput(f"certificate: written by a newer mugraph (format {number}, here {FORMAT}); use that")
        if number != FORMAT:
            raise InvalidInput(f"certificate: format {number!r} is not {FORMAT}; use the mugraph that wrote it")
        if record.get("accepted") is not (record.get("outcome") == Outcome.EQUIVALENT):
            raise InvalidInput(f"certificate: accepted is {record.get('accepted')!r}, and its outcome {record.get('outcome')!r}")
        try:
            certificate = cls(
                left=str(record["left"]),
                right=str(record["right"]),
                seed=int(record["seed"]),
                max_error=float(record["max_error"]),
                rounds=tuple(_round(entry) for entry in record["rounds"]),
                redraws=int(record["redraws"]),
                axes=tuple(_axis(entry) for entry in record["axes"]),
                difference=None if record["difference"] is None else _difference(record["difference"]),
                semantics=tuple((str(name), str(text)) for name, text in record["semantics"].items()),
                error_bound=None if record["error_bound"] is None else float(record["error_bound"]),
                outcome=Outcome(record["outcome"]),
                tests=Tests(record["tests"]),
                reason=str(record["reason"]),
                readings=tuple((str(entry["constant"]), float.fromhex(entry["written"])) for entry in record["readings"]),
                version=str(record["version"]),
                floats=None if record["floats"] is None else FloatReport.from_json(record["floats"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
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
        most = len(draws) + self.difference.redraws if self.error_bound is not None and self.difference else math.inf
        if draws != sorted(set(draws)) or (draws and draws[-1] >= most):
            raise InvalidInput(f"certificate: rounds of the draws {draws} are not distinct tests in order")
        bound = None if self.difference is None else self.difference.error_bound(len(self.rounds))
        if self.untested:
            bound = 0.0
        if self.error_bound is not None and (bound is None or not math.isclose(self.error_bound, bound, rel_tol=1e-9)):
            raise InvalidInput(f"certificate: error_bound {self.error_bound} does not follow from its entries ({bound} does)")
        evidence = self.rounds or self.untested
        if self.accepted and (not evidence or self.error_bound is None or self.error_bound > self.max_error):
            raise InvalidInput("certificate: accepted, though its rounds do not reach max_error")
        if self.agreed and not evidence:
            raise InvalidInput("certificate: agreed, though no test was run")


def digest(graph: Graph) -> str:
    """What identifies a graph in a certificate: the SHA-256 of its JSON with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(graph_to_json(graph), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _difference(record: Mapping[str, Any]) -> Difference:
    functions = tuple(Function(str(f["name"]), int(f["pairs"]), _terms(f["argument"])) for f in record["functions"])
    family = FieldFamily(int(record["family"]["q_bits"]), int(record["family"]["modulus"]))
    radicand = None if record["radicand"] is None else _terms(record["radicand"])
    alike, properties = bool(record["alike"]), bool(record["properties"])
    return Difference(_terms(record["output"]), functions, family, int(record["conjugates"]), radicand, alike, properties)


def _terms(record: Mapping[str, Any]) -> Terms:
    return Terms(**{entry.name: int(record[entry.name]) for entry in fields(Terms)})


def _axis(record: Mapping[str, Any]) -> ParallelAxis:
    inputs, outputs = (tuple(None if dim is None else int(dim) for dim in record[name]) for name in ("inputs", "outputs"))
    numbers = (tuple(map(int, record[name])) for name in ("sums", "input_widths", "output_widths"))
    return ParallelAxis(int(record["size"]), inputs, outputs, *numbers)


def _finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None


def _round(record: Mapping[str, Any]) -> Round:
    return Round(int(record["draw"]), int(record["p"]), int(record["q"]), int(record["omega"]))
