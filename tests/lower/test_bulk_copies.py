"""Rings that bulk copies fill: which kernels get them, what they add, and what the checker refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import Engines
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph
from mugraph.lower import cooperative, lower
from mugraph.lower.bulk_copies import places
from mugraph.lower.check import check
from mugraph.lower.tile_form import Kernel, Matmul, Tile

SHARED_BYTES = 100_000
BULK = Engines(bulk_row_bytes=128)


def kernel_of(graph: Graph, shared_bytes: int = SHARED_BYTES, engines: Engines = BULK) -> Kernel:
    (launch,) = lower(graph).values()
    return cooperative(launch.kernel, shared_bytes, engines=engines)


def weights(columns: int) -> Graph:
    """A linear layer one block of which reads `columns` columns of the weights."""
    return rms_norm_linear(rows=8, inner=512, columns=2 * columns, grid=2, loop=2, dtype=DType.BF16)


@pytest.mark.parametrize(("columns", "bulk"), [(32, False), (64, True), (128, True)])
def test_rows_of_whole_lines_are_copied_in_bulk(columns: int, bulk: bool) -> None:
    kernel = kernel_of(weights(columns))
    assert kernel.ring is not None
    assert kernel.ring.bulk == bulk
    check(kernel)


def places_of(kernel: Kernel) -> list[Tile]:
    return [place for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None for place in places(s.panels)]


def test_a_ring_filled_in_bulk_is_longer_by_a_barrier_a_slot() -> None:
    kernel = kernel_of(weights(64))
    assert kernel.ring is not None
    assert kernel.buffer("ring").bytes == kernel.ring.stages * (2 * kernel.ring.slot + 8)


def test_rows_are_swizzled_where_threads_copy_and_stay_whole_where_the_engine_does() -> None:
    threads, bulk = kernel_of(weights(64), engines=Engines()), kernel_of(weights(64))
    assert all(place.swizzle is not None for place in places_of(threads))
    assert all(place.swizzle is None for place in places_of(bulk))
    assert [place.shape for place in places_of(threads)] == [place.shape for place in places_of(bulk)]


def test_without_room_for_the_barriers_threads_copy() -> None:
    plain = kernel_of(weights(64), engines=Engines())
    kernel = kernel_of(weights(64), plain.shared_bytes)
    assert kernel.shared_bytes <= plain.shared_bytes
    check(kernel)


def test_all_panels_of_a_ring_are_copied_alike() -> None:
    kernel = kernel_of(attention(queries=16, keys=128, width=32, loop=2, dtype=DType.BF16))
    assert kernel.ring is not None
    assert not kernel.ring.bulk, "values come in rows of 64 bytes"


def test_the_checker_refuses_a_ring_without_room_for_its_barriers() -> None:
    kernel = kernel_of(weights(64))
    short = tuple(replace(b, elements=b.elements - 4) if b.name == "ring" else b for b in kernel.buffers)
    with pytest.raises(InvalidGraph, match="do not fit the slots"):
        check(replace(kernel, buffers=short))


def test_the_checker_refuses_rows_that_bulk_copies_cannot_move() -> None:
    kernel = kernel_of(weights(64))
    body = []
    for statement in kernel.body:
        if isinstance(statement, Matmul) and statement.panels is not None and statement.panels.right is not None:
            rows, _ = statement.panels.right.strides
            place = replace(statement.panels.right, strides=(rows - 4, 1))
            statement = replace(statement, panels=replace(statement.panels, right=place))
        body.append(statement)
    with pytest.raises(InvalidGraph, match="not rows that bulk copies move"):
        check(replace(kernel, body=tuple(body)))
