"""Scores in registers: which kernels have them, what they save, and what the checker refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lower.graphs import attention, normalised_scores
from lower.test_pipeline import kernel_of
from mugraph.devices import Engines
from mugraph.devices.products import WARP
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower import cooperative, lower, pipeline
from mugraph.lower.access_costs import block_traffic
from mugraph.lower.check import check
from mugraph.lower.fragments import holds_rows, row_bands, takes_left_from_registers
from mugraph.lower.register_scores import with_register_scores
from mugraph.lower.scalar_expressions import Apply, Constant, Source
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.lower.warp_groups import held_registers, uses_warp_groups


def many_rows(
    queries: int = 64, keys: int = 128, width: int = 64, loop: int = 2, dtype: DType = DType.BF16, masked: bool = False
) -> Graph:
    return attention(queries, keys, width, loop, dtype, masked=masked)


def without_scores(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "with_register_scores", lambda kernel, grouped: kernel)
        return kernel_of(graph, 200_000)


def second_product(kernel: Kernel) -> Matmul:
    (product,) = (s for s in kernel.statements if isinstance(s, Matmul) and takes_left_from_registers(kernel, s))
    return product


def changed(kernel: Kernel, old: Statement, new: Statement) -> Kernel:
    return replace(kernel, body=tuple(new if s == old else s for s in kernel.body))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("queries", "warps"), [(64, 4), (50, 4), (128, 8), (100, 8)])
def test_scores_and_weights_stay_with_the_warp_of_their_rows(queries: int, warps: int, masked: bool) -> None:
    kernel = kernel_of(many_rows(queries, masked=masked), 200_000)
    product = second_product(kernel)
    assert kernel.threads == warps * WARP
    made = {s.target.buffer for s in kernel.body if s.target.shape == product.left.shape}
    assert {kernel.buffer(name).memory for name in made} == {Memory.REGISTERS}
    reductions = [s for s in kernel.body if isinstance(s, Reduce)]
    assert {kernel.buffer(tile.buffer).memory for s in reductions for tile in s.sources} == {Memory.REGISTERS}
    check(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel


@pytest.mark.parametrize("loop", [1, 2])
@pytest.mark.parametrize("queries", [64, 128])
def test_they_take_less_shared_memory_fewer_turns_of_it_and_fewer_barriers(
    queries: int, loop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = many_rows(queries, keys=64 * loop, loop=loop)
    held, stored = kernel_of(graph, 200_000), without_scores(graph, monkeypatch)
    assert holds_rows(held) > holds_rows(stored)
    assert held.shared_bytes < stored.shared_bytes
    assert len(held.barriers) < len(stored.barriers)
    assert 2 * block_traffic(held).wavefronts < block_traffic(stored).wavefronts
    assert block_traffic(held).sectors == block_traffic(stored).sectors


def computed_again() -> tuple[Kernel, Reduce]:
    """Attention whose sum of the weights computes them of the scores, with that sum."""
    (launch,) = lower(many_rows()).values()
    (weights,) = (s for s in launch.kernel.body if isinstance(s, Elementwise) and s.label and s.label.name == "exp")
    (summed,) = (s for s in launch.kernel.body if isinstance(s, Reduce) and s.combine == "sum")
    again = replace(
        summed,
        sources=tuple(
            replace(tile, shape=summed.sources[0].shape, strides=(*tile.strides[:2], 0, tile.strides[2]))
            for tile in weights.sources
        ),
        expression=weights.expression,
    )
    return changed(launch.kernel, summed, again), again


def test_what_is_summed_is_what_is_multiplied_and_not_computed_again() -> None:
    kernel = with_register_scores(computed_again()[0])
    assert holds_rows(kernel)
    assert [s.expression for s in kernel.body if isinstance(s, Reduce)] == [Source(0), Source(0)]


def test_what_is_summed_is_computed_of_what_was_written_since() -> None:
    kernel, summed = computed_again()
    (largest,) = (s for s in kernel.body if isinstance(s, Reduce) and s.combine == "max")
    halved = Elementwise(largest.target, (largest.target,), Apply("({0} * {1})", (Source(0), Constant(0.5))))
    place = kernel.body.index(summed)
    held = with_register_scores(replace(kernel, body=(*kernel.body[:place], halved, *kernel.body[place:])))
    assert holds_rows(held)
    assert [s.expression for s in held.body if isinstance(s, Reduce)] == [Source(0), summed.expression]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(many_rows(8), id="rows of one warp"),
        pytest.param(many_rows(300), id="more rows than warps hold"),
        pytest.param(many_rows(keys=48), id="columns that end within a fragment"),
        pytest.param(many_rows(keys=256, width=128), id="more than registers hold"),
        pytest.param(many_rows(keys=512), id="more columns than registers hold"),
        pytest.param(many_rows(keys=256), id="more columns than warps hold beside right factors"),
        pytest.param(many_rows(keys=224, dtype=DType.FP16), id="the same beside a result that is not rescaled"),
        pytest.param(many_rows(dtype=DType.FP32), id="fp32"),
        pytest.param(normalised_scores(64, 128, 64, dtype=DType.BF16), id="no second product"),
    ],
)
def test_they_stay_in_shared_memory_elsewhere(graph: Graph) -> None:
    (launch,) = lower(graph).values()
    kernel = cooperative(launch.kernel, 400_000)
    assert not holds_rows(kernel)
    check(kernel)


def weights_read_twice(other: Callable[[GraphBuilder, Value], Value]) -> Graph:
    """Products of exponentials, which something else reads as well."""
    kernel = GraphBuilder(Level.KERNEL)
    q, k, v = (kernel.input(name, (64, 64), DType.BF16) for name in "qkv")
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tiles = [block.iterator(n, kernel.tensor(each), (None,), None) for n, each in enumerate((q, k, v))]
    weights = block.add("tanh", block.add("matmul", tiles[0], tiles[1]))
    results = (block.add("matmul", weights, tiles[2]), other(block, weights))
    saved = [block.add("output_saver", result, omap=(0,)) for result in results]
    return kernel.build(kernel.graph_defined(block.build(saved), [q, k, v]))


READERS: dict[str, tuple[Callable[[GraphBuilder, Value], Value], bool]] = {
    "stored as they are": (lambda block, weights: block.add("abs", weights), True),
    "sums of rows": (lambda block, weights: block.add("sum", weights, dim=1, size=64), True),
    "sums of columns": (lambda block, weights: block.add("sum", weights, dim=0, size=64), False),
    "sums of halves of rows": (lambda block, weights: block.add("sum", weights, dim=1, size=32), False),
    "transposed": (lambda block, weights: block.add("abs", block.add("transpose", weights, permutation=(1, 0))), False),
    "a right factor": (lambda block, weights: block.add("matmul", weights, weights), False),
}


@pytest.mark.parametrize("reader", READERS)
def test_only_what_lanes_can_read_of_their_rows_may_read_them(reader: str) -> None:
    other, held = READERS[reader]
    kernel = kernel_of(weights_read_twice(other), 200_000)
    assert holds_rows(kernel) == held
    check(kernel)


def test_warp_groups_take_them_from_registers_too() -> None:
    (launch,) = lower(many_rows(128)).values()
    kernel = cooperative(launch.kernel, 200_000, engines=Engines(warp_group_rows=64, tensor_maps=True))
    assert uses_warp_groups(kernel)
    assert second_product(kernel).panels is not None
    check(kernel)


@pytest.mark.parametrize(("keys", "width"), [(256, 32), (192, 64), (128, 128)])
def test_warps_hold_what_leaves_room_for_right_factors(keys: int, width: int) -> None:
    assert holds_rows(kernel_of(many_rows(keys=keys, width=width), 400_000))


def test_groups_hold_more_for_they_load_no_right_factors() -> None:
    (launch,) = lower(many_rows(keys=256)).values()
    kernel = cooperative(launch.kernel, 400_000, engines=Engines(warp_group_rows=64, tensor_maps=True))
    assert uses_warp_groups(kernel)
    assert holds_rows(kernel)


def test_registers_count_what_is_alive_at_once() -> None:
    """Scores and weights are not, of 64 columns: 32 registers, and as many for the sum, and in fp16 for the product's result."""
    assert held_registers(kernel_of(many_rows(), 200_000)) == 2 * 32
    assert held_registers(kernel_of(many_rows(dtype=DType.FP16), 200_000)) == 3 * 32


def test_a_split_by_rows_depends_on_nothing_but_rows() -> None:
    narrow, wide = row_bands((2, 60, 16), 8), row_bands((2, 60, 128), 8)
    assert narrow is not None
    assert wide is not None
    assert replace(narrow, across=wide.across) == wide
    assert (wide.down, wide.bands, wide.panels, wide.batch) == (1, 4, 1, 2)
    assert row_bands((2, 60, 128), 7) is None
    assert row_bands((60, 60), 8) is None


def test_the_checker_refuses_rows_that_several_warps_hold() -> None:
    with pytest.raises(InvalidGraph, match="in registers"):
        check(replace(kernel_of(many_rows(), 200_000), threads=WARP))


def test_the_checker_refuses_what_lanes_do_not_hold() -> None:
    kernel = kernel_of(many_rows(), 200_000)
    product = second_product(kernel)
    rows, columns = product.left.strides[-2:]
    turned = replace(product.left, strides=(*product.left.strides[:-2], columns, rows))
    faults = (
        replace(product, left=turned),
        replace(product, tf32=True),
        replace(product, dtype=DType.FP32),
        replace(product, left=product.right, right=product.left),
    )
    for fault in faults:
        with pytest.raises(InvalidGraph, match="in registers"):
            check(changed(kernel, product, fault))


def test_the_checker_refuses_a_reduction_of_rows_into_registers() -> None:
    kernel = kernel_of(many_rows(), 200_000)
    reduction = next(s for s in kernel.body if isinstance(s, Reduce))
    held = replace(kernel.buffer(reduction.target.buffer), memory=Memory.REGISTERS)
    with pytest.raises(InvalidGraph, match="in registers"):
        check(replace(kernel, buffers=tuple(held if b.name == held.name else b for b in kernel.buffers)))


def test_the_checker_wants_a_barrier_between_a_maximum_and_its_readers() -> None:
    kernel = kernel_of(many_rows(), 200_000)
    for barrier in kernel.barriers:
        with pytest.raises(InvalidGraph, match="no barrier"):
            check(replace(kernel, barriers=kernel.barriers - {barrier}))


def test_the_checker_refuses_rows_of_one_matrix_as_matrices_of_one_row() -> None:
    kernel = kernel_of(many_rows(), 200_000)

    def apart(tile: Tile) -> Tile:
        return replace(tile, shape=(64, 1, 64), strides=(tile.strides[-2], 0, tile.strides[-1]))

    for statement in kernel.body:
        if isinstance(statement, Elementwise) and statement.target.shape == (1, 64, 64):
            turned = replace(statement, target=apart(statement.target), sources=tuple(map(apart, statement.sources)))
            with pytest.raises(InvalidGraph, match="in registers"):
                check(changed(kernel, statement, turned))


def test_the_checker_refuses_what_groups_and_warps_would_share_out_each_in_their_way() -> None:
    (launch,) = lower(many_rows(128)).values()
    kernel = cooperative(launch.kernel, 200_000, engines=Engines(warp_group_rows=64, tensor_maps=True))
    for product in (s for s in kernel.body if isinstance(s, Matmul)):
        assert product.panels is not None
        apart = replace(product, panels=replace(product.panels, grouped=False))
        with pytest.raises(InvalidGraph, match="in registers"):
            check(changed(kernel, product, apart))
