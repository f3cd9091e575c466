"""The text of kernels that compute as many slices as a call says (`mugraph.lower.first_slices`)."""

from __future__ import annotations

import math

from mugraph.lower.tile_form import Kernel
from mugraph.targets.c_text import scaled
from mugraph.targets.cpu.source import HELD, Writer


def blocks_of(kernel: Kernel) -> str:
    """How many blocks have something to do: all, or those that begin before the last row, which are the first ones."""
    slices, all_blocks = kernel.slices, math.prod(kernel.grid)
    if slices is None or slices.dim is None:
        return str(all_blocks)
    along = kernel.grid[slices.dim]
    begun = f"smaller(({_rows(kernel)} + {slices.step - 1}) / {slices.step}, {along})"
    return scaled(all_blocks // along, begun)


def print_rows(writer: Writer, kernel: Kernel) -> None:
    """Declare how many rows of a block there are, if a statement stops behind them."""
    slices = kernel.slices
    if slices is not None and any(dim is not None for dims in slices.dims for dim in dims):
        start = "" if slices.dim is None else f" - {scaled(slices.step, f'g{slices.dim}')}"
        writer.line(f"const long {HELD} = smaller({_rows(kernel)}{start}, {slices.extent});")


def _rows(kernel: Kernel) -> str:
    assert kernel.slices is not None
    return scaled(kernel.slices.rows, f"{kernel.slices.count}[0]")
