"""Left factors that all blocks of a kernel multiply: a thread copies one for the matrix unit once, and not in each of its blocks.

A block of columns meets all rows. In blocks of 512 columns, copying 512 rows of 4,096 took a quarter of the time.
"""

from __future__ import annotations

import math

from mugraph.lower.phases import Phase
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.targets.cpu.growing import statements_of
from mugraph.targets.cpu.matmul import packed_on_tiles
from mugraph.targets.cpu.matrix_tiles import PackedTiles
from mugraph.targets.cpu.source import Writer

_BLOCKS = 8
"""Blocks of a kernel from which on threads are taken to have several each. One block alone copies panel by panel into memory that
stays in the second-level cache."""


def print_left_copies(writer: Writer, kernel: Kernel) -> None:
    """Declare memory for what a thread copies once, before its blocks."""
    if math.prod(kernel.grid) < _BLOCKS or kernel.slices is not None or kernel.growing is not None:
        return
    for phase in Phase:
        for each in statements_of(kernel, phase):
            form = packed_on_tiles(writer, each.statement) if isinstance(each.statement, Matmul) else None
            if form is not None and _is_of_all_blocks(kernel, form) and form.left_key not in writer.left_copies:
                name = f"left_{len(writer.left_copies)}"
                writer.allocated(f"{form.copied}_t", name, form.left_bytes)
                writer.line(f"int has_{name} = 0;")
                writer.left_copies[form.left_key] = name


def _is_of_all_blocks(kernel: Kernel, form: PackedTiles) -> bool:
    """Whether a left factor is copied, and is the same input in all blocks and iterations."""
    left = form.product.left
    alone = math.prod(form.product.target.shape[:-2]) == 1
    return form.copies and alone and left.buffer in kernel.inputs and left.lookup is None and not any(left.start.parts[1:])
