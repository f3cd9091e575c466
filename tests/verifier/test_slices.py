"""Parallel axes: found where operators treat all slices alike, refused where one does not, at every level of a muGraph."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.errors import ShapeMismatch
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.ir.validity import check
from mugraph.lower.thread_graphs import construct
from mugraph.verifier import verify_graphs
from mugraph.verifier.parallel_axes import NotParallel, shared_slice, take_slice

from .graphs import (
    FP32,
    attention,
    columns_in_thread_graphs,
    fused_rmsnorm,
    gated_columns,
    mutants,
    online_attention,
    program,
    rmsnorm,
    rows_for_columns,
    spread_of_rows,
)


def assert_slices_are_slices(graph: Graph, inputs: tuple[int | None, ...]) -> None:
    """A slice of the result is the result of slices."""
    taken, outputs = take_slice(graph, inputs)
    check(taken)
    rng = np.random.default_rng(0)
    tensors = [rng.uniform(0.5, 1.5, node.output.shape) for node in graph.nodes if node.op == "input"]
    whole = evaluate(graph, tensors, FloatArithmetic())
    (size,) = {tensor.shape[dim] for tensor, dim in zip(tensors, inputs, strict=True) if dim is not None}
    for position in range(size):
        part = [tensor if dim is None else np.take(tensor, [position], dim) for tensor, dim in zip(tensors, inputs, strict=True)]
        for result, full, dim in zip(evaluate(taken, part, FloatArithmetic()), whole, outputs, strict=True):
            np.testing.assert_allclose(result, full if dim is None else np.take(full, [position], dim))


@pytest.mark.parametrize("graph", [rmsnorm(), fused_rmsnorm(), construct(fused_rmsnorm()), fused_rmsnorm(blocks=8)])
def test_rows_and_columns_of_a_linear_layer_are_parallel(graph: Graph) -> None:
    assert_slices_are_slices(graph, (0, None, None))
    assert_slices_are_slices(graph, (None, None, 1))
    for mixed in ((1, 0, 0), (1, None, None), (None, None, 0), (None, 0, None)):
        with pytest.raises(NotParallel):
            take_slice(graph, mixed)


def test_both_graphs_shrink_together() -> None:
    found = shared_slice(rmsnorm(4, 12, 8), fused_rmsnorm(4, 12, 8))
    assert [(axis.size, axis.inputs, axis.outputs) for axis in found.axes] == [
        (4, (0, None, None), (0,)),
        (8, (None, None, 1), (1,)),
    ]
    for graph in (found.left, found.right):
        check(graph)
        assert [node.output.shape for node in graph.nodes if node.op == "input"] == [(1, 12), (12,), (12, 1)]
    (kernel,) = found.right.kernels()
    assert kernel.body is not None
    assert kernel.body.grid == (1,)


def test_queries_and_value_columns_of_attention_are_parallel_and_keys_are_not() -> None:
    found = shared_slice(attention(3, 8, 4), construct(online_attention(3, 8, 4)))
    assert [axis.inputs for axis in found.axes] == [(0, None, None), (None, None, 1)]


def test_heads_survive_reshapes_inside_blocks_of_one_head() -> None:
    def function(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        return x @ y

    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x", (5, 2, 3), FP32), kernel.input("y", (5, 3, 4), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(5,))
    tiles = [block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate((x, y))]
    flat = block.add("reshape", block.add("matmul", *tiles), shape=(8,))
    saved = block.add("output_saver", block.add("reshape", flat, shape=(1, 2, 4)), omap=(0,))
    graph = kernel.build(kernel.graph_defined(block.build([saved]), [x, y]))
    assert_slices_are_slices(graph, (0, 0))
    axes = shared_slice(program(function, (5, 2, 3), (5, 3, 4)), graph).axes
    assert (5, (0, 0), (0,)) in [(axis.size, axis.inputs, axis.outputs) for axis in axes]


@pytest.mark.parametrize(("blocks", "loop"), [(1, 2), (2, 2), (1, 4)])
def test_loops_over_columns_put_them_side_by_side(blocks: int, loop: int) -> None:
    graph = gated_columns(4, blocks, loop)
    columns, rows = (None, 1, 1, 0), (0, None, None, None)
    assert_slices_are_slices(graph, columns)
    assert_slices_are_slices(graph, rows)
    taken, _ = take_slice(graph, columns)
    (kernel,) = taken.kernels()
    assert kernel.body is not None
    assert kernel.body.loop == 1
    for mixed in ((None, 1, 1, None), (None, 1, None, 0), (1, 0, 0, None)):
        with pytest.raises(NotParallel):
            take_slice(graph, mixed)


UNEVEN: dict[str, Callable[[], tuple[Graph, tuple[int | None, ...]]]] = {
    "a tensor of the axis' size without the axis": lambda: (program(lambda x, y: x + y, (4, 3), (4, 3)), (0, None)),
    "a reduction over the axis": lambda: (program(lambda x: x.sum(0), (4, 3)), (0,)),
    "a product with its own transpose": lambda: (program(lambda x: x @ x.transpose(0, 1), (4, 3)), (0,)),
    "a reshape that merges it": lambda: (program(lambda x: x.reshape(12), (4, 3)), (0,)),
    "blocks repeated along the axis": lambda: (repeated_blocks(), (0, None)),
    "a sum over a loop": lambda: (looped("sum", None), (0, None)),
    "a maximum over a loop": lambda: (looped("max", None), (0, None)),
    "a maximum over a loop, of what a thread graph made": lambda: (looped("max", None, threads=True), (0, None)),
    "iterations put beside each other elsewhere": lambda: (looped("concat", 1), (0, None)),
    "a loop over another dimension, too": lambda: (looped("concat", 0, other=0), (0, None)),
    "one operand of a loop taken for the axis": lambda: (looped("concat", 0, other=0), (0, 1)),
    "maxima over a loop that cancel where there is one slice": lambda: (spread_of_rows()[1], (0, None)),
    "a block's slices put elsewhere than they lie": lambda: (rows_for_columns()[1], (1, 0, None)),
}


def swapped_blocks() -> Graph:
    """A 2 x 2 matrix by blocks of one element, put back transposed."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (2, 2), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2, 2))
    tile = block.add("square", block.iterator(0, kernel.tensor(x), (0, 1), None))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", tile, omap=(1, 0))]), [x]))


def looped(combine: str, dim: int | None, other: int | None = None, *, threads: bool = False) -> Graph:
    """x + y with x read in four parts along dimension 0, and y in four parts along `other`; `threads` square the sum."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x", (4, 4), FP32), kernel.input("y", (4, 4), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=4)
    tiles = [block.iterator(0, kernel.tensor(x), (None,), 0), block.iterator(1, kernel.tensor(y), (None,), other)]
    total = block.add("add", tiles[0], block.add("sum", tiles[1], dim=0, size=4 if other is None else 1))
    if threads:
        thread = GraphBuilder(Level.THREAD, block=(1,))
        squared = thread.add("square", thread.iterator(0, block.tensor(total), (None,), None))
        (total,) = block.graph_defined(thread.build([thread.add("output_saver", squared, omap=(0,))]), [total])
    attributes = {} if dim is None else {"dim": dim}
    together = block.add("accumulate", total, combine=combine, **attributes)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", together, omap=(0,))]), [x, y]))


def repeated_blocks() -> Graph:
    """One output cut along the axis, another that every block writes again in a place of its own."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x", (4, 3), FP32), kernel.input("y", (3,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    xs, ys = block.iterator(0, kernel.tensor(x), (0,), None), block.iterator(1, kernel.tensor(y), (None,), None)
    outputs = [block.add("output_saver", block.add("square", tile), omap=(0,)) for tile in (xs, ys)]
    return kernel.build(kernel.graph_defined(block.build(outputs), [x, y]))


@pytest.mark.parametrize("name", UNEVEN)
def test_what_tells_slices_apart_is_refused(name: str) -> None:
    graph, axis = UNEVEN[name]()
    with pytest.raises(NotParallel):
        take_slice(graph, axis)


@pytest.mark.parametrize("pair", [spread_of_rows, rows_for_columns])
def test_what_is_equal_at_one_slice_only_is_refuted(pair: Callable[[], tuple[Graph, Graph]]) -> None:
    left, right = pair()
    check(right)
    assert verify_graphs(left, right).counterexample is not None


def test_axes_that_come_out_in_different_places_are_not_shared() -> None:
    assert take_slice(swapped_blocks(), (0,))[1] == (1,)
    assert not shared_slice(program(lambda x: x.square(), (2, 2)), swapped_blocks()).axes


KERNELS = {
    "RMSNorm": lambda: fused_rmsnorm(4, 4, 4, loop=2),
    "RMSNorm in single columns": lambda: fused_rmsnorm(4, 4, 4, blocks=4, loop=1),
    "attention": lambda: online_attention(4, 4, 4),
    "thread graphs": lambda: construct(fused_rmsnorm(4, 4, 4, loop=2)),
    "two grid dimensions": lambda: two_dimensional(),
    "a loop over columns": lambda: gated_columns(),
    "a loop over single columns": lambda: gated_columns(blocks=2),
    "thread graphs after a loop over columns": lambda: construct(gated_columns(blocks=2)),
    "thread graphs in a loop over rows": lambda: looped("concat", 0, threads=True),
    "thread graphs in a loop over columns": lambda: columns_in_thread_graphs(),
    "thread graphs in a loop over single columns": lambda: columns_in_thread_graphs(loop=4),
}


def two_dimensional() -> Graph:
    """x y + bias over a 2 x 2 grid."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y, z = (kernel.input(name, (4, 4), FP32) for name in "xyz")
    block = GraphBuilder(Level.BLOCK, grid=(2, 2))
    maps: tuple[tuple[int | None, ...], ...] = ((0, None), (None, 1), (0, 1))
    tiles = [
        block.iterator(n, kernel.tensor(value), imap, None) for n, (value, imap) in enumerate(zip((x, y, z), maps, strict=True))
    ]
    total = block.add("add", block.add("matmul", tiles[0], tiles[1]), tiles[2])
    saved = block.add("output_saver", block.add("silu", total), omap=(0, 1))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, y, z]))


@pytest.mark.parametrize("name", KERNELS)
def test_whatever_is_taken_for_parallel_is(name: str) -> None:
    """Equal sizes everywhere, changed maps and operators: nothing but the proof keeps axes apart."""
    proved = 0
    changed_twice = (graph for once in mutants(KERNELS[name]()) for graph in mutants(once))
    for graph in itertools.chain(mutants(KERNELS[name]()), itertools.islice(changed_twice, 0, None, 29)):
        shapes = [node.output.shape for node in graph.nodes if node.op == "input"]
        for axis in itertools.product(*((None, *range(len(shape))) for shape in shapes)):
            if axis.count(None) < len(axis):
                with contextlib.suppress(NotParallel, ShapeMismatch):
                    assert_slices_are_slices(graph, axis)
                    proved += 1
    assert proved > 20
