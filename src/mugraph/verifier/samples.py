"""Which slices of a program are compared with float64 where all of them would take too long (docs/verification.md, "Samples").

Along each parallel axis some positions are chosen, and the slices at all their combinations are compared. Faults of kernels are
regions: what a block, a tile, a vector or a ragged end computes. So the positions are the ends of the axis, with a run of
neighbours at its last end, the last positions of the parts into which grids and loops cut it, and one at random of each of many
equal stretches: a region as long as two stretches along every axis is met for certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph

LEAST = 16
"""Positions along an axis, at least, where it has as many."""
_TAIL, _LANES = 8, 16
"""One part in so many of the positions are the last of their axis, next to each other; where that is less than the lanes of a
vector, as many as these, but a quarter of the positions at most."""
_PARTS = 4
"""One part in so many, at most, are those where parts end."""

Places = tuple[Array, ...]
"""Positions along each axis, ascending."""


def affordable(
    sizes: Sequence[int], work: Callable[[Sequence[int]], float], most: float, least: int | None = None
) -> tuple[int, ...]:
    """How many positions to choose along axes of these sizes: as many as the work allows, the longest axis halved first, but
    `least` at least, by default LEAST."""
    least = LEAST if least is None else least
    counts = list(sizes)
    while work(counts) > most and max(counts, default=0) > least:
        longest = max(range(len(counts)), key=counts.__getitem__)
        counts[longest] = max(least, counts[longest] // 2)
    return tuple(counts)


def chosen(sizes: Sequence[int], counts: Sequence[int], parts: Iterable[int], seed: int) -> Places:
    """About so many positions along axes of these sizes, which are cut into so many `parts` by one thing or another."""
    rng = np.random.default_rng([seed, 0x5A3B1E])
    cuts = sorted({*parts})
    return tuple(_positions(size, count, cuts, rng) for size, count in zip(sizes, counts, strict=True))


def parts_of(graph: Graph | None) -> list[int]:
    """Into how many parts the grids and loops of a muGraph cut what they cut."""
    if graph is None:
        return []
    bodies = [node.body for _, node in graph.walk() if node.body is not None]
    return [count for body in bodies for count in (*body.grid, *body.block, body.loop) if count > 1]


def combinations(places: Places) -> int:
    """How many slices there are at all combinations of positions."""
    return math.prod(map(len, places))


def _positions(size: int, count: int, cuts: Sequence[int], rng: np.random.Generator) -> Array:
    if count >= size:
        return np.arange(size)
    tail = np.arange(size - max(min(_LANES, count // 4), count // _TAIL), size)
    ends = [end for parts in cuts if size % parts == 0 for end in _ends(size, parts, rng)]
    ends = [*rng.permutation(ends)[: count // _PARTS].tolist()] if len(ends) > count // _PARTS else ends
    found = {0, *tail.tolist(), *ends}
    stretches = np.linspace(0, size, count - len(found) + 1).astype(np.int64)
    return np.array(sorted(found | {*rng.integers(stretches[:-1], stretches[1:]).tolist()}))


def _ends(size: int, parts: int, rng: np.random.Generator) -> list[int]:
    """The last position of the first part, of one in the middle and of the last but one, and the first of those behind them."""
    step = size // parts
    which = {1, int(rng.integers(1, parts)), parts - 1}
    return [place for part in which for place in (part * step - 1, part * step)]
