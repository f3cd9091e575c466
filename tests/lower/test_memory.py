"""Lifetimes and placement of shared buffers."""

from __future__ import annotations

from mugraph.ir import DType
from mugraph.lower.expressions import Source
from mugraph.lower.lowered import Buffer, Elementwise, Memory, Tile
from mugraph.lower.memory import Lifetime, lifetimes, place


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
