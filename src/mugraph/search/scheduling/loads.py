"""What a block waits for: tiles that its threads load by themselves, and that no asynchronous copy brings while they compute.

Factors of products pass through a ring, and what the loop of such a kernel reads beside them is copied ahead where there is room
(`mugraph.lower.streams`, `mugraph.lower.staging`). Everything else is loaded when it is read: a block then has a vector of each
thread on its way, so that latency and not bandwidth says how long that takes. The rules here are the main ones of lowering, which
streams less: also to have a ring, rows of a factor must be whole copies of 16 bytes, k of an iteration a multiple of 16, and each
warp must keep one part of the sums. They are told of tiles, of schedules or of block graphs, as numbers or as arrays of a number
each.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mugraph.devices import Device
from mugraph.devices.copies import HELD_SUMS, MATRIX_ROWS, MOST_STAGES, PANEL_BYTES, WHOLE_BYTES
from mugraph.search.closure.sketch import Step
from mugraph.search.scheduling.cost import PRODUCTS, IndexSpace, SketchCost, spaces_of
from mugraph.search.scheduling.space import Indices, Schedules, Values


class Product(NamedTuple):
    """What a product makes in a block: so many matrices, of rows and columns."""

    matrices: IndexSpace
    rows: IndexSpace
    columns: IndexSpace


class Load(NamedTuple):
    """A load of a sketch: its points, bytes per element, and the products that read it as it is."""

    space: IndexSpace
    width: int
    products: tuple[Product, ...]
    read_elsewhere: bool
    """Whether anything else reads it."""
    widened: int
    """Bytes per element in which products read it that multiply more bits (`mugraph.lower.widening`); 0 without any."""


class LoadedTile(NamedTuple):
    """A tile that a block loads of a device tensor."""

    bytes: Values
    """Of one iteration."""
    times: Values
    """How often a block loads one."""
    streams: Values
    """Whether every reader is a product that keeps its sums in registers, through whose ring it can pass."""
    streams_partly: Values
    """Whether some reader is one."""
    widened: Values
    """Bytes of its copy in the type of products that multiply more bits."""
    in_loop: bool
    moves: bool
    """Whether it is another one in every iteration."""


def loads_of(cost: SketchCost) -> tuple[Load, ...]:
    """The loads of a sketch, in its order."""
    steps, spaces = cost.sketch.steps, spaces_of(cost.sketch)
    found = []
    for index, step in enumerate(steps):
        if step.leaf is None:
            continue
        readers = [reader for reader, other in enumerate(steps) if index in other.inputs]
        multiplied = [reader for reader in readers if steps[reader].op in PRODUCTS]
        products = [reader for reader in multiplied if cost.dtypes[reader] is cost.dtypes[index]]
        width, widest = cost.dtypes[index].bytes, max((cost.dtypes[reader].bytes for reader in multiplied), default=0)
        read_elsewhere = len(products) < len(readers) or index in cost.sketch.goals
        made = tuple(_product(cost.sketch.steps, product, spaces[product]) for product in products)
        found.append(Load(spaces[index], width, made, read_elsewhere, widest if widest > width else 0))
    return tuple(found)


def _product(steps: Sequence[Step], index: int, space: IndexSpace) -> Product:
    """A product has a matrix for each place along the axes of its result that both factors have."""
    first, *_, last = steps[index].inputs
    left, right = space.axes & steps[first].axes, space.axes & steps[last].axes
    axes = (left & right, space.axes - right, space.axes - left)
    return Product(*(IndexSpace(each, space.cut) for each in axes))


def keeps_sums(matrices: Values, rows: Values, columns: Values) -> Values:
    """Whether the registers of a block could hold the sums of so many matrices while factors pass, if well shared out."""
    return np.less_equal(matrices * np.maximum(MATRIX_ROWS, rows) * np.maximum(MATRIX_ROWS, columns), HELD_SUMS)


def tiles_of(loads: Sequence[Load], schedules: Schedules, row: Indices, turn: Indices) -> list[LoadedTile]:
    """The tiles of a sketch's loads at places of the lattice of schedules, as arrays of shape [schedules]."""
    loop_axis, loop = schedules.loop_axis, schedules.loop[0, turn]

    def elements(space: IndexSpace) -> Values:
        tile = schedules.grids.tile(space.axes)[row]
        return tile / loop if space.cut and loop_axis in space.axes else tile

    tiles = []
    nobody: Values = False
    for load in loads:
        kept = [keeps_sums(*map(elements, product)) for product in load.products]
        products_alone: Values = bool(kept) and not load.read_elsewhere
        tiles.append(
            LoadedTile(
                bytes=elements(load.space) * load.width,
                times=loop if load.space.repeated else 1.0,
                streams=functools.reduce(np.logical_and, kept, products_alone),
                streams_partly=functools.reduce(np.logical_or, kept, nobody),
                widened=elements(load.space) * load.widened,
                in_loop=load.space.repeated,
                moves=load.space.cut and loop_axis in load.space.axes,
            )
        )
    return tiles


def waiting_bytes(device: Device, held: Values, tiles: Sequence[LoadedTile]) -> Values:
    """Bytes that a block loads and waits for, of tiles that it loads and where all tiles of one take `held` bytes of memory."""
    if not device.load_seconds:
        return 0.0
    streamed = [np.logical_or(tile.streams, np.logical_and(tile.streams_partly, tile.bytes <= WHOLE_BYTES)) for tile in tiles]
    ahead = _copied_ahead(device, held, tiles, streamed)
    waited = [np.logical_not(np.logical_or(s, a)) for s, a in zip(streamed, ahead, strict=True)]
    total: Values = sum(tile.times * tile.bytes * each for tile, each in zip(tiles, waited, strict=True))
    return total


def _copied_ahead(device: Device, held: Values, tiles: Sequence[LoadedTile], streamed: Sequence[Values]) -> list[Values]:
    """Which tiles are copied with the panels of a loop: all that move and do not pass through its ring, if there is room.

    Room is what the ring and the tiles that blocks compute leave; an iteration with fewer panels needs more slots for each tile.
    """
    inside = [(tile, s) for tile, s in zip(tiles, streamed, strict=True) if tile.in_loop]
    through_ring: Values = sum(tile.bytes * s for tile, s in inside)
    whole: Values = sum(np.logical_and(s, np.logical_not(tile.streams)) for tile, s in inside)
    panels = np.where(whole, 1.0, np.maximum(1.0, through_ring / PANEL_BYTES))
    beside = [np.logical_and(tile.moves and through_ring, np.logical_not(s)) for tile, s in zip(tiles, streamed, strict=True)]
    wanted = (1 + np.ceil(MOST_STAGES / panels)) * sum(tile.bytes * each for tile, each in zip(tiles, beside, strict=True))
    wanted = wanted + sum(tile.widened for tile in tiles)
    loaded: Values = sum(tile.bytes for tile, _ in inside or [(tile, True) for tile in tiles])
    fits = wanted <= device.shared_memory_bytes - MOST_STAGES * PANEL_BYTES - np.maximum(0.0, held - loaded)
    return [np.logical_and(each, fits) for each in beside]
