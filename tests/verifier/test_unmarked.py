"""Walks along an axis take what has none from a graph that was built once, and build what they build by themselves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mugraph.errors import ShapeMismatch
from mugraph.ir import Graph, GraphBuilder
from mugraph.ir.graph import Node
from mugraph.ir.program import ProgramTensor
from mugraph.lower.thread_graphs import construct
from mugraph.testing.mugraphs import SMALL, random_mugraph
from mugraph.verifier.parallel_axes import Cut, shared_slice
from mugraph.verifier.slice_walk import NotParallel, Unmarked

from .graphs import attention, columns_in_thread_graphs, fused_rmsnorm, gated_columns, linear_with_bias, program, rmsnorm
from .stacks import as_written, rewritten, stacked


def graphs() -> Iterator[Graph]:
    yield from (stacked(*[as_written] * 2), stacked(*[rewritten] * 2), rmsnorm(), attention())
    yield from (fused_rmsnorm(), gated_columns(), linear_with_bias(), columns_in_thread_graphs())
    yield program(lambda x, b: x.sum(0, keepdim=True) * b.square().exp(), (3, 4), (1, 4))  # a count is put between
    for seed in range(12):
        yield random_mugraph(random.Random(seed), 1 + seed % 3, SMALL)
        yield construct(random_mugraph(random.Random(seed), 2, SMALL))


def axes_of(inputs: Sequence[Node], choose: random.Random) -> Iterator[list[int | None]]:
    """Dimensions of inputs that may be an axis: one at a time, and those of one size together, by chance."""
    sizes = {size for node in inputs for size in node.output.shape if size > 1}
    for size in sorted(sizes):
        places = [[dim for dim, each in enumerate(node.output.shape) if each == size] for node in inputs]
        for _ in range(6):
            yield [choose.choice([*dims, None]) if dims else None for dims in places]


def cut(graph: Graph, axis: Sequence[int | None], unmarked: Unmarked | None) -> Cut | str:
    try:
        return Cut.of(graph, axis, unmarked=unmarked)
    except (NotParallel, ShapeMismatch) as error:
        return str(error)


def test_walks_build_the_same_by_what_is_unmarked() -> None:
    made = Counter[type]()
    for graph in graphs():
        unmarked, choose = Unmarked.of(graph), random.Random(0)
        for axis in axes_of(graph.inputs(), choose):
            if any(dim is not None for dim in axis):
                found = cut(graph, axis, unmarked)
                assert found == cut(graph, axis, None)
                made[type(found)] += 1
    assert made[Cut] > 20
    assert made[str] > 100


def looked_at(monkeypatch: pytest.MonkeyPatch, depth: int) -> int:
    """How many operators are checked anew as axes of layers upon each other are looked for."""
    counted, add = Counter[str](), GraphBuilder.add

    def counting(self: GraphBuilder, op: str, *inputs: Any, **attributes: Any) -> Any:
        counted[op] += 1
        return add(self, op, *inputs, **attributes)

    with monkeypatch.context() as patched:
        patched.setattr(GraphBuilder, "add", counting)
        shared_slice(stacked(*[as_written] * depth), stacked(*[rewritten] * depth))
    return counted.total()


def test_axes_that_end_in_a_layer_are_followed_in_that_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked_at(monkeypatch, 16) < 2.5 * looked_at(monkeypatch, 8)


def test_an_axis_that_is_read_late_is_cut_where_it_is_read() -> None:
    """Inputs and a constant before and behind what reads the axis keep their places."""

    def function(x: ProgramTensor, y: ProgramTensor, z: ProgramTensor) -> ProgramTensor:
        return (y * 2 + 1).square() * y.sum(-1, keepdim=True) + (x * 3) + z

    graph = program(function, (3, 4), (1, 1), (3, 1))
    found = cut(graph, [0, None, 0], Unmarked.of(graph))
    assert found == cut(graph, [0, None, 0], None)
    assert isinstance(found, Cut)
    assert found.graph.output_tensors[0].shape == (1, 4)
