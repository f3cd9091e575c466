"""The text of matrices: where one of a batch starts, how an element is stored, which elements a warp's fragments hold.

A product that streams finds its factors in the slot in use; one that does not, in the panel's part.
"""

from __future__ import annotations

from collections.abc import Mapping

from mugraph.devices.products import COLUMNS, ROWS
from mugraph.lower.fragments import WarpTiles
from mugraph.lower.tile_form import Matmul, Memory, Panels, Tile
from mugraph.targets.c_text import scaled, sum_of
from mugraph.targets.cuda.source import KernelText


def write_panel_pointers(text: KernelText, product: Matmul, panels: Panels) -> None:
    """Wait for the next panel of a product over the pointers `a` and `b`; declare `a_panel` and `b_panel`, the first where it
    lies in memory.
    """
    text.line("next_panel();")
    for name, tile, place in (("a", product.left, panels.left), ("b", product.right, panels.right)):
        if text.buffer(tile).memory is Memory.REGISTERS:
            continue
        where = name if place is None else f"slot + {place.start.constant}"
        text.line(f"const {text.dtype(place or tile)}_t *const {name}_panel = {where};")


def panel_offsets(product: Matmul, panels: Panels) -> dict[str, str]:
    """Where panel number `panel` begins in a factor that does not stream; part of the place, which may be swizzled."""
    factors = (("a", product.left, panels.left, -1), ("b", product.right, panels.right, -2))
    return {name: scaled(tile.strides[dim] * panels.depth, "panel") for name, tile, place, dim in factors if place is None}


def write_batch_offsets(text: KernelText, matrices: Mapping[str, Tile], moved: Mapping[str, str] | None = None) -> None:
    """Declare `NAME_batch`, the offset of each tile's matrix number `batch`, and what it is moved by beyond that."""
    for name, tile in matrices.items():
        terms, inner = [(moved or {}).get(name, "")], 1
        for size, stride in zip(reversed(tile.shape[:-2]), reversed(tile.strides[:-2]), strict=True):
            if stride and size > 1:
                terms.append(scaled(stride, f"(batch / {inner} % {size})"))
            inner *= size
        text.line(f"const int {name}_batch = {sum_of(terms) or '0'};")


def write_result(text: KernelText, target: Tile, row: str, column: str, value: str, accumulate: bool) -> None:
    """Store one element of the target at `c`, or add to it."""
    element = text.element("c", target, ["c_batch", scaled(target.strides[-2], row), scaled(target.strides[-1], column)])
    text.store(target, element, f"{text.loaded(target, element)} + {value}" if accumulate else value)


FRAGMENT_PLACE = f"const int m = m0 + {ROWS} * i + lane / 4 + h / 2 * 8, n = n0 + {COLUMNS} * j + lane % 4 * 2 + h % 2;"
"""Declares the row and the column of element h of the lane's part of fragment i, j."""


def write_place(text: KernelText, split: WarpTiles, task: str) -> None:
    """Declare where a warp's part of the target begins, given the task it takes alone or in a group, and in which matrix."""
    rows = ROWS * split.down
    within = f" + warp % {split.warps} * {rows}" if split.warps > 1 else ""
    text.line(f"const int n0 = {task} % {split.panels} * {COLUMNS * split.across};")
    text.line(f"const int m0 = {task} / {split.panels} % {split.bands} * {rows * split.warps}{within};")
    text.line(f"const int batch = {task} / {split.panels * split.bands};")


def own_task(split: WarpTiles) -> str:
    """The task of a warp that has one at most."""
    return f"(warp / {split.warps})" if split.warps > 1 else "warp"


def write_each_fragment(text: KernelText, split: WarpTiles) -> None:
    """Open loops, without braces, over the elements i, j, h of the fragments that a lane holds."""
    for name, count in (("i", split.down), ("j", split.across), ("h", 4)):
        text.line("#pragma unroll")
        text.line(f"for (int {name} = 0; {name} < {count}; ++{name})")


def covers(split: WarpTiles, target: Tile) -> bool:
    """Whether all tasks together cover a target and nothing beyond."""
    return (split.bands * split.down * split.warps * ROWS, split.panels * split.across * COLUMNS) == target.shape[-2:]
