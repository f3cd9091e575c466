"""What a verification did and what it proves: a record from which anyone can repeat it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from typing import Any

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import FieldPair
from mugraph.errors import InvalidInput
from mugraph.ir.graph import Graph, Value
from mugraph.ir.serialize import graph_to_json
from mugraph.verifier.axis_marks import Widths
from mugraph.verifier.bounds import Difference, Function, Terms
from mugraph.verifier.float_report import FloatReport
from mugraph.verifier.parallel_axes import ParallelAxis
from mugraph.version import __version__

FORMATS = (6, 7)
"""Certificates that are read and written: in 7 there are pieces."""


class Outcome(StrEnum):
    """The answer to whether two programs compute the same.

    `equivalent` comes with a bound on its error, `different` with a witness that anyone can replay; all else is `undecided`.
    """

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


def power_of_two(number: float) -> str:
    """The least power of two that is not below a number of at least 0: `2^-40`; small whole numbers as they are."""
    if number in range(1025):
        return str(int(number))
    if isinstance(number, int):  # which may be larger than any float
        return f"2^{(number - 1).bit_length()}"
    mantissa, exponent = math.frexp(number)
    return f"2^{exponent - (mantissa == 0.5)}"


def at_most(bound: float) -> str:
    """A bound in three digits, which are not below it: `5.34e-14`."""
    return f"{float(Context(3, ROUND_CEILING).create_decimal(bound)):.3g}"


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


@dataclass(frozen=True, slots=True, repr=False)
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

    A proof in `pieces` has its tests in those, and none of its own: pairs of tensors of the two graphs, each with a certificate,
    the graphs' outputs among them. `passed_over` tries to prove pairs were in vain, and are no part of it.
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
    pieces: tuple[ProvedPiece, ...] = ()
    passed_over: int = 0

    def __repr__(self) -> str:
        """One line: the outcome and its bound; `to_json` has everything."""
        return f"<Certificate: {self.in_words}>"

    @property
    def in_words(self) -> str:
        """The outcome, and how probable it is that a wrong pair ends so or why nothing is said of that."""
        if self.outcome is Outcome.EQUIVALENT and self.error_bound is not None:
            return f"{self.outcome}, but for a probability of at most {power_of_two(self.error_bound)}"
        return f"{self.outcome}: {self.reason.removeprefix(f'{self.outcome}: ')}" if self.reason else str(self.outcome)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        record = asdict(replace(self, floats=None, pieces=()))
        record["axes"] = [_axis_object(axis) for axis in self.axes]
        record["semantics"] = dict(self.semantics)
        record["readings"] = [{"constant": constant, "written": written.hex()} for constant, written in self.readings]
        record["floats"] = None if self.floats is None else self.floats.to_json()
        if self.difference is not None:
            record["theorem_2"] = _finite(self.difference.theorem_2())
        del record["pieces"], record["passed_over"]
        if self.pieces:
            record |= {"pieces": [piece.to_json() for piece in self.pieces], "passed_over": self.passed_over}
        return {"format": FORMATS[bool(self.pieces)], "claim": self.claim, "accepted": self.accepted, **record}

    @classmethod
    def of_itself(cls, graph: str, max_error: float, seed: int) -> Certificate:
        """What there is to say of a graph, by its digest, and itself."""
        return cls(graph, graph, seed, max_error, (), 0, (), None, (), 0.0, Outcome.EQUIVALENT, Tests.AGREED, "")

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
        assert self.error_bound is not None, "what is accepted has a bound"
        functions = list(dict.fromkeys(function.name for each in self.differences for function in each.functions))
        properties = any(each.properties for each in self.differences)
        kind = "function with the properties in `semantics`" if properties else "function"
        whatever = f", whatever {kind} stands for {', '.join(functions)}" if functions else ""
        # rows and a whole made of them have one size
        alone = itertools.takewhile(lambda axis: not axis.apart, self.axes)
        sizes = ", at any size of the parallel axes" if any(not axis.sums for axis in alone) else ""
        pieces = f", by {len(self.pieces)} pieces proved one from the other" if self.pieces else ""
        equal = f"every output element is the same function of real inputs wherever both are defined{whatever}{sizes}{pieces}"
        return f"{equal}; a pair that is not passes with probability at most {at_most(self.error_bound)} over the recorded draw"

    @property
    def untested(self) -> bool:
        """Whether the two graphs are one, so that no test was needed."""
        return self.left == self.right and not self.rounds

    @property
    def all_rounds(self) -> tuple[Round, ...]:
        """The random tests, those of pieces included."""
        return (*self.rounds, *(each for piece in self.pieces for each in piece.certificate.all_rounds))

    @property
    def tests_run(self) -> int:
        """How many random tests there were, those of pieces included."""
        return len(self.all_rounds)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What bounds the differences of the graphs, or of the pieces that the proof has."""
        certificates = (self, *(piece.certificate for piece in self.pieces))
        return tuple(each.difference for each in certificates if each.difference is not None)

    @property
    def bound_of_entries(self) -> float | None:
        """The bound on the error that the rounds give, or the pieces; None where there is none."""
        if self.untested:
            return 0.0
        if not self.pieces:
            return None if self.difference is None else self.difference.error_bound(len(self.rounds))
        tried = self.passed_over * self.pieces[0].certificate.max_error
        return tried + sum(piece.certificate.error_bound or 0.0 for piece in self.pieces)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Certificate:
        """Read a certificate; raises InvalidInput, naming the entry, when it is malformed or contradicts itself."""
        if not isinstance(record, Mapping):
            raise InvalidInput(f"certificate: expected an object, found {type(record).__name__}")
        if type(number := record.get("format")) is int and number > FORMATS[-1]:
            raise InvalidInput(f"certificate: written by a newer mugraph (format {number}, here {FORMATS[-1]}); use that")
        if number not in FORMATS:
            raise InvalidInput(f"certificate: format {number!r} is not {FORMATS[-1]}; use the mugraph that wrote it")
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
                pieces=tuple(map(ProvedPiece.from_json, record.get("pieces", ()))),
                passed_over=int(record.get("passed_over", 0)),
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
        if self.passed_over < 0:
            raise InvalidInput(f"certificate: passed_over is {self.passed_over}, and less than nothing was not tried")
        bound = self.bound_of_entries
        if self.error_bound is not None and (bound is None or not math.isclose(self.error_bound, bound, rel_tol=1e-9)):
            raise InvalidInput(f"certificate: error_bound {self.error_bound} does not follow from its entries ({bound} does)")
        evidence = self.rounds or self.untested or self.pieces
        if self.accepted and (not evidence or self.error_bound is None or self.error_bound > self.max_error):
            raise InvalidInput("certificate: accepted, though its rounds do not reach max_error")
        if self.agreed and not evidence:
            raise InvalidInput("certificate: agreed, though no test was run")
        for number, piece in enumerate(self.pieces):
            piece.check(number, self.pieces[0].certificate.max_error)


@dataclass(frozen=True, slots=True)
class ProvedPiece:
    """Two tensors that are equal, one of each graph, with the certificate of it.

    Of functions that are compared call by call, a pair of programs whose results are equal, by number and without cuts.

    `cuts` are what both are computed of beside inputs: for each the numbers of earlier pieces, all of whose tensors are equal.
    The certificate is of graphs that take the inputs which either tensor needs, in order, and then the cuts.
    """

    left: Value
    right: Value
    cuts: tuple[tuple[int, ...], ...]
    certificate: Certificate

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {
            "left": list(self.left),
            "right": list(self.right),
            "cuts": list(map(list, self.cuts)),
            "certificate": self.certificate.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ProvedPiece:
        """Read a piece; raises what reading a certificate raises."""
        left, right = (Value(*map(int, record[side])) for side in ("left", "right"))
        cuts = tuple(tuple(map(int, members)) for members in record["cuts"])
        return cls(left, right, cuts, Certificate.from_json(record["certificate"]))

    def check(self, number: int, max_error: float) -> None:
        """Whether the piece of this number is proved, and cut at earlier ones only; raises InvalidInput."""
        if not self.certificate.accepted or self.certificate.max_error != max_error:
            raise InvalidInput(f"certificate: piece {number} is not proved, or up to another error than the others")
        if any(not members or not all(0 <= earlier < number for earlier in members) for members in self.cuts):
            raise InvalidInput(f"certificate: piece {number} is cut where nothing is proved before it")


def digest(graph: Graph) -> str:
    """What identifies a graph in a certificate: the SHA-256 of its JSON with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(graph_to_json(graph), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _difference(record: Mapping[str, Any]) -> Difference:
    functions = tuple(Function(str(f["name"]), int(f["pairs"]), _terms(f["argument"])) for f in record["functions"])
    family = FieldFamily(int(record["family"]["q_bits"]), int(record["family"]["modulus"]))
    radicand = None if record["radicand"] is None else _terms(record["radicand"])
    alike, properties = bool(record["alike"]), bool(record["properties"])
    variables = tuple(map(int, record.get("root_variables", ())))
    conjugates = int(record["conjugates"])
    return Difference(_terms(record["output"]), functions, family, conjugates, radicand, alike, properties, variables)


def _terms(record: Mapping[str, Any]) -> Terms:
    return Terms(**{entry.name: int(record[entry.name]) for entry in fields(Terms)})


def _axis(record: Mapping[str, Any]) -> ParallelAxis:
    inputs, outputs = (tuple(None if dim is None else int(dim) for dim in record[name]) for name in ("inputs", "outputs"))
    sums = tuple(map(int, record["sums"]))
    read, written = (tuple(map(_widths, record[name])) for name in ("input_widths", "output_widths"))
    apart = tuple(map(int, record.get("apart", ())))
    return ParallelAxis(int(record["size"]), inputs, outputs, sums, read, written, bool(record.get("narrow", True)), apart)


def _axis_object(axis: ParallelAxis) -> dict[str, Any]:
    """An axis with a number in the place of the widths of one stretch."""
    record = asdict(axis)
    if not axis.apart:
        del record["apart"]
    for name in ("input_widths", "output_widths"):
        record[name] = [widths[0] if len(widths) == 1 else list(widths) for widths in record[name]]
    return record


def _widths(entry: object) -> Widths:
    return tuple(map(int, entry)) if isinstance(entry, list) else (int(entry),)  # type: ignore[call-overload]


def _finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None


def _round(record: Mapping[str, Any]) -> Round:
    return Round(int(record["draw"]), int(record["p"]), int(record["q"]), int(record["omega"]))
