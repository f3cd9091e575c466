"""Theorem 1 on small programs: what Algorithm 1 finds, the closure engine finds, but for constructs it leaves out by name.

Graphs are compared by the values on their edges, so that two graphs are the same when they differ in the order of
nodes, in commutativity or in views only. Sizes are such that no tile of one axis has the size of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mugraph.ir import Graph
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search.axes import axis_program
from mugraph.search.enumeration.schedules import block_schedules

from .fidelity import (
    PARTS,
    BlockKernel,
    Exclusion,
    Family,
    Signature,
    by_algorithm_1,
    by_closure,
    exclusions,
    families,
    signatures,
)
from .programs import finished

B, D, N, M, R = 8, 12, 20, 28, 4
RAW, PARTIAL, OUTER = Exclusion.RAW_CONCATENATION, Exclusion.PARTIAL_CONCATENATION, Exclusion.OUTER_PRODUCT


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
    "product": Case(program(lambda x, w: x @ w, (B, D), (D, N)), 6, frozenset({RAW})),
    "scaled product": Case(program(lambda x, w: x * 0.5 @ w, (B, D), (D, N)), 6, frozenset({RAW})),
    "product with bias": Case(program(lambda x, w, c: x @ w + c, (B, D), (D, N), (N,)), 7, frozenset({RAW})),
    "sum of products": Case(
        program(lambda x, y, z: x @ z + y @ z, (B, D), (B, D), (D, N)), 7, frozenset({RAW}), ("concat_matmul",)
    ),
    "chain": Case(program(lambda x, y, z: x @ y @ z, (B, M), (M, D), (D, N)), 7, frozenset({RAW, PARTIAL})),
    "gated product": Case(program(lambda x, a, b: (x @ a).silu() * (x @ b), (B, D), (D, N), (D, N)), 9),
    "softmax": Case(program(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), (B, D)), 7, frozenset({RAW, PARTIAL})),
    "attention without scores": Case(
        program(lambda x, v: x.exp() @ v / x.exp().sum(-1, keepdim=True), (B, D), (D, N)), 8, frozenset({RAW})
    ),
    "centred": Case(program(lambda x: x - x.mean(-1, keepdim=True), (B, D)), 8, frozenset({RAW, PARTIAL})),
    "norm": Case(program(norm, (B, D)), 8, frozenset({RAW, PARTIAL})),
    "norm with gain": Case(
        program(lambda x, g: x * g / x.square().sum(-1, keepdim=True).sqrt(), (B, D), (D,)), 8, frozenset({OUTER})
    ),
    "norm and product": Case(program(lambda x, w: norm(x) @ w, (B, D), (D, N)), 9, frozenset({RAW})),
    "gain and product": Case(program(lambda x, g, w: x * g @ w, (B, D), (D,), (D, N)), 7, frozenset({RAW, OUTER}), ("reshape",)),
}

LONG_CASES = {
    "rmsnorm": Case(program(lambda x, g, w: norm(x) * g @ w, (B, D), (D,), (D, N)), 9, frozenset({OUTER}), ("reshape",)),
    "lora": Case(
        program(lambda x, w, a, b: x @ w + x @ a @ b, (B, D), (D, N), (D, R), (R, N)),
        9,
        frozenset({RAW}),
        ("concat_matmul",),
    ),
}


def compare(case: Case) -> None:
    """Algorithm 1's graphs without excluded constructs are the closure's, in every aligned family of schedules."""
    axes = axis_program(case.graph)
    occurred: set[Exclusion] = set()
    compared = 0
    for family in families(case.graph):
        schedule, extents = family.schedule(axes), family.loop_extents(axes)
        found = by_algorithm_1(case.graph, [schedule], case.operators, case.also)[schedule]
        by_reference = signatures(case.graph, found)
        excluded = {graph: exclusions(kernel.body, extents) for graph, kernel in by_reference.items()}
        closure = signatures(case.graph, by_closure(case.graph, family, case.operators))
        assert {graph for graph in by_reference if not excluded[graph]} == closure.keys(), family
        occurred.update(*excluded.values())
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


@pytest.mark.parametrize("name", ["product", "softmax", "attention without scores"])
def test_other_schedules_give_only_operands_read_whole(name: str) -> None:
    """Beyond aligned schedules and the exclusions, Algorithm 1 finds one kind of graph: one axis is cut by the loop, and
    an operand that has it is nevertheless read whole and carried past the loop (different fmaps in one kernel)."""
    case = CASES[name]
    axes = axis_program(case.graph)
    aligned = {family.schedule(axes) for family in families(case.graph)}
    shapes = [node.output.shape for node in case.graph.inputs()]
    slots = [[slot[0] for slot in term.slots] for _, term in sorted(axes.loads(), key=lambda load: load[1].source)]
    others = [s for s in block_schedules(shapes, [(PARTS,)], [1, PARTS]) if s not in aligned]
    mixed = 0
    for schedule, kernels in by_algorithm_1(case.graph, others, case.operators).items():
        looped = {slot[fmap] for slot, fmap in zip(slots, schedule.fmaps, strict=True) if fmap is not None}
        gridded = {slot[dim] for slot, (dim,) in zip(slots, schedule.imaps, strict=True) if dim is not None}
        extents = frozenset(axes.sizes[axis] // (PARTS if axis in gridded else 1) for axis in looped)
        beyond = [kernel for kernel in kernels if not exclusions(kernel.body, extents)]
        if beyond:
            (axis,), (grid_axis,) = looped, gridded
            (family_maps,) = [Family(grid_axis, axis).schedule(axes)]
            assert schedule.imaps == family_maps.imaps
            assert any(axis in slot and fmap is None for slot, fmap in zip(slots, schedule.fmaps, strict=True))
            assert all(any(node.get("combine") == "concat" for node in kernel.body.nodes) for kernel in beyond)
            mixed += len(beyond)
    assert mixed == {"product": 0, "softmax": 0, "attention without scores": 4}[name]


def test_tiles_of_size_1_admit_broadcasts_that_no_larger_tile_does() -> None:
    """With one row in a block, [1, 1] also broadcasts over the columns' operand: x @ (w / r) for (x @ w) / r."""
    family = Family(grid_axis=0, loop_axis=None)

    def both(rows: int) -> tuple[dict[Signature, BlockKernel], dict[Signature, BlockKernel]]:
        graph = program(lambda x, w: norm(x) @ w, (rows, D), (D, N))
        schedule = family.schedule(axis_program(graph))
        found = by_algorithm_1(graph, [schedule], 8)[schedule]
        return signatures(graph, found), signatures(graph, by_closure(graph, family, 8))

    small, small_closure = both(PARTS)
    large, large_closure = both(4 * PARTS)
    assert large.keys() == large_closure.keys()
    assert len(small_closure) == len(large_closure)
    assert small_closure.keys() < small.keys()
    for extra in small.keys() - small_closure.keys():
        body = small[extra].body
        (division,) = [node for node in body.nodes if node.op == "div"]
        assert [body.tensor(value).shape for value in division.inputs] == [(D, N), (1, 1)]
