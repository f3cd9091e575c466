"""Rows in registers: which kernels have numbers of rows there, what that saves, and what the checker refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from lower.graphs import attention
from lower.test_pipeline import kernel_of
from mugraph.devices import Engines
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower import cooperative, lower, pipeline
from mugraph.lower.access_costs import block_traffic
from mugraph.lower.check import check
from mugraph.lower.fragments import holds_rows
from mugraph.lower.register_rows import rows_of, with_register_rows
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.lower.touched_tiles import with_tiles
from mugraph.lower.warp_groups import uses_warp_groups

GROUPS = Engines(warp_group_rows=64, tensor_maps=True)


def many_rows(queries: int = 64, loop: int = 2, flat: bool = False, masked: bool = False) -> Graph:
    return attention(queries, 32 * loop, 32, loop, DType.BF16, flat=flat, masked=masked)


def without_rows(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "with_register_rows", lambda kernel: kernel)
        return kernel_of(graph, 200_000)


def in_loop(kernel: Kernel) -> list[int]:
    """The barriers of an iteration beside the ring's."""
    start = len(kernel.before)
    return sorted(number for number in kernel.barriers if start <= number < start + len(kernel.body))


def of_rows(kernel: Kernel) -> set[str]:
    return {buffer.name for buffer in kernel.buffers if buffer.memory is Memory.ROWS}


def changed(kernel: Kernel, old: Statement, new: Statement) -> Kernel:
    return replace(kernel, body=tuple(new if s == old else s for s in kernel.body))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("queries", [64, 50, 128, 250])
def test_maxima_factors_and_sums_stay_with_the_lanes_of_their_rows(queries: int, flat: bool, masked: bool) -> None:
    kernel = kernel_of(many_rows(queries, flat=flat, masked=masked), 200_000)
    made = [s.target.buffer for s in kernel.body if not isinstance(s, Matmul) and math.prod(s.target.shape) == queries]
    assert len(made) == 7
    assert set(made) == of_rows(kernel)
    assert in_loop(kernel) == []
    check(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel


@pytest.mark.parametrize("queries", [64, 128])
def test_they_take_less_shared_memory_fewer_turns_of_it_and_fewer_barriers(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = many_rows(queries)
    held, stored = kernel_of(graph, 200_000), without_rows(graph, monkeypatch)
    assert of_rows(held) > of_rows(stored) == set()
    assert held.shared_bytes < stored.shared_bytes
    assert len(in_loop(held)) < len(in_loop(stored))
    assert block_traffic(held).wavefronts < block_traffic(stored).wavefronts
    assert block_traffic(held).sectors == block_traffic(stored).sectors


def test_groups_meet_at_their_copies_alone() -> None:
    (launch,) = lower(many_rows(128, loop=4)).values()
    kernel = cooperative(launch.kernel, 200_000, engines=GROUPS)
    assert uses_warp_groups(kernel)
    assert holds_rows(kernel)
    assert of_rows(kernel)
    assert in_loop(kernel) == []
    check(kernel)


def test_kernels_without_rows_of_scores_stay_as_they_are() -> None:
    kernel = kernel_of(attention(8, 128, 64, 2, DType.BF16), 200_000)
    assert with_register_rows(kernel) == kernel


def largest_read_by(other: Callable[[GraphBuilder, Value], Value]) -> Graph:
    """`exp(s - m) v` of scores s and their maxima m, which something else reads as well."""
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(name, (64, 64), DType.BF16) for name in "qkv"]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    q, k, v = (block.iterator(n, kernel.tensor(each), (None,), None) for n, each in enumerate(inputs))
    scores = block.add("matmul", q, k)
    largest = block.add("max", scores, dim=1, size=64)
    results = (block.add("matmul", block.add("exp", block.add("sub", scores, largest)), v), other(block, largest))
    saved = [block.add("output_saver", result, omap=(0,)) for result in results]
    return kernel.build(kernel.graph_defined(block.build(saved), inputs))


READERS: dict[str, tuple[Callable[[GraphBuilder, Value], Value], bool]] = {
    "a number for each row": (lambda block, largest: block.add("square", largest), True),
    "a sum over rows": (lambda block, largest: block.add("sum", largest, dim=0, size=64), False),
    "a product": (
        lambda block, largest: block.add("matmul", block.add("transpose", largest, permutation=(1, 0)), largest),
        False,
    ),
    "columns": (
        lambda block, largest: block.add("sub", largest, block.add("transpose", largest, permutation=(1, 0))),
        False,
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_only_lanes_that_hold_a_row_may_read_its_number(reader: str) -> None:
    other, held = READERS[reader]
    kernel = kernel_of(largest_read_by(other), 200_000)
    assert holds_rows(kernel)
    assert bool(of_rows(kernel)) == held
    check(kernel)


def test_a_number_that_leaves_the_kernel_is_stored_where_it_belongs() -> None:
    kernel = kernel_of(largest_read_by(READERS["a number for each row"][0]), 200_000)
    (stored,) = (
        s for s in kernel.statements if s.target.buffer in kernel.outputs and {t.buffer for t in s.sources} & of_rows(kernel)
    )
    assert stored.target.shape == (64, 1)


def summed_weights() -> Graph:
    """`(sigmoid(q k) v) / sums of the weights`, which nothing rescales."""
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(name, shape, DType.BF16) for name, shape in (("q", (64, 32)), ("k", (32, 64)), ("v", (64, 64)))]
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=2)
    q, k, v = (
        block.iterator(n, kernel.tensor(each), (None,), dim)
        for n, (each, dim) in enumerate(zip(inputs, (None, 1, 0), strict=True))
    )
    weights = block.add("sigmoid", block.add("matmul", q, k))
    mixed, total = (
        block.add("accumulate", term, combine="sum")
        for term in (block.add("matmul", weights, v), block.add("sum", weights, dim=1, size=32))
    )
    saved = block.add("output_saver", block.add("div", mixed, total), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), inputs))


def test_sums_that_a_reduction_alone_adds_to_leave_the_loop_in_registers() -> None:
    kernel = kernel_of(summed_weights(), 200_000)
    (reduction,) = (s for s in kernel.body if isinstance(s, Reduce))
    assert reduction.accumulate
    assert reduction.target.buffer in of_rows(kernel)
    assert in_loop(kernel) == []
    check(kernel)


@pytest.fixture
def kernel() -> Kernel:
    return kernel_of(many_rows(), 200_000)


def test_the_checker_refuses_rows_that_no_lanes_hold(kernel: Kernel) -> None:
    shared = {b.name for b in kernel.buffers if b.memory is Memory.REGISTERS}
    fragments = replace(
        kernel, buffers=tuple(replace(b, memory=Memory.SHARED) if b.name in shared else b for b in kernel.buffers)
    )
    with pytest.raises(InvalidGraph, match="only lanes that hold these"):
        check(fragments)


def test_the_checker_refuses_numbers_of_other_rows(kernel: Kernel) -> None:
    names = of_rows(kernel)
    reads = next(s for s in kernel.body if isinstance(s, Elementwise) and s.target.shape[-1] > 1 and s.target.buffer not in names)

    def turned(tile: Tile) -> Tile:
        return replace(tile, strides=(0, 0, 1)) if tile.buffer in names else tile

    with pytest.raises(InvalidGraph, match="only lanes that hold these"):
        check(changed(kernel, reads, with_tiles(reads, turned)))


def test_the_checker_refuses_a_part_of_the_rows(kernel: Kernel) -> None:
    name = next(s.target.buffer for s in kernel.body if isinstance(s, Reduce))
    larger = tuple(replace(b, elements=2 * b.elements) if b.name == name else b for b in kernel.buffers)
    with pytest.raises(InvalidGraph, match="only lanes that hold these"):
        check(replace(kernel, buffers=larger))


def test_the_checker_refuses_numbers_of_16_bits(kernel: Kernel) -> None:
    name = next(s.target.buffer for s in kernel.body if isinstance(s, Reduce))
    narrow = tuple(replace(b, dtype=DType.BF16) if b.name == name else b for b in kernel.buffers)
    with pytest.raises(InvalidGraph, match="only lanes that hold these"):
        check(replace(kernel, buffers=narrow))


def test_the_checker_refuses_a_product_of_them(kernel: Kernel) -> None:
    name = next(s.target.buffer for s in kernel.body if isinstance(s, Reduce))
    product = next(s for s in kernel.body if isinstance(s, Matmul))
    column = Tile(name, product.right.shape, (0, *(0 for _ in product.right.shape[1:])))
    with pytest.raises(InvalidGraph):
        check(changed(kernel, product, replace(product, right=column, panels=None)))


def test_a_split_of_rows_is_that_of_the_scores(kernel: Kernel) -> None:
    split = rows_of(kernel, (1, 64))
    assert split is not None
    assert (split.bands, split.down, split.panels) == (4, 1, 1)
    assert rows_of(kernel, (64,)) is None
