"""Lifetimes and placement of shared buffers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.ir import DType, Graph
from mugraph.lower import cooperative, lower
from mugraph.lower.expressions import Source
from mugraph.lower.lowered import Buffer, Elementwise, Memory, Tile
from mugraph.lower.memory import ALIGNMENT, Lifetime, lifetimes, place
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
