"""Which kernels cover a size: the cheapest way to put it together of sizes that there are kernels for."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple


class Chunk(NamedTuple):
    """Kernels for `size` slices run on those from `start` on."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Chunks that cover a size, in order: the last overlaps the one before where sizes do not add up, and of a lone one that is
    larger its first slices are computed, or it is padded. No chunks are the function itself, which takes any size."""

    chunks: tuple[Chunk, ...]
    seconds: float


_Runs = tuple[tuple[int, int], ...]
"""Chunks in descending order of size: (size, how often). Of small ones there may be thousands."""
_Covered = dict[tuple[int, int], tuple[float, _Runs]]
"""By what is left of a size and the largest chunk that may cover it: seconds, and the chunks that do."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of what a size is covered by: of `kernels` by size, of the function itself (`own`) at some sizes, and besides of
    each `chunk` that is one of several, and of `padding`, with as many for `copying` each slice of what is padded. Those that can
    compute their first slices alone have `parts`, by size: which part of their time so many of them take, from the least number
    on that they compute. Kernels that run their own size `alone` cover no other. What the function takes elsewhere follows from
    sizes at which it was timed (`between`): where that is one, as of a table that lists one, as much is taken to be needed below
    it, and in proportion beyond it; of several the last two say how it grows."""

    kernels: Mapping[int, float]
    own: Mapping[int, float] = field(default_factory=dict)
    chunk: float = 0.0
    padding: float = 0.0
    parts: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    alone: Mapping[int, float] = field(default_factory=dict)
    copying: float = 0.0
    _covered_by: _Covered = field(default_factory=dict, init=False, compare=False, repr=False)

    def plan(self, size: int) -> ChunkPlan:
        """The cheapest plan for a size: among those with sizes in descending order, each of them as often as fits, once less
        often, or not at all."""
        plans = [self._by_itself(size), *self._padded(size), *self._in_part(size)]
        if size in self.kernels:
            plans.append(ChunkPlan((Chunk(0, size),), self.kernels[size]))
        best = min(plans, key=_seconds)
        sizes = sorted((known for known in self.kernels if known < size), reverse=True)
        if sizes and self._least(size, sizes) < best.seconds:
            seconds, chosen = self._covered(size, sizes, 0)
            best = min(best, ChunkPlan(_placed(size, chosen), seconds), key=_seconds)
        return best

    def special(self, size: int) -> float:
        """Seconds that kernels for this very size would take, between those of its neighbours; or the function, if faster."""
        best = {each: min(self.kernels.get(each, _NEVER), self.alone.get(each, _NEVER)) for each in {*self.kernels, *self.alone}}
        return min(between(best, size), between(self.own, size))

    def ratio(self, size: int) -> float:
        """The speed of a size's plan beside that of kernels for this very size, as far as costs say."""
        return self.special(size) / self.plan(size).seconds

    def _by_itself(self, size: int) -> ChunkPlan:
        return ChunkPlan((), between(self.own, size))

    def _padded(self, size: int) -> list[ChunkPlan]:
        larger = {known: seconds for known, seconds in self.kernels.items() if known > size and known not in self.parts}
        if not larger:
            return []
        seconds = {known: kernels + self.padding + known * self.copying for known, kernels in larger.items()}
        chosen = min(seconds, key=seconds.__getitem__)
        return [ChunkPlan((Chunk(0, chosen),), seconds[chosen])]

    def _in_part(self, size: int) -> list[ChunkPlan]:
        """Larger kernels that compute so many slices alone."""
        larger = [known for known, parts in self.parts.items() if known > size >= min(parts, default=1) and known in self.kernels]
        return [ChunkPlan((Chunk(0, known),), self.kernels[known] * between(self.parts[known], size)) for known in larger]

    def _least(self, size: int, sizes: Sequence[int]) -> float:
        """What chunks of smaller sizes, in descending order, take at least: so many are needed, and none of them costs less."""
        return -(-size // sizes[0]) * (min(self.kernels[known] for known in sizes) + self.chunk)

    def _covered(self, rest: int, sizes: Sequence[int], first: int) -> tuple[float, _Runs]:
        """Seconds and chunks that cover what is left, of sizes from the `first` on, in descending order: those below it
        are the same whatever size is planned, so that plans share what they have in common."""
        size = sizes[first]
        if (rest, size) in self._covered_by:
            return self._covered_by[rest, size]
        cost, fitting = self.kernels[size] + self.chunk, rest // size
        often = -(-rest // size)
        best: tuple[float, _Runs] = (often * cost, ((size, often),))
        if first + 1 < len(sizes):
            for count in {fitting, max(fitting - 1, 0), 0}:
                if rest > count * size:
                    seconds, others = self._covered(rest - count * size, sizes, first + 1)
                    own = ((size, count),) if count else ()
                    best = min(best, (count * cost + seconds, (*own, *others)))
        self._covered_by[rest, size] = best
        return best


_NEVER = float("inf")


def between(known: Mapping[int, float], size: int) -> float:
    """What is known at some sizes, linearly in between; below them as at the smallest. Beyond them it grows as between the last
    two, no faster than in proportion to the largest: calls of few elements take as long as others of few. Infinite where nothing
    is known."""
    if not known:
        return _NEVER
    if size in known:
        return known[size]
    sizes = sorted(known)
    place = bisect.bisect(sizes, size)
    if place == 0 or len(sizes) == 1:
        return known[sizes[0]] * max(size / sizes[0], 1)
    low, high = sizes[place - 1 :][:2] if place < len(sizes) else sizes[-2:]
    line = known[low] + (known[high] - known[low]) * (size - low) / (high - low)
    return line if size < high else min(max(line, known[high]), known[high] * size / high)


def _seconds(plan: ChunkPlan) -> float:
    return plan.seconds


def _placed(size: int, runs: _Runs) -> tuple[Chunk, ...]:
    """Chunks one after another, the last so that it ends where the whole does."""
    chosen = [each for each, often in runs for _ in range(often)]
    starts = [0, *accumulate(chosen[:-1])]
    starts[-1] = size - chosen[-1]
    return tuple(map(Chunk, starts, chosen))
