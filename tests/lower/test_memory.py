"""Lifetimes and placement of shared buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import NO_ENGINES, Engines, device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph
from mugraph.lower import Passes, construct, cooperative, lower
from mugraph.lower.memory import ALIGNMENT, Lifetime, least_shared_bytes, lifetimes, place
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Buffer, Elementwise, Memory, Tile
from mugraph.search import search
from mugraph.targets.cuda.machine import Cuda
from runtime.block_graphs import many_kernels


def copy(target: str, source: str) -> Elementwise:
    return Elementwise(Tile(target, (4,), (1,)), (Tile(source, (4,), (1,)),), Source(0))


def shared(name: str, elements: int = 4) -> Buffer:
    return Buffer(name, Memory.SHARED, DType.FP32, elements)


def test_a_buffer_of_one_iteration_lives_between_its_write_and_its_last_read() -> None:
    found = lifetimes([], [copy("a", "x"), copy("b", "a"), copy("c", "b")], [])
    assert found["b"] == Lifetime(1, 2)


def test_what_enters_or_leaves_the_loop_lives_through_all_of_it() -> None:
    found = lifetimes([copy("in", "x")], [copy("a", "in"), copy("out", "a"), copy("b", "x")], [copy("y", "out")])
    assert found["in"] == Lifetime(0, 3)
    assert found["out"] == Lifetime(1, 4)


def test_buffers_that_do_not_meet_share_bytes_and_others_do_not() -> None:
    body = [copy("a", "x"), copy("b", "a"), copy("c", "b")]
    offsets = {buffer.name: buffer.offset for buffer in place([shared("a"), shared("b"), shared("c")], [], body, [])}
    assert offsets["a"] == offsets["c"]
    assert abs(offsets["a"] - offsets["b"]) >= 16


def test_offsets_are_aligned_and_unused_buffers_dropped() -> None:
    placed = place([shared("a", 3), shared("b", 5), shared("unused")], [copy("a", "x"), copy("b", "a")], [], [])
    assert {buffer.name for buffer in placed} == {"a", "b"}
    assert all(buffer.offset % 64 == 0 for buffer in placed)


GRAPHS: dict[str, Callable[[], Graph]] = {
    "attention": lambda: attention(queries=16, keys=256, width=64, loop=2, dtype=DType.BF16),
    "rmsnorm": lambda: rms_norm_linear(rows=40, inner=256, columns=64, grid=2, loop=2, dtype=DType.FP16),
    "random": lambda: many_kernels(0, 6, DType.FP32),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_no_kernel_takes_more_shared_memory_than_is_alive_at_once(name: str) -> None:
    """What is alive at some statement is a bound that no placement can beat; panels pass through their ring throughout."""
    for launch in lower(GRAPHS[name]()).values():
        kernel = cooperative(launch.kernel, 200_000)
        alive = lifetimes(kernel.before, kernel.body, kernel.after)
        ring = kernel.ring.buffer if kernel.ring is not None else None
        sizes = {b.name: -(-b.bytes // ALIGNMENT) for b in kernel.buffers if b.memory is Memory.SHARED and b.name != ring}
        peak = max(
            sum(size for buffer, size in sizes.items() if alive[buffer].overlaps(Lifetime(statement, statement)))
            for statement in range(len(kernel.statements))
        )
        rest = kernel.buffer(ring).bytes if ring is not None else 0
        assert -(-kernel.shared_bytes // ALIGNMENT) == peak + -(-rest // ALIGNMENT)


@cache
def best_graphs(name: str) -> list[Graph]:
    """The best candidates of a workload at its small size."""
    program = trace(WORKLOADS[name].function(), WORKLOADS[name].inputs(16, DType.BF16, "small")).graph
    return [construct(candidate.graph) for candidate in search(program, device_for("cuda:sm_90")).candidates[:3]]


@pytest.mark.parametrize("engines", [NO_ENGINES, Engines(warp_group_rows=1), Engines(bulk_row_bytes=128)], ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "qknorm")) for name in WORKLOADS])
def test_kernels_of_the_workloads_take_the_least_shared_memory(name: str, engines: Engines) -> None:
    machine = Cuda("sm_90", 200_000, engines=engines)
    for kernel in (launch.kernel for graph in best_graphs(name) for launch in machine.lower(graph).values()):
        assert 0 < kernel.shared_bytes <= least_shared_bytes(kernel) < kernel.shared_bytes + ALIGNMENT


def test_the_least_shared_memory_is_that_of_the_buffers_and_not_of_their_offsets() -> None:
    (launch,) = lower(GRAPHS["attention"]()).values()
    kernel = cooperative(launch.kernel, 200_000)
    apart = cooperative(launch.kernel, 200_000, Passes(memory=False))
    assert kernel.ring is not None
    assert least_shared_bytes(apart) == least_shared_bytes(kernel) < apart.shared_bytes
    buffers = (replace(buffer, elements=4 * buffer.elements) if buffer.name == "ring" else buffer for buffer in kernel.buffers)
    longer = replace(kernel, buffers=tuple(buffers))
    assert least_shared_bytes(longer) == least_shared_bytes(kernel) + 3 * kernel.buffer("ring").bytes
