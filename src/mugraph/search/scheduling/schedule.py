"""Schedule instantiation: the best grids and loop counts of sketches at the sizes at hand, by the cost model.

Structure is searched once per program; for each new size, dtype or device only this runs. Sketches that share a space of
schedules are costed together, and a lower bound for all of them tells which schedules need not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.ir.axes import AxisSet
from mugraph.search.constraints import ANY_SCHEDULE, Frame
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.scheduling.cost_table import CostTable, cost_tables, in_femtoseconds
from mugraph.search.scheduling.emission import Schedule
from mugraph.search.scheduling.space import Floats, Grids, Indices, Schedules, Sizes, grids_over, schedule_space


class Leaders:
    """The `count` least `seconds` below `bound` of each race, by race, least first; of equal ones those of smaller numbers.

    `worst` are for each race the seconds that another one must not exceed to be among them.
    """

    def __init__(self, races: int, count: int, bound: float = np.inf) -> None:
        self._count, self._bound = count, bound
        self.worst = np.full(races, bound)
        self.races = np.zeros(0, dtype=np.intp)
        self.numbers = np.zeros(0, dtype=np.intp)
        self.seconds = np.zeros(0)

    def add(self, races: Indices, seconds: Floats, numbers: Indices) -> None:
        """Let more run, arrays of one length: which race, in how many seconds, and the number it is known by."""
        fast = (seconds <= self.worst[races]) & (seconds < self._bound)
        races = np.concatenate([self.races, races[fast]])
        seconds = np.concatenate([self.seconds, seconds[fast]])
        numbers = np.concatenate([self.numbers, numbers[fast]])
        order = np.lexsort((numbers, seconds, races))
        place = np.arange(len(order)) - np.searchsorted(races[order], races[order])
        kept = order[place < self._count]
        self.races, self.seconds, self.numbers = races[kept], seconds[kept], numbers[kept]
        last = order[place == self._count - 1]
        self.worst[races[last]] = seconds[last]


_AT_FIRST = 64
"""Schedules whose exact cost is computed first; then four times as many of those that may still lead, and so on."""

_GROWTH = 4

_ROUNDING = 1 - 1e-9
"""Bounds are lowered by rounding errors, so that schedules of equal cost are all compared."""

_NUMBER_BITS = 32
"""A schedule of a sketch is numbered by both: the sketch, then its place in the space, in so many bits."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sketch under a schedule, the variant of sizes it is for, and its predicted seconds."""

    seconds: float
    cost: SketchCost
    schedule: Schedule
    variant: int


@dataclass
class Scheduler:
    """Schedules sketches of one program for each of `variants`, sizes of its axes; of axes `parted` a block has one element.

    Only schedules that `frame` allows and that fit shared memory count. Of equally fast ones, the first sketch's lead, and the
    first of its space.
    """

    variants: Sequence[Sizes]
    parted: AxisSet = frozenset()
    frame: Frame = ANY_SCHEDULE
    grids: dict[tuple[int, ...], Grids] = field(default_factory=dict)
    spaces: dict[tuple[tuple[int, ...], int | None], Schedules] = field(default_factory=dict)
    too_large: int = 0
    """Schedules that were looked at and passed over because a block's tensors exceed shared memory."""

    def space(self, cut_axes: tuple[tuple[int, ...], int | None]) -> Schedules:
        """The schedules of sketches that are cut along some axes (`SketchCost.cut_axes`)."""
        if cut_axes not in self.spaces:
            parallel, loop_axis = cut_axes
            if parallel not in self.grids:
                self.grids[parallel] = grids_over(parallel, self.variants, self.parted, self.frame)
            self.spaces[cut_axes] = schedule_space(self.grids[parallel], loop_axis, self.variants)
        return self.spaces[cut_axes]

    def best_of_each(self, costs: tuple[SketchCost, ...], count: int) -> Iterator[Scheduled]:
        """The `count` schedules of least predicted seconds of each sketch, sketch by sketch, best first."""
        leaders = Leaders(len(costs), count)
        for numbers, table in cost_tables(costs):
            self._compare(table, self.space(table.cut_axes), numbers, leaders, numbers[:, None])
        return self._scheduled(costs, leaders)

    def best(self, costs: tuple[SketchCost, ...], count: int, bound: float, rest: Floats) -> Iterator[Scheduled]:
        """The `count` best schedules of all sketches together below `bound` seconds, best first.

        `rest` are seconds that each variant costs besides; they count in the order and against the bound.
        """
        leaders = Leaders(1, count, bound)
        for numbers, table in cost_tables(costs):
            space = self.space(table.cut_axes)
            self._compare(table, space, numbers, leaders, np.zeros((1, 1), dtype=np.intp), rest[space.variant])
        return self._scheduled(costs, leaders, rest)

    def least(self, costs: tuple[SketchCost, ...]) -> dict[int, Scheduled]:
        """For each variant the best schedule of all sketches, where any fits."""
        leaders = Leaders(len(self.variants), 1)
        for numbers, table in cost_tables(costs):
            space = self.space(table.cut_axes)
            self._compare(table, space, numbers, leaders, space.variant[None])
        return {scheduled.variant: scheduled for scheduled in self._scheduled(costs, leaders)}

    def _compare(
        self,
        table: CostTable,
        space: Schedules,
        numbers: Indices,
        leaders: Leaders,
        races: Indices,
        rest: Floats | float = 0.0,
    ) -> None:
        """Let the sketches of a table, known by `numbers`, run in `races`, [sketches or 1, schedules or 1]."""
        if not len(space):
            return
        floor = (table.floor(space) + rest) * _ROUNDING
        promising = np.flatnonzero(floor <= leaders.worst[races].max(axis=0))
        order = promising[_in_turn(races[0, promising] if races.shape[1] > 1 else None, floor[promising])]
        limit, size = table.device.shared_memory_bytes, _AT_FIRST
        while len(order):
            chosen, order = np.sort(order[:size]), order[size:]
            size *= _GROWTH
            fits = table.memory(space, chosen) <= limit
            self.too_large += int(np.count_nonzero(~fits))
            some = fits.any(axis=0)
            if not some.any():
                continue
            chosen, fits = chosen[some], fits[:, some]
            total = table.seconds(space, chosen) + (rest[chosen] if isinstance(rest, np.ndarray) else rest)
            where = np.broadcast_to(races, (len(numbers), len(floor)))[:, chosen]
            leaders.add(where[fits], total[fits], ((numbers[:, None] << _NUMBER_BITS) + chosen)[fits])
            order = order[(floor <= leaders.worst[races].max(axis=0))[order]]

    def _scheduled(self, costs: Sequence[SketchCost], leaders: Leaders, rest: Floats | None = None) -> Iterator[Scheduled]:
        for total, number in zip(leaders.seconds, leaders.numbers, strict=True):
            cost, index = costs[int(number) >> _NUMBER_BITS], int(number) & (1 << _NUMBER_BITS) - 1
            space = self.space(cost.cut_axes)
            variant = int(space.variant[index])
            seconds = total if rest is None else in_femtoseconds(total - rest[variant])
            yield Scheduled(float(seconds), cost, space.schedule(index), variant)


def _in_turn(races: Indices | None, floor: Floats) -> Indices:
    """The schedules with the least floor of each race first, then the next of each, and so on; None: all are in one race."""
    if races is None:
        return np.argsort(floor, kind="stable")
    by_race = np.lexsort((floor, races))
    sorted_races = races[by_race]
    place = np.empty_like(by_race)
    place[by_race] = np.arange(len(floor)) - np.searchsorted(sorted_races, sorted_races)
    order: Indices = np.lexsort((floor, place))
    return order
