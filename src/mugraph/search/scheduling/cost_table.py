"""The cost model: predicted seconds and bytes of recipes under schedules, as arrays of a row per recipe.

A roofline with three roofs (device memory, cache, arithmetic), the idle multiprocessors of a grid that does not
divide evenly, and fixed costs per launch and loop iteration. It ranks candidates; measurement decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce

import numpy as np

from mugraph.search.scheduling.cost import IndexSpace, RecipeCost, Transfer
from mugraph.search.scheduling.space import Floats, Indices, Schedules, Values, column, picked

NOT_HIDDEN = 0.1
"""Share of the work under the lower roofs that the slowest one does not hide."""


def in_femtoseconds(seconds: Floats) -> Floats:
    """Seconds without their rounding errors, so that what costs the same ties, in whichever order its parts were added."""
    return np.round(seconds, 15)


class CostTable:
    """The costs of recipes for one device that are cut along the same axes, and so have the same schedules."""

    def __init__(self, costs: Sequence[RecipeCost]) -> None:
        self.device, self.cut_axes = costs[0].device, costs[0].cut_axes
        self._transfers = tuple(dict.fromkeys(cost.transfers for cost in costs))
        self._transfers_of = np.array([self._transfers.index(cost.transfers) for cost in costs])
        worked_on, self._work = _coefficients([list(cost.compute.items()) for cost in costs])
        self._worked_on, self._least_work = _Tiles(worked_on, self.cut_axes[1]), self._work.min(axis=0)
        self._iteration = self.device.iteration_seconds * np.array([[cost.steps_in_loop] for cost in costs])
        held, self._live = _coefficients([live for cost in costs for live in cost.live_sets])
        self._held = _Tiles([space._replace(repeated=False) for space in held], self.cut_axes[1])
        self._first_live = np.cumsum([0, *(len(cost.live_sets) for cost in costs[:-1])])

    def seconds(self, schedules: Schedules, chosen: Indices) -> Floats:
        """Predicted run times, [recipes, chosen schedules]."""
        row, turn = schedules.at(chosen)
        traffic = np.empty((2, len(self._transfers), len(chosen)))
        for way, both in enumerate(self._traffic(schedules)):
            for bytes_of, values in zip(traffic, both, strict=True):
                bytes_of[way] = picked(values, row, turn)
        memory, cache = traffic[:, self._transfers_of]
        compute = self._work @ self._worked_on.sizes(schedules, row, turn)
        blocks, loop = schedules.grids.blocks[row], schedules.loop[0, turn]
        return in_femtoseconds(self._roofline(blocks, loop, memory, cache, compute, self._iteration))

    def floor(self, schedules: Schedules) -> Floats:
        """No recipe takes less: for each schedule, what is needed by one that needs the least of everything."""
        memory, cache = (reduce(np.minimum, values) for values in zip(*self._traffic(schedules), strict=True))
        compute = self._worked_on.total(schedules, self._least_work)
        blocks = schedules.grids.blocks[:, None]
        return schedules.flat(self._roofline(blocks, schedules.loop, memory, cache, compute, self._iteration.min()))

    def memory(self, schedules: Schedules, chosen: Indices) -> Floats:
        """Peak bytes of a block's tensors, as `mugraph.ir.liveness.peak_bytes` counts them: [recipes, chosen schedules]."""
        held = self._held.sizes(schedules, *schedules.at(chosen))
        peak: Floats = np.maximum.reduceat(self._live @ held, self._first_live)
        return peak

    def _roofline(
        self, blocks: Floats, loop: Floats, memory: Values, cache: Values, compute: Values, iteration: Values
    ) -> Floats:
        """Seconds of a kernel from the bytes through memory and a block's cache, a block's arithmetic, and an iteration's."""
        device = self.device
        rounds = np.ceil(blocks / device.multiprocessors)
        moving, caching = memory / device.memory_bandwidth, blocks * cache / device.cache_bandwidth
        arithmetic = blocks * compute
        slowest = np.maximum(np.maximum(moving, caching), arithmetic)
        hidden = moving + caching + arithmetic - slowest
        idle = rounds * device.multiprocessors / blocks
        result: Floats = idle * (slowest + NOT_HIDDEN * hidden) + (device.launch_seconds + rounds * loop * iteration)
        return result

    def _traffic(self, schedules: Schedules) -> list[tuple[Values, Values]]:
        """For each way to transfer, bytes through device memory, and through the cache per block."""
        return [self._through(way, schedules) for way in self._transfers]

    def _through(self, way: Sequence[Transfer], schedules: Schedules) -> tuple[Values, Values]:
        def make() -> tuple[Values, Values]:
            both = [self._transferred(transfer, schedules) for transfer in way]
            return sum(memory for memory, _ in both), sum(cache for _, cache in both)

        return schedules.shared((self.device, way), make)

    def _transferred(self, transfer: Transfer, schedules: Schedules) -> tuple[Values, Values]:
        """What one tensor adds to both."""
        space, grids = transfer.space, schedules.grids
        cut = space.cut and any(schedules.loop_axis in slot for slot in transfer.slots)
        shared = schedules.shared if cut else grids.shared
        key = (self.device.vector_bytes, self.device.short_run_exponent, transfer.slots, transfer.width, cut)
        width = shared(key, lambda: self._waste(transfer, cut, schedules) * transfer.width)
        points = _worked_through(column(grids.tile(space.axes)), space.loop_power(schedules.loop_axis), schedules.loop)
        return column(grids.whole(space.axes)) * width, points * width

    def _waste(self, transfer: Transfer, cut: bool, schedules: Schedules) -> Values:
        """How much more than its bytes a transfer costs because its innermost contiguous runs are short."""
        run = schedules.run(transfer.slots, cut) * transfer.width
        total = column(schedules.grids.whole(transfer.space.axes)) * transfer.width
        vectors = np.minimum(self.device.vector_bytes, total) / run
        if np.max(vectors, initial=0.0) <= 1.0:
            return 1.0
        result: Floats = np.maximum(1.0, vectors) ** self.device.short_run_exponent
        return result


class _Tiles:
    """How much a block has of each of some index spaces, in kernels with a for-loop over one axis (None: without loop)."""

    def __init__(self, spaces: Sequence[IndexSpace], loop_axis: int | None) -> None:
        self._axes = tuple(space.axes for space in spaces)
        powers = np.array([space.loop_power(loop_axis) for space in spaces], dtype=np.intp)
        self._by_power = {int(power): np.flatnonzero(powers == power) for power in np.unique(powers)}

    def sizes(self, schedules: Schedules, row: Indices, turn: Indices) -> Floats:
        """The points of each space, [spaces, schedules], for places of the lattice."""
        sizes, loop = schedules.grids.tiles(self._axes)[:, row], schedules.loop[0, turn]
        for power, spaces in self._by_power.items():
            if power:
                sizes[spaces] = _worked_through(sizes[spaces], power, loop)
        return sizes

    def total(self, schedules: Schedules, weights: Floats) -> Values:
        """The points of all spaces, each with a weight, on the whole lattice."""
        tiles = schedules.grids.tiles(self._axes)
        return sum(
            _worked_through(column(weights[spaces] @ tiles[spaces]), power, schedules.loop)
            for power, spaces in self._by_power.items()
        )


def _worked_through(tile: Values, power: int, loop: Floats) -> Values:
    """Elements of a tile that a block works through: in one iteration's part (-1), once (0), or in every iteration (1)."""
    if power == 0:
        return tile
    return tile * loop if power > 0 else tile / loop


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
    places: dict[IndexSpace, int] = {}
    for terms in sums:
        for space, _ in terms:
            places.setdefault(space, len(places))
    coefficients = np.zeros((len(sums), len(places)))
    for row, terms in zip(coefficients, sums, strict=True):
        for space, coefficient in terms:
            row[places[space]] = coefficient
    return tuple(places), coefficients
