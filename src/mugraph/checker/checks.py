"""The checks of a saved result, in order: files, sizes, axes, tests in finite fields, floating point, and the verifier's
record.

What the record of the verifier's own tests says must be of one piece, but the checker's verdict rests on none of it.
"""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.checker import residue_fields
from mugraph.checker.bound import Bound, bound_of
from mugraph.checker.claimed_axes import Slices, slices_of
from mugraph.checker.constants import check_constants
from mugraph.checker.float_errors import check_floats, measure, part_compared
from mugraph.checker.form import check_shapes, graph_of
from mugraph.checker.function_properties import outputs
from mugraph.checker.interpreter import run
from mugraph.checker.lookups import with_inputs_for_lookups
from mugraph.checker.proof_pieces import pieces_of
from mugraph.checker.residue_fields import RootedFields, RootSigns, is_prime
from mugraph.checker.saved_files import Json, Rejected, SavedFiles, Undecided, graph_digest, read, require_format
from mugraph.checker.zero_divisors import divides_by_zero

_UNBOUNDED_ROUNDS = 4
"""Tests where no bound can be stated."""


class Status(StrEnum):
    """What became of a part of a saved result."""

    CHECKED = "checked"
    NOT_CHECKED = "not checked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Part:
    """What became of a part of a saved result, and why."""

    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the checker found out by itself.

    `error_bound` is the probability that graphs which are not equal passed its `rounds` tests; None where its theorem gives
    none below 1. `reached` says whether that is at most the `max_error` the certificate asks for. `float_error` is the error
    of the graph in float32 against the program in float64, on slices of standard normal inputs; `recorded_error` is what the
    certificate says of its kernels (None for a program that runs as it was written and was not measured).
    """

    rounds: int
    error_bound: float | None
    max_error: float
    axes: int
    float_error: float
    recorded_error: float | None
    seconds: float

    @property
    def reached(self) -> bool:
        return self.error_bound is not None and self.error_bound <= self.max_error


PARTS = ("files", "program", "graph", "floats", "record", "sources")
"""What a saved result consists of, in the order in which it is checked."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What became of each of the PARTS, the report where none was refused, what refused one, and the files as they were
    read."""

    parts: dict[str, Part]
    report: CheckReport | None
    refusal: Rejected | None
    saved: SavedFiles | None


def check_folder(
    folder: str | Path, *, rounds: int | None = None, seed: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> CheckReport:
    """Check a folder that `Superoptimized.save` wrote, from its files alone.

    `rounds` tests are run, by default as many as the certificate's `max_error` takes; `seed` makes them repeatable, by
    default they cannot be foreseen. `tell` gets lines of progress. Raises Rejected, naming what is wrong.
    """
    found = examine(folder, rounds=rounds, seed=seed, tell=tell)
    if found.report is None:
        raise found.refusal or Rejected("nothing was found out")
    return found.report


def examine(
    folder: str | Path, *, rounds: int | None = None, seed: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> Examination:
    """The same, part by part: what follows a part that was refused is not checked. Raises nothing that a folder can cause."""
    rng = random.Random(secrets.randbits(64) if seed is None else seed)
    check = _Check(Path(folder), rounds, rng, tell)
    try:
        report = check.run()
    except Rejected as refusal:
        return Examination(check.parts, None, refusal, check.saved)
    return Examination(check.parts, report, None, check.saved)


class _Check:
    """One examination; `parts` is filled as it goes on."""

    def __init__(self, folder: Path, rounds: int | None, rng: random.Random, tell: Callable[[str], None]) -> None:
        self.folder, self.rounds, self.rng, self.tell = folder, rounds, rng, tell
        self.parts = {part: Part(Status.NOT_CHECKED, "what comes before it was refused") for part in PARTS}
        self.saved: SavedFiles | None = None

    def run(self) -> CheckReport:
        started = time.monotonic()
        with self._part("files"):
            self.saved = saved = read(self.folder)
            certificate = saved.document("certificate.json")
        self._checked("files", "all hashes are as recorded")
        self.parts["sources"] = Part(Status.NOT_CHECKED, "their hashes are as recorded, but nothing here prints them again")
        with self._part("program"):
            program = _graph(saved, "program.json", certificate, "left")
            constants = check_constants(saved, program)
        brought = f"; values beside it are of its last inputs ({constants})" if constants else ""
        self._checked("program", f"shapes and types inferred again; the graph that the certificate calls left{brought}")
        with self._part("graph"):
            graph = _graph(saved, "graph.json", certificate, "right")
            max_error = _claimed(certificate)
            axes = list(certificate["axes"])
            _alike(program, graph)
            slices = slices_of(*with_inputs_for_lookups(program, graph), axes, self.rng)
            self.tell(f"axes: {slices.cut} proved parallel, {len(axes) - slices.cut} tested at full size")
            wanted, bound = self.equal(program, graph, slices, certificate)
        report = CheckReport(wanted, bound if bound < 1 else None, max_error, slices.cut, 0.0, None, 0.0)
        self._settle(report)
        with self._part("floats"):
            if program != graph:
                made = _outputs(program)
                check_floats(certificate.get("floats"), [each["dtype"] for each in made], [each["shape"] for each in made])
            left, right, *_ = slices.joint or slices
            float_error = measure(left, right, _shapes(left), self.rng)
            recorded = (certificate.get("floats") or {}).get("max_relative_error")
        part = part_compared(certificate.get("floats"))
        kernels = "those of kernels are a consistent record" + (f", {part}" if part else "")
        self._checked("floats", f"stable on slices in float32 (error {float_error:.1e}); {kernels}")
        with self._part("record"):
            check_record(certificate)
        self._checked("record", "the verifier's own tests, as recorded, are of one piece; no verdict rests on them")
        return replace(report, float_error=float_error, recorded_error=recorded, seconds=time.monotonic() - started)

    def equal(self, program: Json, graph: Json, slices: Slices, certificate: Json) -> tuple[int, float]:
        """How many tests agreed, and the bound that follows."""
        if program == graph:
            self.tell("graphs: the muGraph is the program")
            return 0, 0.0
        if "pieces" in certificate:
            if any(divides_by_zero(side, self.rng) for side in (slices.left, slices.right)):
                raise Rejected("program.json or graph.json divides by zero whatever its inputs are: pieces say nothing of it")
            return self._by_pieces(*with_inputs_for_lookups(program, graph), certificate)
        return self._on_slices(slices, certificate)

    def _on_slices(self, slices: Slices, certificate: Json) -> tuple[int, float]:
        """The same of graphs at size 1 of axes; of the joint ones where those that take inputs twice do not agree.

        There are two ways to be accepted then, each with half of the error."""
        if slices.joint is None:
            return _tested(slices.left, slices.right, certificate, self.rounds, self.rng, self.tell)
        half = {**certificate, "max_error": certificate["max_error"] / 2}
        with contextlib.suppress(Rejected):
            rounds, bound = _tested(slices.left, slices.right, half, self.rounds, self.rng, self.tell)
            if bound <= half["max_error"]:
                return rounds, bound
        self.tell("rows and the whole that they are of are tested together, as tests apart do not show that they agree")
        return _tested(slices.joint.left, slices.joint.right, half, self.rounds, self.rng, self.tell)

    def _by_pieces(self, program: Json, graph: Json, certificate: Json) -> tuple[int, float]:
        """The same of a proof in pieces, whose bounds add up."""
        tests, error = 0, 0.0
        total = len(certificate["pieces"])
        for number, (left, right, piece) in enumerate(pieces_of(program, graph, certificate), 1):
            if _nameless(left) == _nameless(right):
                continue
            self.tell(f"piece {number} of {total}")
            try:
                slices = slices_of(left, right, list(piece["axes"]), self.rng)
                rounds, bound = self._on_slices(slices, piece)
            except Rejected as refusal:
                raise type(refusal)(f"piece {number} of the proof: {refusal}") from None
            tests, error = tests + rounds, error + bound
        return tests, error

    def _settle(self, report: CheckReport) -> None:
        """What the tests say of the graph."""
        if report.reached:
            self._checked("graph", "computes what program.json computes" if report.rounds else "the program itself")
            return
        bound = "no bound" if report.error_bound is None else f"a bound of {report.error_bound:.3g}"
        agreed = f"{report.rounds} tests agreed, with {bound}; the certificate asks for {report.max_error:.3g}"
        self.parts["graph"] = Part(Status.NOT_CHECKED, agreed)

    def _checked(self, part: str, reason: str) -> None:
        self.parts[part] = Part(Status.CHECKED, reason)
        self.tell(f"{part}: {reason}")

    def _part(self, part: str) -> contextlib.AbstractContextManager[None]:
        return examined(self.parts, part)


MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What reading something raises that is not of the form it should be of."""


@contextlib.contextmanager
def examined(parts: dict[str, Part], part: str) -> Iterator[None]:
    """Whatever is wrong inside is wrong with the part: what became of it is noted, and Rejected is raised."""
    try:
        try:
            yield
        except MALFORMED as error:
            why = f"the saved graphs or the certificate are malformed ({type(error).__name__}: {error})"
            raise Rejected(why) from None
    except Rejected as refusal:
        status = Status.NOT_CHECKED if isinstance(refusal, Undecided) else Status.REFUSED
        parts[part] = Part(status, str(refusal))
        raise


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Whatever is wrong inside is wrong with something that has a name: Rejected, or Undecided, is raised with it."""
    try:
        yield
    except MALFORMED as error:
        raise Rejected(f"{what} is malformed ({type(error).__name__}: {error})") from None
    except Rejected as refusal:
        raise type(refusal)(f"{what}: {refusal}") from None


def tested_again(
    left: Json, right: Json, certificate: Json, rounds: int | None, rng: random.Random, tell: Callable[[str], None]
) -> tuple[int, float]:
    """How many tests of two kernel graphs agreed, and the bound that follows, along the axes of their certificate and by the
    functions that it speaks of. Raises Rejected where the graphs differ."""
    _alike(left, right)
    slices = slices_of(*with_inputs_for_lookups(left, right), list(certificate["axes"]), rng)
    return _Check(Path(), rounds, rng, tell).equal(left, right, slices, certificate)


def _graph(saved: SavedFiles, name: str, certificate: Json, side: str) -> Json:
    """A graph of the right form, with the shapes it declares, and the one that the certificate speaks of."""
    document = saved.document(name)
    graph = graph_of(document, name)
    check_shapes(graph, name)
    if certificate.get(side) != graph_digest(document):
        raise Rejected(f"{name}: not the graph that the certificate speaks of ({side})")
    return graph


def _claimed(certificate: Json) -> float:
    """The `max_error` of a certificate that claims to have reached it."""
    if certificate.get("accepted") is not True:
        raise Rejected("certificate.json: it does not say that the graphs were found equivalent")
    if certificate.get("error_bound") is None:
        raise Undecided("certificate.json: it claims no error bound, and only what is claimed with one can be checked")
    if not 0 <= certificate["error_bound"] <= certificate["max_error"]:
        raise Rejected("certificate.json: its error_bound is not within its max_error")
    max_error = float(certificate["max_error"])
    if not 0 < max_error < 1:
        raise Rejected(f"certificate.json: max_error {max_error} is not between 0 and 1")
    return max_error


def _tested(
    left: Json, right: Json, certificate: Json, rounds: int | None, rng: random.Random, tell: Callable[[str], None]
) -> tuple[int, float]:
    """How many tests agreed, and the bound that follows. Raises Rejected where the graphs differ."""
    squares = isinstance(certificate["difference"], dict) and certificate["difference"].get("radicand") is not None
    if squares:
        tell("roots: their squares take part, for every choice of signs; exponentials: functions like others")
    properties = (
        not squares and isinstance(certificate["difference"], dict) and certificate["difference"].get("properties") is True
    )
    if properties:
        tell("functions: their properties take part")
    bound = bound_of(left, right, _shapes(left), roots_factor=not squares, properties=properties)
    tests = _Tests(left, right, bound, rng, squares, properties)
    wanted = tests.bound.rounds_for(float(certificate["max_error"])) or _UNBOUNDED_ROUNDS if rounds is None else rounds
    tests.run(wanted, tell)
    return wanted, tests.bound.after(wanted)


def _alike(left: Json, right: Json) -> None:
    """Raise Rejected unless both graphs take and give tensors of the same shapes and types."""
    if _inputs(left) != _inputs(right):
        raise Rejected("graph.json: it takes inputs of other shapes or types than program.json")
    if _outputs(left) != _outputs(right):
        raise Rejected("graph.json: it gives outputs of other shapes or types than program.json")


def _nameless(graph: Json) -> tuple[Any, ...]:
    """A graph but for what its inputs are called."""
    nodes = [node if node["op"] != "input" else {**node, "attributes": node["attributes"]["shape"]} for node in graph["nodes"]]
    return nodes, graph["outputs"]


def _shapes(graph: Json) -> list[list[int]]:
    return [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"]


def _inputs(graph: Json) -> list[Json]:
    return [node["outputs"][0] for node in graph["nodes"] if node["op"] == "input"]


def _outputs(graph: Json) -> list[Json]:
    return [graph["nodes"][i]["outputs"][j] for i, j in graph["outputs"]]


@dataclass(slots=True)
class _Tests:
    left: Json
    right: Json
    bound: Bound
    rng: random.Random
    squares: bool
    """Whether roots square back, as the certificate says; otherwise they are multiplicative."""
    properties: bool
    """Whether functions have their properties, as the certificate says; otherwise they are any functions."""
    pattern: dict[str, list[int]] | None = None
    """Which arguments of functions are the same in the tests so far, where they must be alike."""

    def run(self, rounds: int, tell: Callable[[str], None]) -> None:
        """So many valid tests. Raises Rejected at the first difference."""
        redraws = 0
        for number in range(1, rounds + 1):
            while not self.agrees():
                redraws += 1
                if redraws > self.bound.redraws:
                    raise Rejected("no test can be evaluated: something is divided by zero, or a root of what is never a square")
            tell(f"test {number} of {rounds}: equal; error bound {self.bound.after(number):.3g}")

    def agrees(self) -> bool:
        """One test; False when it has no value. Raises Rejected where the graphs differ."""
        try:
            primes, key = residue_fields.draw(self.rng, self.bound.modulus, self.bound.count), self.rng.randbytes(32)
            inputs = [residue_fields.Fields(primes, key).random(shape, self.rng) for shape in _shapes(self.left)]
            different = [number for outputs in self.outputs(primes, key, inputs) for number in _different(*outputs)]
        except residue_fields.Undefined:
            return False
        if different:
            raise Rejected(f"graph.json: output {different[0]} is not what program.json computes (found by evaluation)")
        return True

    def outputs(
        self, primes: residue_fields.Primes, key: bytes, inputs: list[residue_fields.Residues]
    ) -> Iterator[list[list[residue_fields.Residues]]]:
        """The outputs of both graphs, for each choice of signs where roots square back."""
        if not self.squares:
            domain = residue_fields.Fields(primes, key, self.bound.free_roots)
            yield [outputs(graph, inputs, domain, self.properties) for graph in (self.left, self.right)]
            if self.pattern not in (None, domain.pattern):
                raise residue_fields.Undefined("arguments that are different coincide in one of the draws")
            self.pattern = domain.pattern
            return
        signs = RootSigns()
        for _ in signs.all():
            rooted = RootedFields(primes, key, self.bound.free_roots, signs=signs)
            narrow = [residue_fields.Residues(x.p, None) for x in inputs]
            yield [run(graph, narrow, rooted) for graph in (self.left, self.right)]


def _different(left: list[residue_fields.Residues], right: list[residue_fields.Residues]) -> list[int]:
    """The outputs that differ."""
    return [number for number, (x, y) in enumerate(zip(left, right, strict=True)) if _differs(x, y)]


def _differs(x: residue_fields.Residues, y: residue_fields.Residues) -> bool:
    equal_q = x.q is None or y.q is None or np.array_equal(x.q, y.q)
    return not (np.array_equal(x.p, y.p) and equal_q)


# --- the record of the verifier's own tests ----------------------------------------------------------------------------

_FORMAT, _FORMAT_IN_PIECES = 6, 7
_ENTRIES = {
    "format": int, "claim": str, "left": str, "right": str, "seed": int, "max_error": float, "rounds": list, "redraws": int,
    "axes": list, "difference": dict, "semantics": dict, "error_bound": float, "accepted": bool, "outcome": str, "tests": str,
    "reason": str, "readings": list, "version": str,
}  # fmt: skip
"""The entries of a certificate with an error bound, and their types; `floats` and `theorem_2` may be null."""
_NO_TESTS = {"difference": type(None)}
"""What differs in the certificate of a graph and itself, ..."""
_IN_PIECES = {**_NO_TESTS, "pieces": list, "passed_over": int}
"""... and in that of a proof in pieces, each with a certificate of its own."""
_PIECE = {"left", "right", "cuts", "certificate"}


def _written(bound: float) -> tuple[str, str]:
    """A bound in three digits, rounded up, and to the nearest, as certificates have it that were written earlier."""
    return f"{float(Context(3, ROUND_CEILING).create_decimal(bound)):.3g}", f"{bound:.3g}"


def check_record(certificate: Json) -> None:
    """Raise Rejected, naming the first entry of a certificate that is missing, superfluous, or contradicts another."""
    in_pieces = "pieces" in certificate
    require_format("certificate.json", certificate.get("format"), _FORMAT_IN_PIECES if in_pieces else _FORMAT)
    untested = certificate.get("left") == certificate.get("right") and certificate.get("rounds") == []
    special: dict[str, Any] = _IN_PIECES if in_pieces else _NO_TESTS if untested else {}
    entries = {**_ENTRIES, **special}
    for name, kind in entries.items():
        if type(certificate.get(name)) is not kind:
            raise Rejected(f"certificate.json: {name} is missing or no {kind.__name__}")
    if unknown := certificate.keys() - entries.keys() - {"floats", "theorem_2"}:
        raise Rejected(f"certificate.json: {min(unknown)} is no entry of a certificate")
    if (certificate["outcome"], certificate["tests"]) != ("equivalent", "agreed"):
        raise Rejected("certificate.json: outcome or tests are not those of an accepted certificate")
    if not all(_is_reading(entry) for entry in certificate["readings"]):
        raise Rejected("certificate.json: readings are no constants with the floats that were written")
    said = (
        ["one and the same"]
        if untested
        else [f"with probability at most {text}" for text in _written(certificate["error_bound"])]
    )
    if certificate["reason"] or not any(text in certificate["claim"] for text in said):
        raise Rejected("certificate.json: claim or reason is not what an accepted certificate with this error_bound says")
    if not all(isinstance(text, str) for text in certificate["semantics"].values()):
        raise Rejected("certificate.json: semantics are not given in words")
    if in_pieces:
        _check_pieces(certificate)
    elif not untested:
        _check_rounds(certificate["rounds"])


def _check_pieces(certificate: Json) -> None:
    """Each piece has a record of its own, and there are no other tests."""
    if certificate["rounds"] or certificate["passed_over"] < 0:
        raise Rejected("certificate.json: a proof in pieces has tests of its own, or passed over less than nothing")
    for number, piece in enumerate(certificate["pieces"]):
        if not isinstance(piece, dict) or piece.keys() != _PIECE:
            raise Rejected(f"certificate.json: piece {number} is no pair of tensors with cuts and a certificate")
        if "pieces" in piece["certificate"]:
            raise Rejected(f"certificate.json: piece {number} is in pieces itself")
        check_record(piece["certificate"])


def _check_rounds(rounds: list[Any]) -> None:
    """Each test was run in fields of its own, with a base of exponentials of the right order."""
    draws = [test["draw"] for test in rounds]
    if not rounds or draws != sorted({*draws}) or draws[0] < 0:
        raise Rejected("certificate.json: rounds are not distinct tests in order")
    for test in rounds:
        p, q, omega = test["p"], test["q"], test["omega"]
        if not (is_prime(p) and is_prime(q) and (p - 1) % q == 0 and omega % p != 1 and pow(omega, q, p) == 1):
            raise Rejected(f"certificate.json: rounds: p, q and omega of draw {test['draw']} are not those of a test")


def _is_reading(entry: Any) -> bool:
    """A constant, and the float that was written for it, in hexadecimal digits."""
    if not isinstance(entry, dict) or entry.keys() != {"constant", "written"} or not isinstance(entry["constant"], str):
        return False
    try:
        return math.isfinite(float.fromhex(entry["written"]))
    except (TypeError, ValueError, OverflowError):
        return False
