"""Schedule instantiation: grids and loop counts from the divisors of the real sizes, ranked by the cost model.

Structure is searched once per program; for each new size, dtype or device only this runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from mugraph.search.axes import Slots
from mugraph.search.cost import RecipeCost, Schedules
from mugraph.search.emission import Schedule
from mugraph.search.recipe import Recipe

_GRID_DIMENSIONS = 3
_MOST_BLOCKS = 1 << 16


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def cuttable(axis: int, tensors: Sequence[Slots]) -> bool:
    """Whether an axis varies slowest in every dimension it is part of, so that equal parts of it are contiguous tiles."""
    return all(axis not in slot[1:] for slots in tensors for slot in slots)


def schedule_space(recipe: Recipe, sizes: Sequence[int], outputs: Sequence[Slots]) -> Iterator[Schedules]:
    """Every grid (up to three dimensions) and loop count whose parts are equal, one batch per choice of cut axes."""
    tensors = [*(leaf.slots for leaf in recipe.leaves), *outputs]
    parallel = [axis for axis in sorted(recipe.parallel_axes) if cuttable(axis, tensors)]
    looped = recipe.loop_axis
    loops: tuple[int, ...] = (1,)
    if looped is not None:
        loops = divisors(sizes[looped])[1:] if cuttable(looped, tensors) else ()
    for chosen in itertools.combinations(parallel, min(_GRID_DIMENSIONS, len(parallel))):
        counts = [divisors(sizes[axis]) for axis in chosen]
        grid = np.array(list(itertools.product(*counts, loops)), dtype=np.float64).reshape(-1, len(chosen) + 1)
        keep = grid[:, :-1].prod(axis=1) <= _MOST_BLOCKS
        if looped in chosen:
            keep &= sizes[looped] % (grid[:, chosen.index(looped)] * grid[:, -1]) == 0
        grid = grid[keep]
        if len(grid):
            yield Schedules({axis: grid[:, column] for column, axis in enumerate(chosen)}, grid[:, -1])


def best_schedules(cost: RecipeCost, outputs: Sequence[Slots], count: int) -> list[tuple[float, Schedule]]:
    """The `count` schedules of least predicted seconds among those that fit the device's shared memory."""
    found: dict[Schedule, float] = {}
    for batch in schedule_space(cost.recipe, cost.sizes, outputs):
        seconds = np.where(cost.memory(batch) <= cost.device.shared_memory_bytes, cost.seconds(batch), np.inf)
        for index in np.argsort(seconds, kind="stable")[:count]:
            if np.isfinite(seconds[index]):
                grid = tuple((axis, int(parts[index])) for axis, parts in batch.parts.items() if parts[index] > 1)
                found.setdefault(Schedule(grid, int(batch.loop[index])), float(seconds[index]))
    return sorted(((seconds, schedule) for schedule, seconds in found.items()), key=lambda pair: pair[0])[:count]
