"""Who combines partial results: groups of blocks that follow from what is read, and prices that follow from the parts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from benchmarks.last_block import Pair, forms, of_even_wave, pair_of

from lower.graphs import chain_of_kernels
from mugraph.devices import device_for
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import Launch, lower
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import kernel_seconds

H100 = device_for("cuda:sm_90")


def split_sums(rows: int, parts: int, combining: int, columns: int = 4, loop: int = 1) -> Graph:
    """Sums over the middle dimension of [rows, 32 parts, columns]: a block for each row and part, and so many blocks a row that
    combine them, each for some of the columns, all parts at once or in a loop over them."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, 32 * parts, columns), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(rows, parts))
    part = block.add("sum", block.iterator(0, kernel.tensor(x), (0, 1), None), dim=1, size=32)
    (partial,) = kernel.graph_defined(block.build([block.add("output_saver", part, omap=(0, 1))]), [x])
    block = GraphBuilder(Level.BLOCK, grid=(rows, combining), loop=loop)
    read = block.iterator(0, kernel.tensor(partial), (0, 2), 1 if loop > 1 else None)
    total = block.add("sum", read, dim=1, size=parts // loop)
    total = block.add("accumulate", total, combine="sum") if loop > 1 else total
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(0, 2))]), [partial]))


def launches(graph: Graph) -> tuple[Launch, Launch]:
    first, second = lower(graph).values()
    return first, second


@pytest.mark.parametrize(("rows", "parts", "combining", "loop"), [(1, 4, 1, 1), (3, 2, 1, 1), (2, 8, 4, 1), (5, 6, 2, 3)])
def test_groups_are_those_whose_parts_are_summed(rows: int, parts: int, combining: int, loop: int) -> None:
    assert pair_of(*launches(split_sums(rows, parts, combining, loop=loop))) == Pair(rows, parts, combining)


def test_kernels_that_read_their_own_parts_alone_combine_nothing() -> None:
    assert pair_of(*launches(chain_of_kernels(2))) is None


def test_kernels_that_share_no_tensor_combine_nothing() -> None:
    first, _ = launches(split_sums(2, 4, 1))
    assert pair_of(first, first) is None


def test_groups_that_overlap_are_none() -> None:
    """Blocks of the second kernel read either a row or a column of what the first one has written."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4, 4), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4, 4))
    squares = block.add("square", block.iterator(0, kernel.tensor(x), (0, 1), None))
    (made,) = kernel.graph_defined(block.build([block.add("output_saver", squares, omap=(0, 1))]), [x])
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    row, column = (block.iterator(number, kernel.tensor(made), (number,), None) for number in (0, 1))
    product = block.add("matmul", row, column)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", product, omap=(0,))]), [made, made]))
    assert pair_of(*launches(graph)) is None


def test_a_last_block_takes_what_its_group_takes_and_no_launch() -> None:
    _, second = launches(split_sums(2, 64, 4, columns=256))
    alone, shared = forms(Pair(2, 64, 1), second, H100), forms(Pair(2, 64, 4), second, H100)
    assert shared.group_bytes == 4 * alone.group_bytes
    assert shared.alone == alone.alone
    assert shared.last_block > alone.last_block  # four times the work by one block
    assert alone.shared_out == pytest.approx(alone.last_block + H100.load_seconds)
    assert shared.shared_out < shared.last_block


def test_more_parts_make_last_blocks_slower_than_a_launch() -> None:
    found = []
    for parts in (4, 64, 1024):
        first, second = launches(split_sums(2, parts, 4, columns=256))
        pair = pair_of(first, second)
        assert pair is not None
        found.append(forms(pair, second, H100))
    assert all(before.last_block < after.last_block for before, after in itertools.pairwise(found))
    assert found[0].last_block < found[0].alone
    assert found[-1].last_block > found[-1].alone


@pytest.mark.parametrize(("rows", "parts", "beside"), [(6, 22, 1), (6, 44, 2)])
def test_a_wave_that_is_full_is_even(rows: int, parts: int, beside: int) -> None:
    first, _ = launches(split_sums(rows, parts, 1, columns=64))
    assert of_even_wave(first, beside, H100) == pytest.approx(float(kernel_seconds(H100, demand(first.body, H100))))


def test_an_even_wave_saves_what_idle_multiprocessors_would_have_done() -> None:
    first, _ = launches(split_sums(12, 12, 1, columns=64))  # 144 blocks: twelve multiprocessors have two, and all wait for them
    asked = demand(first.body, H100)
    threads = replace(H100, memory_bandwidth=1e30, cache_bandwidth=1e30, launch_seconds=0.0, load_seconds=0.0)
    own, even = float(kernel_seconds(threads, asked)), of_even_wave(first, 1, threads)
    assert even == pytest.approx(own * (144 / 132) / 2)
