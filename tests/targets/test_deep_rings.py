"""Rings that are as deep as memory wants them: how deep they are, that nothing gives way to them, and that kernels are right and
clean on the emulator with any number of slots, with every planted fault noticed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lower.graphs import attention, linear_along_k, rms_norm_linear
from lower.test_tensor_maps import product
from mugraph.devices import Engines, device_for
from mugraph.devices.copies import MOST_STAGES
from mugraph.ir import DType, Graph
from mugraph.lower import construct
from mugraph.lower.bytes_in_flight import with_panels_ahead
from mugraph.lower.check import check
from mugraph.lower.memory import RESERVED_BYTES, beside_another
from mugraph.lower.staging import panels_of_kernel, slots
from mugraph.lower.tile_form import Kernel, Ring
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from targets.plants import Plant, shows
from targets.test_lagging_rings import ENGINES, expect_right_and_clean, lowered, needs_compiler

ALONE = Cuda("sm_90", 232_448, multiprocessors=132)
SHARED = replace(ALONE, multiprocessors=0)
"""The same where blocks leave room for a second one."""
NORM = rms_norm_linear(rows=8, inner=2048, columns=64, grid=2, loop=32, dtype=DType.BF16)
"""32 panels of 4 KB, with x and the gains staged beside them."""
FILLED_BY = {
    "threads": (ALONE, NORM),
    "threads, two panels an iteration": (ALONE, attention(queries=16, keys=512, width=32, loop=8, dtype=DType.FP16)),
    "rows": (replace(ALONE, engines=Engines(bulk_row_bytes=64)), NORM),
    "boxes": (replace(ALONE, engines=ENGINES), construct(product(64, 1024, 64, grid=1, loop=32))),
    "a warp": (replace(ALONE, engines=replace(ENGINES, producer_warps=True)), construct(product(64, 1024, 64, grid=1, loop=32))),
}
"""By what fills their rings, machines and graphs of short panels."""


def ring_of(kernel: Kernel) -> Ring:
    assert kernel.ring is not None
    return kernel.ring


def panel_bytes(kernel: Kernel) -> int:
    ring = ring_of(kernel)
    return ring.slot * kernel.buffer(ring.buffer).dtype.bytes


def with_ahead(machine: Cuda, graph: Graph, panels: int) -> Cuda:
    """The machine that wants so many panels of a graph's kernel on their way."""
    return replace(machine, bytes_in_flight=panels * panel_bytes(lowered(graph, machine)))


def sizes_apart(kernel: Kernel) -> Kernel:
    """The kernel without what a deeper ring changes: its slots, and those of what is staged, and where buffers lie."""
    deep = {buffer.name for buffer in kernel.buffers if buffer.name in kernel.arriving}
    buffers = (replace(b, elements=0 if b.name in deep else b.elements, offset=0) for b in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers), ring=replace(ring_of(kernel), stages=0))


@pytest.mark.parametrize("panels", [4, 7, 12, 16, 100])
@pytest.mark.parametrize("name", FILLED_BY)
def test_as_many_panels_are_on_their_way_as_memory_wants(name: str, panels: int) -> None:
    machine, graph = FILLED_BY[name]
    usual, deep = lowered(graph, machine), lowered(graph, with_ahead(machine, graph, panels))
    check(deep)
    wanted = min(panels, panels_of_kernel(usual), 16)
    assert ring_of(deep).ahead == max(wanted, ring_of(usual).ahead)
    assert len(deep.staged) == len(usual.staged)
    assert sizes_apart(deep) == sizes_apart(usual)
    assert parse_kernel(format_kernel(deep)) == deep
    for staged in deep.staged:
        assert deep.buffer(staged.buffer).elements == slots(deep) * math.prod(staged.source.shape)


@settings(deadline=None, max_examples=40)
@given(
    taken=st.sampled_from([16, 32, 48, 64, 128]),
    loop=st.integers(1, 24),
    rows=st.sampled_from([8, 16, 40]),
    wanted=st.integers(0, 100_000),
    shared_bytes=st.integers(16_384, 120_000),
    alone=st.booleans(),
)
def test_rings_are_as_deep_as_is_wanted_and_there_is_room_for(
    taken: int, loop: int, rows: int, wanted: int, shared_bytes: int, alone: bool
) -> None:
    """A slot more would be too many bytes, panels or slots, or not fit; and room for a second block stays."""
    machine = replace(ALONE if alone else SHARED, shared_bytes=shared_bytes, bytes_in_flight=wanted)
    graph = construct(linear_along_k(taken, loop, rows))
    usual, deep = lowered(graph, replace(machine, bytes_in_flight=0)), lowered(graph, machine)
    check(deep)
    assert deep.resident == usual.resident
    if usual.ring is None:
        assert deep == usual
        return
    room = beside_another(shared_bytes) if usual.resident > 1 else shared_bytes
    asked = wanted if alone else math.ceil(wanted / 2)
    ahead, size = ring_of(deep).ahead, panel_bytes(deep)
    assert deep.shared_bytes <= room
    assert ahead == ring_of(usual).ahead or (ahead - 1) * size < asked
    is_full = deep.shared_bytes + size + 1024 > room
    assert is_full or ahead * size >= asked or ahead in (panels_of_kernel(deep), 16)


def test_without_room_beside_a_second_block_rings_stay() -> None:
    panel = panel_bytes(lowered(NORM, SHARED))
    for count in (0, 2):
        tight = replace(SHARED, shared_bytes=2 * (lowered(NORM, SHARED).shared_bytes + count * 2 * panel) + RESERVED_BYTES)
        kernel, usual = lowered(NORM, replace(tight, bytes_in_flight=1 << 20)), lowered(NORM, tight)
        assert usual.resident == kernel.resident == 2
        assert (ring_of(kernel).stages > ring_of(usual).stages) == (count > 0)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "cuda:sm_90:h200", "cuda:sm_100", "cuda:sm_120"])
def test_short_panels_of_a_described_gpu_are_as_many_bytes_as_latency_times_bandwidth(target: str) -> None:
    """Of its own block, which is alone: three latencies, or 16 panels."""
    device, kernel = device_for(target), lowered(NORM, Cuda.described(target))
    on_their_way = ring_of(kernel).ahead * panel_bytes(kernel)
    wanted = 3 * device.load_seconds * device.memory_bandwidth / device.multiprocessors
    assert on_their_way >= int(wanted)
    assert ring_of(kernel).stages == MOST_STAGES or on_their_way - panel_bytes(kernel) < wanted


@needs_compiler
@pytest.mark.parametrize("panels", [1, 2, 4, 5, 8, 11, 16])
@pytest.mark.parametrize("name", FILLED_BY)
def test_kernels_are_right_and_clean_with_any_number_of_slots(name: str, panels: int) -> None:
    machine, graph = FILLED_BY[name]
    on = replace(ALONE, engines=machine.engines, bytes_in_flight=with_ahead(machine, graph, panels).bytes_in_flight)
    expect_right_and_clean(graph, on)


def plants(panels: int) -> dict[str, Plant]:
    """Faults in a kernel with so many panels on their way, each an iteration's: its slots are one more, those staged two more."""
    return {
        "a wait for too few copies": (rf"cp_async_wait<{panels - 1}>", f"cp_async_wait<{panels}>", {Fault.IN_FLIGHT}),
        "a panel is copied into a slot in use": (rf"fetch\(used \+ {panels}\)", f"fetch(used + {panels + 1})", set(Fault)),
        "copies go to a slot fewer": (rf"panel % {panels + 1} \*", f"panel % {panels} *", set(Fault)),
        "a slot fewer": (rf"(panel|used\+\+) % {panels + 1} \*", rf"\1 % {panels} *", set(Fault)),
        "threads do not meet before a slot is filled again": (r"__syncthreads\(\);(\s*fetch\()", r"\1", {Fault.RACE}),
        "two slots of what is staged fewer": (rf"\bl % {panels + 2}\b", f"l % {panels}", set(Fault)),
    }


@needs_compiler
@pytest.mark.parametrize("panels", [5, 8, 12])
@pytest.mark.parametrize("fault", plants(4))
def test_a_planted_fault_shows(fault: str, panels: int) -> None:
    machine = with_ahead(ALONE, NORM, panels)
    assert shows(NORM, EmulatedCuda(machine, seed=1), plants(panels)[fault])


def test_the_number_of_panels_ahead_is_that_which_is_asked_for() -> None:
    for machine, graph in FILLED_BY.values():
        kernel = lowered(graph, machine)
        assert [ring_of(with_panels_ahead(kernel, panels)).ahead for panels in range(1, 9)] == [*range(1, 9)]
