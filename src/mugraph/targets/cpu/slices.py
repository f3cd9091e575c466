"""The text of kernels that compute as many slices as a call says (`mugraph.lower.first_slices`)."""

from __future__ import annotations

import math
from itertools import chain

from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.targets.c_text import scaled
from mugraph.targets.cpu.source import HELD, Writer

_FEW = 7
"""Rows times a matrix that one thread computes: 3 take about as long as 1, and 8 twice as long."""


def blocks_of(kernel: Kernel) -> str:
    """How many blocks have something to do: all, or those that begin before the last row, which are the first ones. Where blocks
    begin at any row, rows are counted."""
    if operands_by_row(kernel):
        return _rows(kernel)
    slices, all_blocks = kernel.slices, math.prod(kernel.grid)
    if slices is None or slices.dim is None:
        return str(all_blocks)
    along = kernel.grid[slices.dim]
    begun = f"smaller(({_rows(kernel)} + {slices.step - 1}) / {slices.step}, {along})"
    return scaled(all_blocks // along, begun)


def has_part(kernel: Kernel, part: float) -> str:
    """Whether a call has more than this part of all rows, and more than one block can have."""
    slices = kernel.slices
    assert slices is not None
    all_rows = slices.extent if slices.dim is None else slices.step * kernel.grid[slices.dim]
    least = max(int(part * all_rows), _rows_together(kernel))
    return "1" if least < slices.rows else f"{_rows(kernel)} > {least}"


def _rows_together(kernel: Kernel) -> int:
    """As many rows as one thread computes whatever they take: those of a block that is not divided, and few rows times a matrix,
    which each thread would read for itself."""
    slices = kernel.slices
    assert slices is not None
    if slices.dim is None or math.prod(kernel.grid) > kernel.grid[slices.dim]:
        return 0
    if not slices.apart:
        return slices.step
    stops = zip(kernel.statements, chain(*slices.dims), strict=True)
    by_matrix = any(isinstance(each, Matmul) and dim == each.target.rank - 2 for each, dim in stops)
    return min(_FEW, slices.extent) if by_matrix else 0


def operands_by_row(kernel: Kernel) -> dict[str, int]:
    """The operands that statements read and write by pointers of their own, the given ones being called `whole_`, since blocks
    begin at any row; and how far apart rows are in them."""
    return {} if kernel.slices is None else dict(kernel.slices.apart)


def rows_in_turn(writer: Writer, kernel: Kernel) -> str:
    """The head of the loop over the rows that a thread runs, as many as any other, which is always in the first block."""
    assert kernel.slices is not None
    writer.line("while (next_share(worker))")
    rows = "long begin = worker->first, last_row = worker->last, block = 0"
    return f"for ({rows}; begin < last_row; begin += {kernel.slices.extent})"


def print_rows(writer: Writer, kernel: Kernel) -> None:
    """Declare how many rows of a block there are, if a statement stops behind them, and where, if that may be anywhere."""
    slices = kernel.slices
    if slices is None or all(dim is None for dims in slices.dims for dim in dims):
        return
    if not slices.apart:
        start = "" if slices.dim is None else f" - {scaled(slices.step, f'g{slices.dim}')}"
        writer.line(f"const long {HELD} = smaller({_rows(kernel)}{start}, {slices.extent});")
        return
    writer.line(f"const long {HELD} = smaller(last_row - begin, {slices.extent});")
    for name, distance in slices.apart:
        const = "" if name in kernel.outputs else "const "
        pointer = f"{const}{writer.dtypes[name]}_t *const restrict {name}"
        writer.line(f"{pointer} = whole_{name} + {scaled(distance, 'begin')};")


def _rows(kernel: Kernel) -> str:
    assert kernel.slices is not None
    return scaled(kernel.slices.rows, f"{kernel.slices.count}[0]")
