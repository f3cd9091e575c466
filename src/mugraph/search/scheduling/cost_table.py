"""The cost model: predicted seconds and bytes of sketches under schedules, as arrays of a row per sketch.

A roofline with three roofs: device memory and the last cache, which all multiprocessors share, and the issue slots of threads,
which compute, copy and go from step to step of a loop, on the multiprocessor that has most blocks. What threads load by
themselves comes after all of these, as fast as the latency of memory allows (`mugraph.search.scheduling.loads`). A launch costs a
fixed time.
It ranks candidates; measurement decides. `benchmarks/fit_model.py` finds the constants of a GPU that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np

from mugraph.devices import Device
from mugraph.devices.copies import SCHEDULERS, THREAD_COPY, WAITED_BYTES, WARP_COPY_BYTES
from mugraph.search.scheduling.cost import IndexSpace, SketchCost, Transfer
from mugraph.search.scheduling.loads import loads_of, tiles_of, waiting_bytes
from mugraph.search.scheduling.space import CutAxes, Floats, Indices, Schedules, Values, column, picked

NOT_HIDDEN = 0.1
"""Share of the work under the lower roofs that the slowest one does not hide."""

NOT_TAKEN = 0.32
"""Part of an idle multiprocessor's share of memory that those at work do not take: with 128 blocks for the 108 multiprocessors of
an A100, attention loses 18 % of its performance (the paper, section 8.2, on grid dimensions)."""


_OWN_CACHE = 2
"""A core's own cache over a block's shared memory, which is half of it."""


def in_femtoseconds(seconds: Values) -> Floats:
    """Seconds rounded to whole femtoseconds, so that equal costs tie in whichever order their terms were added."""
    return np.round(np.asarray(seconds), 15)


class Demand(NamedTuple):
    """Resources that kernels use of a device."""

    blocks: Values
    loop: Values
    """Iterations of a block."""
    memory: Values
    """Bytes through device memory, of all blocks."""
    cache: Values
    """Bytes that one block loads and stores."""
    compute: Values
    """Seconds of one block's arithmetic if all multiprocessors shared it."""
    steps: Values
    """Operators of an iteration."""
    held: Values
    """Bytes of a block's tiles."""
    waiting: Values = 0.0
    """Bytes that one block loads while its threads wait (`mugraph.search.scheduling.loads`)."""


def kernel_seconds(device: Device, demand: Demand) -> Values:
    """Predicted seconds of one launch of each kernel."""
    blocks, loop, memory, cache, compute, steps, held, waiting = demand
    rounds = np.ceil(blocks / device.multiprocessors)
    uneven: Values = rounds * device.multiprocessors / blocks  # as if all had as many blocks as the multiprocessor that has most
    working, looping = blocks * uneven * compute, rounds * loop * steps * device.iteration_seconds
    shared: Values
    after: Values
    if device.operands_in_place:  # a thread that computes waits for what it reads: nothing hides the steps of a loop
        shared, after = uneven, looping + device.launch_seconds
    else:
        side_by_side = np.where(2 * held <= device.shared_memory_bytes, device.resident_blocks, 1) * device.multiprocessors
        at_once = np.logical_and(device.multiprocessors <= blocks, blocks <= side_by_side)
        shared = 1.0 + np.where(at_once, NOT_HIDDEN, NOT_TAKEN) * (uneven - 1.0)
        copying = blocks * uneven * cache * _copy_seconds(device)
        alone = rounds * waiting * device.load_seconds / (WAITED_BYTES * np.minimum(rounds, device.resident_blocks))
        at_full_rate = shared * blocks * waiting / device.memory_bandwidth
        working, after = working + looping + copying, device.launch_seconds + np.maximum(0.0, alone - at_full_rate)
    if device.first_level_bytes:  # tiles that are too large for it are written to the next cache, and read from there
        cache = cache + 2 * np.maximum(0.0, held - device.first_level_bytes)
    moving, caching = shared * memory / device.memory_bandwidth, shared * blocks * cache / device.cache_bandwidth
    slowest = np.maximum(np.maximum(moving, caching), working)
    return slowest + NOT_HIDDEN * (moving + caching + working - slowest) + after


def _copy_seconds(device: Device) -> float:
    """Seconds of the issue slots that copy a byte, if every multiprocessor copied."""
    return THREAD_COPY / WARP_COPY_BYTES / (SCHEDULERS * device.clock_hertz * device.multiprocessors)


def short_run_factor(device: Device, run: Values, total: Values) -> Values:
    """How much more than its bytes a transfer costs, of tensors of `total` bytes whose contiguous runs in a tile have `run`."""
    vectors = np.minimum(device.vector_bytes, total) / run
    if np.max(vectors, initial=0.0) <= 1.0:
        return 1.0
    sectors = np.minimum(device.sector_bytes, total) / run
    factor: Floats = np.maximum(1.0, sectors) * np.maximum(1.0, vectors) ** device.short_run_exponent
    return factor


def times_from_memory(device: Device, size: Values, parts: Values, loads: Values, blocks: Values) -> Values:
    """How often a tensor of `size` bytes crosses device memory of which all `blocks` together load each element `loads` times,
    where a block's `parts` of all tensors take so many bytes.

    Through a CPU's caches once where the parts stay in a core's own, else once for each core that loads it, and where they do not
    stay in the last one until they are read again, each time. Through a GPU's once if it stays in the last cache, in every
    partition of it, and otherwise once for as many blocks as share it at a time: of those that run at once, put in order
    (`mugraph.lower.block_order`), one side of a square.
    """
    if device.shared_cache_bytes:
        at_once = device.multiprocessors * device.resident_blocks
        again = np.minimum(loads / math.sqrt(at_once), blocks / at_once)
        return np.where(np.asarray(size) > device.common_cache_bytes, np.maximum(1.0, again), 1.0)
    if not device.last_level_bytes:
        return 1.0
    by_cores = np.minimum(loads, np.minimum(blocks, device.multiprocessors))
    staying = np.where(parts > _OWN_CACHE * device.shared_memory_bytes, by_cores, 1.0)
    return np.maximum(1.0, np.where(parts > device.last_level_bytes, loads, staying))


class CostTable:
    """The costs of sketches for one device that are cut along the same axes, and so have the same schedules."""

    def __init__(self, costs: Sequence[SketchCost]) -> None:
        self.device, self.cut_axes = costs[0].device, costs[0].cut_axes
        self._transfers = tuple(dict.fromkeys(cost.transfers for cost in costs))
        self._transfers_of = np.array([self._transfers.index(cost.transfers) for cost in costs])
        worked_on, self._work = _coefficients([list(cost.compute.items()) for cost in costs])
        self._worked_on, self._least_work = _Tiles(worked_on, self.cut_axes[1]), self._work.min(axis=0)
        self._steps = np.array([[float(cost.steps_in_loop)] for cost in costs])
        held, self._live = _coefficients([live for cost in costs for live in cost.live_sets])
        self._held = _Tiles([space._replace(repeated=False) for space in held], self.cut_axes[1])
        loads = [loads_of(cost) for cost in costs]
        self._loads = tuple(dict.fromkeys(loads))
        self._loads_of = np.array([self._loads.index(of_sketch) for of_sketch in loads])
        self._first_live = np.cumsum([0, *(len(cost.live_sets) for cost in costs[:-1])])
        self.sketches = tuple(cost.sketch for cost in costs)

    def seconds(self, schedules: Schedules, chosen: Indices, running: Floats | float = 1.0) -> Floats:
        """Predicted seconds, shape [sketches, chosen], where such a share of the iterations runs, of that shape, too."""
        row, turn = schedules.at(chosen)
        traffic = np.empty((2, len(self._transfers), len(chosen)))
        for way, both in enumerate(self._traffic(schedules)):
            for bytes_of, values in zip(traffic, both, strict=True):
                bytes_of[way] = picked(values, row, turn)
        memory, cache = traffic[:, self._transfers_of]
        compute = self._work @ self._worked_on.sizes(schedules, row, turn)
        blocks, loop, held = schedules.grids.blocks[row], schedules.loop[0, turn], self.memory(schedules, chosen)
        waiting = running * self.waiting(schedules, chosen, held)
        cache, compute, steps = running * cache, running * compute, running * self._steps
        return in_femtoseconds(kernel_seconds(self.device, Demand(blocks, loop, memory, cache, compute, steps, held, waiting)))

    def floor(self, schedules: Schedules, running: Floats | float = 1.0) -> Floats:
        """No sketch takes less: for each schedule, what is needed by one that needs the least of everything.

        `running` is the least share of the iterations that runs, on the lattice of schedules.
        """
        memory, cache = (reduce(np.minimum, values) for values in zip(*self._traffic(schedules), strict=True))
        compute = self._worked_on.total(schedules, self._least_work)
        blocks, steps = schedules.grids.blocks[:, None], self._steps.min()
        demand = Demand(blocks, schedules.loop, memory, running * cache, running * compute, running * steps, held=0.0)
        return schedules.flat(kernel_seconds(self.device, demand))

    def memory(self, schedules: Schedules, chosen: Indices) -> Floats:
        """Peak bytes of a block's tensors, as `mugraph.ir.liveness.peak_bytes` counts them: [sketches, chosen schedules]."""
        held = self._held.sizes(schedules, *schedules.at(chosen))
        peak: Floats = np.maximum.reduceat(self._live @ held, self._first_live)
        return peak

    def waiting(self, schedules: Schedules, chosen: Indices, held: Floats) -> Floats:
        """Bytes that a block loads while its threads wait: [sketches, chosen schedules], as is `held`, the bytes of its tiles."""
        waiting = np.zeros_like(held)
        blocks = self._loads if self.device.load_seconds else ()
        for number, tiles in enumerate(tiles_of(blocks, schedules, *schedules.at(chosen))):
            alike = self._loads_of == number
            waiting[alike] = waiting_bytes(self.device, held[alike], tiles)
        return waiting

    def _traffic(self, schedules: Schedules) -> list[tuple[Values, Values]]:
        """For each way to transfer, bytes through device memory, and through the cache per block."""
        return [self._through(way, schedules) for way in self._transfers]

    def _through(self, way: Sequence[Transfer], schedules: Schedules) -> tuple[Values, Values]:
        def make() -> tuple[Values, Values]:
            parts = sum(column(schedules.grids.tile(transfer.space.axes)) * transfer.width for transfer in way)
            both = [self._transferred(transfer, schedules, parts) for transfer in way]
            return sum(memory for memory, _ in both), sum(cache for _, cache in both)

        return schedules.shared((self.device, way), make)

    def _transferred(self, transfer: Transfer, schedules: Schedules, parts: Values) -> tuple[Values, Values]:
        """What one tensor adds to both, where a block's parts of all tensors take so many bytes."""
        space, grids = transfer.space, schedules.grids
        cut = space.cut and any(schedules.loop_axis in slot for slot in transfer.slots)
        shared = schedules.shared if cut else grids.shared
        device = self.device
        runs = (device.sector_bytes, device.vector_bytes, device.short_run_exponent, device.operands_in_place)
        key = (*runs, transfer.slots, transfer.width, cut)
        width = shared(key, lambda: self._waste(transfer, cut, schedules) * transfer.width)
        tile, whole = column(grids.tile(space.axes)), column(grids.whole(space.axes))
        points = _worked_through(tile, space.loop_power(schedules.loop_axis), schedules.loop)
        blocks = column(grids.blocks)
        times = times_from_memory(device, whole * transfer.width, parts, blocks * points / whole, blocks)
        return whole * width * times, points * width

    def _waste(self, transfer: Transfer, cut: bool, schedules: Schedules) -> Values:
        """How much more than its bytes a transfer costs because its innermost contiguous runs are short."""
        run = schedules.run(transfer.slots, cut, self.device.operands_in_place) * transfer.width
        total = column(schedules.grids.whole(transfer.space.axes)) * transfer.width
        return short_run_factor(self.device, run, total)


class _Tiles:
    """Sizes of a block's tiles of several index spaces, in kernels with a for-loop over one axis (None: without loop)."""

    def __init__(self, spaces: Sequence[IndexSpace], loop_axis: int | None) -> None:
        self._axes = tuple(space.axes for space in spaces)
        powers = np.array([space.loop_power(loop_axis) for space in spaces], dtype=np.intp)
        self._by_power = {int(power): np.flatnonzero(powers == power) for power in np.unique(powers)}

    def sizes(self, schedules: Schedules, row: Indices, turn: Indices) -> Floats:
        """Number of points of each space at places of the lattice, shape [spaces, schedules]."""
        sizes, loop = schedules.grids.tiles(self._axes)[:, row], schedules.loop[0, turn]
        for power, spaces in self._by_power.items():
            if power:
                sizes[spaces] = _worked_through(sizes[spaces], power, loop)
        return sizes

    def total(self, schedules: Schedules, weights: Floats) -> Values:
        """Weighted sum of the points of all spaces, on the whole lattice."""
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
def cost_tables(costs: tuple[SketchCost, ...]) -> tuple[tuple[Indices, CostTable], ...]:
    """A table for all sketches that share their schedules, and which of `costs` these are.

    Tables know no sizes, so they are the same for every search that meets the sketches together.
    """
    groups: dict[CutAxes, list[int]] = {}
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
