"""The checks of a saved result, in order: files, sizes, axes, tests in finite fields, and floating point."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mugraph.checker import fields
from mugraph.checker.axes import cut_axis
from mugraph.checker.bound import Bound, bound_of
from mugraph.checker.files import Json, Rejected, read
from mugraph.checker.floats import check_floats, measure
from mugraph.checker.interpreter import run
from mugraph.checker.record import check_record
from mugraph.checker.roots import RootedFields, Signs
from mugraph.checker.shapes import check_shapes

_UNBOUNDED_ROUNDS = 4
"""Tests where no bound can be stated."""


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


def check_folder(
    folder: str | Path, *, rounds: int | None = None, seed: int | None = None, tell: Callable[[str], None] = lambda line: None
) -> CheckReport:
    """Check a folder that `Superoptimized.save` wrote, from its files alone.

    `rounds` tests are run, by default as many as the certificate's `max_error` takes; `seed` makes them repeatable, by
    default they cannot be foreseen. `tell` gets lines of progress. Raises Rejected, naming what is wrong.
    """
    started = time.monotonic()
    saved = read(Path(folder))
    tell("files: all hashes are as recorded")
    certificate = saved.certificate
    if certificate.get("accepted") is not True:
        raise Rejected("certificate.json: it does not say that the graphs were found equivalent")
    if certificate.get("error_bound") is None:
        raise Rejected("certificate.json: it claims no error bound, and only what is claimed with one can be checked")
    try:
        if not 0 <= certificate["error_bound"] <= certificate["max_error"]:
            raise Rejected("certificate.json: its error_bound is not within its max_error")
        check_shapes(saved.program, "program.json")
        check_shapes(saved.graph, "graph.json")
        max_error, axes = float(certificate["max_error"]), list(certificate["axes"])
        if not 0 < max_error < 1:
            raise Rejected(f"certificate.json: max_error {max_error} is not between 0 and 1")
        left, right = _slice(saved.program, saved.graph, axes)
        tell(f"axes: {len(axes)} proved parallel")
        rng = random.Random(secrets.randbits(64) if seed is None else seed)
        if saved.program == saved.graph:
            tell("graphs: the muGraph is the program")
            wanted, bound = 0, 0.0
        else:
            wanted, bound = _tested(left, right, certificate, rounds, rng, tell)
            check_floats(certificate.get("floats"), [output["dtype"] for output in _outputs(saved.program)])
        check_record(certificate)
        float_error = measure(left, right, _shapes(left), rng)
        tell(f"floats: stable; error {float_error:.3g} in float32")
        recorded = (certificate.get("floats") or {}).get("max_relative_error")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise Rejected(f"the saved graphs or the certificate are malformed ({type(error).__name__}: {error})") from None
    error_bound, seconds = bound if bound < 1 else None, time.monotonic() - started
    return CheckReport(wanted, error_bound, max_error, len(axes), float_error, recorded, seconds)


def _tested(
    left: Json, right: Json, certificate: Json, rounds: int | None, rng: random.Random, tell: Callable[[str], None]
) -> tuple[int, float]:
    """How many tests agreed, and the bound that follows. Raises Rejected where the graphs differ."""
    squares = isinstance(certificate["difference"], dict) and certificate["difference"].get("radicand") is not None
    if squares:
        tell("roots: their squares take part, for every choice of signs")
    tests = _Tests(left, right, bound_of(left, right, _shapes(left), roots_factor=not squares), rng, squares)
    wanted = tests.bound.rounds_for(float(certificate["max_error"])) or _UNBOUNDED_ROUNDS if rounds is None else rounds
    tests.run(wanted, tell)
    return wanted, tests.bound.after(wanted)


def _slice(left: Json, right: Json, axes: list[Json]) -> tuple[Json, Json]:
    """Both graphs at size 1 of the certificate's axes, each proved parallel in both."""
    if _inputs(left) != _inputs(right):
        raise Rejected("graph.json: it takes inputs of other shapes or types than program.json")
    if _outputs(left) != _outputs(right):
        raise Rejected("graph.json: it gives outputs of other shapes or types than program.json")
    for axis in axes:
        if not isinstance(axis["inputs"], list) or len(axis["inputs"]) != len(_shapes(left)):
            raise Rejected("certificate.json: an axis does not say where it stands in each input")
        (left, ours), (right, theirs) = cut_axis(left, axis["inputs"]), cut_axis(right, axis["inputs"])
        if ours != theirs:
            raise Rejected("certificate.json: an axis comes out in different dimensions of the two graphs' outputs")
    return left, right


def _shapes(graph: Json) -> list[list[int]]:
    return [node["attributes"]["shape"] for node in graph["nodes"] if node["op"] == "input"]


def _inputs(graph: Json) -> list[Json]:
    return [node["outputs"][0] for node in graph["nodes"] if node["op"] == "input"]


def _outputs(graph: Json) -> list[Json]:
    return [graph["nodes"][i]["outputs"][j] for i, j in graph["outputs"]]


@dataclass(frozen=True, slots=True)
class _Tests:
    left: Json
    right: Json
    bound: Bound
    rng: random.Random
    squares: bool
    """Whether roots square back, as the certificate says; otherwise they are multiplicative."""

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
            primes, key = fields.draw(self.rng, self.bound.modulus, self.bound.count), self.rng.randbytes(32)
            inputs = [fields.Fields(primes, key).random(shape, self.rng) for shape in _shapes(self.left)]
            different = [number for outputs in self.outputs(primes, key, inputs) for number in _different(*outputs)]
        except fields.Undefined:
            return False
        if different:
            raise Rejected(f"graph.json: output {different[0]} is not what program.json computes (found by evaluation)")
        return True

    def outputs(self, primes: fields.Primes, key: bytes, inputs: list[fields.Residues]) -> Iterator[list[list[fields.Residues]]]:
        """The outputs of both graphs, for each choice of signs where roots square back."""
        if not self.squares:
            domain = fields.Fields(primes, key)
            yield [run(graph, inputs, domain) for graph in (self.left, self.right)]
            return
        signs = Signs()
        for _ in signs.all():
            rooted = RootedFields(primes, key, signs=signs)
            narrow = [fields.Residues(x.p, None) for x in inputs]
            yield [run(graph, narrow, rooted) for graph in (self.left, self.right)]


def _different(left: list[fields.Residues], right: list[fields.Residues]) -> list[int]:
    """The outputs that differ."""
    return [number for number, (x, y) in enumerate(zip(left, right, strict=True)) if _differs(x, y)]


def _differs(x: fields.Residues, y: fields.Residues) -> bool:
    equal_q = x.q is None or y.q is None or np.array_equal(x.q, y.q)
    return not (np.array_equal(x.p, y.p) and equal_q)
