"""From a sketch and sizes to a muGraph: the block graph with its grid, for-loop, maps and tile shapes.

Inside a block every axis has a dimension of its own (None stands for a dimension of size 1). Views are inserted exactly
where an operator's positional rule asks for another order; they are free at every target. A tensor needed along two axes at once
is two loads of a sketch: what a block reads twice in the same way, it reads once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mugraph.ir.axes import AxisGroup, AxisSet, Slots, cut_dim
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.editing import Site, edited, without_duplicates
from mugraph.ir.graph import AttributeValue, Graph, Level, Node, Tensor, Value
from mugraph.ir.ops import LEAST, is_scan
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.sketch import Sketch, Step


def read_once(body: Graph, operands: Sequence[Value], sources: Sequence[Tensor]) -> tuple[Graph, Sequence[Value]]:
    """A block graph and the operands it is applied to, with one iterator for each operand and way to cut it.

    `operands` are values of the kernel graph, `sources` their tensors.
    """

    def way(node: Node) -> tuple[Value, object, object]:
        return operands[node.integer("operand")], node["imap"], node["fmap"]

    loads = [index for index, node in enumerate(body.nodes) if node.is_iterator]
    ways = list(dict.fromkeys(way(body.nodes[index]) for index in loads))
    if len(ways) == len(loads):
        return body, operands
    read: dict[int, Value] = {}

    def once(site: Site) -> Value:
        number = ways.index(way(site.node))
        if number not in read:
            read[number] = site.copy(attributes={**dict(site.node.attributes), "operand": number})
        return read[number]

    tensors = dict(zip(operands, sources, strict=True))
    left = [operand for operand, _, _ in ways]
    merged = edited(body, dict.fromkeys(loads, once), [tensors[operand] for operand in left])
    return without_duplicates(merged), left  # what two loads of the same were the operands of is now the same, too


Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sizes of a kernel's parallel and sequential parts: blocks along the axes that each dimension cuts, for-loop iterations."""

    grid: tuple[tuple[AxisGroup, int], ...] = ()
    loop: int = 1

    @property
    def blocks(self) -> int:
        """Number of thread blocks."""
        return math.prod(count for _, count in self.grid)

    def parts(self, axis: int) -> int:
        """How many blocks share an axis."""
        return next((count for group, count in self.grid if axis in group), 1)

    def dims(self, slots: Slots) -> Dims:
        """The dimension of a tensor that each dimension of the grid cuts, None for what it leaves whole."""
        return tuple(cut_dim(slots, group) for group, _ in self.grid)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of the block graph: its value and the axis of each dimension."""

    value: Value
    dims: Dims

    @property
    def axes(self) -> AxisSet:
        return _axes_in(self.dims)


@lru_cache(maxsize=1 << 12)
def _axes_in(dims: Dims) -> AxisSet:
    return frozenset(axis for axis in dims if axis is not None)


@dataclass(frozen=True, slots=True)
class KernelOutput:
    """What a kernel output is: its dimensions as axes, and its element type."""

    slots: Slots
    dtype: DType


def emit_block(
    sketch: Sketch, schedule: Schedule, sizes: Sequence[int], sources: Sequence[Tensor], outputs: Sequence[KernelOutput]
) -> Graph:
    """The block graph of a sketch for axes of `sizes`; the i-th load reads `sources[i]`, the kernel's operand i."""
    return _BlockEmitter(sketch, schedule, sizes, sources, outputs).run()


class Positions:
    """Operators on operands that know their axes, over a graph under construction at any level."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def fine(self, value: Value, slots: Slots, sizes: Callable[[int], int]) -> Operand:
        """A tensor whose dimensions may be products of axes, with a dimension for each axis."""
        dims = _fine(slots)
        if all(len(slot) <= 1 for slot in slots):
            return Operand(value, dims)
        return Operand(self.reshape(value, [sizes(axis) for axis in _core(dims)]), dims)

    def coarse(self, operand: Operand, slots: Slots, sizes: Callable[[int], int]) -> Value:
        """The tensor with dimensions `slots`, axes it does not depend on repeated."""
        flat = tuple(axis for slot in slots for axis in slot)
        present = operand.axes
        value = self.conform(operand, tuple(axis if axis in present else None for axis in flat)).value
        for dim, axis in enumerate(flat):
            if axis not in present:
                value = self.builder.add("repeat", value, dim=dim, times=sizes(axis))
        return self.reshape(value, [math.prod(sizes(axis) for axis in slot) for slot in slots])

    # operators -------------------------------------------------------------------------------------------------------

    def elementwise(self, op: str, xs: list[Operand]) -> Operand:
        if len(xs) == 1:
            return Operand(self.builder.add(op, xs[0].value), xs[0].dims)
        dims = _broadcast([x.dims for x in xs])
        aligned = [self.broadcastable(x, dims) for x in xs]
        return Operand(self.builder.add(op, *(x.value for x in aligned)), dims)

    def broadcastable(self, operand: Operand, dims: Dims) -> Operand:
        """The operand viewed so that it broadcasts against a tensor of dimensions `dims`."""
        if operand.dims == dims[len(dims) - len(operand.dims) :]:
            return operand
        return self.conform(operand, tuple(axis if axis in operand.axes else None for axis in dims))

    def reduce(self, op: str, operand: Operand, reduced: AxisSet, least: Scalar | None = None) -> Operand:
        bound: dict[str, AttributeValue] = {} if least is None else {"least": LEAST}
        for axis in sorted(reduced):
            dim = operand.dims.index(axis)
            size = self.builder.tensor(operand.value).shape[dim]
            value = self.builder.add(op, operand.value, dim=dim, size=size, **bound)
            operand = Operand(value, tuple(None if d == dim else a for d, a in enumerate(operand.dims)))
        return operand

    def oriented(self, x: Operand, y: Operand, reduced: AxisSet) -> tuple[Operand, Operand]:
        """The operands of a matmul in the order that needs fewer views."""
        return (y, x) if is_turned(x.dims, y.dims, reduced) else (x, y)

    def contract(self, op: str, pairs: list[tuple[Operand, Operand]], reduced: AxisSet) -> Operand:
        lefts, rights = [], []
        shape_of = _matmul_dims(pairs[0][0].dims, pairs[0][1].dims, reduced)
        for left, right in pairs:
            wanted = _matmul_dims(left.dims, right.dims, reduced & left.axes & right.axes)
            batch, rows, columns = shape_of.batch, shape_of.rows, shape_of.columns
            lefts.append(self.matrix(left, batch, rows, wanted.inner))
            rights.append(self.matrix(right, batch, wanted.inner, columns))
        value = self.builder.add(op, *lefts, *rights)
        dims = shape_of.result
        if len(shape_of.rows) > 1 or len(shape_of.columns) > 1:
            sizes = {axis: self.size_in(pairs[0], axis) for axis in dims if axis is not None}
            value = self.reshape(value, [1 if axis is None else sizes[axis] for axis in dims])
        return Operand(value, dims)

    def size_in(self, operands: Sequence[Operand], axis: int) -> int:
        for operand in operands:
            if axis in operand.dims:
                return self.builder.tensor(operand.value).shape[operand.dims.index(axis)]
        raise AssertionError(f"axis {axis} is in no operand")

    def matrix(self, operand: Operand, batch: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]) -> Value:
        """The operand as [batch..., rows, columns], merging several axes into one dimension where needed."""
        dims = (*batch, *(rows or (None,)), *(columns or (None,)))
        view = self.conform(operand, dims)
        if len(rows) <= 1 and len(columns) <= 1:
            return view.value
        shape = self.builder.tensor(view.value).shape
        first, second = len(batch), len(batch) + max(len(rows), 1)
        return self.reshape(view.value, [*shape[:first], math.prod(shape[first:second]), math.prod(shape[second:])])

    # views -----------------------------------------------------------------------------------------------------------

    def conform(self, operand: Operand, dims: Dims) -> Operand:
        """The operand with its axes in the order `dims`, by at most a reshape, a transpose and a reshape."""
        if operand.dims == dims:
            return operand
        core, wanted = _core(operand.dims), _core(dims)
        if core != wanted:
            if operand.dims.count(None) == dims.count(None):
                return Operand(self.transpose(operand, dims), dims)
            operand = self.squeezed(operand)
            operand = Operand(self.transpose(operand, wanted), wanted)
        shape = self.builder.tensor(operand.value).shape
        sizes = {axis: size for axis, size in zip(operand.dims, shape, strict=True) if axis is not None}
        return Operand(self.reshape(operand.value, [1 if axis is None else sizes[axis] for axis in dims]), dims)

    def squeezed(self, operand: Operand) -> Operand:
        shape = self.builder.tensor(operand.value).shape
        kept = [(axis, size) for axis, size in zip(operand.dims, shape, strict=True) if axis is not None]
        return Operand(self.reshape(operand.value, [size for _, size in kept]), tuple(axis for axis, _ in kept))

    def transpose(self, operand: Operand, dims: Dims) -> Value:
        units = [d for d, axis in enumerate(operand.dims) if axis is None]
        permutation = tuple(units.pop(0) if axis is None else operand.dims.index(axis) for axis in dims)
        if permutation == tuple(range(len(permutation))):
            return operand.value
        return self.builder.add("transpose", operand.value, permutation=permutation)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        if self.builder.tensor(value).shape == tuple(shape):
            return value
        return self.builder.add("reshape", value, shape=tuple(shape))


class _BlockEmitter(Positions):
    def __init__(
        self, sketch: Sketch, schedule: Schedule, sizes: Sequence[int], sources: Sequence[Tensor], outputs: Sequence[KernelOutput]
    ) -> None:
        self.sketch, self.schedule, self.sizes, self.sources, self.outputs = sketch, schedule, sizes, sources, outputs
        super().__init__(GraphBuilder(Level.BLOCK, grid=tuple(count for _, count in schedule.grid), loop=schedule.loop))
        self.operands: list[Operand] = []
        self.loads = 0

    def run(self) -> Graph:
        for step in self.sketch.steps:
            self.operands.append(self.emit(step))
        saved = [self.save(self.operands[goal], output) for goal, output in zip(self.sketch.goals, self.outputs, strict=True)]
        return self.builder.build(saved)

    def emit(self, step: Step) -> Operand:
        xs = [self.operands[i] for i in step.inputs]
        # by name: each step that is not elementwise becomes nodes of its own, with the attributes that its row demands
        match step.op:
            case "load":
                return self.load(step)
            case "constant":
                assert step.scalar is not None
                return Operand(self.builder.constant(step.scalar, self.outputs[0].dtype), ())
            case "sum" | "max":
                return self.reduce(step.op, xs[0], step.reduced, step.scalar)
            case "contract":
                left, right = self.oriented(xs[0], xs[1], step.reduced)
                return self.contract("matmul", [(left, right)], step.reduced)
            case "concat_contract":
                return self.contract("concat_matmul", [(xs[0], xs[2]), (xs[1], xs[3])], step.reduced)
            case "accumulate":
                return Operand(self.builder.add("accumulate", xs[0].value, combine="sum"), xs[0].dims)
            case "accumulate_max" | "carry":
                return Operand(self.builder.add("accumulate", xs[0].value, combine="max"), xs[0].dims)
            case "concat":
                dim = xs[0].dims.index(self.sketch.loop_axis)
                return Operand(self.builder.add("accumulate", xs[0].value, combine="concat", dim=dim), xs[0].dims)
            case "rescale":
                shift = self.broadcastable(xs[1], xs[0].dims)
                return Operand(self.builder.add("accumulate_rescaled", xs[0].value, shift.value), xs[0].dims)
        if is_scan(step.op):
            (axis,) = step.reduced
            return Operand(self.builder.add(step.op, xs[0].value, dim=xs[0].dims.index(axis)), xs[0].dims)
        return self.elementwise(step.op, xs)

    # boundaries ------------------------------------------------------------------------------------------------------

    def load(self, step: Step) -> Operand:
        assert step.leaf is not None
        slots = step.leaf.slots
        looped = step.in_loop and not step.whole and self.sketch.loop_axis is not None
        fmap = self.looped_dim(slots) if looped else None
        value = self.builder.iterator(self.loads, self.sources[self.loads], self.schedule.dims(slots), fmap)
        self.loads += 1
        return self.fine(value, slots, lambda axis: self.tile(axis, looped))

    def looped_dim(self, slots: Slots) -> int | None:
        """The dimension that the for-loop cuts: what is slower than the loop axis in it, the grid cuts into single elements."""
        for dim, slot in enumerate(slots):
            if self.sketch.loop_axis in slot:
                slower = slot[: slot.index(self.sketch.loop_axis)]
                assert all(self.schedule.parts(axis) == self.sizes[axis] for axis in slower)
                return dim
        return None

    def tile(self, axis: int, in_loop: bool) -> int:
        size = self.sizes[axis] // self.schedule.parts(axis)
        return size // self.schedule.loop if in_loop and axis == self.sketch.loop_axis else size

    def save(self, operand: Operand, output: KernelOutput) -> Value:
        value = self.coarse(operand, output.slots, lambda axis: self.tile(axis, False))
        if self.builder.tensor(value).dtype is not output.dtype:
            value = self.builder.add("cast", value, dtype=output.dtype)
        return self.builder.add("output_saver", value, omap=self.schedule.dims(output.slots))


@dataclass(frozen=True, slots=True)
class _MatmulDims:
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def result(self) -> Dims:
        """The dimensions of the product, which has rows and columns in any case."""
        return (*self.batch, *(self.rows or (None,)), *(self.columns or (None,)))


@lru_cache(maxsize=1 << 12)
def _matmul_dims(left: Dims, right: Dims, reduced: AxisSet) -> _MatmulDims:
    first, second = _core(left), _core(right)
    return _MatmulDims(
        batch=tuple(axis for axis in first if axis in second and axis not in reduced),
        rows=tuple(axis for axis in first if axis not in second),
        columns=tuple(axis for axis in second if axis not in first),
        inner=tuple(axis for axis in first if axis in second and axis in reduced),
    )


def is_turned(x: Dims, y: Dims, reduced: AxisSet) -> bool:
    """Whether a product of operands of these dimensions has the second one on the left, where that needs fewer views."""
    return _views_needed(y, x, reduced) < _views_needed(x, y, reduced)


def _views_needed(left: Dims, right: Dims, reduced: AxisSet) -> tuple[int, int]:
    wanted = _matmul_dims(left, right, reduced)
    first, second = ((*wanted.batch, *wanted.rows, *wanted.inner), (*wanted.batch, *wanted.inner, *wanted.columns))
    moved = (_core(left) != first) + (_core(right) != second)
    return moved, min(wanted.columns, default=-1) < min(wanted.rows, default=-1)


def dims_of(steps: Sequence[Step]) -> list[Dims]:
    """The axes of the dimensions that emission gives every step of a sketch."""
    found: list[Dims] = []
    for step in steps:
        xs = [found[i] for i in step.inputs]
        # by name: what emission names
        match step.op:
            case "load":
                assert step.leaf is not None
                found.append(_fine(step.leaf.slots))
            case "constant":
                found.append(())
            case "sum" | "max":
                found.append(tuple(None if axis in step.reduced else axis for axis in xs[0]))
            case "contract":
                left, right = reversed(xs) if is_turned(xs[0], xs[1], step.reduced) else xs
                found.append(_matmul_dims(left, right, step.reduced).result)
            case "concat_contract":
                found.append(_matmul_dims(xs[0], xs[2], step.reduced).result)
            case "accumulate" | "accumulate_max" | "carry" | "concat" | "rescale":
                found.append(xs[0])
            case _:
                found.append(xs[0] if is_scan(step.op) or len(xs) == 1 else _broadcast(xs))
    return found


def _fine(slots: Slots) -> Dims:
    """The dimensions of a tensor with one for each axis."""
    if all(len(slot) <= 1 for slot in slots):
        return tuple(slot[0] if slot else None for slot in slots)
    return tuple(axis for slot in slots for axis in slot)


def _broadcast(operands: Sequence[Dims]) -> Dims:
    """The dimensions of what is computed of several operands: those of the one with most, then the axes that it lacks."""
    widest = max(operands, key=lambda dims: (len(_axes_in(dims)), len(dims)))
    return (*widest, *sorted(frozenset[int]().union(*map(_axes_in, operands)) - _axes_in(widest)))


@lru_cache(maxsize=1 << 12)
def _core(dims: Dims) -> tuple[int, ...]:
    return tuple(axis for axis in dims if axis is not None)
