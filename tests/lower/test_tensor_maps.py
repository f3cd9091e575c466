"""Rings that boxes fill: which kernels get them, that boxes bring what panels are made of, and what the checker refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from lower.graphs import attention, normalised_scores, rms_norm_linear
from mugraph.devices import Engines
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import cooperative, lower
from mugraph.lower.check import check
from mugraph.lower.issue_slots import copy_slots
from mugraph.lower.places import Index
from mugraph.lower.streams import with_streams
from mugraph.lower.tensor_maps import BoxCopies, box_copies, tensor_maps, with_boxes
from mugraph.lower.tile_form import Kernel, Matmul, Panels, Tile
from mugraph.lower.tile_text import format_kernel, parse_kernel

SHARED_BYTES = 100_000
MAPS = Engines(tensor_maps=True)


def product(
    rows: int,
    inner: int,
    columns: int,
    flips: tuple[bool, bool] = (False, False),
    grid: int = 1,
    loop: int = 1,
    dtype: DType = DType.BF16,
) -> Graph:
    """x @ w, either factor stored transposed, columns cut by the grid and k by the loop."""
    kernel = GraphBuilder(Level.KERNEL)
    shapes = [(rows, inner), (inner, columns)]
    operands = [
        kernel.input(name, shape[::-1] if flip else shape, dtype) for name, shape, flip in zip("xw", shapes, flips, strict=True)
    ]
    block = GraphBuilder(Level.BLOCK, grid=(grid,), loop=loop)
    factors = []
    for number, (imap, fmap) in enumerate(((None, 1), (1, 0))):
        turned = [None if dim is None else 1 - dim if flips[number] else dim for dim in (imap, fmap)]
        factor = block.iterator(number, kernel.tensor(operands[number]), (turned[0],), turned[1])
        factors.append(block.add("transpose", factor, permutation=(1, 0)) if flips[number] else factor)
    total = block.add("accumulate", block.add("matmul", *factors), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), operands))


def kernel_of(graph: Graph, engines: Engines = MAPS) -> Kernel:
    (launch,) = lower(graph).values()
    return cooperative(launch.kernel, SHARED_BYTES, engines=engines)


def streams(kernel: Kernel) -> Iterator[tuple[Matmul, Panels]]:
    return ((s, s.panels) for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None)


GRAPHS: dict[str, Graph] = {
    **{
        f"{'xt' if flips[0] else 'x'} @ {'wt' if flips[1] else 'w'}": product(16, 512, 256, flips, grid=2, loop=2)
        for flips in itertools.product((False, True), (False, True))
    },
    "one row": product(1, 1024, 256, grid=2, loop=2),
    "three rows": product(3, 1024, 256, grid=2),
    "one column": product(256, 512, 1, loop=4),
    "rows of 64 bytes": product(8, 2048, 128, grid=4, loop=2),
    "rows of 32 bytes": product(8, 2048, 64, grid=4, loop=2, dtype=DType.FP16),
    "more rows than a box": product(8, 4096, 16, loop=2),
    "attention": attention(queries=16, keys=256, width=128, loop=2, dtype=DType.BF16),
    "inputs that are staged": rms_norm_linear(rows=8, inner=256, columns=128, grid=1, loop=2, dtype=DType.BF16),
    "inputs that are staged for several panels": rms_norm_linear(3, inner=2048, columns=128, grid=2, loop=2, dtype=DType.BF16),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_fill_the_ring(name: str) -> None:
    kernel = kernel_of(GRAPHS[name])
    assert kernel.ring is not None
    assert kernel.ring.bulk
    assert all(panels.boxed for _, panels in streams(kernel))
    assert 0 < copy_slots(kernel) < copy_slots(kernel_of(GRAPHS[name], Engines()))
    check(kernel)
    assert parse_kernel(format_kernel(kernel)) == kernel


def at(index: Index, blocks: tuple[int, ...], iteration: int) -> int:
    return index.constant + sum(step * b for step, b in zip(index.grid, blocks, strict=False)) + index.loop * iteration


def arrived(copies: BoxCopies, panel: int, blocks: tuple[int, ...], iteration: int) -> dict[int, int]:
    """By place in a slot, the element of the input that the boxes of a panel bring there, as the engine's definition says."""
    (tall, wide), matrix, found = copies.matrix.box, copies.matrix, {}
    row = at(copies.row, blocks, iteration) + panel * copies.panel_rows
    column = at(copies.column, blocks, iteration) + panel * copies.panel_columns
    for block, piece, r, c in itertools.product(range(copies.blocks), range(copies.pieces), range(tall), range(wide)):
        from_row, from_column = row + piece * tall + r, column + block * wide + c
        assert from_row < matrix.rows
        assert from_column < matrix.columns
        start = copies.place.start.constant + block * copies.place.strides[0] + piece * tall * wide
        place = (start + r * wide + c) * matrix.dtype.bytes
        exchanged = place ^ (place >> 7 & (matrix.row_bytes // 16 - 1)) << 4
        found[exchanged // matrix.dtype.bytes] = from_row * matrix.pitch + from_column
    return found


def wanted(factor: Tile, place: Tile, inner: int, depth: int, panel: int, blocks: tuple[int, ...], loop: int) -> dict[int, int]:
    """The same, by the definitions of tiles: element (i, j) of the panel lies in its place, in the block that it belongs to."""
    found, along = {}, -1 if place.strides[-1] == 1 else -2
    wide, shape = place.shape[along], list(factor.shape[-2:])
    shape[inner] = depth
    for index in np.ndindex(*shape):
        in_block = list(index)
        in_block[along] %= wide
        plain = index[along] // wide * place.strides[0] + sum(np.multiply(in_block, place.strides[-2:]))
        assert place.swizzle is not None
        source = list(index)
        source[inner] += panel * depth
        element = at(factor.start, blocks, loop) + int(sum(np.multiply(source, factor.strides[-2:])))
        found[place.start.constant + place.swizzle(int(plain))] = element
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_bring_the_elements_of_panels_to_their_places(name: str) -> None:
    kernel = kernel_of(GRAPHS[name])
    last = tuple(count - 1 for count in kernel.grid)
    for statement, panels in streams(kernel):
        assert kernel.ring is not None
        factors = [(statement.left, panels.left, -1), (statement.right, panels.right, -2)]
        streamed = [each for each in factors if each[1] is not None]
        for copies, (factor, place, inner) in zip(box_copies(kernel, statement), streamed, strict=True):
            assert copies is not None
            assert place is not None
            final = statement.left.shape[-1] // panels.depth - 1
            for panel, (blocks, loop) in itertools.product({0, final}, [((0,) * len(last), 0), (last, kernel.loop - 1)]):
                assert arrived(copies, panel, blocks, loop) == wanted(factor, place, inner, panels.depth, panel, blocks, loop)


NOT_BOXED: dict[str, Graph] = {
    "vector units": product(16, 512, 128, dtype=DType.FP32),
    "rows of 16 bytes": product(8, 512, 8),
    "another statement reads the ring": normalised_scores(dtype=DType.BF16),
}


@pytest.mark.parametrize("name", NOT_BOXED)
def test_threads_copy_where_boxes_cannot_or_would_not_pay(name: str) -> None:
    kernel = kernel_of(NOT_BOXED[name])
    assert kernel == kernel_of(NOT_BOXED[name], Engines())
    assert tensor_maps(kernel) == ()


@pytest.mark.parametrize("name", [name for name in GRAPHS if "staged" in name])
def test_what_stands_beside_boxes_is_staged_as_beside_copies_of_threads(name: str) -> None:
    boxes, threads = kernel_of(GRAPHS[name]), kernel_of(GRAPHS[name], Engines())
    assert [staged.source for staged in boxes.staged] == [staged.source for staged in threads.staged] != []


def test_a_factor_that_lies_askew_in_its_input_is_left_to_the_threads() -> None:
    (launch,) = lower(GRAPHS["x @ w"]).values()
    threads = cooperative(launch.kernel, SHARED_BYTES)
    (statement,) = (s for s in launch.kernel.statements if isinstance(s, Matmul))
    askew = replace(statement.right, start=replace(statement.right.start, constant=136))
    buffers = tuple(replace(b, elements=2 * b.elements) if b.name == askew.buffer else b for b in launch.kernel.buffers)
    body = tuple(replace(s, right=askew) if s is statement else s for s in launch.kernel.body)
    moved = replace(launch.kernel, buffers=buffers, body=body, threads=threads.threads)
    streamed = with_streams(moved, SHARED_BYTES)
    assert streamed.ring is not None
    assert with_boxes(streamed) is streamed


def changed_panels(kernel: Kernel, change: Callable[[Tile], Tile]) -> Kernel:
    """The kernel with the places of all right factors changed."""

    def part(statements: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(
            replace(s, panels=replace(s.panels, right=change(s.panels.right)))
            if isinstance(s, Matmul) and s.panels is not None and s.panels.right is not None
            else s
            for s in statements
        )

    return replace(kernel, before=part(kernel.before), body=part(kernel.body), after=part(kernel.after))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda place: replace(place, swizzle=None),
        lambda place: replace(place, start=Index(place.start.constant + 64)),
        lambda place: replace(place, strides=(place.strides[0] - 8, *place.strides[1:])),
        lambda place: replace(place, strides=(place.strides[0], place.strides[1] + 8, place.strides[2])),
    ],
    ids=["plain rows", "a start between patterns", "blocks too close", "padded rows"],
)
def test_the_checker_refuses_places_that_boxes_do_not_fill(change: Callable[[Tile], Tile]) -> None:
    with pytest.raises(InvalidGraph, match=r"boxes of tensor maps|slots of the kernel's ring"):
        check(changed_panels(kernel_of(GRAPHS["x @ w"]), change))


def test_the_checker_refuses_boxes_that_no_barrier_counts() -> None:
    kernel = kernel_of(GRAPHS["x @ w"])
    assert kernel.ring is not None
    with pytest.raises(InvalidGraph, match="not boxes of tensor maps"):
        check(replace(kernel, ring=replace(kernel.ring, bulk=False)))


def test_maps_say_whole_matrices() -> None:
    (x, w) = tensor_maps(kernel_of(GRAPHS["x @ w"]))
    assert (x.buffer, x.rows, x.columns, x.pitch) == ("in0", 16, 512, 512)
    assert (w.buffer, w.rows, w.columns, w.pitch) == ("in1", 512, 256, 256)
    assert math.prod(w.box) > 0
    assert w.row_bytes == 128
