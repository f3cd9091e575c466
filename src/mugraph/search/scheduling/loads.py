"""What a block waits for: tiles that its threads load by themselves, and that no asynchronous copy brings while they compute.

Factors of products pass through a ring, and what the loop of such a kernel reads beside them is copied ahead where there is room
(`mugraph.lower.streams`, `mugraph.lower.staging`). Everything else is loaded when it is read: a block then has a vector of each
thread on its way, so that latency and not bandwidth says how long that takes. Functions of `mugraph.devices.products` say which
products stream, here and in lowering. What is left out: a tile whose readers stand before, in and after the loop may be loaded
once for each of these. Tiles are of schedules or of block graphs, their sizes numbers, or arrays of a number each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from typing import NamedTuple

import numpy as np

from mugraph.devices import Device
from mugraph.devices.copies import MOST_STAGES, PANEL_BYTES, WHOLE_BYTES
from mugraph.devices.products import Factor, Product, Streams, Truths, at_once, in_whole_copies, threads_for
from mugraph.devices.products import streams as streams_of
from mugraph.ir.axes import AxisSet
from mugraph.ir.dtypes import DType
from mugraph.search.scheduling.cost import PRODUCTS, IndexSpace, SketchCost, spaces_of
from mugraph.search.scheduling.emission import dims_of, is_turned
from mugraph.search.scheduling.space import Indices, Schedules, Values


class Lying(NamedTuple):
    """A factor as it lies in device memory: its innermost axes, and whether products sum over them."""

    row: IndexSpace
    along_k: bool


class Multiplied(NamedTuple):
    """A product of a block: its matrices, of rows and columns, each a sum over `depth`, and the factors that are loads."""

    matrices: IndexSpace
    rows: IndexSpace
    columns: IndexSpace
    depth: IndexSpace
    dtype: DType
    left: Lying | None
    right: Lying | None


class Load(NamedTuple):
    """A load of a sketch: its points, its type, and the products that read it as it is, each with whether it is on the left."""

    space: IndexSpace
    row: IndexSpace
    """Its innermost axes."""
    dtype: DType
    products: tuple[tuple[Multiplied, bool], ...]
    read_elsewhere: bool
    """Whether anything else reads it."""
    widened: int
    """Bytes per element in which products read it that multiply more bits (`mugraph.lower.widening`); 0 without any."""
    repeated: bool
    """Whether what reads it differs from iteration to iteration; else it is read before the loop or after it."""


class Loads(NamedTuple):
    """What a block loads, in the order of the sketch, its products, and what its other statements go through at the same time."""

    loads: tuple[Load, ...]
    products: tuple[Multiplied, ...]
    others: tuple[IndexSpace, ...]


class LoadedTile(NamedTuple):
    """A tile that a block loads of a device tensor."""

    bytes: Values
    """Of one iteration."""
    times: Values
    """How often a block loads one."""
    copied: Truths
    """Whether asynchronous copies could bring it: its rows are whole ones."""
    streams: Truths
    """Whether every reader is a product through whose ring it can pass."""
    streams_partly: Truths
    """Whether some reader is one."""
    panel: Values
    """Bytes of the largest of the smallest panels of these products."""
    whole: Values
    """Bytes of the largest of their panels with all of k, which others may read, too."""
    widened: Values
    """Bytes of its copy in the type of products that multiply more bits."""
    read_elsewhere: bool
    """Whether some reader is no product that multiplies it as it is."""
    in_loop: bool
    moves: bool
    """Whether it is another one in every iteration."""


def loads_of(cost: SketchCost) -> Loads:
    """The loads of a sketch, and what else says how many threads its blocks have."""
    return _Readers(cost).loads()


class _Readers:
    """Which steps of a sketch read its loads, as they are or carried out of the loop."""

    def __init__(self, cost: SketchCost) -> None:
        self.cost, self.steps, self.spaces = cost, cost.sketch.steps, spaces_of(cost.sketch)
        self.varies = self._varying()
        self.origins = self._origins()
        self.readers = self._readers()
        self.dims = dims_of(self.steps)
        self.innermost = {
            index: next((slot for slot in reversed(step.leaf.slots) if slot), ())
            for index, step in enumerate(self.steps)
            if step.leaf is not None
        }
        """The axes of the innermost dimension of each load's device tensor that has any."""

    def loads(self) -> Loads:
        loads = tuple(self._load(index) for index, step in enumerate(self.steps) if step.leaf is not None)
        products = (index for index, step in enumerate(self.steps) if step.op in PRODUCTS)
        multiplied = tuple(self._multiplied(product, *pair) for product in products for pair in self._pairs(product))
        saved = (IndexSpace(self.spaces[goal].axes) for goal in self.cost.sketch.goals)
        return Loads(loads, multiplied, (*saved, *(load.space for load in loads if load.read_elsewhere)))

    def _load(self, index: int) -> Load:
        readers = self.readers[index]
        products = [reader for reader in readers if self.steps[reader].op in PRODUCTS]
        same = [reader for reader in products if self.cost.dtypes[reader] is self.cost.dtypes[index]]
        dtype, widest = self.cost.dtypes[index], max((self.cost.dtypes[reader].bytes for reader in products), default=0)
        read_elsewhere = len(same) < len(readers) or index in {self.origins[goal] for goal in self.cost.sketch.goals}
        return Load(
            space=self.spaces[index],
            row=self._row(index),
            dtype=dtype,
            products=tuple(
                (self._multiplied(reader, left, right), self.origins[left] == index)
                for reader in same
                for left, right in self._pairs(reader)
                if index in (self.origins[left], self.origins[right])
            ),
            read_elsewhere=read_elsewhere,
            widened=widest if widest > dtype.bytes else 0,
            repeated=any(self.varies[reader] for reader in readers),
        )

    def _varying(self) -> list[bool]:
        """Which steps make something else in every iteration."""
        varying: list[bool] = []
        for step, space in zip(self.steps, self.spaces, strict=True):
            moves = step.leaf is not None and space.cut and self.cost.sketch.loop_axis in space.axes
            varying.append(step.in_loop and (moves or any(varying[i] for i in step.inputs)))
        return varying

    def _origins(self) -> list[int]:
        """The step whose tile each one's is: another one where the same is carried out of the loop."""
        found: list[int] = []
        for index, step in enumerate(self.steps):
            # by name: the maximum of equal values is one of them
            carried = step.op in ("carry", "accumulate_max") and not self.varies[step.inputs[0]]
            found.append(found[step.inputs[0]] if carried else index)
        return found

    def _readers(self) -> list[list[int]]:
        """The steps, in order, that read each one's tile and do not carry it out of the loop."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for reader, step in enumerate(self.steps):
            if self.origins[reader] == reader:
                for operand in {self.origins[i] for i in step.inputs}:
                    readers[operand].append(reader)
        return readers

    def _pairs(self, product: int) -> list[tuple[int, int]]:
        """The factors that a product multiplies, the left one first, as emission has them."""
        step = self.steps[product]
        if len(step.inputs) > 2:
            return list(zip(step.inputs[:2], step.inputs[2:], strict=True))
        first, second = step.inputs
        return [(second, first) if is_turned(self.dims[first], self.dims[second], step.reduced) else (first, second)]

    def _multiplied(self, product: int, left: int, right: int) -> Multiplied:
        """A product has a matrix for each place along the axes of its result that both factors have."""
        space, first, second = self.spaces[product], self.steps[left], self.steps[right]
        both = space.axes & first.axes & second.axes
        axes = (both, space.axes & first.axes - both, space.axes & second.axes - both)
        depth = IndexSpace(first.axes - space.axes, first.in_loop and not first.whole)
        matrices, rows, columns = (IndexSpace(each, space.cut) for each in axes)
        lying = [self._factor(product, self.origins[factor], both, depth.axes) for factor in (left, right)]
        return Multiplied(matrices, rows, columns, depth, self.cost.dtypes[product], lying[0], lying[1])

    def _factor(self, product: int, load: int, matrices: AxisSet, depth: AxisSet) -> Lying | None:
        """A factor from where it may be copied; None where it is computed, of another type, or its matrices have no rows."""
        if self.steps[load].leaf is None or self.cost.dtypes[load] is not self.cost.dtypes[product]:
            return None
        last = frozenset(self.innermost[load][-1:])
        return None if last & matrices else Lying(self._row(load), bool(last & depth))

    def _row(self, load: int) -> IndexSpace:
        return IndexSpace(frozenset(self.innermost[load]), self.spaces[load].cut)


def tiles_of(blocks: Iterable[Loads], schedules: Schedules, row: Indices, turn: Indices) -> Iterator[list[LoadedTile]]:
    """The tiles of each sketch's loads at places of the lattice of schedules, as arrays of shape [schedules]."""
    loop_axis, loop = schedules.loop_axis, schedules.loop[0, turn]

    @cache
    def elements(space: IndexSpace) -> Values:
        tile = schedules.grids.tile(space.axes)[row]
        return tile / loop if space.cut and loop_axis in space.axes else tile

    @cache
    def sizes(product: Multiplied) -> Product:
        matrices, rows, columns, depth = map(elements, product[:4])
        return Product(matrices, rows, columns, depth, product.dtype)

    @cache
    def streams(product: Multiplied, threads: bytes) -> Streams:
        return streams_of(sizes(product), factor(product.left), factor(product.right), np.frombuffer(threads))

    def factor(lying: Lying | None) -> Factor | None:
        return Factor(elements(lying.row), lying.along_k) if lying is not None else None

    for block in blocks:
        threads = np.asarray(threads_of([*map(sizes, block.products)], [*map(elements, block.others)]), float).tobytes()
        yield [
            loaded_tile(
                elements(load.space) * load.dtype.bytes,
                loop if load.repeated else 1.0,
                in_whole_copies(elements(load.row), load.dtype),
                [(streams(product, threads), on_left) for product, on_left in load.products],
                load.read_elsewhere,
                elements(load.space) * load.widened,
                in_loop=load.repeated,
                moves=load.space.cut and loop_axis in load.space.axes,
            )
            for load in block.loads
        ]


def loaded_tile(
    size: Values,
    times: Values,
    copied: Truths,
    products: Sequence[tuple[Streams, bool]],
    read_elsewhere: bool,
    widened: Values,
    *,
    in_loop: bool,
    moves: bool,
) -> LoadedTile:
    """A tile of `size` bytes, of products that read it, each with whether it is on their left; the rest is as it will be."""
    nobody: Truths = False
    alone: Truths = bool(products) and not read_elsewhere
    through = [made.left if on_left else made.right for made, on_left in products]
    return LoadedTile(
        bytes=size,
        times=times,
        copied=copied,
        streams=reduce(np.logical_and, through, alone),
        streams_partly=reduce(np.logical_or, through, nobody),
        panel=_largest([made.panel for made, _ in products]),
        whole=_largest([made.whole for made, _ in products]),
        widened=widened,
        read_elsewhere=read_elsewhere,
        in_loop=in_loop,
        moves=moves,
    )


def threads_of(products: Sequence[Product], others: Sequence[Values]) -> Values:
    """Threads of blocks that compute some products, and whose other statements go through so many elements each."""
    return threads_for(_largest([*map(at_once, products), *others]))


def waiting_bytes(device: Device, held: Values, tiles: Sequence[LoadedTile]) -> Values:
    """Bytes that a block loads and waits for, of tiles that it loads and where all tiles of one take `held` bytes of memory."""
    if not device.load_seconds:
        return 0.0
    computed = _computed(held, tiles)
    streamed = _through_ring(device, computed, tiles)
    ahead = _copied_ahead(device, computed, tiles, streamed)
    waited = [np.logical_not(np.logical_or(s, a)) for s, a in zip(streamed, ahead, strict=True)]
    total: Values = sum(tile.times * tile.bytes * each for tile, each in zip(tiles, waited, strict=True))
    return total


def _through_ring(device: Device, computed: Values, tiles: Sequence[LoadedTile]) -> list[Values]:
    """Which tiles pass through the ring: none where there is no room for two slots beside what a block computes.

    One that others read as well does so where its panel is all of it, and small enough.
    """
    shared = [np.logical_and(tile.streams_partly, np.logical_not(tile.streams)) for tile in tiles]
    whole = [np.logical_and(each, tile.whole <= WHOLE_BYTES) for each, tile in zip(shared, tiles, strict=True)]
    largest: Values = 0.0
    for tile, all_of_it in zip(tiles, whole, strict=True):
        largest = np.maximum(largest, tile.streams_partly * np.where(all_of_it, tile.whole, tile.panel))
    fits = 2 * largest <= device.shared_memory_bytes - computed
    return [np.logical_and(np.logical_or(tile.streams, w), fits) for w, tile in zip(whole, tiles, strict=True)]


def _largest(sizes: Sequence[Values]) -> Values:
    largest: Values = 0.0
    for size in sizes:
        largest = np.maximum(largest, size)
    return largest


def _computed(held: Values, tiles: Sequence[LoadedTile]) -> Values:
    """Bytes of tiles that a block computes, of all that it holds."""
    loaded: Values = sum(tile.bytes for tile in tiles)
    return np.maximum(0.0, held - loaded)


def _copied_ahead(device: Device, computed: Values, tiles: Sequence[LoadedTile], streamed: Sequence[Values]) -> list[Values]:
    """Which tiles are copied with the panels of a loop: all that move and do not pass through its ring, if there is room.

    Room is what the ring and the tiles that blocks compute leave; an iteration with fewer panels needs more slots for each tile.
    """
    inside = [(tile, s) for tile, s in zip(tiles, streamed, strict=True) if tile.in_loop]
    through_ring: Values = sum(tile.bytes * s for tile, s in inside)
    whole: Values = sum(np.logical_and(s, np.logical_not(tile.streams)) for tile, s in inside)
    panels = np.where(whole, 1.0, np.maximum(1.0, through_ring / PANEL_BYTES))
    beside = [
        np.logical_and(np.logical_and(tile.moves and tile.read_elsewhere and through_ring, tile.copied), np.logical_not(s))
        for tile, s in zip(tiles, streamed, strict=True)
    ]
    wanted = (1 + np.ceil(MOST_STAGES / panels)) * sum(tile.bytes * each for tile, each in zip(tiles, beside, strict=True))
    wanted = wanted + sum(tile.widened for tile in tiles)
    fits = wanted <= device.shared_memory_bytes - MOST_STAGES * PANEL_BYTES - computed
    return [np.logical_and(each, fits) for each in beside]
