"""The cost model: predicted seconds and bytes of recipes under schedules, as arrays of a row per recipe.

A roofline with three roofs (device memory, cache, arithmetic), the idle multiprocessors of a grid that does not
divide evenly, and fixed costs per launch and loop iteration. It ranks candidates; measurement decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mugraph.search.scheduling.cost import IndexSpace, RecipeCost, Transfer
from mugraph.search.scheduling.leaders import Indices
from mugraph.search.scheduling.space import Floats, Schedules, Values

NOT_HIDDEN = 0.1
"""Share of the work under the lower roofs that the slowest one does not hide."""

Chosen = Indices | slice
"""Which schedules of a space."""

EVERY = slice(None)


def in_femtoseconds(seconds: Floats) -> Floats:
    """Seconds without their rounding errors, so that what costs the same ties, in whichever order its parts were added."""
    return np.round(seconds, 15)


class CostTable:
    """The costs of recipes for one device that are cut along the same axes, and so have the same schedules."""

    def __init__(self, costs: Sequence[RecipeCost]) -> None:
        self.device, self.cut_axes = costs[0].device, costs[0].cut_axes
        self._transfers = list(dict.fromkeys(cost.transfers for cost in costs))
        self._transfers_of = np.array([self._transfers.index(cost.transfers) for cost in costs])
        self._worked_on, self._work = _coefficients([list(cost.compute.items()) for cost in costs])
        self._iteration = self.device.iteration_seconds * np.array([[cost.steps_in_loop] for cost in costs])
        self._held, self._live = _coefficients([live for cost in costs for live in cost.live_sets])
        self._first_live = np.cumsum([0, *(len(cost.live_sets) for cost in costs[:-1])])

    def seconds(self, schedules: Schedules, chosen: Chosen = EVERY) -> Floats:
        """Predicted run times, [recipes, chosen schedules]."""
        traffic = self._traffic(schedules, chosen)[:, self._transfers_of]
        points = self._points(schedules)[:, chosen]
        return in_femtoseconds(self._roofline(schedules, chosen, traffic, self._work @ points, self._iteration))

    def floor(self, schedules: Schedules) -> Floats:
        """No recipe takes less: for each schedule, what is needed by one that needs the least of everything."""
        traffic = self._traffic(schedules, EVERY).min(axis=1)
        compute = self._work.min(axis=0) @ self._points(schedules)
        return self._roofline(schedules, EVERY, traffic, compute, self._iteration.min())

    def memory(self, schedules: Schedules, chosen: Chosen = EVERY) -> Floats:
        """Peak bytes of a block's tensors, as `mugraph.ir.liveness.peak_bytes` counts them: [recipes, chosen schedules]."""
        key = ("tiles", self._held)
        tiles = schedules.shared(key, lambda: _rows([schedules.tile(held.axes, held.cut) for held in self._held], schedules))
        peak: Floats = np.maximum.reduceat(self._live @ tiles[:, chosen], self._first_live)
        return peak

    def _points(self, schedules: Schedules) -> Floats:
        """How many points a block works through in each index space: [index spaces, schedules]."""
        key = ("points", self._worked_on)
        return schedules.shared(key, lambda: _rows([schedules.points(*space) for space in self._worked_on], schedules))

    def _roofline(self, schedules: Schedules, chosen: Chosen, traffic: Floats, compute: Values, iteration: Values) -> Floats:
        """Seconds of a kernel from the bytes through memory and a block's cache, a block's arithmetic, and an iteration's."""
        device, blocks, loop = self.device, schedules.blocks[chosen], schedules.loop[chosen]
        rounds = np.ceil(blocks / device.multiprocessors)
        memory, cache = traffic[0] / device.memory_bandwidth, blocks * traffic[1] / device.cache_bandwidth
        arithmetic = blocks * compute
        slowest = np.maximum(np.maximum(memory, cache), arithmetic)
        hidden = memory + cache + arithmetic - slowest
        idle = rounds * device.multiprocessors / blocks
        result: Floats = idle * (slowest + NOT_HIDDEN * hidden) + (device.launch_seconds + rounds * loop * iteration)
        return result

    def _traffic(self, schedules: Schedules, chosen: Chosen) -> Floats:
        """Bytes through device memory, and through the cache per block: [2, ways to transfer, chosen schedules]."""
        key = (self.device, *self._transfers)
        ways = schedules.shared(key, lambda: np.stack([self._transferred(way, schedules) for way in self._transfers], axis=1))
        return ways[..., chosen]

    def _transferred(self, transfers: Sequence[Transfer], schedules: Schedules) -> Floats:
        return sum((self._one_transferred(transfer, schedules) for transfer in transfers), start=np.zeros((2, len(schedules))))

    def _one_transferred(self, transfer: Transfer, schedules: Schedules) -> Floats:
        """A row each for device memory and for the cache per block."""

        def make() -> Floats:
            elements = [schedules.whole(transfer.space.axes), schedules.points(*transfer.space)]
            return _rows(elements, schedules) * (self._waste(transfer, schedules) * transfer.width)

        return schedules.shared((self.device, transfer), make)

    def _waste(self, transfer: Transfer, schedules: Schedules) -> Values:
        """How much more than its bytes a transfer costs because its innermost contiguous runs are short."""
        run = schedules.run(transfer.slots, transfer.space.cut) * transfer.width
        total = schedules.whole(transfer.space.axes) * transfer.width
        vectors = np.minimum(self.device.vector_bytes, total) / run
        if vectors.max(initial=0.0) <= 1.0:
            return 1.0
        result: Floats = np.maximum(1.0, vectors) ** self.device.short_run_exponent
        return result


@lru_cache(maxsize=1 << 12)
def cost_tables(costs: tuple[RecipeCost, ...]) -> tuple[tuple[Indices, CostTable], ...]:
    """A table for all recipes that share their schedules, and which of `costs` these are.

    Tables know no sizes, so they are the same for every search that meets the recipes together.
    """
    groups: dict[tuple[tuple[int, ...], int | None], list[int]] = {}
    for number, cost in enumerate(costs):
        groups.setdefault(cost.cut_axes, []).append(number)
    return tuple((np.array(numbers), CostTable([costs[number] for number in numbers])) for numbers in groups.values())


def _coefficients(sums: Sequence[Sequence[tuple[IndexSpace, float]]]) -> tuple[tuple[IndexSpace, ...], Floats]:
    """The index spaces in some sums over them, and their coefficients: a row for each sum."""
    column: dict[IndexSpace, int] = {}
    for terms in sums:
        for space, _ in terms:
            column.setdefault(space, len(column))
    coefficients = np.zeros((len(sums), len(column)))
    for row, terms in zip(coefficients, sums, strict=True):
        for space, coefficient in terms:
            row[column[space]] = coefficient
    return tuple(column), coefficients


def _rows(values: Sequence[Values], schedules: Schedules) -> Floats:
    """Values of all schedules, one row for each of `values`."""
    rows = np.empty((len(values), len(schedules)))
    for row, value in zip(rows, values, strict=True):
        row[:] = value
    return rows
