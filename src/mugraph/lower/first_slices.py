"""Kernels that compute the first slices of those that they were made for, as many as a call says.

Where the axis of slices is the outermost one in memory, the first `n` slices of a tensor are the beginning of it. A slice is a
number of rows, and a block has a run of rows of each tensor with the axis. Blocks that begin behind the last row have nothing to
do. In others each statement either has nothing to do with rows, or computes at each of its points along one dimension what
belongs to one row of what belongs to that row; then it may stop there behind the last one (docs/theory.md, "Slices as an
argument").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower.counted_slices import FirstSlices
from mugraph.lower.lower import Launch, needed_nodes
from mugraph.lower.phases import Phase
from mugraph.lower.tile_form import Buffer, Kernel, Matmul, Memory, Scan, Statement, Tile

COUNT = "slices"
"""The input that has the number of slices."""

Stops = Callable[[Kernel, Matmul, int], bool]
"""Whether a product of a kernel can be printed so that it stops along a dimension of its points."""


def any_product(kernel: Kernel, product: Matmul, dim: int) -> bool:
    """Every product stops along every dimension: where what lies behind the last row is neither read nor stored."""
    return True


@dataclass(frozen=True, slots=True)
class Slices:
    """The inputs of a kernel graph that have `capacity` slices, one behind the other in memory, and the input of whole numbers
    that has the number of those which a call computes."""

    inputs: frozenset[Value]
    capacity: int
    count: Value


def with_first_slices(graph: Graph, launches: Mapping[int, Launch], slices: Slices, stops: Stops) -> dict[int, Launch]:
    """The launches of a kernel graph, of which those that have slices compute so many as a call says.

    Raises UnsupportedOperator where the graph has others beside generated kernels, where a result has no slices, or where it is
    not known of a kernel that it can stop behind some.
    """
    if any(graph.nodes[index].op != GRAPH_DEFINED for index in needed_nodes(graph)):
        raise UnsupportedOperator("what runs between kernels takes no number of slices")
    sizes = {value: graph.tensor(value).elements // slices.capacity for value in slices.inputs}
    made: dict[int, Launch] = {}
    for index, launch in launches.items():
        made[index] = launch
        if sizes.keys() & set(launch.inputs):
            made[index] = _with_count(graph, launch, sizes, slices, stops)
    if not sizes.keys() >= set(graph.outputs):
        raise UnsupportedOperator("a result is not computed slice by slice")
    return made


def _with_count(graph: Graph, launch: Launch, sizes: dict[Value, int], slices: Slices, stops: Stops) -> Launch:
    """A kernel that takes the number of slices behind its other inputs; puts the elements of a slice of its outputs into `sizes`,
    which has those of its inputs."""
    kernel = launch.kernel
    operands = dict(zip((*kernel.inputs, *kernel.outputs), (*launch.inputs, *launch.outputs), strict=True))
    given = {name: sizes[value] for name, value in operands.items() if value in sizes}
    for chosen in product(*(_sizes(kernel, name, graph, operands[name], slices.capacity) for name in kernel.outputs)):
        known = given | dict(zip(kernel.outputs, chosen, strict=True))
        if (found := _first_slices(kernel, known, slices.capacity, stops)) is not None:
            break
    else:
        raise UnsupportedOperator(f"{kernel.name}: its slices are not computed one by one")
    sizes.update((operands[name], known[name]) for name in kernel.outputs)
    ends = frozenset(name for name in known if operands[name] in slices.inputs or operands[name] in graph.outputs)
    found = replace(found, sizes=tuple(known.items()), ends=ends)
    skips = tuple(skip for skip in kernel.skips if skip.tile.buffer not in known)
    buffers = (*kernel.buffers, Buffer(COUNT, Memory.DEVICE, DType.INT64, 1))
    made = replace(kernel, inputs=(*kernel.inputs, COUNT), buffers=buffers, skips=skips, slices=found)
    return replace(launch, kernel=made, inputs=(*launch.inputs, slices.count))


def _sizes(kernel: Kernel, output: str, graph: Graph, value: Value, capacity: int) -> list[int]:
    """How many elements of an output a slice may have that lie together. All slices are the whole of a result, and of what is
    between kernels perhaps a part, of which each step of blocks has another."""
    elements = graph.tensor(value).elements
    wholes = {elements}
    if value not in graph.outputs:
        wholes |= {step for tile in _tiles(kernel) if tile.buffer == output for step in tile.start.grid if step}
    return sorted((whole // capacity for whole in wholes if whole and elements % whole == whole % capacity == 0), reverse=True)


def _first_slices(kernel: Kernel, sizes: Mapping[str, int], capacity: int, stops: Stops) -> FirstSlices | None:
    """How a kernel computes the first slices, whose numbers of elements are known in its operands that have them."""
    for rows in _rows(kernel, sizes):
        try:
            return _Walk(kernel, {name: size // rows for name, size in sizes.items()}, rows, capacity, stops).found()
        except _Crossed:
            continue
    return None


def _rows(kernel: Kernel, sizes: Mapping[str, int]) -> list[int]:
    """Into how many rows slices may be divided: one, or as many as tiles or blocks go through, step by step."""
    found = {1}
    for tile in _tiles(kernel):
        size = sizes.get(tile.buffer, 0)
        found |= {size // step for step in (*tile.strides, *tile.start.grid) if 0 < step <= size}
    return sorted(rows for rows in found if all(size % rows == 0 for size in sizes.values()))


def _tiles(kernel: Kernel) -> Iterator[Tile]:
    """All tiles of a kernel, and those of integers at which others are looked up."""
    for statement in kernel.statements:
        yield from _parts((statement.target, *statement.sources))


def _parts(tiles: Iterable[Tile]) -> Iterator[Tile]:
    for tile in tiles:
        yield tile
        if tile.lookup is not None:
            yield tile.lookup.index


class _Crossed(Exception):
    """A statement reads or writes rows in a way that has no end, or different ones at once."""


class _Along(NamedTuple):
    """A dimension that goes through rows, and how many neighbours along it are in one row."""

    dim: int
    width: int = 1


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of a tile: how many, from which on for each dimension of the grid, and where its elements go through them."""

    steps: tuple[int, ...]
    extent: int
    place: _Along | None


@dataclass(slots=True)
class _Walk:
    """How rows lie in the buffers of a kernel: how many elements apart."""

    kernel: Kernel
    distances: dict[str, int]
    """Those of operands, and of further buffers as they are found."""
    rows: int
    """How many a slice has."""
    capacity: int
    stops: Stops
    steps: tuple[int, ...] = field(init=False)
    extent: int = field(init=False)

    def found(self) -> FirstSlices:
        runs = [self.run(tile) for tile in _tiles(self.kernel) if tile.buffer in self.distances]
        first = runs[0]
        if any((run.steps, run.extent) != (first.steps, first.extent) for run in runs):
            raise _Crossed
        self.steps, self.extent = first.steps, first.extent
        cut = [dim for dim, step in enumerate(self.steps) if step]
        if len(cut) > 1 or any(each.buffer in self.distances for each in self.kernel.integers):
            raise _Crossed
        dim = cut[0] if cut else None
        step = 0 if dim is None else self.steps[dim]
        dims = self.nothing() if self.rows % self.extent == step % self.extent == 0 else self.statements()
        return FirstSlices(COUNT, self.rows, dim, step, self.extent, dims, self.apart(dim, dims))

    def apart(self, dim: int | None, dims: tuple[tuple[int | None, ...], ...]) -> tuple[tuple[str, int], ...]:
        """How far apart rows are in operands, if a block of several may begin at any of them: the grid cuts nothing else, nothing
        but these depends on a block's place in it, and statements stop behind the last row."""
        kernel, stops = self.kernel, any(place is not None for phase in dims for place in phase)
        if dim is None or not stops or kernel.skips or kernel.grid[dim] < math.prod(kernel.grid):
            return ()
        operands = {name: self.distances[name] for name in (*kernel.inputs, *kernel.outputs) if name in self.distances}
        moves = ((tile.buffer, tile.start.grid[dim] if tile.start.grid else 0) for tile in _tiles(kernel))
        alike = all(move == self.extent * operands.get(name, 0) for name, move in moves)
        return tuple(operands.items()) if alike and self.extent > 1 else ()

    def nothing(self) -> tuple[tuple[None, ...], ...]:
        """No statement stops, where all rows of a block are in one slice."""
        return tuple((None,) * len(self.kernel.of_phase(phase)) for phase in Phase)

    def statements(self) -> tuple[tuple[int | None, ...], ...]:
        """The dimension along which each statement stops, once all buffers with rows are known."""
        known = -1
        while known != len(self.distances):
            known = len(self.distances)
            dims = tuple(tuple(map(self.dim_of, self.kernel.of_phase(phase))) for phase in Phase)
        return dims

    def dim_of(self, statement: Statement) -> int | None:
        """The dimension of a statement's points along which it stops behind the last row. None of one without rows, and of one
        for which several points are in one row: it computes all rows, which only the block's own memory has."""
        target = statement.target
        places = {self.along_points(statement, tile, number) for number, tile in enumerate(statement.sources)} - {None}
        if len(places) > 1:
            raise _Crossed
        if places:
            (place,) = places
            if place is None or place.dim >= target.rank:
                raise _Crossed
            self.distances.setdefault(target.buffer, target.strides[place.dim] * place.width)
        if target.buffer not in self.distances:
            return None
        along = self.along(target)
        if isinstance(statement, Scan) or (places and places != {along}):
            raise _Crossed
        if along.width > 1:
            return None
        if isinstance(statement, Matmul) and not self.stops(self.kernel, statement, along.dim):
            raise _Crossed
        return along.dim

    def along_points(self, statement: Statement, tile: Tile, number: int) -> _Along | None:
        """Where a statement's points go through the rows of a source: along the target's dimensions, or reduced ones."""
        read = tile if tile.lookup is None else tile.lookup.index
        if read is not tile and tile.buffer in self.distances:  # any row may be looked up
            raise _Crossed
        if read.buffer not in self.distances:
            return None
        place = self.along(read)
        if not isinstance(statement, Matmul):
            return place
        rank = statement.target.rank
        if number > 1 or place.dim == tile.rank + (-1, -2)[number]:  # numbers of a packed factor, or what is summed over
            raise _Crossed
        return place._replace(dim=place.dim - tile.rank + rank)

    def along(self, tile: Tile) -> _Along:
        """Where a tile goes through the rows of its block."""
        run = self.run(tile)
        steps = self.steps if self.of_operand(tile) else (0,) * len(self.steps)
        if run.place is None or (run.steps, run.extent) != (steps, self.extent):
            raise _Crossed
        return run.place

    def of_operand(self, tile: Tile) -> bool:
        """Whether a tile is one of the kernel's operands, where the rows of one block follow those of another."""
        return tile.buffer in (*self.kernel.inputs, *self.kernel.outputs)

    def run(self, tile: Tile) -> _Run:
        """The rows of a tile, whose other elements are all in one of them. Behind all rows they may follow anew, from the first
        on: of a block, in its own memory, and of all slices, in what is between kernels."""
        distance, grid = self.distances[tile.buffer], self.kernel.grid
        looked_up = tile.swizzle is not None or tile.lookup is not None
        if looked_up or distance <= 0 or min(*tile.start.parts, *tile.strides, 0) < 0:
            raise _Crossed
        widths = {dim: self.width(tile, dim) for dim, size in enumerate(tile.shape) if size > 1}
        places = [_Along(dim, width) for dim, width in widths.items() if width]
        starts = tile.start.grid or (0,) * len(grid)
        moves = [self.in_row(tile, step) if count > 1 else 0 for count, step in zip(grid, starts, strict=True)]
        inside = self.in_row(tile, tile.start.constant) + self.in_row(tile, tile.start.loop) * (self.kernel.loop - 1)
        inside += sum((count - 1) * (move % distance) for count, move in zip(grid, moves, strict=True))
        inside += sum((tile.shape[dim] - 1) * self.in_row(tile, tile.strides[dim]) for dim, width in widths.items() if not width)
        if len(places) > 1 or inside >= (tile.strides[places[0].dim] if places else distance):
            raise _Crossed
        steps = tuple(move // distance for move in moves)
        return _Run(steps, tile.shape[places[0].dim] // places[0].width, places[0]) if places else _Run(steps, 1, None)

    def width(self, tile: Tile, dim: int) -> int:
        """How many neighbours along a dimension are in one row; 0 if it does not go through rows."""
        distance, step = self.distances[tile.buffer], tile.strides[dim]
        if step == distance:
            return 1
        whole = not self.of_operand(tile) and 0 < step < distance and step * tile.shape[dim] == distance * self.extent
        return distance // step if whole and distance % step == 0 else 0

    def in_row(self, tile: Tile, step: int) -> int:
        """How far a step leads among the rows of a tile: nowhere where it leads from all rows to others behind them."""
        rows = self.capacity * self.rows if self.of_operand(tile) else self.extent
        return step if step % (self.distances[tile.buffer] * rows) else 0
