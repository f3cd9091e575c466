"""Axes along which a program does the same to every slice: one slice then stands for all of them.

The rows of a linear layer, the heads and sequences of an attention: where every operator of two graphs acts on slices
along an axis independently, the graphs are equal at any size of that axis if and only if they are equal at size 1.
`shared_slice` proves this operator by operator and gives the graphs at size 1. docs/theory.md has the theorem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mugraph.errors import MugraphError, ShapeMismatch
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import ACCUMULATORS, Accumulation, Graph, Node, Shape, Value
from mugraph.ir.ops import index_maps_of


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """A parallel axis: the dimension it takes in each input and each output (None where it does not occur), and its size."""

    size: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """Two graphs with all parallel axes at size 1, and those axes, in the order in which they were reduced."""

    left: Graph
    right: Graph
    axes: tuple[ParallelAxis, ...]


def shared_slice(
    left: Graph, right: Graph, worthwhile: Callable[[Graph, Graph, ParallelAxis], bool] = lambda *cut: True
) -> Slice:
    """Both kernel graphs at size 1 of every axis that is proved parallel in both; raises nothing where there is none.

    `worthwhile` may decline an axis: it is given the left graph before and after the cut.
    """
    axes: list[ParallelAxis] = []
    tried: set[tuple[int | None, ...]] = set()
    while (found := _next_axis(left, right, tried)) is not None:
        if not worthwhile(left, found[0], found[2]):
            continue
        left, right, axis = found
        axes.append(axis)
    return Slice(left, right, tuple(axes))


def slices_at(axes: Sequence[ParallelAxis], inputs: Sequence[Array], output: int, index: Sequence[int]) -> list[Array]:
    """The slices of the inputs that an element of an output depends on."""
    positions = [0 if (dim := axis.outputs[output]) is None else index[dim] for axis in axes]
    return [slice_of(array, [axis.inputs[number] for axis in axes], positions) for number, array in enumerate(inputs)]


def slice_of(array: Array, dims: Sequence[int | None], index: Sequence[int]) -> Array:
    """The part of an array at these positions along `dims`, as a view of the same rank."""
    places: list[Any] = [slice(None)] * array.ndim
    for position, dim in zip(index, dims, strict=True):
        if dim is not None:
            places[dim] = slice(position, position + 1)
    return np.asarray(array[(*places, ...)])


def take_slice(graph: Graph, inputs: Sequence[int | None]) -> tuple[Graph, tuple[int | None, ...]]:
    """A kernel graph at size 1 of the axis that is dimension `inputs[i]` of input i, and that axis' dimension in each output.

    Raises NotParallel where some operator does not act on slices along that axis independently.
    """
    return take_slices(graph, inputs, 1)


def take_slices(graph: Graph, inputs: Sequence[int | None], size: int) -> tuple[Graph, tuple[int | None, ...]]:
    """As `take_slice`, at another size of the axis; several slices only of graphs of pre-defined operators."""
    assert size == 1 or all(node.body is None for node in graph.nodes), "blocks may cut an axis"
    taken, marks = _Pass(graph, [None if dim is None else _Mark(dim) for dim in inputs], size).run()
    return taken, tuple(None if mark is None else mark.dim for mark in marks)


class NotParallel(MugraphError):
    """An operator mixes or tells apart the slices along an axis."""


def _next_axis(left: Graph, right: Graph, tried: set[tuple[int | None, ...]]) -> tuple[Graph, Graph, ParallelAxis] | None:
    sources = [graph for graph in (left, right) if all(node.body is None for node in graph.nodes)]
    shapes = [node.output.shape for node in left.nodes if node.is_input]
    for candidate in (axis for graph in sources for axis in _candidates(graph)):
        if candidate in tried:
            continue
        tried.add(candidate)
        try:
            (ours, marks), (theirs, their_marks) = take_slice(left, candidate), take_slice(right, candidate)
        except (NotParallel, ShapeMismatch):
            continue
        if marks == their_marks:
            (size,) = {shape[dim] for shape, dim in zip(shapes, candidate, strict=True) if dim is not None}
            return ours, theirs, ParallelAxis(size, candidate, marks)
    return None


# --- candidates ------------------------------------------------------------------------------------------------------


class _Dim(NamedTuple):
    value: Value
    dim: int


@dataclass(slots=True)
class _Classes:
    """Dimensions of a graph's values, united where an operator runs over them together."""

    parent: dict[_Dim, _Dim] = field(default_factory=dict)

    def find(self, dim: _Dim) -> _Dim:
        while (above := self.parent.get(dim, dim)) != dim:
            dim = above
        return dim

    def unite(self, x: _Dim, y: _Dim) -> None:
        self.parent[self.find(x)] = self.find(y)


def _candidates(graph: Graph) -> Iterator[tuple[int | None, ...]]:
    """Axes of a graph of pre-defined operators that may be parallel: for each input, the dimension or None."""
    classes = _Classes()
    for index, node in enumerate(graph.nodes):
        result = Value(index)
        for value, dim, out in _aligned(graph, node):
            classes.unite(_Dim(value, dim), _Dim(result, out))
    inputs = [Value(index) for index, node in enumerate(graph.nodes) if node.is_input]
    found: dict[_Dim, list[int | None]] = {}
    for number, value in enumerate(inputs):
        for dim, size in enumerate(graph.tensor(value).shape):
            if size > 1:
                axis = found.setdefault(classes.find(_Dim(value, dim)), [None] * len(inputs))
                axis[number] = dim
    yield from map(tuple, found.values())


def _aligned(graph: Graph, node: Node) -> Iterator[tuple[Value, int, int]]:
    """(operand, its dimension, dimension of the result) wherever a single mark on the operand would survive the operator."""
    shapes = [graph.tensor(value).shape for value in node.inputs]
    maps = index_maps_of(node, shapes) if shapes else None
    for number, (value, shape) in enumerate(zip(node.inputs, shapes, strict=True)):
        for dim, size in enumerate(shape):
            out = None if maps is None or size == 1 else maps.carried(number, dim)
            if out is not None:
                yield value, dim, out


# --- the proof -------------------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    """Dimension `dim` of a value is the axis; `cuts` says, level by level, which grid dimensions run over its parts.

    `dim` is None where those parts are single slices: then every operator treats slices alike. `loops` says, level by level,
    whether the value has the part of one iteration of a for-loop over the axis.
    """

    dim: int | None
    cuts: tuple[tuple[int, ...], ...] = ()
    loops: tuple[bool, ...] = ()

    @property
    def looped(self) -> bool:
        """Whether the for-loop of the graph around it runs over the axis, and the value is inside."""
        return bool(self.loops) and self.loops[-1]


class _Pass:
    """One walk over a graph that marks the axis in every value and builds the graph at another `size` of it."""

    def __init__(self, graph: Graph, operands: Sequence[_Mark | None], size: int = 1) -> None:
        self.graph, self.operands, self.size = graph, operands, size
        self.counts = graph.grid or graph.block
        self.over_axis = self.grid_over_axis()
        self.loops_over_axis = any(self.is_looped(node) for node in graph.nodes)
        counts = tuple(1 if position in self.over_axis else count for position, count in enumerate(self.counts))
        grid, block = (counts, graph.block) if graph.grid else (graph.grid, counts)
        self.builder = GraphBuilder(graph.level, grid, block, 1 if self.loops_over_axis else graph.loop)
        self.marks: dict[Value, _Mark | None] = {}
        self.values: dict[Value, Value] = {}

    def run(self) -> tuple[Graph, list[_Mark | None]]:
        inputs = 0
        for index, node in enumerate(self.graph.nodes):
            if node.is_input:
                self.input(index, node, self.operands[inputs])
                inputs += 1
            elif node.is_iterator:
                self.iterator(index, node)
            elif node.is_saver:
                self.saver(index, node)
            elif node.body is not None:
                self.graph_defined(index, node, node.body)
            else:
                self.apply(index, node)
        outputs = [self.values[value] for value in self.graph.outputs]
        return self.builder.build(outputs), [self.marks[value] for value in self.graph.outputs]

    def grid_over_axis(self) -> frozenset[int]:
        """The grid dimensions that cut the axis in some operand."""
        over: set[int] = set()
        for node in self.graph.nodes:
            if node.is_iterator and (mark := self.operand(node)) is not None:
                over.update(self.positions(node, "imap", mark.dim))
        return frozenset(over)

    def is_looped(self, node: Node) -> bool:
        """Whether a node reads the axis part by part, in the iterations of the for-loop."""
        if not node.is_iterator or node["fmap"] is None or (mark := self.operand(node)) is None:
            return False
        return mark.dim == node["fmap"]

    def operand(self, node: Node) -> _Mark | None:
        return self.operands[node.integer("operand")]

    def positions(self, node: Node, name: str, dim: int | None) -> tuple[int, ...]:
        """The grid dimensions that a map sends to dimension `dim`."""
        mapped = node[name]
        assert isinstance(mapped, tuple)
        if dim is None:
            return ()
        return tuple(position for position, target in enumerate(mapped) if target == dim)

    def store(self, index: int, mark: _Mark | None, value: Value) -> None:
        if self.builder.tensor(value).shape != self.taken(self.graph.tensor(Value(index)).shape, mark):
            raise NotParallel(f"{self.graph.nodes[index].op}: the axis is not one dimension of its result")
        self.marks[Value(index)], self.values[Value(index)] = mark, value

    def input(self, index: int, node: Node, mark: _Mark | None) -> None:
        shape = self.taken(node.output.shape, mark)
        self.store(index, mark, self.builder.input(str(node["name"]), shape, node.output.dtype))

    def iterator(self, index: int, node: Node) -> None:
        mark, imap = self.operand(node), node["imap"]
        assert isinstance(imap, tuple)
        cut = () if mark is None else self.positions(node, "imap", mark.dim)
        if any(imap[position] is not None for position in self.over_axis - {*cut}):
            raise NotParallel("input_iterator: a grid dimension cuts the axis here and another dimension there")
        looped = self.is_looped(node)
        if self.loops_over_axis and node["fmap"] is not None and not looped:
            raise NotParallel("input_iterator: the for-loop runs over the axis there and over another dimension here")
        inside = None
        if mark is not None:
            loops = (*mark.loops, looped)
            single = mark.dim is None or (node.output.shape[mark.dim] == 1 and not any(loops))
            inside = _Mark(None if single else mark.dim, (*mark.cuts, cut), loops)
        tile = replace(node.output, shape=self.taken(node.output.shape, inside))
        self.store(index, inside, self.builder.append(replace(node, outputs=(tile,))))

    def saver(self, index: int, node: Node) -> None:
        (value,) = node.inputs
        mark = self.marks[value]
        if mark is not None and mark.looped:
            raise NotParallel("output_saver: the for-loop runs over the axis, and its parts are not put together")
        outside = None if mark is None else _Mark(self.saved_dim(node, mark), mark.cuts[:-1], mark.loops[:-1])
        if mark is None and self.over_axis:
            raise NotParallel("output_saver: a value that does not have the axis is repeated along it")
        self.store(index, outside, self.builder.add(node.op, self.values[value], **dict(node.attributes)))

    def saved_dim(self, node: Node, mark: _Mark) -> int | None:
        """The dimension of the axis outside: the blocks' parts must be put back where they were taken from."""
        cut, omap, tile = mark.cuts[-1], node["omap"], self.graph.tensor(node.inputs[0]).shape
        assert isinstance(omap, tuple)
        targets = {omap[position] for position in cut} if cut else {mark.dim}
        (dim,) = targets if len(targets) == 1 else (None,)
        alone = dim is not None and mark.dim is None and tile[dim] == 1
        in_place = dim is None or (self.positions(node, "omap", dim) == cut and (mark.dim == dim or alone))
        if {*cut} != self.over_axis or len(targets) > 1 or not in_place:
            raise NotParallel("output_saver: the blocks' parts of the axis are not put back where they were taken from")
        return dim

    def graph_defined(self, index: int, node: Node, body: Graph) -> None:
        taken, marks = _Pass(body, [self.marks[value] for value in node.inputs]).run()
        outputs = self.builder.graph_defined(taken, [self.values[value] for value in node.inputs])
        for number, (mark, value) in enumerate(zip(marks, outputs, strict=True)):
            self.marks[Value(index, number)], self.values[Value(index, number)] = mark, value

    def apply(self, index: int, node: Node) -> None:
        mark = self.result(node)
        attributes = dict(node.attributes)
        # by name: its attribute is a shape, which a slice changes
        if mark is not None and node.op == "reshape":
            attributes["shape"] = self.taken(node.output.shape, mark)
        self.store(index, mark, self.builder.add(node.op, *(self.values[value] for value in node.inputs), **attributes))

    def result(self, node: Node) -> _Mark | None:
        """The axis in a node's result: all operands that have it must send it to one place, the others must not vary there."""
        shapes = [self.graph.tensor(value).shape for value in node.inputs]
        marks = [self.marks[value] for value in node.inputs]
        maps = index_maps_of(node, shapes)
        if self.loops_over_axis and node.op in ACCUMULATORS:
            return self.accumulated(node, marks[0])
        results: set[_Mark] = set()
        for number, mark in enumerate(marks):
            if mark is not None:
                dim = None if mark.dim is None or maps is None else maps.carried(number, mark.dim)
                if dim is None and mark.dim is not None:
                    raise NotParallel(f"{node.op}: the axis is not carried over slice by slice")
                results.add(mark._replace(dim=dim))
        if not results:
            return None
        if len(results) > 1:
            raise NotParallel(f"{node.op}: the axis stands in different places of the operands")
        (result,) = results
        for number, (shape, mark) in enumerate(zip(shapes, marks, strict=True)):
            if (
                result.dim is not None
                and mark is None
                and maps is not None
                and any(size > 1 and maps.carried(number, dim) == result.dim for dim, size in enumerate(shape))
            ):
                raise NotParallel(f"{node.op}: an operand without the axis tells its slices apart")
        return result

    def accumulated(self, node: Node, mark: _Mark | None) -> _Mark | None:
        """The axis after a for-loop over it, which puts parts side by side or brings past it what does not change."""
        looped = mark is not None and mark.looped
        if mark is not None and looped and node.accumulation is Accumulation.CONCAT and node["dim"] == mark.dim:
            return mark._replace(loops=(*mark.loops[:-1], False))
        if not looped and node.accumulation is Accumulation.MAX:
            return mark
        raise NotParallel(f"{node.op}: the for-loop runs over the axis, and its parts are not put side by side")

    def taken(self, shape: Shape, mark: _Mark | None) -> Shape:
        if mark is None or mark.dim is None:
            return shape
        return (*shape[: mark.dim], self.size, *shape[mark.dim + 1 :])
