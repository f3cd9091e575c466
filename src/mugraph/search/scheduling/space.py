"""All the schedules of a kernel at once: grids and loop counts from the divisors of the real sizes, as arrays.

Schedules are a lattice: every grid may go with every loop count. What depends on the grid alone is computed once for each
grid, and shared by for-loops over whichever axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mugraph.ir.axes import AxisGroup, AxisSet, Slots
from mugraph.ir.sizes import divisors
from mugraph.search.constraints import ANY_SCHEDULE, MOST_BLOCKS, Frame
from mugraph.search.scheduling.emission import Schedule

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Values = Floats | float
"""A number per schedule, or one for all: on a lattice arrays of [grids or 1, loop counts or 1]."""

Sizes = tuple[int, ...]
CutAxes = tuple[tuple[AxisGroup, ...], int | None]
"""What the dimensions of a grid may cut, and the axis that the for-loop cuts."""

T = TypeVar("T")

_GRID_DIMENSIONS = 3


class Grids:
    """A batch of grids over the same axes.

    `sizes` are the elements of each axis, of shape [grids] where they differ; `cuts` the number of parts of the axes that each
    dimension cuts together, of shape [grids]; `variant` the assignment of sizes that each grid is for, of shape [grids]; `frame`
    the constraint that all satisfy.
    """

    def __init__(
        self, sizes: Sequence[Values], cuts: dict[AxisGroup, Floats], variant: Indices, frame: Frame = ANY_SCHEDULE
    ) -> None:
        self.sizes, self.cuts, self.variant, self.frame = sizes, cuts, variant, frame
        self.parts = {axis: count for group, count in cuts.items() for axis in group}
        self._wholes: dict[AxisSet, Values] = {}
        self._tiles: dict[AxisSet, Floats] = {frozenset(): np.ones(len(variant))}
        self._shared: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.variant)

    @cached_property
    def blocks(self) -> Floats:
        """Number of thread blocks, shape [grids]."""
        return math.prod(self.cuts.values(), start=np.ones(len(self)))

    def whole(self, axes: AxisSet) -> Values:
        """Number of elements of a device tensor over `axes`, shape [grids] where sizes differ."""
        if axes not in self._wholes:
            self._wholes[axes] = math.prod((self.sizes[axis] for axis in axes), start=1.0)
        return self._wholes[axes]

    def tile(self, axes: AxisSet) -> Floats:
        """Number of elements of a block's tile of a tensor over `axes`, shape [grids]."""
        if axes not in self._tiles:
            axis = max(axes)
            parts = self.parts.get(axis)
            length = self.sizes[axis] if parts is None else self.sizes[axis] / parts
            self._tiles[axes] = self.tile(axes - {axis}) * length
        return self._tiles[axes]

    def tiles(self, tensors: Sequence[AxisSet]) -> Floats:
        """Number of elements of a block's tile of each tensor, shape [tensors, grids]."""
        return np.array([self.tile(axes) for axes in tensors]).reshape(len(tensors), len(self))

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for `key`, computed once for these grids."""
        if key not in self._shared:
            self._shared[key] = make()
        made: T = self._shared[key]
        return made


class Schedules:
    """Grids, each with every count of iterations over `loop_axis` that divides what the grid leaves of it, in that order."""

    def __init__(self, grids: Grids, loop_axis: int | None, loops: Sequence[int]) -> None:
        self.grids, self.loop_axis = grids, loop_axis
        self.loop: Floats = np.array(loops, dtype=np.float64)[None]
        """Iterations, [1, loop counts]."""
        self._shared: dict[Hashable, Any] = {}
        whole = np.ones((len(grids), len(loops)), dtype=bool)
        if loop_axis is not None:
            left = column(grids.sizes[loop_axis]) / column(grids.parts.get(loop_axis, 1.0))
            whole &= left % self.loop == 0
        self.places: Indices = np.flatnonzero(whole)
        """Flat index in the lattice of each schedule, shape [schedules]."""

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def variant(self) -> Indices:
        """The assignment of sizes that each schedule is for, shape [schedules]."""
        return self.grids.variant[self.places // self.loop.size]

    def schedule(self, index: int) -> Schedule:
        """The schedule at an index of the batch."""
        row, turn = divmod(int(self.places[index]), self.loop.size)
        cuts = tuple((group, int(count[row])) for group, count in self.grids.cuts.items() if count[row] > 1)
        grid = self.grids.frame.arranged(cuts)
        assert grid is not None
        return Schedule(grid, int(self.loop[0, turn]))

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for `key`, computed once for these schedules."""
        if key not in self._shared:
            self._shared[key] = make()
        made: T = self._shared[key]
        return made

    def at(self, chosen: Indices) -> tuple[Indices, Indices]:
        """Row (grid) and column (loop count) in the lattice of the schedules `chosen`, each of shape [chosen]."""
        row, turn = np.divmod(self.places[chosen], self.loop.size)
        return row, turn

    def flat(self, values: Values) -> Floats:
        """Values on the lattice, [grids or 1, loop counts or 1], gathered for the schedules: shape [schedules]."""
        spread = np.broadcast_to(values, (len(self.grids), self.loop.size)).ravel()
        return spread if len(self) == len(spread) else spread[self.places]

    def run(self, slots: Slots, in_loop: bool, in_turn: bool = False) -> Values:
        """Elements in a contiguous run of a tile of a row-major device tensor of dimensions `slots`, on the lattice.

        Where blocks run one after the other (`in_turn`), a tile of one run goes on with that of the next block or iteration, if
        these follow each other along the dimension that is cut.
        """
        run: Values = 1.0
        onward: Values = 1.0  # tiles that follow each other where the run ends
        across: Values = 1.0  # runs in a tile
        whole: Values = True
        for axis in (axis for slot in reversed(slots) for axis in reversed(slot)):
            parts: Values | None = column(self.grids.parts[axis]) if axis in self.grids.parts else None
            if in_loop and axis == self.loop_axis:
                parts = self.loop if parts is None else parts * self.loop
            size = column(self.grids.sizes[axis])
            tile = size if parts is None else size / parts
            run, across = run * np.where(whole, tile, 1.0), across * np.where(whole, 1.0, tile)
            if parts is not None:
                undivided = np.equal(parts, 1)
                if in_turn:
                    ends = np.logical_and(whole, np.logical_not(undivided))
                    onward = np.where(ends, self._following(axis, parts, in_loop), onward)
                whole = np.logical_and(whole, undivided)
        return np.where(np.equal(across, 1.0), run * onward, run) if in_turn else run

    def _following(self, axis: int, parts: Values, in_loop: bool) -> Values:
        """The `parts` of an axis where blocks or iterations go through them one after the other, else 1."""
        groups = list(self.grids.cuts)
        place = next((place for place, group in enumerate(groups) if axis in group), len(groups))
        in_order: Values = True
        for later in groups[place + 1 :]:
            in_order = np.logical_and(in_order, np.equal(column(self.grids.cuts[later]), 1.0))
        if in_loop and axis != self.loop_axis:
            in_order = np.logical_and(in_order, np.equal(self.loop, 1.0))
        return np.where(in_order, parts, 1.0)


def column(values: Values) -> Values:
    """Values of shape [grids] as a column of the lattice, [grids, 1]."""
    return values[:, None] if isinstance(values, np.ndarray) else values


def picked(values: Values, row: Indices, turn: Indices) -> Values:
    """Values on the lattice gathered at rows `row` and columns `turn`, both of shape [n]: shape [n]."""
    if not isinstance(values, np.ndarray):
        return values
    rows, turns = values.shape
    at_places: Floats = values[row if rows > 1 else 0, turn if turns > 1 else 0]
    return at_places


def cuttable(axis: int, tensors: Sequence[Slots], parted: AxisSet = frozenset()) -> bool:
    """Whether equal parts of an axis are contiguous tiles: it varies slowest in every dimension, the axes `parted` aside.

    Those the grid cuts into single elements, so that what varies within them is contiguous for a block.
    """
    return all(axis not in slot or set(slot[: slot.index(axis)]) <= parted for slots in tensors for slot in slots)


def cuttable_together(group: AxisGroup, tensors: Sequence[Slots]) -> bool:
    """Whether equal parts of each of some axes are contiguous tiles, and no tensor has several of them.

    An output has such axes as well that its elements do not depend on.
    """
    single = all(len({*group}.intersection(itertools.chain(*slots))) <= 1 for slots in tensors)
    return single and all(cuttable(axis, tensors) for axis in group)


def grids_over(
    groups: Sequence[AxisGroup], variants: Sequence[Sizes], parted: AxisSet = frozenset(), frame: Frame = ANY_SCHEDULE
) -> Grids:
    """Every grid of up to three dimensions over `groups` of axes whose parts are equal and that the frame allows.

    `variants` are the sizes of all axes to do so for. The axes `parted` are cut into blocks of one element.
    """
    rows = [_grids(tuple(_counts(group, sizes, parted) for group in groups)) for sizes in variants]
    if not frame.frees_grids:
        rows = [row[_allowed(row, groups, frame)] for row in rows]
    variant = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    table = np.concatenate(rows)
    columns = np.array(variants, dtype=np.float64).T
    sizes = [float(of_axis[0]) if (of_axis == of_axis[0]).all() else of_axis[variant] for of_axis in columns]
    return Grids(sizes, {group: table[:, place] for place, group in enumerate(groups)}, variant, frame)


def _counts(group: AxisGroup, sizes: Sizes, parted: AxisSet) -> tuple[int, ...]:
    """The numbers of equal parts of axes that are cut together: those of one element, where one of them is to have such."""
    single = [sizes[axis] for axis in group if axis in parted]
    return tuple(n for n in divisors(math.gcd(*(sizes[axis] for axis in group))) if all(n == size for size in single))


def _allowed(table: Floats, groups: Sequence[AxisGroup], frame: Frame) -> npt.NDArray[np.bool_]:
    """Mask of the grids in a table, [grids, axes], that a frame allows, of shape [grids]; equal cuts are checked once."""
    told_apart = np.minimum(table, 2.0) if frame.grids is None else table
    kinds, which = np.unique(told_apart, axis=0, return_inverse=True)
    cuts = (tuple((group, int(count)) for group, count in zip(groups, kind, strict=True) if count > 1) for kind in kinds)
    allowed = np.array([frame.arranged(cut) is not None for cut in cuts], dtype=bool)
    return allowed[which.reshape(-1)]


def schedule_space(grids: Grids, loop_axis: int | None, variants: Sequence[Sizes]) -> Schedules:
    """Every schedule of some grids over axes whose sizes are one of `variants`, with a loop of several iterations if any."""
    counts = {1} if loop_axis is None else {count for sizes in variants for count in divisors(sizes[loop_axis])[1:]}
    return Schedules(grids, loop_axis, sorted(filter(grids.frame.loop, counts)))


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
    few: Floats = table[table.prod(axis=1) <= MOST_BLOCKS]
    return few
