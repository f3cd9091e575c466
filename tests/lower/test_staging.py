"""Inputs that a loop reads beside its products: which are staged, in how many slots, and what the checker refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import Engines
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import cooperative, lower
from mugraph.lower.check import check
from mugraph.lower.layouts import BufferLayout
from mugraph.lower.staging import arrival, panels_of_iteration, slots
from mugraph.lower.tile_form import Kernel, Matmul


def norm(loop: int, inner: int = 1024) -> Graph:
    """RMSNorm and a linear layer, one block of which reads 32 columns of the weights."""
    return rms_norm_linear(rows=8, inner=inner, columns=64, grid=2, loop=loop, dtype=DType.BF16)


def kernel_of(graph: Graph, shared_bytes: int = 200_000, multiprocessors: int = 4, engines: Engines | None = None) -> Kernel:
    (launch,) = lower(graph).values()
    return cooperative(launch.kernel, shared_bytes, engines=engines or Engines(), multiprocessors=multiprocessors)


@pytest.mark.parametrize("loop", [2, 4, 8])
def test_tiles_of_an_iteration_are_staged_in_as_many_slots_as_may_be_read_and_one_more(loop: int) -> None:
    kernel = kernel_of(norm(loop))
    assert kernel.ring is not None
    assert len(kernel.staged) == 2, "x and the gains"
    for staged in kernel.staged:
        assert kernel.buffer(staged.buffer).elements % slots(kernel) == 0
    ahead = kernel.ring.stages / panels_of_iteration(kernel)
    assert slots(kernel) - 1 >= ahead > slots(kernel) - 2
    check(kernel)


def test_no_statement_of_the_loop_waits_for_device_memory_where_all_is_staged() -> None:
    kernel = kernel_of(norm(4))
    loaded = {tile.buffer for s in kernel.body if not isinstance(s, Matmul) for tile in s.sources}
    assert not loaded & set(kernel.inputs)


def test_a_tile_that_two_statements_read_is_staged_once() -> None:
    kernel = kernel_of(norm(4))
    sources = [staged.source.buffer for staged in kernel.staged]
    assert len(sources) == len(set(sources))
    readers = [s for s in kernel.body if not isinstance(s, Matmul) for t in s.sources if t.buffer == kernel.staged[0].buffer]
    assert len(readers) == 2, "its product with the gains, and its square"


def test_without_a_loop_nothing_is_staged() -> None:
    assert not kernel_of(norm(1)).staged


@pytest.mark.parametrize("engines", [Engines(bulk_row_bytes=128), Engines(tensor_maps=True), Engines(warp_group_rows=1)])
def test_the_same_is_staged_whoever_fills_the_ring(engines: Engines) -> None:
    wide = rms_norm_linear(rows=8, inner=2048, columns=128, grid=2, loop=8, dtype=DType.BF16)
    threads, others = kernel_of(wide), kernel_of(wide, engines=engines)
    assert others.ring is not None
    assert others.ring.bulk != bool(engines.warp_group_rows)
    assert [staged.source for staged in others.staged] == [staged.source for staged in threads.staged] != []
    check(others)


def test_what_does_not_change_with_the_iteration_is_not_staged() -> None:
    kernel = kernel_of(attention(queries=16, keys=128, width=64, loop=2, dtype=DType.BF16))
    assert all(staged.source.start.loop for staged in kernel.staged)


def test_the_largest_tiles_come_first_where_room_is_short() -> None:
    whole = kernel_of(norm(4))
    short = kernel_of(norm(4), whole.shared_bytes - 1)
    assert len(short.staged) < len(whole.staged) or short.ring != whole.ring
    assert short.shared_bytes < whole.shared_bytes
    check(short)


def test_a_block_that_shares_its_multiprocessor_leaves_room_for_another() -> None:
    alone, beside = kernel_of(norm(4), 120_000), kernel_of(norm(4), 120_000, multiprocessors=1)
    assert beside.shared_bytes <= 60_000 < alone.shared_bytes
    assert (alone.resident, beside.resident) == (1, 2)


def test_the_checker_refuses_slots_that_would_be_filled_too_early() -> None:
    kernel = kernel_of(norm(8))
    first = kernel.buffer(kernel.staged[0].buffer)
    fewer = replace(first, elements=first.elements // slots(kernel) * (slots(kernel) - 1))
    buffers = tuple(fewer if buffer is first else buffer for buffer in kernel.buffers)
    with pytest.raises(InvalidGraph, match="filled too early"):
        check(replace(kernel, buffers=buffers))


def test_the_checker_refuses_tiles_that_copies_cannot_move() -> None:
    kernel = kernel_of(norm(4))
    (first, *rest) = kernel.staged
    moved = replace(first, source=replace(first.source, start=replace(first.source.start, constant=1)))
    with pytest.raises(InvalidGraph, match="staged input"):
        check(replace(kernel, staged=(moved, *rest)))


def test_the_checker_refuses_buffers_where_copies_arrive() -> None:
    kernel = kernel_of(norm(4))
    arriving = kernel.buffer(kernel.staged[0].buffer)
    other = next(b for b in kernel.buffers if b.name.startswith("s") and b.name[1:].isdigit() and b.memory == "shared")
    buffers = tuple(replace(b, offset=arriving.offset) if b is other else b for b in kernel.buffers)
    with pytest.raises(InvalidGraph, match=f"copies arrive in {arriving.name}|took its place"):
        check(replace(kernel, buffers=buffers))


def normed_twice(columns: int = 1024) -> Graph:
    """Rows divided by their length, times gains that are only needed then."""
    builder = GraphBuilder(Level.KERNEL)
    x, gains = builder.input("x", (4, columns), DType.BF16), builder.input("gains", (columns,), DType.BF16)
    block = GraphBuilder(Level.BLOCK, grid=(4,), loop=1)
    row = block.iterator(0, builder.tensor(x), (0,), None)
    length = block.add("sqrt", block.add("sum", block.add("square", row), dim=1, size=columns))
    scaled = block.add("mul", block.add("div", row, length), block.iterator(1, builder.tensor(gains), (None,), None))
    body = block.build([block.add("output_saver", scaled, omap=(0,))])
    return builder.build(builder.graph_defined(body, [x, gains]))


def test_what_is_first_read_behind_a_barrier_is_on_its_way_from_the_start() -> None:
    kernel = kernel_of(normed_twice())
    assert [staged.source.buffer for staged in kernel.staged] == [kernel.inputs[1]], "x is read at once"
    assert arrival(kernel) in kernel.barriers
    assert slots(kernel) == 1
    check(kernel)
    with pytest.raises(InvalidGraph, match="staged input"):
        check(replace(kernel, barriers=frozenset()))


def test_what_takes_many_copies_is_loaded_where_it_is_read() -> None:
    assert not kernel_of(normed_twice(columns=1 << 15)).staged


def test_barriers_are_those_of_the_kernel_that_reads_what_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share out a statement's elements by where its tiles lie: here some column by column, and others row by row."""

    def mixed(options: Mapping[str, Sequence[BufferLayout]], _: object) -> dict[str, BufferLayout]:
        fastest = {name: 0 if name in ("s0", "s1", "s4") else 1 for name in options}
        return {name: next(layout for layout in options[name] if layout.strides[dim] == 1) for name, dim in fastest.items()}

    monkeypatch.setattr("mugraph.lower.layouts.choose", mixed)
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (8, 2), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=1)
    first, second = (block.iterator(number, builder.tensor(x), (None,), None) for number in range(2))
    parts = [block.add("accumulate_rescaled", first, second), block.add("accumulate", second, combine="max")]
    body = block.build([block.add("output_saver", part, omap=(0,)) for part in parts])
    kernel = kernel_of(builder.build(builder.graph_defined(body, [x, x])))
    assert kernel.staged
    check(kernel)


def test_two_blocks_fit_where_two_are_promised() -> None:
    """With what a multiprocessor keeps for each beside."""
    for graph in (norm(4), norm(8, inner=2048), rms_norm_linear(rows=128, inner=512, columns=96, grid=2, loop=4)):
        for shared_bytes in (101_376, 166_912, 232_448):
            kernel = kernel_of(graph, shared_bytes, multiprocessors=0)
            assert kernel.resident == 1 or 2 * (kernel.shared_bytes + 1024) <= shared_bytes + 1024
            check(kernel)


def test_a_block_that_is_alone_streams_what_others_do() -> None:
    graph = rms_norm_linear(rows=16, inner=768, columns=320, grid=2, loop=1)
    alone, beside = (kernel_of(graph, 101_376, multiprocessors) for multiprocessors in (4, 0))
    assert beside.ring is not None
    assert alone.ring is not None
