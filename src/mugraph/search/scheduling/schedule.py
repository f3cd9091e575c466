"""Schedule instantiation: the best grids and loop counts of recipes at the sizes at hand, by the cost model.

Structure is searched once per program; for each new size, dtype or device only this runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mugraph.search.axes import AxisSet
from mugraph.search.scheduling.cost import RecipeCost
from mugraph.search.scheduling.emission import Schedule
from mugraph.search.scheduling.space import Floats, Schedules, Sizes, cuttable, schedule_space

_CHUNK = 4096
"""Schedules whose memory is computed at a time. Recipes share the tile sizes of a whole space, so that parts of it pay late."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A schedule of a recipe, the variant of sizes it is for, and its predicted seconds."""

    seconds: float
    schedule: Schedule
    variant: int


@dataclass
class Scheduler:
    """Schedules recipes of one program for each of `variants`, sizes of its axes; of axes `parted` a block has one element."""

    variants: Sequence[Sizes]
    parted: AxisSet = frozenset()
    spaces: dict[tuple[tuple[int, ...], int | None], Schedules] = field(default_factory=dict)
    too_large: int = 0
    """Schedules that were passed over because a block's tensors exceed shared memory."""

    def space(self, cost: RecipeCost) -> Schedules:
        """The schedules of a recipe; recipes that are cut along the same axes share them."""
        recipe = cost.recipe
        tensors = [*(leaf.slots for leaf in recipe.leaves), *(output.slots for output in cost.outputs)]
        parallel = tuple(axis for axis in sorted(recipe.parallel_axes) if cuttable(axis, tensors))
        key = (parallel, recipe.loop_axis)
        if key not in self.spaces:
            self.spaces[key] = schedule_space(parallel, recipe.loop_axis, self.variants, self.parted)
        return self.spaces[key]

    def best(self, cost: RecipeCost, count: int, bound: float = np.inf, rest: Floats | None = None) -> Iterator[Scheduled]:
        """The `count` schedules of least predicted seconds below `bound` that fit the device's shared memory, best first.

        `rest` are seconds that each variant costs besides; they count in the order and against the bound.
        """
        space = self.space(cost)
        seconds = cost.seconds(space)
        total = seconds if rest is None else seconds + rest[space.variant]
        order = np.flatnonzero(total < bound)
        order = order[np.argsort(total[order], kind="stable")]
        for index in self._fitting(cost, space, order):
            yield Scheduled(float(seconds[index]), space.schedule(index), int(space.variant[index]))
            count -= 1
            if count == 0:
                return

    def _fitting(self, cost: RecipeCost, space: Schedules, order: npt.NDArray[np.intp]) -> Iterator[int]:
        """Those schedules in `order` whose tensors fit shared memory."""
        limit = cost.device.shared_memory_bytes
        at_once = len(space) <= _CHUNK
        for start in range(0, len(order), _CHUNK):
            chunk = order[start : start + _CHUNK]
            fits = (cost.memory(space)[chunk] if at_once else cost.memory(space[chunk])) <= limit
            self.too_large += int(np.count_nonzero(~fits))
            yield from chunk[fits]

    def least(self, cost: RecipeCost) -> Floats:
        """The least predicted seconds of each variant; infinity where no schedule fits."""
        space = self.space(cost)
        least = np.full(len(self.variants), np.inf)
        fits = cost.memory(space) <= cost.device.shared_memory_bytes
        np.minimum.at(least, space.variant[fits], cost.seconds(space)[fits])
        return least
