"""All the schedules of a kernel at once: grids and loop counts from the divisors of the real sizes, as arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from mugraph.search.axes import AxisSet, Slots
from mugraph.search.scheduling.emission import Schedule

Floats = npt.NDArray[np.float64]
Values = Floats | float
"""A number per schedule, or one for all."""

Sizes = tuple[int, ...]

_GRID_DIMENSIONS = 3
_MOST_BLOCKS = 1 << 16


class Schedules:
    """Many schedules of kernels that share their structure.

    `sizes`: elements of each axis, per schedule where they differ; `parts`: for each cut axis the blocks along it; `loop`: the
    for-loop's iterations over `loop_axis`; `variant`: which of several assignments of sizes a schedule is for.
    """

    def __init__(
        self,
        sizes: Sequence[Values],
        parts: dict[int, Floats],
        loop: Floats,
        loop_axis: int | None,
        variant: npt.NDArray[np.intp],
    ) -> None:
        self.sizes, self.parts, self.loop, self.loop_axis, self.variant = sizes, parts, loop, loop_axis, variant
        self._tiles: dict[tuple[AxisSet, bool], Values] = {}
        self._repeated: dict[tuple[AxisSet, bool], Values] = {}
        self._wholes: dict[AxisSet, Values] = {}
        self._runs: dict[tuple[Slots, bool], Floats] = {}
        self._shared: dict[Hashable, Floats] = {}

    def __len__(self) -> int:
        return len(self.loop)

    def schedule(self, index: int) -> Schedule:
        """One of them."""
        grid = tuple((axis, int(count[index])) for axis, count in self.parts.items() if count[index] > 1)
        return Schedule(grid, int(self.loop[index]))

    def shared(self, key: Hashable, make: Callable[[], Floats]) -> Floats:
        """What `make` says of the schedules, made once for each `key`."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    @cached_property
    def blocks(self) -> Floats:
        """Thread blocks."""
        return math.prod(self.parts.values(), start=np.ones_like(self.loop))

    def whole(self, axes: AxisSet) -> Values:
        """Elements of a device tensor."""
        if axes not in self._wholes:
            self._wholes[axes] = math.prod((self.sizes[axis] for axis in axes), start=1.0)
        return self._wholes[axes]

    def tile(self, axes: AxisSet, cut: bool) -> Values:
        """Elements of a tensor in one block; `cut`: of its loop axis only one iteration's tile."""
        key = (axes, cut and self.loop_axis in axes)
        if key not in self._tiles:
            tile = self.whole(axes)
            for axis in axes & self.parts.keys():
                tile = tile / self.parts[axis]
            self._tiles[key] = tile / self.loop if key[1] else tile
        return self._tiles[key]

    def points(self, axes: AxisSet, cut: bool, repeated: bool) -> Values:
        """Elements a block works through, in all iterations together if it is `repeated` in each."""
        if not repeated:
            return self.tile(axes, cut)
        key = (axes, cut and self.loop_axis in axes)
        if key not in self._repeated:
            self._repeated[key] = self.tile(*key) * self.loop
        return self._repeated[key]

    def run(self, slots: Slots, in_loop: bool) -> Floats:
        """Elements that a tile of a row-major device tensor of dimensions `slots` has in one piece."""
        key = (slots, in_loop and any(self.loop_axis in slot for slot in slots))
        if key not in self._runs:
            self._runs[key] = self._contiguous(slots, key[1])
        return self._runs[key]

    def _contiguous(self, slots: Slots, in_loop: bool) -> Floats:
        run = np.ones_like(self.loop)
        whole = np.ones_like(self.loop, dtype=bool)
        for axis in (axis for slot in reversed(slots) for axis in reversed(slot)):
            parts = self.parts.get(axis)
            if in_loop and axis == self.loop_axis:
                parts = self.loop if parts is None else parts * self.loop
            if parts is None:
                run = run * np.where(whole, self.sizes[axis], 1.0)
            else:
                run = run * np.where(whole, self.sizes[axis] / parts, 1.0)
                whole &= parts == 1
        return run


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def cuttable(axis: int, tensors: Sequence[Slots], parted: AxisSet = frozenset()) -> bool:
    """Whether equal parts of an axis are contiguous tiles: it varies slowest in every dimension, the axes `parted` aside.

    Those the grid cuts into single elements, so that what varies within them is contiguous for a block.
    """
    return all(axis not in slot or set(slot[: slot.index(axis)]) <= parted for slots in tensors for slot in slots)


def schedule_space(
    parallel: Sequence[int], loop_axis: int | None, variants: Sequence[Sizes], parted: AxisSet = frozenset()
) -> Schedules:
    """Every grid of up to three dimensions over the axes `parallel`, and every loop count, whose parts are equal.

    `variants` are the sizes of all axes to do so for. The axes `parted` are cut into blocks of one element.
    """
    rows = [_of_sizes(tuple(parallel), loop_axis, sizes, parted) for sizes in variants]
    variant = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    table = np.concatenate(rows)
    columns = np.array(variants, dtype=np.float64).T
    sizes = [float(column[0]) if (column == column[0]).all() else column[variant] for column in columns]
    parts = {axis: table[:, column] for column, axis in enumerate(parallel)}
    return Schedules(sizes, parts, table[:, -1], loop_axis, variant)


@lru_cache(maxsize=4096)
def _of_sizes(parallel: Sizes, loop_axis: int | None, sizes: Sizes, parted: AxisSet) -> Floats:
    """A row for each schedule: blocks along the axes `parallel`, and iterations."""
    counts = tuple((sizes[axis],) if axis in parted else divisors(sizes[axis]) for axis in parallel)
    loops = (1,) if loop_axis is None else divisors(sizes[loop_axis])[1:]
    grids = _grids(counts)
    table: Floats = np.column_stack(
        [np.repeat(grids, len(loops), axis=0), np.tile(np.array(loops, dtype=np.float64), len(grids))]
    )
    if loop_axis in parallel and loop_axis is not None:
        table = table[sizes[loop_axis] % (table[:, parallel.index(loop_axis)] * table[:, -1]) == 0]
    return table


@lru_cache(maxsize=1024)
def _grids(counts: tuple[tuple[int, ...], ...]) -> Floats:
    """Every choice of a number of blocks per axis with at most three above one, and not too many blocks."""
    found = [np.ones((1, len(counts)))] if all(1 in choices for choices in counts) else []
    for cut in range(1, _GRID_DIMENSIONS + 1):
        for axes in itertools.combinations(range(len(counts)), cut):
            if any(1 not in counts[axis] for axis in range(len(counts)) if axis not in axes):
                continue
            choices = itertools.product(*([count for count in counts[axis] if count > 1] for axis in axes))
            chosen = np.array(list(choices), dtype=np.float64).reshape(-1, cut)
            grid = np.ones((len(chosen), len(counts)))
            grid[:, list(axes)] = chosen
            found.append(grid)
    table: Floats = np.concatenate(found) if found else np.ones((0, len(counts)))
    few: Floats = table[table.prod(axis=1) <= _MOST_BLOCKS]
    return few
