"""Nothing that the search leaves out is better: for every graph of Algorithm 1, whatever its schedule and whatever excluded
constructs it has, the search lists one that does no more of anything.

Graphs compute the same program, cut by one grid dimension or none of two blocks and a for-loop of two iterations or none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from mugraph.ir import Graph
from mugraph.ir.axes import axis_program
from mugraph.ir.program import ProgramTensor
from mugraph.search.algorithm1.options import BlockSchedule, block_schedules

from .effort import Effort, least
from .fidelity import PARTS, Exclusion, Family, by_algorithm_1, by_closure, descriptions, families
from .test_fidelity import B, D, M, N, norm, program

PARTIAL, OUTER, RECOMPUTED = Exclusion.PARTIAL_CONCATENATION, Exclusion.OUTER_PRODUCT, Exclusion.RECOMPUTATION


@dataclass(frozen=True)
class Case:
    """A program, the limit of block operators, and the excluded constructs that occur in Algorithm 1's graphs of it.

    Unless `listed`, a loop that puts an operand together for a product after it is in the closures, but not listed.
    """

    graph: Graph
    operators: int
    occur: frozenset[Exclusion] = frozenset()
    listed: bool = True


def soft(x: ProgramTensor) -> ProgramTensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def gained(x: ProgramTensor, g: ProgramTensor) -> ProgramTensor:
    return x * g / x.square().sum(-1, keepdim=True).sqrt()


ONE = PARTS
"""Size of an axis of which a block, or an iteration, has a tile of one element."""

CASES = {
    "product": Case(program(lambda x, w: x @ w, (B, D), (D, N)), 6),
    "product, one row": Case(program(lambda x, w: x @ w, (ONE, D), (D, N)), 6, frozenset({PARTIAL})),
    "product, one column": Case(program(lambda x, w: x @ w, (B, D), (D, ONE)), 6, frozenset({PARTIAL})),
    "product over one": Case(program(lambda x, w: x @ w, (B, ONE), (ONE, N)), 6),
    "chain": Case(program(lambda x, y, z: x @ y @ z, (B, M), (M, D), (D, N)), 7, frozenset({PARTIAL})),
    "norm with gain": Case(program(gained, (B, D), (D,)), 8, frozenset({OUTER})),
    "norm, one column": Case(program(norm, (B, ONE)), 7),
    "softmax": Case(program(soft, (B, D)), 7, frozenset({PARTIAL, RECOMPUTED})),
    "softmax, one row": Case(program(soft, (ONE, D)), 7, frozenset({PARTIAL, RECOMPUTED})),
    "softmax, one column": Case(program(soft, (B, ONE)), 7, frozenset({RECOMPUTED})),
    "attention without scores, one key": Case(program(lambda x, v: soft(x) @ v, (B, ONE), (ONE, N)), 7),
    "centred": Case(program(lambda x: x - x.mean(-1, keepdim=True), (B, D)), 8, frozenset({PARTIAL})),
    "centred, one row": Case(program(lambda x: x - x.mean(-1, keepdim=True), (ONE, D)), 8, frozenset({PARTIAL})),
}

LONG_CASES = {
    "chain, one row": Case(program(lambda x, y, z: x @ y @ z, (ONE, M), (M, D), (D, N)), 7, frozenset({PARTIAL})),
    "chain over one": Case(program(lambda x, y, z: x @ y @ z, (B, M), (M, ONE), (ONE, N)), 7, frozenset({OUTER, PARTIAL})),
    "norm": Case(program(norm, (B, D)), 8, frozenset({PARTIAL})),
    "norm, one row": Case(program(norm, (ONE, D)), 8, frozenset({PARTIAL})),
    "norm with gain, one row": Case(program(gained, (ONE, D), (D,)), 8),
    "norm and product": Case(program(lambda x, w: norm(x) @ w, (B, D), (D, N)), 8),
    "norm and product, one row": Case(program(lambda x, w: norm(x) @ w, (ONE, D), (D, N)), 8, frozenset({OUTER})),
    "attention without scores": Case(program(lambda x, v: soft(x) @ v, (B, D), (D, N)), 8),
    "attention without scores, one row": Case(program(lambda x, v: soft(x) @ v, (ONE, D), (D, N)), 8, frozenset({OUTER})),
    "gain and product": Case(program(lambda x, g, w: x * g @ w, (B, D), (D,), (D, N)), 7),
    "gain and product, one row": Case(program(lambda x, g, w: x * g @ w, (ONE, D), (D,), (D, N)), 7, frozenset({PARTIAL})),
    "gain and product over one": Case(
        program(lambda x, g, w: x * g @ w, (B, ONE), (ONE,), (ONE, N)), 7, frozenset({OUTER}), False
    ),
}


def schedules(graph: Graph) -> list[BlockSchedule]:
    """One grid dimension that cuts some operands, and no for-loop or one that cuts some, each along any dimension."""
    shapes = [node.output.shape for node in graph.inputs()]
    return list(block_schedules(shapes, [(PARTS,)], [1, PARTS]))


def loop_extents(graph: Graph, schedule: BlockSchedule) -> frozenset[int]:
    """A block's sizes of the axes that the for-loop cuts."""
    axes = axis_program(graph)
    slots = [[slot[0] for slot in term.slots] for _, term in sorted(axes.loads(), key=lambda load: load[1].source)]
    looped = {slot[fmap] for slot, fmap in zip(slots, schedule.fmaps, strict=True) if fmap is not None}
    gridded = {slot[dim] for slot, (dim,) in zip(slots, schedule.imaps, strict=True) if dim is not None}
    return frozenset(axes.sizes[axis] // (PARTS if axis in gridded else 1) for axis in looped)


def compare(case: Case) -> None:
    """Each graph of Algorithm 1 does no less than some graph of ours."""
    found = by_algorithm_1(case.graph, schedules(case.graph), case.operators)
    listed = (by_closure(case.graph, family, case.operators, case.listed) for family in families(case.graph))
    ours = least([Effort.of(kernel.body) for kernel in itertools.chain.from_iterable(listed)])
    occurred: set[Exclusion] = set()
    for schedule, kernels in found.items():
        described = descriptions(case.graph, kernels, loop_extents(case.graph, schedule)).values()
        occurred.update(*(about.exclusions for about, _ in described))
        for _, body in described:
            assert any(effort.within(Effort.of(body)) for effort in ours), body
    assert occurred == case.occur


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_better(name: str) -> None:
    compare(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_CASES)
def test_nothing_is_better_for_longer_programs(name: str) -> None:
    compare(LONG_CASES[name])


def test_efforts_tell_graphs_apart() -> None:
    """Of a product, a loop over the inner axis needs less memory, and a graph without a loop adds less."""
    graph = CASES["product"].graph
    loopless, looped = (by_closure(graph, Family(0, axis), 6) for axis in (None, 1))
    (without,) = least([Effort.of(kernel.body) for kernel in loopless])
    with_loop = least([Effort.of(kernel.body) for kernel in looped])
    assert any(effort.peak < without.peak for effort in with_loop)
    assert not any(effort.within(without) or without.within(effort) for effort in with_loop if effort.peak < without.peak)
