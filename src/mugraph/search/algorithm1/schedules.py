"""How a graph-defined kernel may cut its operands: grid, for-loop range, imaps and fmaps (paper, section 2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mugraph.ir.graph import Shape
from mugraph.ir.text import LOOP_NAME, axis_name

Map = tuple[int | None, ...]
"""The data dimension of each grid dimension; None where every block reads the whole operand."""


@dataclass(frozen=True, slots=True)
class BlockSchedule:
    """Grid and for-loop of a block graph, and how each operand is cut: by the grid (`imaps`), by the loop (`fmaps`)."""

    grid: tuple[int, ...]
    loop: int
    imaps: tuple[Map, ...]
    fmaps: tuple[int | None, ...]

    def tile(self, operand: int, shape: Shape) -> Shape:
        """What one block sees of an operand in one iteration."""
        sizes = list(shape)
        for count, dim in (*zip(self.grid, self.imaps[operand], strict=True), (self.loop, self.fmaps[operand])):
            if dim is not None:
                sizes[dim] //= count
        return tuple(sizes)

    def named(self, operand: int) -> dict[str, int | None]:
        """How an operand is cut, by the names of grid dimensions and of the for-loop if there is one."""
        named = {axis_name(place): dim for place, dim in enumerate(self.imaps[operand])}
        return named if self.loop == 1 else {**named, LOOP_NAME: self.fmaps[operand]}


def block_schedules(shapes: Sequence[Shape], grids: Sequence[tuple[int, ...]], loops: Sequence[int]) -> Iterator[BlockSchedule]:
    """Every schedule of operands of these shapes in which each grid dimension and the loop cut some operand evenly."""
    for grid, loop in itertools.product(grids, loops):
        counts = grid if loop == 1 else (*grid, loop)
        for cuts in itertools.product(*(_cuts(shape, counts) for shape in shapes)):
            if all(any(cut[position] is not None for cut in cuts) for position in range(len(counts))):
                imaps = tuple(cut[: len(grid)] for cut in cuts)
                fmaps = tuple(cut[-1] if loop > 1 else None for cut in cuts)
                yield BlockSchedule(grid, loop, imaps, fmaps)


def _cuts(shape: Shape, counts: Sequence[int]) -> list[Map]:
    """All ways to give each count a dimension (or none) so that every dimension divides evenly."""
    dims = [None, *range(len(shape))]
    return [cut for cut in itertools.product(dims, repeat=len(counts)) if _divides(shape, counts, cut)]


def _divides(shape: Shape, counts: Sequence[int], cut: Map) -> bool:
    sizes = list(shape)
    for count, dim in zip(counts, cut, strict=True):
        if dim is None:
            continue
        if sizes[dim] % count:
            return False
        sizes[dim] //= count
    return True
