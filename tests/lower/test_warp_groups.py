"""Products on warp groups: which they are, how groups share them out, and what the checker refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lower.graphs import attention, normalised_scores, rms_norm_linear
from lower.test_tensor_maps import product
from mugraph.devices import Engines
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct, cooperative, lower
from mugraph.lower.bulk_copies import row_elements
from mugraph.lower.check import check
from mugraph.lower.places import Swizzle
from mugraph.lower.tile_form import Kernel, Matmul, Memory, Panels, Statement, Tile
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.lower.warp_groups import PLACE_BYTES, group_tiles, tiles_of, uses_warp_groups

GROUPS = Engines(warp_group_rows=1)


def kernel_of(graph: Graph, engines: Engines = GROUPS, shared_bytes: int = 200_000) -> Kernel:
    (launch,) = lower(graph).values()
    return cooperative(launch.kernel, shared_bytes, engines=engines)


def linear(rows: int = 64, columns: int = 128) -> Graph:
    """A linear layer one block of which computes `columns` columns."""
    return rms_norm_linear(rows=rows, inner=512, columns=2 * columns, grid=2, loop=2, dtype=DType.BF16)


def products(kernel: Kernel) -> list[Matmul]:
    return [statement for statement in kernel.statements if isinstance(statement, Matmul)]


def panels_of(product: Matmul) -> Panels:
    assert product.panels is not None
    return product.panels


def row_bytes(product: Matmul) -> int:
    """Bytes of the rows that a right factor is cut into."""
    place = panels_of(product).right
    assert place is not None
    assert place.swizzle is not None
    assert row_elements(place) == 8 << place.swizzle.bits
    return row_elements(place) * product.dtype.bytes


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (8, 64), (64, 128), (64, 256), (128, 128), (100, 32)])
def test_every_group_has_one_task_at_most_and_all_cover_the_target(rows: int, columns: int) -> None:
    split = group_tiles((rows, columns), threads=256)
    assert split is not None
    assert split.busy <= 8
    assert split.bands * 64 >= rows
    assert split.panels * split.across * 8 == columns


@pytest.mark.parametrize(("rows", "columns"), [(64, 272), (128, 256), (200, 64), (64, 12)])
def test_targets_too_large_for_registers_or_of_odd_columns_are_left_to_warps(rows: int, columns: int) -> None:
    assert group_tiles((rows, columns), threads=256) is None


@pytest.mark.parametrize(("columns", "swizzle"), [(16, 32), (32, 32), (64, 64), (128, 128), (256, 128)])
def test_rows_are_as_long_as_the_columns_of_a_group(columns: int, swizzle: int) -> None:
    (product,) = products(kernel := kernel_of(linear(columns=columns)))
    assert row_bytes(product) == swizzle
    check(kernel)


def test_rows_along_k_are_lines_of_64_values() -> None:
    scores, values = products(kernel_of(attention(queries=64, keys=128, width=64, loop=2, dtype=DType.FP16)))
    assert row_bytes(scores) == row_bytes(values) * 2 == 128


def test_a_slot_begins_where_a_matrix_may_and_the_right_factor_comes_first() -> None:
    kernel = kernel_of(attention(queries=64, keys=128, width=64, loop=2, dtype=DType.FP16))
    assert kernel.ring is not None
    assert kernel.buffer("ring").offset % PLACE_BYTES == kernel.ring.slot * 2 % PLACE_BYTES == 0
    for each in products(kernel):
        panels = panels_of(each)
        assert panels.right is not None
        assert panels.right.start.constant == 0


@pytest.mark.parametrize(("rows", "grouped"), [(8, False), (63, False), (64, True), (128, True)])
def test_products_of_few_rows_stay_with_warps_where_the_machine_says_so(rows: int, grouped: bool) -> None:
    kernel = kernel_of(linear(rows=rows), Engines(bulk_row_bytes=128, warp_group_rows=64))
    assert uses_warp_groups(kernel) == grouped
    assert kernel.ring is not None
    assert kernel.ring.bulk != grouped
    check(kernel)


def test_sums_in_registers_are_shared_out_as_their_products_are() -> None:
    kernel = kernel_of(attention(queries=64, keys=128, width=64, loop=2, dtype=DType.FP16))
    held = [s.target for s in kernel.statements if kernel.buffer(s.target.buffer).memory is Memory.REGISTERS]
    assert len(held) >= 2
    assert {tiles_of(kernel, tile).warps for tile in held} == {4}


def test_a_ring_that_others_read_keeps_its_rows() -> None:
    assert not uses_warp_groups(kernel_of(normalised_scores(dtype=DType.BF16)))


def test_without_the_unit_nothing_changes() -> None:
    assert kernel_of(linear(), Engines()) == kernel_of(linear(), Engines(warp_group_rows=65))


BOXES = Engines(warp_group_rows=64, tensor_maps=True)


@pytest.mark.parametrize(
    ("graph", "lag"),
    [
        (product(64, 512, 256, grid=2, loop=4), 1),
        (product(64, 512, 256, (False, True), grid=2, loop=4), 1),
        (product(64, 512, 256, (True, False), grid=2, loop=4), 0),
        (product(96, 512, 128, grid=2, loop=4), 0),
        (product(64, 512, 32, grid=2, loop=4), 0),
        (rms_norm_linear(rows=64, inner=512, columns=256, grid=2, loop=4, dtype=DType.BF16), 0),
        (attention(queries=64, keys=512, width=64, loop=4, dtype=DType.FP16), 0),
    ],
    ids=["rows along k", "of both", "rows along m", "part of a group", "idle groups", "computed", "one of two products"],
)
def test_a_ring_lags_where_units_read_whole_groups_of_left_rows_in_it(graph: Graph, lag: int) -> None:
    kernel = kernel_of(graph, BOXES)
    check(kernel)
    assert kernel.ring is not None
    assert kernel.ring.lag == lag
    assert parse_kernel(format_kernel(kernel)) == kernel


def test_a_ring_lags_with_one_slot_more_where_there_is_room_and_with_three_at_least() -> None:
    graph = construct(product(64, 1024, 256, grid=2, loop=2))
    rings = [kernel_of(graph, BOXES, size).ring for size in (200_000, 100_000)]
    assert [(ring.stages, ring.lag) for ring in rings if ring is not None] == [(4, 1), (3, 1)]


def beside_products(rows: int, inner: int, columns: int, loop: int) -> Graph:
    """x @ w + relu(z), summed over what of z each iteration reads."""
    kernel = GraphBuilder(Level.KERNEL)
    shapes = {"x": (rows, inner), "w": (inner, columns), "z": (rows * loop, columns)}
    inputs = [kernel.input(name, shape, DType.BF16) for name, shape in shapes.items()]
    block = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    maps: list[tuple[int | None, int]] = [(None, 1), (1, 0), (1, 0)]
    x, w, z = (block.iterator(n, kernel.tensor(inputs[n]), (imap,), fmap) for n, (imap, fmap) in enumerate(maps))
    sums = (block.add("accumulate", each, combine="sum") for each in (block.add("matmul", x, w), block.add("relu", z)))
    body = block.build([block.add("output_saver", block.add("add", *sums), omap=(1,))])
    return construct(kernel.build(kernel.graph_defined(body, inputs)))


@pytest.mark.parametrize(("columns", "shared_bytes", "lag"), [(32, 160_000, 0), (128, 200_000, 1), (128, 232_448, 1)])
def test_a_ring_lags_in_the_room_that_staged_inputs_leave(columns: int, shared_bytes: int, lag: int) -> None:
    (launch,) = lower(beside_products(64, inner=640, columns=columns, loop=5)).values()
    kernel = cooperative(launch.kernel, shared_bytes, engines=BOXES, multiprocessors=132)
    check(kernel)
    assert kernel.ring is not None
    assert (kernel.ring.bulk, kernel.ring.lag, len(kernel.staged)) == (True, lag, 1)


@pytest.mark.parametrize(
    ("graph", "lag"),
    [
        (rms_norm_linear(rows=64, inner=512, columns=128, grid=2, loop=4, dtype=DType.BF16), 1),
        (product(64, 512, 128, grid=2, loop=4), 2),
    ],
    ids=["left factors in registers", "two panels"],
)
def test_the_checker_refuses_a_ring_that_lags_behind_products_that_are_waited_for(graph: Graph, lag: int) -> None:
    kernel = kernel_of(graph, BOXES)
    assert kernel.ring is not None
    with pytest.raises(InvalidGraph, match="do not fit the slots"):
        check(replace(kernel, ring=replace(kernel.ring, lag=lag)))


def with_panels(kernel: Kernel, change: Callable[[Panels], Panels]) -> Kernel:
    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Matmul) and statement.panels is not None:
            return replace(statement, panels=change(statement.panels))
        return statement

    return replace(kernel, body=tuple(map(changed, kernel.body)))


def test_the_checker_refuses_rows_that_cut_the_columns_of_a_group() -> None:
    kernel = kernel_of(linear(columns=64))
    (product,) = products(kernel)
    depth = panels_of(product).depth
    wide = Tile("ring", (1, depth, 64), (depth * 64, 64, 1), swizzle=Swizzle(3, 3, 3))
    with pytest.raises(InvalidGraph, match="not what warp groups read"):
        check(with_panels(kernel, lambda panels: replace(panels, right=wide)))


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 3, 3), Swizzle(3, 3, 4)])
def test_the_checker_refuses_chunks_in_other_places(swizzle: Swizzle | None) -> None:
    def change(panels: Panels) -> Panels:
        return replace(panels, right=panels.right and replace(panels.right, swizzle=swizzle))

    with pytest.raises(InvalidGraph, match="not what warp groups read"):
        check(with_panels(kernel_of(linear()), change))


def test_the_checker_refuses_blocks_of_another_shape() -> None:
    def change(panels: Panels) -> Panels:
        return replace(panels, right=panels.right and replace(panels.right, shape=(1, *panels.right.shape[1:])))

    with pytest.raises(InvalidGraph, match="do not fit the slots"):
        check(with_panels(kernel_of(linear()), change))


def test_the_checker_refuses_a_right_factor_that_is_not_in_the_ring() -> None:
    with pytest.raises(InvalidGraph, match="not what warp groups read"):
        check(with_panels(kernel_of(linear()), lambda panels: replace(panels, right=None)))


def test_the_checker_refuses_places_where_chunks_are_exchanged_otherwise() -> None:
    kernel = kernel_of(linear())
    moved = tuple(replace(b, offset=b.offset + 64) if b.name == "ring" else b for b in kernel.buffers)
    with pytest.raises(InvalidGraph, match="not what warp groups read"):
        check(replace(kernel, buffers=moved))


def test_the_checker_refuses_swizzled_rows_that_are_copied_whole() -> None:
    kernel = kernel_of(linear())
    assert kernel.ring is not None
    with pytest.raises(InvalidGraph, match="not what warp groups read"):
        check(replace(kernel, ring=replace(kernel.ring, bulk=True)))
