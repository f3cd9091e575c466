"""The text of kernels that compute as many slices as a launch says (`mugraph.lower.first_slices`).

The number is an argument. A launch has the blocks that begin before the last row of them; where one may have rows behind it,
masks keep loads and stores from what lies there in the memory of callers, and 0 is loaded instead.
"""

from __future__ import annotations

from mugraph.lower.counted_slices import FirstSlices
from mugraph.lower.tile_form import Kernel, Tile
from mugraph.targets.c_text import scaled
from mugraph.targets.triton.kernel_text import KernelText
from mugraph.targets.triton.tensors import along, axis_of, sizes

_BLOCKS, _HELD = "blocks", "held"
"""Blocks along the dimension of the grid that cuts rows, and rows from the first of a block on, of which it may have fewer."""


def block_counts(form: Kernel, number: str) -> tuple[list[str], list[str]]:
    """For each dimension of the grid how many blocks a launch has along it, and what is declared for that."""
    counts, slices = [str(count) for count in form.grid], form.slices
    if slices is None or slices.dim is None:
        return counts, []
    begun = f"({scaled(slices.rows, number)} + {slices.step - 1}) // {slices.step}"
    declared = f"{_BLOCKS} = tl.minimum({begun}, {counts[slices.dim]})"
    counts[slices.dim] = _BLOCKS
    return counts, [declared]


def held_rows(form: Kernel, number: str) -> list[str]:
    """What masks of rows are made of."""
    slices = form.slices
    if slices is None or not slices.is_ragged:
        return []
    first = "" if slices.dim is None or form.grid[slices.dim] == 1 else f" - {scaled(slices.step, f'g{slices.dim}')}"
    return [f"{_HELD} = {scaled(slices.rows, number)}{first}"]


def in_memory(form: Kernel, tile: Tile, text: KernelText, number: str) -> str:
    """What is true of the elements of a window for which a launch has memory; "" where that is all of them.

    Rows are compared where they are a dimension of the window: such masks are alike for elements that lie together, which are
    loaded at once then.
    """
    slices = form.slices
    if slices is None or not slices.is_ragged or tile.buffer not in slices.ends:
        return ""
    dim = _dimension_of_rows(form, slices, tile)
    if dim is None:
        return f"({text.address(tile, '')} < {scaled(slices.elements(tile.buffer), number)})"
    size = tile.shape[dim]
    text.places.add(text.padding.size(size))
    return along(f"({text.padding.place(size)} < {_HELD})", axis_of(tile.shape, dim), len(sizes(tile.shape)))


def _dimension_of_rows(form: Kernel, slices: FirstSlices, tile: Tile) -> int | None:
    """The dimension along which a window goes from row to row, from the first of its block on; None where there is none."""
    distance = slices.elements(tile.buffer) // slices.rows
    dims = [dim for dim, size in enumerate(tile.shape) if size > 1]
    found = [dim for dim in dims if tile.strides[dim] == distance]
    steps = [*tile.start.grid] or [0] * len(form.grid)
    first = 0 if slices.dim is None else steps[slices.dim]
    if slices.dim is not None:
        steps[slices.dim] = 0
    inside = tile.start.constant + tile.start.loop * (form.loop - 1)
    inside += sum(step * (count - 1) for step, count in zip(steps, form.grid, strict=True))
    inside += sum(tile.strides[dim] * (tile.shape[dim] - 1) for dim in dims if dim not in found)
    positive = min(*tile.start.parts, *tile.strides, 0) >= 0
    whole = positive and inside < distance and (slices.dim is None or first == slices.step * distance)
    return found[0] if len(found) == 1 and whole else None
