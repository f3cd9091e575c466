"""Schedule instantiation: the best grids and loop counts of sketches at the sizes at hand, by the cost model.

Structure is searched once per program; for each new size, dtype or device only this runs. Sketches that share a space of
schedules are costed together, and a lower bound for all of them tells which schedules need not be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mugraph.ir.axes import AxisGroup, AxisSet
from mugraph.search.constraints import ANY_SCHEDULE, Frame
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.scheduling.cost_table import CostTable, cost_tables, in_femtoseconds
from mugraph.search.scheduling.emission import Schedule
from mugraph.search.scheduling.masks import Masks, running_shares
from mugraph.search.scheduling.space import CutAxes, Floats, Grids, Indices, Schedules, Sizes, grids_over, schedule_space


class TopSchedules:
    """The `count` fastest schedules of each of n groups, below `bound` seconds; ties go to the smaller id.

    `groups`, `numbers` (schedule ids) and `seconds` have shape [entries], sorted by group and then by seconds. `cutoff`, of shape
    [n], is the time above which a schedule is not among the fastest of its group.
    """

    def __init__(self, groups: int, count: int, bound: float = np.inf) -> None:
        self._count, self._bound = count, bound
        self.cutoff = np.full(groups, bound)
        self.groups = np.zeros(0, dtype=np.intp)
        self.numbers = np.zeros(0, dtype=np.intp)
        self.seconds = np.zeros(0)

    def add(self, groups: Indices, seconds: Floats, numbers: Indices) -> None:
        """Add n entries: group id, predicted seconds and schedule id, each of shape [n]."""
        fast = (seconds <= self.cutoff[groups]) & (seconds < self._bound)
        groups = np.concatenate([self.groups, groups[fast]])
        seconds = np.concatenate([self.seconds, seconds[fast]])
        numbers = np.concatenate([self.numbers, numbers[fast]])
        order = np.lexsort((numbers, seconds, groups))
        place = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
        kept = order[place < self._count]
        self.groups, self.seconds, self.numbers = groups[kept], seconds[kept], numbers[kept]
        last = order[place == self._count - 1]
        self.cutoff[groups[last]] = seconds[last]


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
    masks: Masks = field(default_factory=dict)
    """Of what is known to hide scores, by source: iterations that it leaves without effect take no time."""
    grids: dict[tuple[AxisGroup, ...], Grids] = field(default_factory=dict)
    spaces: dict[CutAxes, Schedules] = field(default_factory=dict)
    too_large: int = 0
    """Schedules that were looked at and passed over because a block's tensors exceed shared memory."""

    def space(self, cut_axes: CutAxes) -> Schedules:
        """The schedules of sketches that are cut along some axes (`SketchCost.cut_axes`)."""
        if cut_axes not in self.spaces:
            groups, loop_axis = cut_axes
            if groups not in self.grids:
                self.grids[groups] = grids_over(groups, self.variants, self.parted, self.frame)
            self.spaces[cut_axes] = schedule_space(self.grids[groups], loop_axis, self.variants)
        return self.spaces[cut_axes]

    def best_of_each(self, costs: tuple[SketchCost, ...], count: int) -> Iterator[Scheduled]:
        """The `count` fastest schedules of each sketch, sketch by sketch, fastest first."""
        top = TopSchedules(len(costs), count)
        for numbers, table in cost_tables(costs):
            self._compare(table, self.space(table.cut_axes), numbers, top, numbers[:, None])
        return self._scheduled(costs, top)

    def best(self, costs: tuple[SketchCost, ...], count: int, bound: float, rest: Floats) -> Iterator[Scheduled]:
        """The `count` fastest schedules of all sketches together below `bound` seconds, fastest first.

        `rest`, of shape [variants], are seconds added to the schedules of each variant, in the order and against the bound.
        """
        top = TopSchedules(1, count, bound)
        for numbers, table in cost_tables(costs):
            space = self.space(table.cut_axes)
            self._compare(table, space, numbers, top, np.zeros((1, 1), dtype=np.intp), rest[space.variant])
        return self._scheduled(costs, top, rest)

    def least(self, costs: tuple[SketchCost, ...]) -> dict[int, Scheduled]:
        """The fastest schedule of all sketches for each variant; variants that no schedule fits are left out."""
        top = TopSchedules(len(self.variants), 1)
        for numbers, table in cost_tables(costs):
            space = self.space(table.cut_axes)
            self._compare(table, space, numbers, top, space.variant[None])
        return {scheduled.variant: scheduled for scheduled in self._scheduled(costs, top)}

    def _compare(
        self,
        table: CostTable,
        space: Schedules,
        numbers: Indices,
        top: TopSchedules,
        groups: Indices,
        rest: Floats | float = 0.0,
    ) -> None:
        """Add the schedules of a table's sketches to the top ones.

        `numbers` are the ids of the sketches, of shape [sketches]; `groups` the group of each sketch and schedule, of shape
        [sketches or 1, schedules or 1]; `rest` seconds that are added to every schedule, of shape [schedules].
        """
        if not len(space):
            return
        shares, kind = running_shares(table.sketches, space, self.masks) if self.masks else (None, None)
        floor = (table.floor(space, 1.0 if shares is None else shares.min(axis=0)) + rest) * _ROUNDING
        promising = np.flatnonzero(floor <= top.cutoff[groups].max(axis=0))
        order = promising[_in_turn(groups[0, promising] if groups.shape[1] > 1 else None, floor[promising])]
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
            running = 1.0 if shares is None else shares[kind][:, *space.at(chosen)]
            total = table.seconds(space, chosen, running) + (rest[chosen] if isinstance(rest, np.ndarray) else rest)
            where = np.broadcast_to(groups, (len(numbers), len(floor)))[:, chosen]
            top.add(where[fits], total[fits], ((numbers[:, None] << _NUMBER_BITS) + chosen)[fits])
            order = order[(floor <= top.cutoff[groups].max(axis=0))[order]]

    def _scheduled(self, costs: Sequence[SketchCost], top: TopSchedules, rest: Floats | None = None) -> Iterator[Scheduled]:
        for total, number in zip(top.seconds, top.numbers, strict=True):
            cost, index = costs[int(number) >> _NUMBER_BITS], int(number) & (1 << _NUMBER_BITS) - 1
            space = self.space(cost.cut_axes)
            variant = int(space.variant[index])
            seconds = total if rest is None else in_femtoseconds(total - rest[variant])
            yield Scheduled(float(seconds), cost, space.schedule(index), variant)


def _in_turn(groups: Indices | None, floor: Floats) -> Indices:
    """Indices of schedules, round-robin over their groups, each group by its lower bound; both arguments have shape [schedules].

    Without groups, in the order of the bounds.
    """
    if groups is None:
        return np.argsort(floor, kind="stable")
    by_group = np.lexsort((floor, groups))
    sorted_groups = groups[by_group]
    place = np.empty_like(by_group)
    place[by_group] = np.arange(len(floor)) - np.searchsorted(sorted_groups, sorted_groups)
    order: Indices = np.lexsort((floor, place))
    return order
