"""Partial results that a second kernel combines: what it would take to combine them in the kernel that makes them.

A kernel whose blocks share out what is summed writes partial results, and a second one combines them, group by group. Without a
launch of its own that could be done by the block of each group that comes last, which a counter in device memory tells, or by as
many blocks of the group as the second kernel has, which wait for each other. `forms` predicts all three by the cost model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugraph.devices import Device
from mugraph.lower import Launch
from mugraph.lower.block_order import in_order
from mugraph.lower.layouts import tiles_of
from mugraph.lower.tile_form import Kernel, Tile
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import kernel_seconds

_COUNTED, _AWAITED = 2, 3
"""Latencies of memory, one after the other, until a block knows that it is the last one: its results are seen by all (a fence),
and the counter's old value is there; and until a block knows that the last one has come, which it finds out by loading."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel and the one that combines what it writes: in each of so many `groups`, what `parts` blocks have written by
    `combining` blocks."""

    groups: int
    parts: int
    combining: int


@dataclass(frozen=True, slots=True)
class Forms:
    """Predicted seconds of what combines partial results, `alone` with its launch; `group_bytes` are loaded and stored for one
    group."""

    group_bytes: float
    alone: float
    last_block: float
    shared_out: float


def pair_of(first: Launch, second: Launch) -> Pair | None:
    """The groups of two kernels; None where the second one does not read all that blocks of the first have written in groups of
    several, alike and apart from each other."""
    read: list[set[int]] = [set() for _ in range(math.prod(second.kernel.grid))]
    for value in set(first.outputs) & set(second.inputs):
        name = first.kernel.outputs[first.outputs.index(value)]
        written = _touched(first.kernel, name)
        owner = np.full(first.kernel.buffer(name).elements, -1)
        owner[written] = np.arange(len(written))[:, None]
        for owners, elements in zip(read, _touched(second.kernel, second.kernel.inputs[second.inputs.index(value)]), strict=True):
            owners.update(np.unique(owner[elements]).tolist())
    groups = {frozenset(owners) for owners in read}
    parts = {len(group) for group in groups}
    apart = sum(map(len, groups)) == len(frozenset().union(*groups)) == math.prod(first.kernel.grid)
    if not apart or len(parts) != 1 or max(parts) < 2:
        return None
    return Pair(len(groups), max(parts), len(read) // len(groups))


def _touched(kernel: Kernel, buffer: str) -> NDArray[np.int64]:
    """The elements of a device buffer that each block touches in all its iterations, some of them twice: [blocks, elements]."""
    places = in_order(kernel.grid, None)
    return np.concatenate([_of_blocks(tile, places, kernel.loop) for tile in dict.fromkeys(tiles_of(kernel, buffer))], axis=1)


def _of_blocks(tile: Tile, places: NDArray[Any], loop: int) -> NDArray[np.int64]:
    """The elements of a tile in the blocks at these places: [blocks, elements]."""
    steps = [stride * np.arange(size) for stride, size in zip(tile.strides, tile.shape, strict=True)]
    if tile.start.loop:
        steps.append(tile.start.loop * np.arange(loop))
    inside = np.array(tile.start.constant)
    for step in steps:
        inside = np.add.outer(inside, step)
    moves = places @ np.array(tile.start.grid or (0,) * places.shape[1], np.int64)
    return np.asarray(np.add.outer(moves, np.ravel(inside)), np.int64)


def of_even_wave(launch: Launch, beside: int, device: Device) -> float:
    """The predicted seconds of what a kernel's blocks do, shared out evenly among as many as run at once, so many `beside` each
    other on a multiprocessor: what grids of equal parts have not in general."""
    asked, at_once = demand(launch.body, device), device.multiprocessors * beside
    share = float(asked.blocks) / at_once
    times = {name: share * getattr(asked, name) for name in ("loop", "cache", "compute", "waiting")}
    return float(kernel_seconds(device, asked._replace(blocks=at_once, **times)))


def forms(pair: Pair, second: Launch, device: Device) -> Forms:
    """The predicted seconds of a pair's second kernel, and of its work as a tail of the first one."""
    asked, tail = demand(second.body, device), replace(device, launch_seconds=0.0)

    def as_tail(blocks: int, latencies: int) -> float:
        """The work of the second kernel by so many blocks of each group."""
        times = pair.combining / blocks
        whole = asked._replace(
            blocks=pair.groups * blocks,
            memory=0.0,  # what was just written lies in the last cache
            **{name: times * getattr(asked, name) for name in ("loop", "cache", "compute", "waiting")},
        )
        return latencies * device.load_seconds + float(kernel_seconds(tail, whole))

    return Forms(
        pair.combining * float(asked.cache),
        float(kernel_seconds(device, asked)),
        as_tail(1, _COUNTED),
        as_tail(min(pair.combining, pair.parts), _AWAITED),
    )
