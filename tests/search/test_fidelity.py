"""Theorem 1 on small programs: what Algorithm 1 finds, the closure engine finds, but for constructs it leaves out by name.

Graphs are compared by the values on their edges, so that two graphs are the same when they differ in the order of
nodes, in commutativity or in views only. Sizes are such that no tile of one axis has the size of another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from mugraph.errors import UndefinedInField
from mugraph.ir import Graph
from mugraph.ir.axes import axis_program
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search.algorithm1.engine import FieldTest

from .fidelity import PARTS, Exclusion, Family, Signature, by_algorithm_1, by_closure, descriptions, families
from .programs import finished

B, D, N, M, R = 8, 12, 20, 28, 4
PARTIAL, OUTER = Exclusion.PARTIAL_CONCATENATION, Exclusion.OUTER_PRODUCT


def program(function: Callable[..., ProgramTensor], *shapes: tuple[int, ...]) -> Graph:
    """The program of a function of inputs of these shapes."""
    p = Program()
    return finished(p, function(*(p.input(f"x{index}", shape) for index, shape in enumerate(shapes))))


def norm(x: ProgramTensor) -> ProgramTensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


@dataclass(frozen=True)
class Case:
    """A program, the limit of block operators, the exclusions that occur, and operators to enumerate beside the usual."""

    graph: Graph
    operators: int
    occur: frozenset[Exclusion] = frozenset()
    also: tuple[str, ...] = ()


CASES = {
    "product": Case(program(lambda x, w: x @ w, (B, D), (D, N)), 6),
    "scaled product": Case(program(lambda x, w: x * 0.5 @ w, (B, D), (D, N)), 6),
    "product with bias": Case(program(lambda x, w, c: x @ w + c, (B, D), (D, N), (N,)), 7),
    "sum of products": Case(program(lambda x, y, z: x @ z + y @ z, (B, D), (B, D), (D, N)), 7, frozenset(), ("concat_matmul",)),
    "chain": Case(program(lambda x, y, z: x @ y @ z, (B, M), (M, D), (D, N)), 7, frozenset({PARTIAL})),
    "gated product": Case(program(lambda x, a, b: (x @ a).silu() * (x @ b), (B, D), (D, N), (D, N)), 9),
    "softmax": Case(
        program(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), (B, D)), 7, frozenset({PARTIAL, Exclusion.RECOMPUTATION})
    ),
    "attention without scores": Case(
        program(lambda x, v: x.exp() @ v / x.exp().sum(-1, keepdim=True), (B, D), (D, N)), 8, frozenset()
    ),
    "centred": Case(program(lambda x: x - x.mean(-1, keepdim=True), (B, D)), 8, frozenset({PARTIAL})),
    "norm": Case(program(norm, (B, D)), 8, frozenset({PARTIAL})),
    "norm with gain": Case(
        program(lambda x, g: x * g / x.square().sum(-1, keepdim=True).sqrt(), (B, D), (D,)), 8, frozenset({OUTER})
    ),
    "norm and product": Case(program(lambda x, w: norm(x) @ w, (B, D), (D, N)), 9),
    "gain and product": Case(program(lambda x, g, w: x * g @ w, (B, D), (D,), (D, N)), 7, frozenset({OUTER}), ("reshape",)),
}

LONG_CASES = {
    "rmsnorm": Case(program(lambda x, g, w: norm(x) * g @ w, (B, D), (D,), (D, N)), 9, frozenset({OUTER}), ("reshape",)),
    "lora": Case(
        program(lambda x, w, a, b: x @ w + x @ a @ b, (B, D), (D, N), (D, R), (R, N)),
        9,
        frozenset({Exclusion.PRODUCT_OF_PARTIAL_SUM}),
        ("concat_matmul",),
    ),
}


def compare(case: Case) -> None:
    """Algorithm 1's graphs without excluded constructs are the closure's, in every family of schedules."""
    axes = axis_program(case.graph)
    occurred: set[Exclusion] = set()
    compared = 0
    for family in families(case.graph):
        extents = family.loop_extents(axes)
        found = by_algorithm_1(case.graph, family.schedules(axes), case.operators, case.also)
        reference = descriptions(case.graph, [*itertools.chain(*found.values())], extents)
        closure = descriptions(case.graph, by_closure(case.graph, family, case.operators), extents)
        assert {graph for graph, (about, _) in reference.items() if not about.exclusions} == closure.keys(), family
        occurred.update(*(about.exclusions for about, _ in reference.values()))
        compared += len(closure)
    assert compared > 0
    assert occurred == case.occur


@pytest.mark.parametrize("name", CASES)
def test_aligned_schedules(name: str) -> None:
    compare(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_CASES)
def test_aligned_schedules_of_longer_programs(name: str) -> None:
    compare(LONG_CASES[name])


def test_tiles_of_size_1_admit_broadcasts_that_no_larger_tile_does() -> None:
    """With one row in a block, [1, 1] also broadcasts over the columns' operand: x @ (w / r) for (x @ w) / r."""
    family = Family(grid_axis=0, loop_axis=None)

    def both(rows: int) -> tuple[dict[Signature, Graph], dict[Signature, Graph]]:
        graph = program(lambda x, w: norm(x) @ w, (rows, D), (D, N))
        (schedule,) = family.schedules(axis_program(graph))
        found = by_algorithm_1(graph, [schedule], 8)[schedule]
        engines = [found, by_closure(graph, family, 8)]
        reference, closure = (descriptions(graph, kernels, frozenset()) for kernels in engines)
        return {s: body for s, (_, body) in reference.items()}, {s: body for s, (_, body) in closure.items()}

    small, small_closure = both(PARTS)
    large, large_closure = both(4 * PARTS)
    assert large.keys() == large_closure.keys()
    assert len(small_closure) == len(large_closure)
    assert small_closure.keys() < small.keys()
    for extra in small.keys() - small_closure.keys():
        body = small[extra]
        (division,) = [node for node in body.nodes if node.op == "div"]
        assert [body.tensor(value).shape for value in division.inputs] == [(D, N), (1, 1)]


def random_small_program(seed: int) -> Graph | None:
    """Two to four operators over one to three matrices, rows and columns; None where no operator fits."""
    rng = np.random.default_rng(seed)
    p = Program()
    shapes = [(B, D), (D, N), (B, 1), (1, D), (B, N), (B, D)]
    pool = [p.input(f"x{index}", shapes[int(rng.integers(len(shapes)))]) for index in range(rng.integers(1, 4))]
    inputs = len(pool)
    for _ in range(rng.integers(2, 5)):
        x, y = (pool[max(0, len(pool) - 1 - int(rng.integers(3)))] for _ in range(2))
        broadcast = all(a == b or 1 in (a, b) for a, b in zip(x.shape, y.shape, strict=True))
        match int(rng.integers(9)):
            case 0 if x.shape[1] > 1:
                pool.append(x.sum(1, keepdim=True))
            case 1:
                pool.append(x.exp())
            case 2:
                pool.append(x.sqrt())
            case 3:
                pool.append(x.square())
            case 4 | 5 if x.shape[1] == y.shape[0]:
                pool.append(x @ y)
            case 6 if broadcast:
                pool.append(x * y)
            case 7 if broadcast:
                pool.append(x + y)
            case 8 if broadcast and x is not y:
                pool.append(x / y)
    graph = finished(p, pool[-1])
    return graph if len(pool) > inputs and all(node in graph.needed() for node in range(inputs)) else None


def nothing_lost(graph: Graph) -> None:
    """Every graph of Algorithm 1 without excluded constructs is among the closure's.

    Not the other way round: the closure compares values, so it also finds graphs outside the axioms (x * y / y for x).
    """
    axes = axis_program(graph)
    operators = min(len(graph.nodes) + 2, 7)
    for family in families(graph):
        extents = family.loop_extents(axes)
        found = by_algorithm_1(graph, family.schedules(axes), operators)
        reference = descriptions(graph, [*itertools.chain(*found.values())], extents)
        closure = descriptions(graph, by_closure(graph, family, operators), extents)
        assert {graph for graph, (about, _) in reference.items() if not about.exclusions} <= closure.keys(), family


def defined_in_the_field(graph: Graph) -> bool:
    """Whether the program has a value in the field (not so where exponentials are nested)."""
    try:
        FieldTest(graph, seed=0)
    except UndefinedInField:
        return False
    return True


def random_programs(seeds: range) -> list[Graph]:
    """The random programs that can be searched at all."""
    drawn = (random_small_program(seed) for seed in seeds)
    return [graph for graph in drawn if graph is not None and defined_in_the_field(graph)]


@pytest.mark.parametrize("graph", random_programs(range(20, 50)))
def test_random_programs(graph: Graph) -> None:
    nothing_lost(graph)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_random_programs(seed: int) -> None:
    graph = random_small_program(seed)
    if graph is None or not defined_in_the_field(graph):
        pytest.skip("no program")
    nothing_lost(graph)
