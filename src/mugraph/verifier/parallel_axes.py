"""Axes along which a program does the same to every slice: one slice then stands for all of them.

The rows of a linear layer, the heads and sequences of an attention: where every operator of two graphs acts on slices
along an axis independently, the graphs are equal at any size of that axis if and only if they are equal at size 1.
Where slices are added up in the end, as in losses and in products of matrices, equal slices stand for all, too: their sum is
one of them, times their number. `shared_slice` proves this operator by operator and gives the graphs at size 1. docs/theory.md
has the theorems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mugraph.algebra.linearity import is_linear
from mugraph.errors import MugraphError, ShapeMismatch
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import ACCUMULATORS, Accumulation, Graph, Node, Shape, Value
from mugraph.ir.index_maps import Index, IndexMaps, Structure
from mugraph.ir.ops import Kind, index_maps_of, is_reduction, operator
from mugraph.ir.scalar import Scalar


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """A parallel axis: the dimension it takes in each input and each output (None where it does not occur), and its size.

    `sums` are the numbers of the outputs to which its slices are added up.
    """

    size: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """Two graphs with all parallel axes at size 1, and those axes, in the order in which they were reduced.

    Of an axis with sums, the graphs give what the originals do where all slices are equal.
    """

    left: Graph
    right: Graph
    axes: tuple[ParallelAxis, ...]


def shared_slice(
    left: Graph,
    right: Graph,
    worthwhile: Callable[[Graph, Graph, ParallelAxis], bool] = lambda *cut: True,
    *,
    sums: bool = False,
) -> Slice:
    """Both kernel graphs at size 1 of every axis that is proved parallel in both; raises nothing where there is none.

    `worthwhile` may decline an axis: it is given the left graph before and after the cut. With `sums` slices may be added up.
    """
    axes: list[ParallelAxis] = []
    tried: set[tuple[int | None, ...]] = set()
    while (found := _next_axis(left, right, tried, sums)) is not None:
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
    if any(mark is not None and mark.summed for mark in marks):
        raise NotParallel("slices are added up")
    return taken, tuple(None if mark is None else mark.dim for mark in marks)


class NotParallel(MugraphError):
    """An operator mixes or tells apart the slices along an axis."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph at size 1 of an axis, the dimension that it has in each output, and the outputs that add slices up."""

    graph: Graph
    dims: tuple[int | None, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, axis: Sequence[int | None], size: int) -> Cut:
        """Cut an axis of so many slices: for each input the dimension, or None. Raises NotParallel where slices are neither kept
        apart nor added up."""
        operands = [None if dim is None else _Mark(dim) for dim in axis]
        taken, marks = _Pass(graph, operands, slices=size).run()
        sums = tuple(number for number, mark in enumerate(marks) if mark is not None and mark.summed)
        if not all(mark is None or mark.complete or (mark.dim is not None and not mark.summed) for mark in marks):
            raise NotParallel("an output has sums of some slices")
        return cls(taken, tuple(None if mark is None else mark.dim for mark in marks), sums)


def _next_axis(
    left: Graph, right: Graph, tried: set[tuple[int | None, ...]], sums: bool
) -> tuple[Graph, Graph, ParallelAxis] | None:
    sources = [graph for graph in (left, right) if all(node.body is None for node in graph.nodes)]
    shapes = [node.output.shape for node in left.nodes if node.is_input]
    for candidate in (axis for graph in sources for axis in _candidates(graph)):
        if candidate in tried:
            continue
        tried.add(candidate)
        size = next(shape[dim] for shape, dim in zip(shapes, candidate, strict=True) if dim is not None)
        try:
            ours, theirs = Cut.of(left, candidate, size), Cut.of(right, candidate, size)
        except (NotParallel, ShapeMismatch):
            continue
        if (ours.dims, ours.sums) == (theirs.dims, theirs.sums) and (sums or not ours.sums):
            return ours.graph, theirs.graph, ParallelAxis(size, candidate, ours.dims, ours.sums)
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
        for one, other in _contracted(graph, node):
            classes.unite(one, other)
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


def _contracted(graph: Graph, node: Node) -> Iterator[tuple[_Dim, _Dim]]:
    """Dimensions of two operands of a contraction that meet, and that it sums over."""
    for left, right in operator(node.op).products if node.body is None else ():
        one, other = node.inputs[left], node.inputs[right]
        yield _Dim(one, len(graph.tensor(one).shape) - 1), _Dim(other, len(graph.tensor(other).shape) - 2)


# --- the proof -------------------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    """Dimension `dim` of a value is the axis; `cuts` says, level by level, which grid dimensions run over its parts.

    `dim` is None where those parts are single slices: then every operator treats slices alike. `loops` says, level by level,
    whether the value has the part of one iteration of a for-loop over the axis.

    Of a value that is `summed`, the sum over all those parts is what the slices add up to, and anything that no slice has a part
    in: `dim` has sums of some slices, or there is one.
    """

    dim: int | None
    cuts: tuple[tuple[int, ...], ...] = ()
    loops: tuple[bool, ...] = ()
    summed: bool = False

    @property
    def looped(self) -> bool:
        """Whether the for-loop of the graph around it runs over the axis, and the value is inside."""
        return bool(self.loops) and self.loops[-1]

    @property
    def complete(self) -> bool:
        """Whether the value is the sum of all slices."""
        return self.summed and self.dim is None and not any(self.cuts) and not any(self.loops)


class _Pass:
    """One walk over a graph that marks the axis, of so many `slices`, in every value and builds the graph at another size.

    At size 1 a sum over slices becomes one of them times their number.
    """

    def __init__(self, graph: Graph, operands: Sequence[_Mark | None], size: int = 1, slices: int = 1) -> None:
        self.graph, self.operands, self.size, self.slices = graph, operands, size, slices
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
            inside = mark._replace(dim=None if single else mark.dim, cuts=(*mark.cuts, cut), loops=loops)
        tile = replace(node.output, shape=self.taken(node.output.shape, inside))
        self.store(index, inside, self.builder.append(replace(node, outputs=(tile,))))

    def saver(self, index: int, node: Node) -> None:
        (value,) = node.inputs
        mark = self.marks[value]
        if mark is not None and mark.looped:
            raise NotParallel("output_saver: the for-loop runs over the axis, and its parts are not put together")
        outside = None
        if mark is not None:
            outside = mark._replace(dim=self.saved_dim(node, mark), cuts=mark.cuts[:-1], loops=mark.loops[:-1])
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
        taken, marks = _Pass(body, [self.marks[value] for value in node.inputs], slices=self.slices).run()
        outputs = self.builder.graph_defined(taken, [self.values[value] for value in node.inputs])
        for number, (mark, value) in enumerate(zip(marks, outputs, strict=True)):
            self.marks[Value(index, number)], self.values[Value(index, number)] = mark, value

    def apply(self, index: int, node: Node) -> None:
        marks = [self.marks[value] for value in node.inputs]
        mark = self.result(node, marks)
        attributes = dict(node.attributes)
        # by name: its attribute is a shape, which a slice changes
        if mark is not None and node.op == "reshape":
            attributes["shape"] = self.taken(node.output.shape, mark)
        if mark is not None and mark.summed and is_reduction(node.op) and marks[0] is not None and marks[0].dim == node["dim"]:
            attributes["size"] = 1
        value = self.builder.add(node.op, *(self.values[value] for value in node.inputs), **attributes)
        if mark is not None and mark.summed and not any(before is not None and before.summed for before in marks):
            count = self.builder.add("constant", value=Scalar.of(self.slices), dtype=node.output.dtype)
            value = self.builder.add("mul", value, count)
        self.store(index, mark, value)

    def result(self, node: Node, marks: Sequence[_Mark | None]) -> _Mark | None:
        """The axis in a node's result: all operands that have it must send it to one place, the others must not vary there."""
        shapes = [self.graph.tensor(value).shape for value in node.inputs]
        maps = index_maps_of(node, shapes)
        if self.loops_over_axis and node.op in ACCUMULATORS:
            return self.accumulated(node, marks[0])
        self.check_linear(node, marks)
        results: set[_Mark] = set()
        for number, mark in enumerate(marks):
            if mark is not None:
                dim = None if mark.dim is None or maps is None else maps.carried(number, mark.dim)
                if dim is None and mark.dim is not None:
                    results.add(self.added_up(node, marks, maps))
                else:
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

    def check_linear(self, node: Node, marks: Sequence[_Mark | None]) -> None:
        """Raises NotParallel unless a node does to a sum what it does to what is added up."""
        summed = [mark for mark in marks if mark is not None and mark.summed]
        row = operator(node.op)
        if not summed or row.kind is Kind.DATA:
            return
        linear = is_linear(node.op, tuple(number for number, mark in enumerate(marks) if mark is not None))
        shifted = all(mark.complete for mark in summed) and is_linear(node.op, tuple(range(row.arity)))
        if not linear and not shifted:
            raise NotParallel(f"{node.op}: it is not linear in a sum over the axis")

    def added_up(self, node: Node, marks: Sequence[_Mark | None], maps: IndexMaps | None) -> _Mark:
        """The axis after an operator that adds up what stands along it, in all operands."""
        row, kept = operator(node.op), set[_Mark]()
        adds_up = row.kind is Kind.MULTILINEAR and row.structure in (Structure.REDUCTION, Structure.CONTRACTION)
        for number, mark in enumerate(marks):
            if not adds_up or maps is None or mark is None or mark.dim is None or maps.carried(number, mark.dim) is not None:
                raise NotParallel(f"{node.op}: the axis is not carried over slice by slice")
            groups = {
                place
                for place, index in enumerate(maps.result)
                if node.output.shape[place] > 1 and _iterators(index) & _iterators(maps.operands[number][mark.dim])
            }
            kept.add(mark._replace(dim=min(groups, default=None), summed=True))
        if len(kept) > 1 or self.size > 1:
            raise NotParallel(f"{node.op}: the axis stands in different places of the operands")
        return kept.pop()

    def accumulated(self, node: Node, mark: _Mark | None) -> _Mark | None:
        """The axis after a loop over it, which adds its parts up, puts them side by side or brings past it what is the same."""
        looped = mark is not None and mark.looped
        if mark is not None and looped:
            after = mark._replace(loops=(*mark.loops[:-1], False))
            if node.accumulation is Accumulation.CONCAT and node["dim"] == mark.dim:
                return after
            if node.accumulation is Accumulation.SUM and self.size == 1:
                return after._replace(summed=True)
        if not looped and node.accumulation is Accumulation.MAX:
            return mark
        raise NotParallel(f"{node.op}: the for-loop runs over the axis, and its parts are not put side by side")

    def taken(self, shape: Shape, mark: _Mark | None) -> Shape:
        if mark is None or mark.dim is None:
            return shape
        return (*shape[: mark.dim], self.size, *shape[mark.dim + 1 :])


def _iterators(index: Index) -> set[int]:
    return set() if index is None else {iterator for iterator, _ in index.terms}
