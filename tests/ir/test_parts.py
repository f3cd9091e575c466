"""Slices move to the inputs and concatenations to the outputs, and what is computed stays the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

import mugraph
from mugraph.devices import device_for
from mugraph.errors import UnsupportedOperator
from mugraph.ir import Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.parts import parted
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.regions import Digit
from mugraph.ir.scans import SCANS
from mugraph.ir.validity import check
from mugraph.search import search

PARTS = {"slice", "concat"}


def inputs(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1.5, node.output.shape) for node in graph.inputs()]


def assert_same(program: Graph, other: Graph) -> None:
    check(other)
    given = inputs(program)
    wanted, got = (evaluate(graph, given, FloatArithmetic()) for graph in (program, other))
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


class RandomProgram:
    """A program of operators that move parts, and others, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.rng, self.program = np.random.default_rng(seed), Program()
        self.tensors: list[ProgramTensor] = []
        for number in range(self.rng.integers(1, 4)):
            shape = tuple(int(size) for size in self.rng.choice([1, 2, 3, 4, 6, 8], self.rng.integers(1, 4)))
            self.tensors.append(self.program.input(f"x{number}", shape))

    def graph(self, moves: int, among: Sequence[str] = ()) -> Graph:
        for _ in range(moves):
            made = getattr(self, str(self.rng.choice(among or MOVES)))(self.any())
            if made is not None and math.prod(made.shape) <= 4096:
                self.tensors.append(made)
        self.program.output(*dict.fromkeys([self.tensors[-1], self.any()]))
        return self.program.graph

    def any(self) -> ProgramTensor:
        return self.tensors[-1 - min(len(self.tensors) - 1, int(self.rng.exponential(1.5)))]

    def dim(self, x: ProgramTensor) -> int | None:
        return int(self.rng.integers(len(x.shape))) if x.shape else None

    def slice(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        if dim is None:
            return None
        n = x.shape[dim]
        size, step = int(self.rng.integers(1, n + 1)), int(self.rng.choice([1, 1, 2, -1]))
        room = n - 1 - (size - 1) * abs(step)
        if room < 0:
            return None
        first = int(self.rng.integers(room + 1))
        return x.slice(dim, first if step > 0 else first + (size - 1) * -step, size, step)

    def concat(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        fitting = [y for y in self.tensors if dim is not None and self.fits(x, y, dim)]
        if dim is None or not fitting:
            return None
        return self.program.concat([x, fitting[int(self.rng.integers(len(fitting)))]], dim)

    def fits(self, x: ProgramTensor, y: ProgramTensor, dim: int) -> bool:
        same = len(x.shape) == len(y.shape)
        return same and all(a == b for d, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if d != dim)

    def halves(self, x: ProgramTensor) -> ProgramTensor | None:
        """The two halves exchanged, one with another sign."""
        dim = self.dim(x)
        if dim is None or x.shape[dim] % 2:
            return None
        half = x.shape[dim] // 2
        return self.program.concat([-x.slice(dim, half, half), x.slice(dim, 0, half)], dim)

    def merge(self, x: ProgramTensor) -> ProgramTensor | None:
        if len(x.shape) < 2:
            return None
        dim = int(self.rng.integers(len(x.shape) - 1))
        return x.reshape(*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :])

    def divide(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        if dim is None or x.shape[dim] % 2:
            return None
        return x.reshape(*x.shape[:dim], x.shape[dim] // 2, 2, *x.shape[dim + 1 :])

    def transpose(self, x: ProgramTensor) -> ProgramTensor:
        return x.permute(*(int(dim) for dim in self.rng.permutation(len(x.shape))))

    def repeat(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        return None if dim is None else x.repeat(dim, 2)

    def exp(self, x: ProgramTensor) -> ProgramTensor:
        return (x * 0.1).exp()

    def add(self, x: ProgramTensor) -> ProgramTensor | None:
        for y in reversed(self.tensors[:-1]):
            try:
                np.broadcast_shapes(x.shape, y.shape)
            except ValueError:
                continue
            return x + y
        return None

    def sum(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        return None if dim is None else x.sum(dim, keepdim=bool(self.rng.integers(2)))

    def amax(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        return None if dim is None else x.amax(dim, keepdim=True)

    def flip(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        return None if dim is None else x.slice(dim, x.shape[dim] - 1, x.shape[dim], -1)

    def scan(self, x: ProgramTensor) -> ProgramTensor | None:
        dim = self.dim(x)
        return None if dim is None else (x * 0.5).apply(str(self.rng.choice(list(SCANS))), dim=dim)

    def matmul(self, x: ProgramTensor) -> ProgramTensor | None:
        fitting = [y for y in self.tensors if len(x.shape) > 1 and len(y.shape) == 2 and y.shape[0] == x.shape[-1]]
        return x @ fitting[int(self.rng.integers(len(fitting)))] if fitting else None


MOVES = ["slice", "slice", "concat", "concat", "halves", "halves", "merge", "divide", "transpose", "repeat", "exp", "add", "add"]
MOVES += ["sum", "amax", "matmul", "matmul"]


def test_random_programs_keep_their_meaning() -> None:
    cores = refused = 0
    for seed in range(600):
        graph = RandomProgram(seed).graph(10)
        try:
            found = parted(graph)
        except UnsupportedOperator:
            refused += 1
            continue
        if found is not None:
            cores += 1
            check(found.core)
            assert not PARTS & {node.op for node in found.core.nodes}
            assert_same(graph, found.around(found.core))
    assert cores > 250
    assert refused < 60


def test_random_programs_with_scans_keep_their_meaning() -> None:
    """Those whose parts do not begin where a scan does are refused."""
    moves = ["scan", "scan", "flip", "flip", "slice", "transpose", "merge", "divide", "exp", "add", "sum", "matmul"]
    cores, opposite = 0, 0
    for seed in range(400):
        graph = RandomProgram(seed).graph(8, moves)
        try:
            found = parted(graph)
        except UnsupportedOperator:
            continue
        if found is not None and any(node.op in SCANS for node in found.core.nodes):
            cores += 1
            check(found.core)
            assert not PARTS & {node.op for node in found.core.nodes}
            assert_same(graph, found.around(found.core))
            written, after = ([node.op for node in each.nodes if node.op in SCANS] for each in (graph, found.core))
            opposite += not set(after) <= set(written)
    assert cores > 100
    assert opposite > 20


def test_parts_that_do_not_begin_where_a_scan_does_are_refused() -> None:
    program = Program()
    x = program.input("x", (4, 6))
    program.output(x.apply("cumsum", dim=1).slice(1, 2, 4) * 2)
    with pytest.raises(UnsupportedOperator, match="a part of what cumsum makes that does not begin where it does"):
        parted(program.graph)
    program = Program()
    x = program.input("x", (4, 6))
    program.output(program.concat([x, x * 2], 1).apply("cumprod", dim=1))
    with pytest.raises(UnsupportedOperator, match="cumprod of tensors that are put together along its dimension"):
        parted(program.graph)


def rotary() -> Program:
    program = Program()
    x, w = program.input("x", (5, 24)), program.input("w", (24, 32))
    cos, sin = program.input("cos", (5, 1, 8)), program.input("sin", (5, 1, 8))
    heads = (x @ w).reshape(5, 4, 8)
    turned = program.concat([-heads.slice(2, 4, 4), heads.slice(2, 0, 4)], 2)
    program.output(heads * cos + turned * sin)
    return program


def gated() -> Program:
    program = Program()
    x, w = program.input("x", (6, 16)), program.input("w", (16, 24))
    both = x @ w
    program.output(both.slice(1, 0, 12).silu() * both.slice(1, 12, 12))
    return program


def over_two_caches() -> Program:
    program = Program()
    q, old, new, values = (program.input(name, (rows, 8)) for name, rows in (("q", 3), ("old", 6), ("new", 2), ("values", 8)))
    keys = program.concat([old, new], 0)
    program.output((q @ keys.transpose(0, 1)).softmax(1) @ values)
    return program


def reversed_and_padded() -> Program:
    program = Program()
    x, w = program.input("x", (4, 6)), program.input("w", (8, 5))
    zeros = program.constant(0).expand(4, 1)
    program.output(program.concat([zeros, x.slice(1, 5, 6, -1), zeros], 1) @ w)
    return program


def some_of_a_softmax() -> Program:
    """Exponents that leave the number range unless the maximum of the whole row is subtracted."""
    program = Program()
    x, w = program.input("x", (4, 12)), program.input("w", (8, 5))
    program.output(((x * 40).softmax(1)).slice(1, 0, 8) @ w)
    return program


EXAMPLES = {each.__name__: each for each in (rotary, gated, over_two_caches, reversed_and_padded, some_of_a_softmax)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_program_with_parts_is_searched(name: str) -> None:
    program = EXAMPLES[name]().graph
    result = search(program, device_for("cpu"), budget=10)
    assert any(len(candidate.graph.kernels()) - _parts(candidate.graph) == 1 for candidate in result.candidates)
    for candidate in result.candidates:
        check(candidate.graph)
        assert_same(program, candidate.graph)


def _parts(graph: Graph) -> int:
    return sum(node.op == "concat" for node in graph.nodes)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90", "triton:sm_90"])
def test_kernels_of_a_program_with_parts(name: str, target: str) -> None:
    program = EXAMPLES[name]()
    found = mugraph.superoptimize(program, target=target, profile=False, budget=20, cache="off")
    assert found.found
    assert found.certificate.accepted
    if target == "cpu":
        given = [array.astype(np.float32) for array in inputs(program.graph)]
        exact = evaluate(program.graph, [array.astype(np.float64) for array in given], FloatArithmetic())
        np.testing.assert_allclose(found(*given), exact[0], rtol=1e-4, atol=1e-5)


def test_parts_have_the_type_of_the_whole() -> None:
    program = Program()
    x, y = program.input("x", (4, 6), "bf16"), program.input("y", (4, 6))
    joined = program.concat([x, y], 1)
    program.output(joined.slice(1, 0, 3) * 2, joined.exp())
    found = parted(program.graph)
    assert found is not None
    assert_same(program.graph, found.around(found.core))
    assert found.around(found.core).output_tensors == program.graph.output_tensors


def test_what_only_moves_data_has_no_core() -> None:
    program = Program()
    x = program.input("x", (4, 6))
    program.output(program.concat([x.slice(1, 3, 3), x.slice(1, 0, 3)], 1))
    assert parted(program.graph) is None


def test_a_program_without_parts_is_left_alone() -> None:
    program = Program()
    program.output(program.input("x", (4, 6)).exp())
    assert parted(program.graph) is None


def test_tensors_of_many_parts_are_refused() -> None:
    program = Program()
    x = program.input("x", (64, 3))
    rows = [x.slice(0, row, 1) * (row + 1) for row in range(64)]
    joined = program.concat(rows, 0)
    program.output((joined.reshape(64, 1, 3) * joined.reshape(1, 64, 3)).exp())
    with pytest.raises(UnsupportedOperator, match="so many parts"):
        parted(program.graph)


@pytest.mark.parametrize("inner", [2, 3, 4, 6])
def test_a_digit_that_is_split_has_the_same_positions(inner: int) -> None:
    for start in range(12):
        for count in range(1, 13):
            for step in (-3, -2, -1, 1, 2, 3, 4, 6):
                if not 0 <= start + (count - 1) * step < 12:
                    continue
                digit = Digit(12, start, count, step)
                try:
                    slow, fast = digit.split(inner)
                except Exception:
                    continue
                found = [a * inner + b for a in _positions(slow) for b in _positions(fast)]
                assert found == _positions(digit)


def _positions(digit: Digit) -> list[int]:
    return [digit.start + number * digit.step for number in range(digit.count)]
