"""Parallel axes: found where operators treat all slices alike, refused where one does not, at every level of a muGraph."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mugraph.errors import ShapeMismatch
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.ir.scalar import Scalar
from mugraph.ir.validity import check
from mugraph.lower.thread_graphs import construct
from mugraph.testing.mugraphs import SMALL, random_mugraph
from mugraph.verifier import verify_graphs
from mugraph.verifier.axis_marks import ONE, Widths
from mugraph.verifier.parallel_axes import Cut, ParallelAxis, shared_slice, slices_of_blocks, take_slice, take_slices
from mugraph.verifier.slice_walk import NotParallel

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


def assert_slices_stand_for_all(graph: Graph, inputs: tuple[int | None, ...], *widths: Widths) -> Cut:
    """Where slices are added up, the result for different ones is the mean of those for equal ones; else it is made of slices."""
    rng = np.random.default_rng(0)
    tensors = [rng.uniform(0.5, 1.5, node.output.shape) for node in graph.nodes if node.op == "input"]
    widths = widths or (ONE,) * len(inputs)
    cut = Cut.of(graph, inputs, widths)
    check(cut.graph)
    whole = evaluate(graph, tensors, FloatArithmetic())
    results = [
        evaluate(cut.graph, [part(*each, position) for each in zip(tensors, inputs, widths, strict=True)], FloatArithmetic())
        for position in range(cut.slices)
    ]
    for number, (full, dim) in enumerate(zip(whole, cut.dims, strict=True)):
        found = [result[number] for result in results]
        if number in cut.sums:
            np.testing.assert_allclose(np.mean(found, axis=0), full)
        for position in () if number in cut.sums else range(cut.slices):
            np.testing.assert_allclose(found[position], part(full, dim, cut.widths[number], position))
    return cut


def part(array: Array, dim: int | None, widths: Widths, position: int) -> Array:
    """A slice: so many neighbours of each stretch of a dimension."""
    if dim is None:
        return array
    slices = array.shape[dim] // sum(widths)
    ends = itertools.accumulate(slices * width for width in widths)
    starts = [end - (slices - position) * width for end, width in zip(ends, widths, strict=True)]
    return np.take(array, [start + i for start, width in zip(starts, widths, strict=True) for i in range(width)], dim)


def assert_blocks_are_blocks(graph: Graph, inputs: tuple[int | None, ...]) -> int:
    """At slices of some blocks the result is that of these blocks, whose tiles are what they were unless some block has all.
    How many slices have whole tiles is returned."""
    rng = np.random.default_rng(0)
    tensors = [rng.uniform(0.5, 1.5, node.output.shape) for node in graph.nodes if node.op == "input"]
    whole, (tile, uncut) = evaluate(graph, tensors, FloatArithmetic()), slices_of_blocks(graph, inputs)
    (size,) = {tensor.shape[dim] for tensor, dim in zip(tensors, inputs, strict=True) if dim is not None}
    for blocks in range(1, size // tile + 1):
        chosen = [int(b) * tile + n for b in rng.permutation(size // tile)[:blocks] for n in range(tile)]
        taken, outputs = take_slices(graph, inputs, len(chosen))
        check(taken)
        assert uncut or tile_shapes(taken) == tile_shapes(graph)
        part = [tensor if dim is None else np.take(tensor, chosen, dim) for tensor, dim in zip(tensors, inputs, strict=True)]
        for result, full, dim in zip(evaluate(taken, part, FloatArithmetic()), whole, outputs, strict=True):
            np.testing.assert_allclose(result, full if dim is None else np.take(full, chosen, dim))
    return tile


def tile_shapes(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes of all tiles in the blocks of a kernel graph."""
    bodies = [node.body for node in graph.nodes if node.body is not None]
    return [tile.shape for body in bodies for node in body.nodes if not node.is_saver for tile in node.outputs]


def test_an_axis_is_uncut_where_a_block_has_all_of_it() -> None:
    rows, columns = (0, None, None), (None, None, 1)
    assert slices_of_blocks(fused_rmsnorm(rows=4, columns=8, blocks=2), rows) == (1, True)
    assert slices_of_blocks(fused_rmsnorm(rows=4, columns=8, blocks=2), columns) == (4, False)
    assert slices_of_blocks(rmsnorm(), columns) == (1, True), "the columns of a product without blocks"
    assert slices_of_blocks(attention(4, 8, 4), (0, None, None)) == (1, True), "rows of one"
    batched = program(lambda x, w: x @ w, (3, 4, 5), (3, 5, 2))
    assert slices_of_blocks(batched, (0, 0)) == (1, False), "products of their own"


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


@cache
def relatives(name: str) -> tuple[Graph, ...]:
    """A kernel and the graphs that differ from it in one place, and some that do in two; each once."""
    kernel = WINDOWS[name]()
    once = [*mutants(kernel)]
    twice = (graph for changed in once for graph in mutants(changed))
    return tuple(dict.fromkeys([kernel, *once, *itertools.islice(twice, 0, None, 13)]))


def changed(name: str) -> Iterator[tuple[Graph, tuple[int | None, ...]]]:
    """The graphs with all that may be their axes."""
    for graph in relatives(name):
        shapes = [node.output.shape for node in graph.nodes if node.op == "input"]
        for axis in itertools.product(*((None, *range(len(shape))) for shape in shapes)):
            if axis.count(None) < len(axis):
                yield graph, axis


TILES: dict[str, dict[tuple[int | None, ...], int]] = {
    "RMSNorm": {(0, None, None): 1, (None, None, 1): 2},
    "RMSNorm in single columns": {(0, None, None): 1, (None, None, 1): 1},
    "two grid dimensions": {(0, None, 0): 2, (None, 1, 1): 2},
    "thread graphs": {(0, None, None): 1, (None, None, 1): 2},
}


@pytest.mark.parametrize("name", TILES)
def test_blocks_of_an_axis_can_be_taken_as_they_are(name: str) -> None:
    graph: Graph = KERNELS[name]()
    for axis, tile in TILES[name].items():
        assert assert_blocks_are_blocks(graph, axis) == tile
        if tile > 1:
            assert take_slices(graph, axis, 1)[0] == take_slice(graph, axis)[0]


@pytest.mark.parametrize("name", KERNELS)
def test_whatever_is_taken_for_parallel_is(name: str) -> None:
    """Equal sizes everywhere, changed maps and operators: nothing but the proof keeps axes apart."""
    proved = 0
    for graph, axis in changed(name):
        with contextlib.suppress(NotParallel, ShapeMismatch):
            assert_slices_are_slices(graph, axis)
            proved += 1
            assert_blocks_are_blocks(graph, axis)
    assert proved > 2


def loss_in_blocks() -> Graph:
    """z[0, 0] + the sum of (x - y)**2 over all elements, in two blocks of two iterations each."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y, z = (kernel.input(name, (4, 4), FP32) for name in "xyz")
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    tiles = [block.iterator(number, kernel.tensor(value), (0,), 0) for number, value in enumerate((x, y))]
    rows = block.add("sum", block.add("square", block.add("sub", *tiles)), dim=1, size=4)
    saved = block.add("output_saver", block.add("accumulate", rows, combine="sum"), omap=(0,))
    (parts,) = kernel.graph_defined(block.build([saved]), [x, y])
    total = kernel.add("sum", parts, dim=0, size=2)
    return kernel.build([kernel.add("add", total, kernel.add("mul", z, z))])


def product_in_parts() -> Graph:
    """(x y + z) / z, each block with its part of what is summed over."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y, z = (kernel.input(name, (4, 4), FP32) for name in "xyz")
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    tiles = [block.iterator(n, kernel.tensor(value), (1 - n,), 1 - n) for n, value in enumerate((x, y))]
    part = block.add("accumulate", block.add("matmul", *tiles), combine="sum")
    saved = block.add("output_saver", block.add("reshape", part, shape=(1, 4, 4)), omap=(0,))
    (parts,) = kernel.graph_defined(block.build([saved]), [x, y])
    total = kernel.add("reshape", kernel.add("sum", parts, dim=0, size=2), shape=(4, 4))
    return kernel.build([kernel.add("div", kernel.add("add", total, z), z)])


def low_rank() -> Graph:
    """(x y) z, and x y itself."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y, z = (kernel.input(name, (4, 4), FP32) for name in "xyz")
    inner = kernel.add("matmul", x, y)
    return kernel.build([kernel.add("matmul", inner, z), inner])


def grouped() -> Graph:
    """The sum of x y over its rows, of neighbours first, plus that of y."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (4, 4), FP32) for name in "xy")
    pairs = kernel.add("sum", kernel.add("mul", x, y), dim=0, size=2)
    return kernel.build([kernel.add("add", kernel.add("sum", pairs, dim=0, size=2), kernel.add("sum", y, dim=0, size=4))])


SUMS: dict[str, Callable[[], Graph]] = {
    "a loss": lambda: program(lambda x, y, z: (x - y).square().sum((0, 1)) / z.exp().sum(1) - z, (4, 4), (4, 4), (4, 4)),
    "a loss in blocks": loss_in_blocks,
    "a loss in thread graphs": lambda: construct(loss_in_blocks()),
    "a product in parts": product_in_parts,
    "two products": low_rank,
    "a sum of groups": grouped,
    **KERNELS,
}


@pytest.mark.parametrize("name", SUMS)
def test_whatever_is_taken_for_a_sum_of_slices_is(name: str) -> None:
    """That a result for different slices is the mean of those for equal ones is what tests of one slice rely on."""
    sums = 0
    for graph, axis in changed(name):
        with contextlib.suppress(NotParallel, ShapeMismatch):
            sums += bool(assert_slices_stand_for_all(graph, axis).sums)
    assert sums > 1 or name in KERNELS


WINDOWS: dict[str, Callable[[], Graph]] = {
    "maxima of pairs": lambda: program(lambda x, y: (x * y).reshape(2, 2, 4).amax(1), (4, 4), (4, 4)),
    "maxima of squares": lambda: program(lambda x: x.reshape(2, 2, 2, 2).amax((1, 3)), (4, 4)),
    "pairs between merged dimensions": lambda: program(lambda x: x.square().reshape(2, 2, 2, 2).sum(1).exp(), (4, 4)),
    "groups with weights": lambda: program(lambda x, y: (x.reshape(2, 2, 4) * y).sum(1).reshape(8), (4, 4), (2, 1)),
    "heads": lambda: heads(),
    "heads in blocks": lambda: heads_in_blocks(),
    "heads in thread graphs": lambda: construct(heads_in_blocks()),
    **SUMS,
}


def heads() -> Graph:
    """Two heads of width 2 of an attention without a mask."""

    def function(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        q, k = (t.reshape(4, 2, 2).transpose(0, 1) for t in (x, y))
        scores = (q @ k.transpose(1, 2)).exp()
        return ((scores / scores.sum(-1, keepdim=True)) @ k).transpose(0, 1).reshape(4, 4)

    return program(function, (4, 4), (4, 4))


def heads_in_blocks() -> Graph:
    """exp(x y^T) y for two heads of width 2, each of which has a block, in a loop over keys."""
    kernel = GraphBuilder(Level.KERNEL)
    x, y = kernel.input("x", (4, 4), FP32), kernel.input("y", (4, 4), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    q, k = block.iterator(0, kernel.tensor(x), (1,), None), block.iterator(1, kernel.tensor(y), (1,), 0)
    scores = block.add("exp", block.add("matmul", q, block.add("transpose", k, permutation=(1, 0))))
    together = block.add("accumulate", block.add("matmul", scores, k), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", together, omap=(1,))]), [x, y]))


@pytest.mark.parametrize("name", WINDOWS)
def test_whatever_is_taken_for_wide_slices_is(name: str) -> None:
    """Slices of two neighbours, as windows and heads are."""
    wide = 0
    for graph, axis in changed(name):
        with contextlib.suppress(NotParallel, ShapeMismatch):
            assert_slices_stand_for_all(graph, axis, *[(2,)] * len(axis))
            wide += 1
    assert wide > 0


def described(axis: ParallelAxis) -> tuple[object, ...]:
    return axis.size, axis.inputs, axis.input_widths, axis.output_widths


def test_windows_of_windows_and_heads_are_found() -> None:
    pooled = program(lambda x: x.reshape(3, 4, 2).amax(2).reshape(3, 2, 2).amax(2), (3, 8))
    assert not any(axis.inputs == (1,) for axis in shared_slice(pooled, pooled).axes)
    found = shared_slice(pooled, pooled, simple=False)
    assert [described(axis) for axis in found.axes] == [(3, (0,), (ONE,), (ONE,)), (2, (1,), ((4,),), (ONE,))]
    found = shared_slice(heads(), heads(), simple=False)
    assert (2, (1, 1), ((2,), (2,)), ((2,),)) in [described(axis) for axis in found.axes]


NOT_LINEAR: dict[str, Callable[[], tuple[Graph, tuple[int | None, ...]]]] = {
    "a function of a sum": lambda: (program(lambda x: x.sum(0).exp(), (4, 3)), (0,)),
    "the square of a sum": lambda: (program(lambda x: x.sum(0).square(), (4, 3)), (0,)),
    "the product of two sums": lambda: (program(lambda x: x.sum(0) * x.exp().sum(0), (4, 3)), (0,)),
    "a quotient of sums": lambda: (program(lambda x: x.sum(0) / x.exp().sum(0), (4, 3)), (0,)),
    "a sum and its slices": lambda: (program(lambda x: x - x.sum(0), (4, 3)), (0,)),
    "a maximum": lambda: (program(lambda x: x.amax(0), (4, 3)), (0,)),
    "a product of which one factor has the axis": lambda: (program(lambda x, y: x @ y, (4, 4), (4, 4)), (1, None)),
    "a product with its own transpose": lambda: (program(lambda x: x.transpose(0, 1) @ x, (4, 4)), (1,)),
    "rows with weights": lambda: (program(lambda x, y: (x.sum(1) * y).sum(0), (4, 3), (4,)), (0, None)),
    "the sums of single blocks": lambda: (per_block(loss=False), (0,)),
    "a constant that every block adds": lambda: (per_block(loss=True), (0,)),
}


def per_block(*, loss: bool) -> Graph:
    """The sum of each half of a vector, or the sum of both, each plus 1."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    part = block.add("sum", block.iterator(0, kernel.tensor(x), (0,), None), dim=0, size=2)
    if loss:
        part = block.add("add", part, block.add("constant", value=Scalar.of(1), dtype=FP32))
    (parts,) = kernel.graph_defined(block.build([block.add("output_saver", part, omap=(0,))]), [x])
    return kernel.build([kernel.add("sum", parts, dim=0, size=2) if loss else parts])


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_sums_that_are_not_taken_as_they_are_end_the_axis(name: str) -> None:
    graph, axis = NOT_LINEAR[name]()
    with pytest.raises(NotParallel):
        Cut.of(graph, axis)


def test_sums_are_left_alone_unless_asked_for() -> None:
    loss = program(lambda x, y: (x - y).square().sum((0, 1)), (4, 5), (4, 5))
    assert not shared_slice(loss, loss).axes
    found = shared_slice(loss, loss, simple=False)
    assert [(axis.size, axis.inputs, axis.sums) for axis in found.axes] == [(4, (0, 0), (0,)), (5, (1, 1), (0,))]
    assert [node.output.shape for node in found.left.inputs()] == [(1, 1), (1, 1)]


def test_a_constant_that_a_sum_has_once_is_not_one_of_each_slice() -> None:
    """Equal at one slice, and at four different: x + y once, and for each row."""
    once = program(lambda x, y: x.sum(0) + y, (4, 3), (3,))
    often = program(lambda x, y: (x + y).sum(0), (4, 3), (3,))
    parts = program(lambda x, y: (x + y / 4).sum(0), (4, 3), (3,))
    assert verify_graphs(once, often).counterexample is not None
    verdict = verify_graphs(once, parts)
    assert verdict.equivalent
    assert verdict.certificate.axes[0].sums == (0,)
    assert (
        "any size"
        not in verify_graphs(program(lambda x: x.sum(0), (4,)), program(lambda x: (2 * x).sum(0) / 2, (4,))).certificate.claim
    )


def test_what_is_merged_with_heads_is_an_axis_beside_them() -> None:
    """The values' columns within a head: each head is a stretch that has all of them."""

    def function(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        weights, values = x.exp(), y.reshape(4, 2, 3).transpose(0, 1)
        return (weights @ values).transpose(0, 1).reshape(4, 6)

    graph = program(function, (2, 4, 4), (4, 6))
    found = shared_slice(graph, graph, simple=False)
    assert (3, (None, 1), (ONE, (1, 1)), ((1, 1),)) in [described(axis) for axis in found.axes]
    assert (2, (0, 1), (ONE, ONE), (ONE,)) in [described(axis) for axis in found.axes]


@pytest.mark.parametrize("axis", [(0, None, None), (None, 1, 1)])
def test_some_slices_are_taken_of_stretches_that_are_joined_and_divided_again(axis: tuple[int | None, ...]) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x, left, right = (kernel.input(name, shape, FP32) for name, shape in (("x", (6, 4)), ("left", (4, 8)), ("right", (4, 8))))
    both = kernel.add("exp", kernel.add("concat", kernel.add("matmul", x, left), kernel.add("matmul", x, right), dim=1))
    halves = [kernel.add("slice", both, dim=1, start=start, size=8, step=1) for start in (0, 8)]
    assert assert_blocks_are_blocks(kernel.build([kernel.add("div", *halves)]), axis) == 1


def test_some_slices_are_taken_along_several_axes_of_random_mugraphs() -> None:
    space = replace(SMALL, sizes=(4, 6, 8, 12), counts=(1, 2, 3, 4))
    found = [tiles_of_axes(random_mugraph(random.Random(seed), 1 + seed % 3, space)) for seed in range(40)]
    assert max(map(len, found)) > 3


def test_some_slices_are_taken_along_several_axes_that_blocks_cut() -> None:
    kernels: list[Callable[[], Graph]] = [*KERNELS.values()]
    found = [tiles_of_axes(make()) for make in kernels]
    assert sum(tile > 1 for tiles in found for tile in tiles) >= 4
    assert [2, 2] in found


def tiles_of_axes(graph: Graph) -> list[int]:
    """The slices of a block along every axis of which blocks are taken, each beside one block of the axes before."""
    taken, tiles = list[tuple[int | None, ...]](), list[int]()
    shapes = [node.output.shape for node in graph.inputs()]
    for axis in itertools.product(*([None, *range(len(shape))] for shape in shapes)):
        sizes = {shape[dim] for shape, dim in zip(shapes, axis, strict=True) if dim is not None}
        apart = all(dim is None or dim != other for before in taken for dim, other in zip(axis, before, strict=True))
        if len(sizes) == 1 and sizes != {1} and apart:
            with contextlib.suppress(NotParallel, ShapeMismatch):
                tiles.append(assert_blocks_are_blocks(graph, axis))
                graph, _ = take_slices(graph, axis, tiles[-1])
                taken.append(axis)
                shapes = [node.output.shape for node in graph.inputs()]
    return tiles
