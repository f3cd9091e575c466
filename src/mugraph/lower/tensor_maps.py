"""Rings filled by boxes: one instruction copies a whole block of rows of a panel, which a tensor map describes to the engine.

A tensor map says where the rows of a matrix in device memory lie, and how large a box is; the host encodes it for the address of
an input. A box has rows of 128, 64 or 32 bytes and arrives with its chunks exchanged as warp groups and `ldmatrix` want them, so
longer rows are cut into blocks. Panels that no boxes make are left to the threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mugraph.ir.dtypes import DType
from mugraph.lower.bulk_copies import MOST_BYTES, row_elements, with_barriers_that_count
from mugraph.lower.fragments import on_matrix_units
from mugraph.lower.layouts import swizzle_of
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Kernel, Matmul, Panels, Statement, Tile
from mugraph.lower.warp_groups import PLACE_BYTES, ROW_COUNT, SWIZZLES, blocked, columns_first, others_read, with_slots

STEP_BYTES = 16
"""Bytes of which rows of a matrix begin at multiples, the first one too, and boxes in their rows: hardware refuses others."""
MOST_ROWS = 256
"""Of a box."""
_FARTHEST = 1 << 31
"""Rows and columns that coordinates, which are ints, can count."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A matrix of `rows` x `columns` elements in an input, its rows `pitch` elements apart, of which a box is `box` of them.

    A box's rows fill the pattern in which their chunks are exchanged: 128, 64 or 32 bytes.
    """

    buffer: str
    dtype: DType
    rows: int
    columns: int
    pitch: int
    box: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """Of a box."""
        return self.box[1] * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class BoxCopies:
    """The boxes that make a panel of a factor: `pieces`, one below the other, for each of the `blocks` of its place.

    Piece i of block b of panel p has its first element in row `row + p * panel_rows + i * box[0]` of the matrix and in column
    `column + p * panel_columns + b * box[1]`.
    """

    matrix: TensorMap
    place: Tile
    row: Index
    column: Index
    panel_rows: int
    panel_columns: int

    @property
    def blocks(self) -> int:
        """Of a panel."""
        return self.place.shape[0]

    @property
    def pieces(self) -> int:
        """Boxes of a block."""
        return math.prod(self.place.shape[1:]) // math.prod(self.matrix.box)


def with_boxes(kernel: Kernel) -> Kernel:
    """The kernel with a ring that boxes fill, if it has one and boxes can make all of its panels; else the kernel as it is.

    They cannot where a panel has several matrices or rows that are no multiple of 32 bytes, where it lies askew in the input's
    rows, where other statements read it in the ring, and for products on vector units.
    """
    ring = kernel.ring
    if ring is None or others_read(kernel, ring.buffer):
        return kernel
    boxed: dict[Statement, Matmul] = {}
    for product in _streaming(kernel):
        panels = _boxed(product, kernel.buffer(ring.buffer).dtype)
        if panels is None:
            return kernel
        boxed[product] = replace(product, panels=panels)
    before, body, after = (tuple(boxed.get(s, s) for s in part) for part in (kernel.before, kernel.body, kernel.after))
    changed = with_barriers_that_count(with_slots(replace(kernel, before=before, body=body, after=after)))
    return changed if all(_are_made_by_boxes(changed, product) for product in boxed.values()) else kernel


def box_copies(kernel: Kernel, product: Matmul) -> tuple[BoxCopies | None, ...]:
    """The copies of each factor of a product whose panels are boxed that streams; None where boxes cannot make its panels."""
    panels = product.panels
    assert panels is not None
    factors = ((product.left, panels.left, -1), (product.right, panels.right, -2))
    return tuple(_copies(kernel, factor, place, inner, panels.depth) for factor, place, inner in factors if place is not None)


def tensor_maps(kernel: Kernel) -> tuple[TensorMap, ...]:
    """The tensor maps that a kernel takes after its operands, in their order."""
    boxed = [product for product in _streaming(kernel) if product.panels is not None and product.panels.boxed]
    copies = (each for product in boxed for each in box_copies(kernel, product))
    return tuple(dict.fromkeys(each.matrix for each in copies if each is not None))


def _streaming(kernel: Kernel) -> Iterator[Matmul]:
    return (s for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None)


def _boxed(product: Matmul, dtype: DType) -> Panels | None:
    """The panels of a product as blocks that boxes fill, a right one where warp groups want it; None where there are none."""
    panels = product.panels
    assert panels is not None
    if not on_matrix_units(product):
        return None
    end, places = 0, []
    right_first = panels.grouped
    for place in (panels.right, panels.left) if right_first else (panels.left, panels.right):
        if place is not None:
            in_blocks = place if panels.grouped and place is panels.right else _in_blocks(place, dtype)
            if in_blocks is None:
                return None
            place = replace(in_blocks, start=Index(end))
            step = PLACE_BYTES // dtype.bytes
            end += -(-place.shape[0] * place.strides[0] // step) * step
        places.append(place)
    right, left = places if right_first else reversed(places)
    return replace(panels, left=left, right=right, boxed=True)


def _in_blocks(place: Tile, dtype: DType) -> Tile | None:
    """A panel in plain rows as blocks of the longest rows that boxes have; None where it is none."""
    if math.prod(place.shape[:-2]) > 1:
        return None
    along = -1 if place.strides[-1] == 1 else -2
    length, rows = place.shape[along], place.shape[-3 - along]
    row_bytes = next((size for size in SWIZZLES if length * dtype.bytes % size == 0), None)
    if row_bytes is None:
        return None
    wide = row_bytes // dtype.bytes
    block = -(-rows // ROW_COUNT) * ROW_COUNT * wide
    shape = (length // wide, rows, wide) if along == -1 else (length // wide, wide, rows)
    strides = (block, wide, 1) if along == -1 else (block, 1, wide)
    return Tile(place.buffer, shape, strides, swizzle=swizzle_of(row_bytes, dtype.bytes))


def _are_made_by_boxes(kernel: Kernel, product: Matmul) -> bool:
    assert kernel.ring is not None
    copies = box_copies(kernel, product)
    taken = sum(math.prod(each.place.shape) for each in copies if each is not None) * product.dtype.bytes
    return None not in copies and taken <= MOST_BYTES


def _copies(kernel: Kernel, factor: Tile, place: Tile, inner: int, depth: int) -> BoxCopies | None:
    """The boxes of a factor's panels whose k is dimension `inner`; None where they are none of a matrix in its input."""
    buffer, lines = kernel.buffer(factor.buffer), blocked(factor, place)
    row_dim, wide = -2 if columns_first(place) else -1, row_elements(place)
    tall, along_rows = _box_rows(place.shape[row_dim]), inner == row_dim
    pitch = lines.strides[row_dim] if lines.shape[row_dim] > 1 else buffer.elements
    if lines.strides[-3 - row_dim] != 1 or pitch <= 0 or pitch * buffer.dtype.bytes % STEP_BYTES or tall is None:
        return None
    matrix = TensorMap(factor.buffer, buffer.dtype, buffer.elements // pitch, pitch, pitch, (tall, wide))
    row, column = factor.start.mapped(lambda step: step // pitch), factor.start.mapped(lambda step: step % pitch)
    found = BoxCopies(matrix, place, row, column, depth if along_rows else 0, 0 if along_rows else depth)
    if any(step * buffer.dtype.bytes % STEP_BYTES for step in (*column.parts, found.panel_columns)):
        return None
    last_row = _largest(kernel, row) + lines.shape[row_dim] - 1
    last_column = _largest(kernel, column) + factor.shape[-3 - row_dim] - 1
    inside = last_row < matrix.rows and last_column < matrix.columns
    return found if inside and min(factor.start.parts) >= 0 and max(matrix.rows, matrix.columns) < _FARTHEST else None


def _box_rows(rows: int) -> int | None:
    """Rows of the largest boxes, whole patterns, that make a block of so many; None where none do."""
    if rows <= MOST_ROWS:
        return rows
    return next((tall for tall in range(MOST_ROWS, 0, -ROW_COUNT) if rows % tall == 0), None)


def _largest(kernel: Kernel, index: Index) -> int:
    """The largest value of an index over all blocks and iterations."""
    grid = sum(step * (count - 1) for step, count in zip(index.grid, kernel.grid, strict=False))
    return index.constant + grid + index.loop * (kernel.loop - 1)
