"""Kernels that compute the first slices of those that they were made for, as many as a call says.

Where the axis of slices is the outermost one in memory, the first `n` slices of a tensor are the beginning of it. A slice is a
number of rows, and a block has a run of rows of each tensor with the axis. Blocks that begin behind the last row have nothing to
do. In others each statement either has nothing to do with rows, or computes at each of its points along one dimension what
belongs to one row of what belongs to that row; then it may stop there behind the last one (docs/theory.md, "Slices as an
argument").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower.lower import Launch, needed_nodes
from mugraph.lower.phases import Phase
from mugraph.lower.tile_form import Buffer, FirstSlices, Kernel, Matmul, Memory, Scan, Statement, Tile

COUNT = "slices"
"""The input that has the number of slices."""

Stops = Callable[[Kernel, Matmul, int], bool]
"""Whether a product of a kernel can be printed so that it stops along a dimension of its points."""


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
    sliced = set(slices.inputs)
    made: dict[int, Launch] = {}
    for index, launch in launches.items():
        made[index] = launch
        if sliced.intersection(launch.inputs):
            made[index] = _with_count(graph, launch, sliced, slices, stops)
            sliced.update(launch.outputs)
    if not sliced.issuperset(graph.outputs):
        raise UnsupportedOperator("a result is not computed slice by slice")
    return made


def _with_count(graph: Graph, launch: Launch, sliced: set[Value], slices: Slices, stops: Stops) -> Launch:
    """A kernel that takes the number of slices behind its other inputs."""
    kernel = launch.kernel
    operands = dict(zip((*kernel.inputs, *kernel.outputs), (*launch.inputs, *launch.outputs), strict=True))
    sizes = {
        name: graph.tensor(value).elements // slices.capacity
        for name, value in operands.items()
        if value in sliced or name in kernel.outputs
    }
    if any(size * slices.capacity != graph.tensor(operands[name]).elements for name, size in sizes.items()):
        raise UnsupportedOperator(f"{kernel.name}: a result is not computed slice by slice")
    found = _first_slices(kernel, sizes, stops)
    skips = tuple(skip for skip in kernel.skips if skip.tile.buffer not in sizes)
    buffers = (*kernel.buffers, Buffer(COUNT, Memory.DEVICE, DType.INT64, 1))
    made = replace(kernel, inputs=(*kernel.inputs, COUNT), buffers=buffers, skips=skips, slices=found)
    return replace(launch, kernel=made, inputs=(*launch.inputs, slices.count))


def _first_slices(kernel: Kernel, sizes: Mapping[str, int], stops: Stops) -> FirstSlices:
    """How a kernel computes the first slices, whose numbers of elements are known in its operands that have them."""
    for rows in _rows(kernel, sizes):
        try:
            return _Walk(kernel, {name: size // rows for name, size in sizes.items()}, rows, stops).found()
        except _Crossed:
            continue
    raise UnsupportedOperator(f"{kernel.name}: its slices are not computed one by one")


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


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of a tile: how many, from which on for each dimension of the grid, and its dimension along them."""

    steps: tuple[int, ...]
    extent: int
    dim: int | None


@dataclass(slots=True)
class _Walk:
    """How rows lie in the buffers of a kernel: how many elements apart."""

    kernel: Kernel
    distances: dict[str, int]
    """Those of operands, and of further buffers as they are found."""
    rows: int
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
        return FirstSlices(COUNT, self.rows, dim, step, self.extent, dims)

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
        """The dimension of a statement's points along which it goes through rows."""
        target = statement.target
        places = {self.along_points(statement, tile, number) for number, tile in enumerate(statement.sources)} - {None}
        if len(places) > 1:
            raise _Crossed
        if places:
            (dim,) = places
            if dim is None or dim >= target.rank:
                raise _Crossed
            self.distances.setdefault(target.buffer, target.strides[dim])
        if target.buffer not in self.distances:
            return None
        along = self.along(target)
        if isinstance(statement, Scan) or (places and places != {along}):
            raise _Crossed
        if isinstance(statement, Matmul) and not self.stops(self.kernel, statement, along):
            raise _Crossed
        return along

    def along_points(self, statement: Statement, tile: Tile, number: int) -> int | None:
        """The dimension of a statement's points that a source has along rows: the target's, or behind these the reduced one."""
        read = tile if tile.lookup is None else tile.lookup.index
        if read is not tile and tile.buffer in self.distances:  # any row may be looked up
            raise _Crossed
        if read.buffer not in self.distances:
            return None
        dim = self.along(read)
        if not isinstance(statement, Matmul):
            return dim
        rank = statement.target.rank
        if number > 1 or dim == tile.rank + (-1, -2)[number]:  # numbers of a packed factor, or what is summed over
            raise _Crossed
        return dim - tile.rank + rank

    def along(self, tile: Tile) -> int:
        """The dimension of a tile along the rows of its block."""
        run = self.run(tile)
        steps = self.steps if tile.buffer in (*self.kernel.inputs, *self.kernel.outputs) else (0,) * len(self.steps)
        if run.dim is None or (run.steps, run.extent) != (steps, self.extent):
            raise _Crossed
        return run.dim

    def run(self, tile: Tile) -> _Run:
        """The rows of a tile, whose other elements are all in one of them."""
        distance, grid = self.distances[tile.buffer], self.kernel.grid
        looked_up = tile.swizzle is not None or tile.lookup is not None
        if looked_up or distance <= 0 or min(*tile.start.parts, *tile.strides, 0) < 0:
            raise _Crossed
        moves = [step if count > 1 else 0 for count, step in zip(grid, tile.start.grid or (0,) * len(grid), strict=True)]
        along = [dim for dim, size in enumerate(tile.shape) if size > 1 and tile.strides[dim] == distance]
        inside = tile.start.constant + tile.start.loop * (self.kernel.loop - 1)
        inside += sum((count - 1) * (move % distance) for count, move in zip(grid, moves, strict=True))
        inside += sum((size - 1) * tile.strides[dim] for dim, size in enumerate(tile.shape) if dim not in along)
        if len(along) > 1 or inside >= distance:
            raise _Crossed
        dim = along[0] if along else None
        return _Run(tuple(move // distance for move in moves), 1 if dim is None else tile.shape[dim], dim)
