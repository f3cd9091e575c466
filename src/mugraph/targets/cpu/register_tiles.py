"""How a product is cut into register tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mugraph.targets.cpu.source import Vectors

_LATENCY = 8
"""Independent multiply-adds that keep the pipeline full."""


@dataclass(frozen=True, slots=True)
class Run:
    """Equal consecutive pieces of a dimension: `count` of them, `size` elements each, from `start`."""

    start: int
    count: int
    size: int


def runs(total: int, size: int) -> Iterator[Run]:
    """A dimension in pieces of `size`, and one smaller piece for the rest."""
    whole = total // size
    if whole:
        yield Run(0, whole, size)
    if total % size:
        yield Run(whole * size, 1, total % size)


def outer_tile(rows: int, vectors: int, unit: Vectors, widths: Sequence[int]) -> tuple[int, int]:
    """Rows and column vectors (one of `widths`) of a register tile: those with the least work per element of the product."""
    best = (float("inf"), 1, 1)
    for wide in widths:
        tallest = min(rows, (unit.registers - 1 - wide) // wide)
        if tallest < 1:
            continue
        tall = -(-rows // -(-rows // tallest))
        passes, panels = -(-rows // tall), -(-vectors // wide)
        step = max(tall * wide, _LATENCY) + 0.5 * tall + wide
        best = min(best, (passes * panels * step, tall, wide))
    return best[1], best[2]


def inner_tile(rows: int, columns: int, unit: Vectors) -> tuple[int, int]:
    """Rows and columns of a tile of dot products: at most one per lane, so that one folding sums them all."""
    best = (float("inf"), 1, 1)
    for tall in range(1, min(rows, unit.lanes) + 1):
        wide = min(columns, unit.lanes // tall)
        if tall * wide + tall + 1 < unit.registers:
            passes = -(-rows // tall) * -(-columns // wide)
            best = min(best, (passes * (max(tall * wide, _LATENCY) + tall + wide), tall, wide))
    return best[1], best[2]
