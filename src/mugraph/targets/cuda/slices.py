"""The text of kernels that compute as many slices as a launch says (`mugraph.lower.first_slices`), and how these are launched.

The number is an argument. A grid has the blocks that begin before the last row of them. Where one of these may have rows behind
it, nothing that lies there in the memory of callers is read or written: what is read instead is 0, or rows of the first slice,
and all that is computed of it belongs to rows that nobody asked for (docs/theory.md, "Slices as an argument"). Elements that
one copy moves must be of one slice; other copies are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from mugraph.devices.copies import COPY_BYTES
from mugraph.errors import UnsupportedOperator
from mugraph.lower.bulk_copies import row_elements
from mugraph.lower.counted_slices import FirstSlices
from mugraph.lower.tensor_maps import TensorMap, tensor_maps
from mugraph.lower.tile_form import Kernel, Matmul, Tile
from mugraph.lower.tiles import alignment
from mugraph.targets.c_text import scaled
from mugraph.targets.cuda.source import KernelText, end_name


def require_whole_copies(kernel: Kernel) -> None:
    """Raise UnsupportedOperator where a copy may begin in the last slice of a call and end behind it."""
    slices = kernel.slices
    if slices is None or not slices.is_ragged:
        return
    maps = [matrix.buffer for matrix in tensor_maps(kernel) if matrix.buffer in slices.ends and not _rows(slices, matrix)]
    copied = [
        tile.buffer for tile, run, along in _copies(kernel) if tile.buffer in slices.ends and _crosses(slices, tile, run, along)
    ]
    for name in (*maps, *copied):
        raise UnsupportedOperator(f"{kernel.name}: copies of {name} may have elements of several slices")


def _copies(kernel: Kernel) -> Iterator[tuple[Tile, int, int]]:
    """What copies other than boxes move of a window of device memory: so many elements along one of its dimensions at once."""
    for staged in kernel.staged:
        yield staged.source, COPY_BYTES // kernel.buffer(staged.buffer).dtype.bytes, -1
    for product in kernel.statements:
        panels = product.panels if isinstance(product, Matmul) else None
        if not isinstance(product, Matmul) or panels is None or panels.boxed:
            continue
        for factor, place in ((product.left, panels.left), (product.right, panels.right)):
            if place is not None:
                bulk = kernel.ring is not None and kernel.ring.bulk
                run = row_elements(place) if bulk else COPY_BYTES // kernel.buffer(factor.buffer).dtype.bytes
                yield factor, run, -1 if factor.strides[-1] == 1 else -2


def _crosses(slices: FirstSlices, tile: Tile, run: int, along: int) -> bool:
    """Whether neighbours along a dimension, so many from a multiple of that number on, may be of several slices."""
    return slices.elements(tile.buffer) % run > 0 or alignment(tile, run, along) != run


def _rows(slices: FirstSlices, matrix: TensorMap) -> int:
    """Rows of a tensor map's matrix that a slice is; 0 where it is none, or the slices of its operand are all there."""
    if matrix.buffer not in slices.ends:
        return 0
    rows, rest = divmod(slices.elements(matrix.buffer), matrix.pitch)
    return 0 if rest else rows


def print_ends(text: KernelText) -> None:
    """Declare where the memory of operands ends that may end within a block's tiles."""
    slices = text.kernel.slices
    for name in sorted(text.ends):
        assert slices is not None
        dtype, elements = text.kernel.buffer(name).dtype, scaled(slices.elements(name), slices.count)
        text.line(f"const {dtype}_t *const {end_name(name)} = {name} + {elements};")


def print_blocks(text: KernelText) -> list[str]:
    """For each dimension of the grid how many blocks a launch has along it; declares the number that the slices decide."""
    kernel, slices = text.kernel, text.kernel.slices
    counts = [str(count) for count in kernel.grid]
    if slices is not None and slices.dim is not None:
        rows, count = scaled(slices.rows, slices.count), kernel.grid[slices.dim]
        text.line(f"const long long begun = ({rows} + {slices.step - 1}) / {slices.step};")
        text.line(f"const int blocks = begun < {count} ? (int)begun : {count};")
        counts[slices.dim] = "blocks"
    return counts


def rows_of_maps(kernel: Kernel) -> tuple[int, ...]:
    """For each tensor map of a kernel how many rows of its matrix a slice is, 0 where it has no slices."""
    slices = kernel.slices
    return () if slices is None else tuple(_rows(slices, matrix) for matrix in tensor_maps(kernel))
