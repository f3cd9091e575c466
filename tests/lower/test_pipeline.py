"""Kernels for blocks of many threads: narrow factors, sums in registers, streams, order and barriers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lower.graphs import attention, normalised_scores, rms_norm_linear
from mugraph.errors import ExceedsMemory, InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.editing import without_dead_nodes
from mugraph.lower import Passes, cooperative, lower
from mugraph.lower.allocation import Request, allocate
from mugraph.lower.check import check
from mugraph.lower.fragments import warp_tiles
from mugraph.lower.memory import ALIGNMENT, lifetimes
from mugraph.lower.order import first_conflict, with_barriers
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce
from runtime.block_graphs import many_kernels

SHARED_BYTES = 100_000


def kernel_of(graph: Graph, shared_bytes: int = SHARED_BYTES) -> Kernel:
    (launch,) = lower(graph).values()
    return cooperative(launch.kernel, shared_bytes)


def large(dtype: DType = DType.BF16, loop: int = 2) -> Kernel:
    return kernel_of(rms_norm_linear(rows=8, inner=1024, columns=256, grid=2, loop=loop, dtype=dtype))


def product_of(kernel: Kernel) -> Matmul:
    (product,) = [statement for statement in kernel.statements if isinstance(statement, Matmul)]
    return product


@pytest.mark.parametrize("seed", range(6))
def test_every_kernel_is_valid(seed: int) -> None:
    dtype = (DType.BF16, DType.FP32, DType.FP16)[seed % 3]
    for launch in lower(many_kernels(seed, 20, dtype)).values():
        check(cooperative(launch.kernel, 250_000))


@pytest.mark.parametrize("graph", [rms_norm_linear(8, 256, 64, dtype=DType.FP16), attention(16, 128, 64, dtype=DType.BF16)])
def test_every_barrier_is_needed_and_none_may_go(graph: Graph) -> None:
    kernel = kernel_of(graph)
    assert kernel.barriers
    for barrier in kernel.barriers:
        without = replace(kernel, barriers=kernel.barriers - {barrier})
        assert first_conflict(without) is not None
        with pytest.raises(InvalidGraph, match="no barrier"):
            check(without)


def test_a_barrier_guards_what_the_next_iteration_overwrites() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (12, 96), DType.FP32)  # rows of 96: a lane reads what others write
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=3)
    value = block.add("exp", block.iterator(0, builder.tensor(x), (None,), 0))
    parts = [block.add("accumulate", block.add(op, value, dim=1, size=96), combine=op) for op in ("sum", "max")]
    saved = [block.add("output_saver", part, omap=(0,)) for part in parts]
    kernel = kernel_of(builder.build(builder.graph_defined(block.build(saved), [x])))
    once = with_barriers(replace(kernel, loop=1, barriers=frozenset()))
    assert kernel.barriers - once.barriers == {len(kernel.before)}


def test_no_barrier_stands_where_a_reduction_reads_what_its_own_threads_wrote() -> None:
    def barriers(columns: int) -> int:
        builder = GraphBuilder(Level.KERNEL)
        x = builder.input("x", (8, columns), DType.FP32)
        block = GraphBuilder(Level.BLOCK, grid=(1,), loop=1)
        value = block.add("exp", block.iterator(0, builder.tensor(x), (None,), None))
        total = block.add("div", value, block.add("sum", value, dim=1, size=columns))
        body = block.build([block.add("output_saver", total, omap=(0,))])
        return len(kernel_of(builder.build(builder.graph_defined(body, [x]))).barriers)

    assert barriers(128) == barriers(96) - 1


def test_statements_of_one_depth_share_one_barrier() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (4, 64), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    value = block.iterator(0, builder.tensor(x), (None,), None)
    parts = [block.add("div", block.add(op, value), block.add("max", value, dim=1, size=64)) for op in ("exp", "square")]
    saved = [block.add("output_saver", part, omap=(0,)) for part in parts]
    (launch,) = lower(builder.build(builder.graph_defined(block.build(saved), [x]))).values()
    kernel = cooperative(launch.kernel, SHARED_BYTES)
    reductions = [number for number, statement in enumerate(kernel.statements) if isinstance(statement, Reduce)]
    assert len(reductions) >= 2
    assert len(kernel.barriers) < len(reductions) + len(parts)


def test_a_computed_factor_is_stored_in_the_type_of_its_product() -> None:
    kernel = large()
    assert kernel.buffer(product_of(kernel).left.buffer).dtype is DType.BF16
    assert large(DType.FP32).buffer(product_of(large(DType.FP32)).left.buffer).dtype is DType.FP32


def test_a_sum_of_products_stays_in_registers_through_the_loop() -> None:
    kernel = large()
    held = product_of(kernel).target.buffer
    assert kernel.buffer(held).memory is Memory.REGISTERS
    assert any(held in {tile.buffer for tile in statement.sources} for statement in kernel.after)


def epilogue(
    reader: str, dtype: DType = DType.FP16, loop: int = 4, rows: int = 16, columns: int = 64, turned: bool = False
) -> Graph:
    """A product of x and w, or two of them, summed over a loop, and what reads it: the muGraph ends there."""
    builder = GraphBuilder(Level.KERNEL)
    shapes = {"x": (rows, 128), "w": (128, columns), "v": (128, columns), "bias": (columns,)}
    inputs = [builder.input(name, shape, dtype) for name, shape in shapes.items()]
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    maps = ((None, 1), (1, 0), (1, 0), (0, None))
    x, w, v, bias = (
        block.iterator(number, builder.tensor(value), (imap,), fmap)
        for number, (value, (imap, fmap)) in enumerate(zip(inputs, maps, strict=True))
    )
    product, other = (block.add("accumulate", block.add("matmul", x, each), combine="sum") for each in (w, v))
    carried = block.add("accumulate", bias, combine="max")
    made = {
        "bias": lambda: block.add("add", block.add("tanh", product), carried),
        "gate": lambda: block.add("mul", block.add("silu", product), other),
        "reduction": lambda: block.add("max", product, dim=1, size=columns // 2),
        "both": lambda: block.add("div", product, block.add("max", product, dim=1, size=columns // 2)),
    }[reader]()
    made = block.add("transpose", made, permutation=(1, 0)) if turned else made
    saved = block.add("output_saver", made, omap=(0 if turned else 1,))
    return without_dead_nodes(builder.build(builder.graph_defined(without_dead_nodes(block.build([saved])), inputs)))


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("reader", ["bias", "gate"])
@pytest.mark.parametrize("loop", [1, 4])
def test_an_epilogue_reads_sums_where_they_are(reader: str, dtype: DType, loop: int) -> None:
    (launch,) = lower(epilogue(reader, dtype, loop)).values()
    kernel, stored = (cooperative(launch.kernel, SHARED_BYTES, Passes(thread_graphs=wanted)) for wanted in (True, False))
    check(kernel)
    held = {buffer.name for buffer in kernel.buffers if buffer.memory is Memory.REGISTERS}
    assert len(held) == (2 if reader == "gate" else 1)
    assert held <= {tile.buffer for tile in kernel.statements[-1].sources}
    assert kernel.statements[-1].target.buffer in kernel.outputs
    assert kernel.shared_bytes <= stored.shared_bytes - 16 * 32 * 4 * (loop > 1)
    assert len(kernel.barriers) < len(stored.barriers)


@pytest.mark.parametrize("reader", ["reduction", "both"])
def test_a_sum_that_a_reduction_reads_is_copied_out_of_registers(reader: str) -> None:
    kernel = kernel_of(epilogue(reader))
    (held,) = (buffer.name for buffer in kernel.buffers if buffer.memory is Memory.REGISTERS)
    (copy,) = (s for s in kernel.after if held in {tile.buffer for tile in s.sources})
    assert kernel.buffer(copy.target.buffer).memory is Memory.SHARED
    check(kernel)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])  # on matrix units and on vector units
def test_weights_stream_through_a_ring_and_computed_factors_do_not(dtype: DType) -> None:
    kernel = large(dtype)
    panels = product_of(kernel).panels
    assert kernel.ring is not None
    assert panels is not None
    assert panels.left is None
    assert panels.right is not None
    assert panels.right.shape == (panels.depth, 128)
    assert 512 % panels.depth == 0
    check(kernel)


def test_a_tile_that_a_product_and_a_reduction_read_passes_through_the_ring_once() -> None:
    kernel = kernel_of(normalised_scores(dtype=DType.BF16))
    product, reduction = product_of(kernel), next(s for s in kernel.body if isinstance(s, Reduce))
    assert product.panels is not None
    assert product.panels.right is not None
    assert product.panels.depth == 64
    assert reduction.sources[0].buffer == product.panels.right.buffer
    assert kernel.body.index(product) < kernel.body.index(reduction)
    check(kernel)


def test_the_checker_refuses_reading_a_panel_before_it_is_waited_for() -> None:
    kernel = kernel_of(normalised_scores(dtype=DType.BF16))
    product, reduction = product_of(kernel), next(s for s in kernel.body if isinstance(s, Reduce))
    others = tuple(statement for statement in kernel.body if statement not in (product, reduction))
    with pytest.raises(InvalidGraph, match="ring is read before it is written"):
        check(replace(kernel, body=(reduction, product, *others)))


def test_without_room_for_two_panels_nothing_streams() -> None:
    graph = rms_norm_linear(rows=8, inner=1024, columns=256, grid=2, loop=2, dtype=DType.BF16)
    used = max(buffer.offset + buffer.bytes for buffer in kernel_of(graph).buffers if buffer.memory is Memory.SHARED)
    ring = next(buffer for buffer in kernel_of(graph).buffers if buffer.name == "ring")
    small = kernel_of(graph, used - ring.bytes + ring.bytes // 4)
    assert small.ring is None
    check(small)


def test_a_kernel_that_does_not_fit_names_its_size() -> None:
    with pytest.raises(ExceedsMemory, match="bytes of shared memory"):
        kernel_of(rms_norm_linear(), shared_bytes=64)


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("seed", range(3))
def test_shared_memory_is_the_proved_optimum_and_the_ring(seed: int, dtype: DType) -> None:
    for launch in lower(many_kernels(seed, 20, dtype)).values():
        kernel = cooperative(launch.kernel, 250_000)
        alive = lifetimes(kernel.before, kernel.body, kernel.after)
        arriving = [buffer for buffer in kernel.buffers if buffer.name in kernel.arriving]
        shared = [buffer for buffer in kernel.buffers if buffer.memory is Memory.SHARED and buffer not in arriving]
        found = allocate([Request(-(-b.bytes // ALIGNMENT), alive[b.name].first, alive[b.name].last) for b in shared])
        assert found.optimal
        assert kernel.shared_bytes <= found.height * ALIGNMENT + sum(-(-b.bytes // ALIGNMENT) * ALIGNMENT for b in arriving)


def test_a_wide_reduction_is_shared_among_warps() -> None:
    kernel = kernel_of(rms_norm_linear(rows=1, inner=4096, columns=32, grid=1, loop=1, dtype=DType.FP16))
    sums = [statement for statement in kernel.statements if isinstance(statement, Reduce)]
    assert [statement.target.shape for statement in sums] == [(1, 1, kernel.threads // 32), (1, 1)]


def test_the_parts_of_a_product_cut_along_k_stream_side_by_side() -> None:
    kernel = kernel_of(rms_norm_linear(rows=1, inner=1024, columns=64, grid=2, loop=2, dtype=DType.FP32))
    product = product_of(kernel)
    assert product.panels is not None
    assert product.panels.right is not None
    assert product.target.shape[0] > 1
    assert product.panels.right.shape == (product.target.shape[0], product.panels.depth, 32)
    check(kernel)


def test_a_product_whose_sums_no_thread_can_keep_does_not_stream() -> None:
    kernel = kernel_of(rms_norm_linear(rows=128, inner=256, columns=256, grid=1, loop=2, dtype=DType.FP32), 250_000)
    assert product_of(kernel).panels is None
    assert kernel.ring is None


def test_a_small_product_on_vector_units_is_shared_among_threads() -> None:
    kernel = kernel_of(rms_norm_linear(rows=4, inner=1024, columns=32, grid=1, loop=1, dtype=DType.FP32))
    product = product_of(kernel)
    parts = kernel.threads // 32
    assert product.target.shape == (parts, 4, 32)
    assert product.left.shape == (parts, 4, 1024 // parts)
    assert product.right.shape == (parts, 1024 // parts, 32)


def test_the_checker_refuses_panels_that_leave_their_slot() -> None:
    kernel = large()
    assert kernel.ring is not None
    smaller = replace(kernel, ring=replace(kernel.ring, slot=kernel.ring.slot - 16))
    with pytest.raises(InvalidGraph, match="do not fit the slots"):
        check(smaller)


def test_the_checker_refuses_a_buffer_where_panels_pass() -> None:
    kernel = large()
    taken = max(buffer.offset for buffer in kernel.buffers if buffer.memory is Memory.SHARED)
    moved = tuple(replace(buffer, offset=taken) if buffer.name == "ring" else buffer for buffer in kernel.buffers)
    with pytest.raises(InvalidGraph, match="ring"):
        check(replace(kernel, buffers=moved))


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (8, 64), (16, 200), (40, 24), (128, 128)])
def test_warp_tiles_cover_the_target_within_registers(rows: int, columns: int) -> None:
    tiles = warp_tiles((rows, columns), 8)
    assert tiles.bands * tiles.down * 16 >= rows
    assert tiles.panels * tiles.across * 8 >= columns
    assert tiles.down * tiles.across <= 16


def test_the_accumulators_of_an_online_softmax_stay_in_registers_with_what_is_added_to_them() -> None:
    kernel = kernel_of(attention(queries=16, keys=128, width=64, loop=4, dtype=DType.BF16))
    held = {buffer.name for buffer in kernel.buffers if buffer.memory is Memory.REGISTERS}
    (product,) = [s for s in kernel.body if isinstance(s, Matmul) and s.target.buffer in held]
    (update,) = [s for s in kernel.body if isinstance(s, Elementwise) and s.target.buffer in held]
    assert product.target in update.sources
    assert not product.accumulate
    assert held == {product.target.buffer, update.target.buffer}
    check(kernel)
