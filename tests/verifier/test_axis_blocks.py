"""Blocks that have parts of wide slices, or of several stretches: rows and heads of queries that share keys, merged."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from mugraph.errors import ShapeMismatch
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.program import ProgramTensor
from mugraph.ir.validity import check
from mugraph.lower.thread_graphs import construct
from mugraph.verifier import verify_graphs
from mugraph.verifier.axis_blocks import Tile, cut_into_tiles, put_together
from mugraph.verifier.axis_marks import ONE, Widths
from mugraph.verifier.parallel_axes import ParallelAxis, shared_slice
from mugraph.verifier.random_tests import recheck
from mugraph.verifier.slice_walk import NotParallel

from .graphs import FP32, mutants, program
from .test_slices import assert_slices_stand_for_all

HEADS, ROWS, KEYS, WIDTH = 3, 4, 5, 2
SHAPES = ((HEADS, ROWS, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH))


def layouts() -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """Stretches, slices, neighbours of a slice, and into how many parts two grid dimensions cut what they make up."""
    for stretches, slices, width in itertools.product((1, 2, 3), (2, 3, 4), (1, 2, 6)):
        size = stretches * slices * width
        for first in (count for count in range(1, size + 1) if size % count == 0):
            for second in (count for count in range(1, size // first + 1) if size // first % count == 0):
                yield stretches, slices, width, (first, second)


def numbered(tile: Tile, size: int, counts: tuple[int, int]) -> list[int]:
    """The number of the slice at each position, put together of the numbers of blocks and of that in a tile."""
    found = []
    for position in range(size * counts[0] * counts[1]):
        block, offset = divmod(position, size)
        number = 0
        for place, of_dimension in enumerate(divmod(block, counts[1])):
            if (digits := tile.numbers.get(place)) is not None:
                assert digits.before * digits.slices * digits.behind == counts[place]
                number = number * digits.slices + of_dimension // digits.behind % digits.slices
        found.append(number if tile.alone else number * tile.slices + offset // tile.widths[0] % tile.slices)
    return found


def test_numbers_of_blocks_and_places_in_tiles_are_those_of_slices() -> None:
    """Every way to cut small dimensions by two grid dimensions; what is cut is put together as it was."""
    cut = 0
    for stretches, slices, width, counts in layouts():
        widths = (width,) * stretches
        cuts = [*enumerate(counts)]
        tile = cut_into_tiles(widths, slices, cuts)
        if tile is None:
            continue
        cut += 1
        size = stretches * slices * width // (counts[0] * counts[1])
        assert numbered(tile, size, counts) == [p // width % slices for p in range(stretches * slices * width)]
        if tile.numbers:
            assert put_together((size,) if tile.alone else tile.widths, tile.alone, cuts[::-1], tile.numbers) == widths
    assert cut > 300


@pytest.mark.parametrize(
    ("widths", "slices", "cuts"),
    [((3,), 4, [(0, 6)]), ((2,), 9, [(0, 2), (1, 3)]), ((1, 2), 4, [(0, 3)]), ((3, 3), 4, [(0, 3)])],
)
def test_a_tile_with_parts_of_several_slices_is_refused(widths: Widths, slices: int, cuts: list[tuple[int, int]]) -> None:
    assert cut_into_tiles(widths, slices, cuts) is None


def grouped(q: ProgramTensor, k: ProgramTensor, v: ProgramTensor) -> ProgramTensor:
    """Attention of heads that share keys: their queries are simply more of them."""
    weights = (q.reshape(HEADS * ROWS, WIDTH) @ k.transpose(0, 1)).exp()
    return (weights / weights.sum(-1, keepdim=True) @ v).reshape(HEADS, ROWS, WIDTH)


def grouped_in_blocks(*grid: int, loop: int = 1) -> Graph:
    """The same in one kernel that cuts all queries into blocks, by one grid dimension or two, and divides at last."""
    kernel = GraphBuilder(Level.KERNEL)
    q, k, v = (kernel.input(f"x{i}", shape, FP32) for i, shape in enumerate(SHAPES))
    queries = kernel.add("reshape", q, shape=(HEADS * ROWS, WIDTH))
    block = GraphBuilder(Level.BLOCK, grid=grid, loop=loop)
    none = (None,) * len(grid)
    qs = block.iterator(0, kernel.tensor(queries), (0,) * len(grid), None)
    ks, vs = (block.iterator(i, kernel.tensor(value), none, 0 if loop > 1 else None) for i, value in ((1, k), (2, v)))
    weights = block.add("exp", block.add("matmul", qs, block.add("transpose", ks, permutation=(1, 0))))
    parts = [block.add("matmul", weights, vs), block.add("sum", weights, dim=1, size=KEYS // loop)]
    above, below = (block.add("accumulate", part, combine="sum") if loop > 1 else part for part in parts)
    saved = block.add("output_saver", block.add("div", above, below), omap=(0,) * len(grid))
    (made,) = kernel.graph_defined(block.build([saved]), [queries, k, v])
    return kernel.build([kernel.add("reshape", made, shape=(HEADS, ROWS, WIDTH))])


def of_queries(axes: tuple[ParallelAxis, ...]) -> set[int | None]:
    """The dimensions of the queries that are axes."""
    return {axis.inputs[0] for axis in axes}


@pytest.mark.parametrize("grid", [(6,), (12,), (3,), (6, 2), (3, 4)])
@pytest.mark.parametrize("loop", [1, KEYS])
def test_rows_and_heads_stay_axes_where_blocks_have_parts_of_them(grid: tuple[int, ...], loop: int) -> None:
    left, right = program(grouped, *SHAPES), grouped_in_blocks(*grid, loop=loop)
    check(right)
    for kernels in (right, construct(right)):
        for axis in ((0, None, None), (1, None, None)):
            assert_slices_stand_for_all(kernels, axis)
        found = shared_slice(left, kernels, simple=False)
        assert of_queries(found.axes) == {0, 1, None}
        assert found.left.nodes[0].output.shape == (1, 1, WIDTH)
        for graph in (found.left, found.right):
            check(graph)
        verdict = verify_graphs(left, kernels)
        assert verdict.equivalent
        recheck(verdict.certificate, left, kernels)


@pytest.mark.parametrize("grid", [(2,), (2, 3), (4,)])
def test_a_block_with_parts_of_two_heads_has_none(grid: tuple[int, ...]) -> None:
    """Two blocks of six queries, or four of three, of heads of four; they are compared as they are."""
    for axis in ((0, None, None), (1, None, None)):
        with pytest.raises(NotParallel, match="parts of slices"):
            assert_slices_stand_for_all(grouped_in_blocks(*grid), axis)
    assert verify_graphs(program(grouped, *SHAPES), grouped_in_blocks(*grid)).equivalent


@pytest.mark.parametrize("grid", [(6,), (12,), (6, 2)])
def test_whatever_is_taken_for_slices_in_parts_is(grid: tuple[int, ...]) -> None:
    """Changed maps, operators, loops and operands: numbers must say the same as the proof."""
    proved = 0
    for graph in (grouped_in_blocks(*grid), construct(grouped_in_blocks(*grid)), grouped_in_blocks(*grid, loop=KEYS)):
        for changed in itertools.islice(itertools.chain([graph], mutants(graph)), 80):
            for axis in ((0, None, None), (1, None, None), (2, None, None), (None, 0, 0), (None, None, 1), (0, 0, None)):
                with contextlib.suppress(NotParallel, ShapeMismatch):
                    assert_slices_stand_for_all(changed, axis)
                    proved += 1
    assert proved > 20


def test_rows_that_another_head_adds_up_are_told_apart() -> None:
    """What a block makes of its rows is written where those of another order of heads and rows belong."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x0", (HEADS, ROWS, WIDTH), FP32)
    queries = kernel.add("reshape", x, shape=(HEADS * ROWS, WIDTH))
    block = GraphBuilder(Level.BLOCK, grid=(6,))
    rows = block.add("exp", block.iterator(0, kernel.tensor(queries), (0,), None))
    (made,) = kernel.graph_defined(block.build([block.add("output_saver", rows, omap=(0,))]), [queries])
    crossed = kernel.build(
        [kernel.add("transpose", kernel.add("reshape", made, shape=(ROWS, HEADS, WIDTH)), permutation=(1, 0, 2))]
    )
    exact = program(lambda x: x.exp(), (HEADS, ROWS, WIDTH))
    assert shared_slice(exact, crossed, simple=False).left.nodes[0].output.shape == (HEADS, ROWS, 1)
    assert verify_graphs(exact, crossed).equivalent is False


def test_several_blocks_of_one_slice_are_not_added_up_as_one() -> None:
    """Each block adds up its half of a slice; the sum over all is followed where slices are whole blocks alone."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x0", (8,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    part = block.add("sum", block.iterator(0, kernel.tensor(x), (0,), None), dim=0, size=2)
    (parts,) = kernel.graph_defined(block.build([block.add("output_saver", part, omap=(0,))]), [x])
    graph = kernel.build([kernel.add("exp", kernel.add("sum", parts, dim=0, size=2))])
    cut = assert_slices_stand_for_all(graph, (0,), (4,))
    assert (cut.slices, cut.dims, cut.widths) == (2, (0,), (ONE,))
    np.testing.assert_equal(cut.graph.nodes[0].output.shape, (4,))
