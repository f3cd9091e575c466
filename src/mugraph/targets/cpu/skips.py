"""Iterations that are left out: a function that looks at the tiles which tell, and what threads remember of its answers."""

from __future__ import annotations

import math

from mugraph.lower.tile_form import Kernel, Skip
from mugraph.lower.tiles import merged
from mugraph.targets.c_text import literal, number_text, scaled, sum_of
from mugraph.targets.cpu.growing import print_given_strides
from mugraph.targets.cpu.source import Writer

_REMEMBERED = 1 << 14
"""Answers, a byte each, that a thread remembers on its stack."""


def print_idle(writer: Writer, kernel: Kernel) -> None:
    """The function that says whether an iteration of a block has nothing to do, of a kernel with `skips`."""
    if not kernel.skips:
        return
    place = "".join(f"long g{dim}, " for dim in range(len(kernel.grid)))
    with writer.block(f"static int {kernel.name}_idle(void **arguments, {place}long l)"):
        for skip in kernel.skips:
            with writer.block():
                _print_look(writer, kernel, skip)
        writer.line("return 0;")


def _print_look(writer: Writer, kernel: Kernel, skip: Skip) -> None:
    """Return 1 if all elements of a tile are the number; the last two of its dimensions that do not line up are one call."""
    tile = skip.tile
    dtype = writer.dtype(tile)
    runs = [run for run in merged(tile) if run[1]]
    *outer, rows, columns = [(1, 0)] * (2 - len(runs)) + runs
    writer.line(f"const {dtype}_t *{tile.buffer} = arguments[{kernel.inputs.index(tile.buffer)}];")
    print_given_strides(writer, kernel, tile.buffer)
    writer.pointer("p", tile)
    writer.line("int alike = 1;")
    for level, (count, _) in enumerate(outer):
        writer.line(f"for (long r{level} = 0; alike && r{level} < {count}; ++r{level})")
    start = sum_of(["p", *(scaled(step, f"r{level}") for level, (_, step) in enumerate(outer))])
    looked_at = ", ".join(f"{count}, {number_text(step)}" for count, step in (rows, columns))
    writer.line(f"alike = all_{dtype}({start}, {looked_at}, {literal(skip.value)});")
    writer.line("if (alike) return 1;")


def print_memory(writer: Writer, kernel: Kernel) -> None:
    """Where a thread keeps the answers that several blocks ask for: 0 before the first, then 1, or 2 for nothing to do."""
    if _is_remembered(kernel):
        writer.line(f"char answers[{_answers(kernel)}] = {{0}};")


def print_skips(writer: Writer, kernel: Kernel) -> None:
    """Go on with the next iteration where this one has nothing to do."""
    if not kernel.skips:
        return
    place = "".join(f"g{dim}, " for dim in range(len(kernel.grid)))
    idle = f"{kernel.name}_idle(arguments, {place}l)"
    if not _is_remembered(kernel):
        writer.line(f"if ({idle}) continue;")
        return
    terms, inner = ["l"], kernel.loop
    for dim in _looked_along(kernel):
        terms.append(scaled(inner, f"g{dim}"))
        inner *= kernel.grid[dim]
    writer.line(f"char *const answer = answers + {sum_of(terms)};")
    writer.line(f"if (!*answer) *answer = 1 + {idle};")
    writer.line("if (*answer == 2) continue;")


def _looked_along(kernel: Kernel) -> list[int]:
    """The dimensions of the grid along which blocks look at different tiles."""
    steps = [skip.tile.start.grid for skip in kernel.skips]
    return [dim for dim in range(len(kernel.grid)) if any(grid and grid[dim] for grid in steps)]


def _answers(kernel: Kernel) -> int:
    return kernel.loop * math.prod(kernel.grid[dim] for dim in _looked_along(kernel))


def _is_remembered(kernel: Kernel) -> bool:
    """Whether several blocks ask for the same, and a thread has room for all answers."""
    shared = math.prod(kernel.grid) > math.prod(kernel.grid[dim] for dim in _looked_along(kernel))
    return bool(kernel.skips) and shared and _answers(kernel) <= _REMEMBERED
