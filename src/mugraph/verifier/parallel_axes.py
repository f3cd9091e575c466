"""Axes along which a program does the same to every slice: one slice then stands for all of them.

The rows of a linear layer, the heads and sequences of an attention: where every operator of two graphs acts on slices
along an axis independently, the graphs are equal at any size of that axis if and only if they are equal at size 1.
Where slices are added up in the end, as in losses and in products of matrices, equal slices stand for all, too: their sum is
one of them, times their number. `shared_slice` proves this operator by operator and gives the graphs at size 1. docs/theory.md
has the theorems.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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

    `sums` are the numbers of the outputs to which its slices are added up. A slice is so many neighbours along the dimension as
    `input_widths` and `output_widths` say, as the elements of a head are in a row of all heads.
    """

    size: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    sums: tuple[int, ...] = ()
    input_widths: tuple[int, ...] = ()
    output_widths: tuple[int, ...] = ()

    @property
    def simple(self) -> bool:
        """Whether slices are at single positions of inputs and of outputs."""
        return not self.sums and {*self.input_widths, *self.output_widths} <= {1}


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
    simple: bool = True,
) -> Slice:
    """Both kernel graphs at size 1 of every axis that is proved parallel in both; raises nothing where there is none.

    `worthwhile` may decline an axis: it is given the left graph before and after the cut. Axes that are not
    `simple` are cut only where they are wanted, too.
    """
    axes: list[ParallelAxis] = []
    tried: set[_Candidate] = set()
    while (found := _next_axis(left, right, tried, simple)) is not None:
        if not worthwhile(left, found[0], found[2]):
            continue
        left, right, axis = found
        axes.append(axis)
        if not axis.simple:
            tried.clear()  # what views merged with the axis may stand alone now
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
    if any(mark is not None and (mark.summed or mark.width > 1) for mark in marks):
        raise NotParallel("slices are added up, or have several elements")
    return taken, tuple(None if mark is None else mark.dim for mark in marks)


class NotParallel(MugraphError):
    """An operator mixes or tells apart the slices along an axis."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph at size 1 of an axis of so many `slices`: the dimension it has in each output, with the width of a slice there,
    and the outputs that add slices up."""

    graph: Graph
    slices: int
    dims: tuple[int | None, ...]
    widths: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, axis: Sequence[int | None], widths: Sequence[int] = ()) -> Cut:
        """Cut an axis: for each input the dimension, or None, and how many neighbours a slice has in it, 1 by default. Raises
        NotParallel where slices are neither kept apart nor added up."""
        places = list(zip(axis, widths or [1] * len(axis), strict=True))
        sizes = [
            divmod(node.output.shape[dim], width)
            for node, (dim, width) in zip(graph.inputs(), places, strict=True)
            if dim is not None
        ]
        if len({*sizes}) > 1 or sizes[0][1]:
            raise NotParallel("the axis has different sizes in the inputs")
        marks = [None if dim is None else _Mark(dim, width=width) for dim, width in places]
        found, outputs = _Pass(graph, marks, slices=sizes[0][0]).run()
        if not all(mark is None or mark.complete or (mark.dim is not None and not mark.summed) for mark in outputs):
            raise NotParallel("an output has sums of some slices")
        return cls(
            found,
            sizes[0][0],
            tuple(None if mark is None else mark.dim for mark in outputs),
            tuple(1 if mark is None else mark.width for mark in outputs),
            tuple(number for number, mark in enumerate(outputs) if mark is not None and mark.summed),
        )


def _next_axis(left: Graph, right: Graph, tried: set[_Candidate], simple: bool) -> tuple[Graph, Graph, ParallelAxis] | None:
    sources = [graph for graph in (left, right) if all(node.body is None for node in graph.nodes)]
    for candidate in (candidate for graph in sources for candidate in _candidates(graph, simple)):
        if candidate in tried:
            continue
        tried.add(candidate)
        try:
            ours, theirs = Cut.of(left, *candidate), Cut.of(right, *candidate)
        except (NotParallel, ShapeMismatch):
            continue
        axis = ParallelAxis(ours.slices, candidate.inputs, ours.dims, ours.sums, candidate.widths, ours.widths)
        if replace(ours, graph=theirs.graph) == theirs and (axis.simple or not simple):
            return ours.graph, theirs.graph, axis
    return None


# --- candidates ------------------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """What may be an axis: for each input the dimension or None, and the width of a slice."""

    inputs: tuple[int | None, ...]
    widths: tuple[int, ...]


class _Dim(NamedTuple):
    """A dimension of a value as an axis whose slices are `width` neighbours."""

    value: Value
    dim: int
    width: int


@dataclass(slots=True)
class _Classes:
    """Dimensions of a graph's values, united where an operator does the same to slices along them."""

    parent: dict[_Dim, _Dim] = field(default_factory=dict)

    def find(self, dim: _Dim) -> _Dim:
        while (above := self.parent.get(dim, dim)) != dim:
            dim = above
        return dim

    def unite(self, x: _Dim, y: _Dim) -> None:
        self.parent[self.find(x)] = self.find(y)


def _candidates(graph: Graph, simple: bool) -> list[_Candidate]:
    """Axes of a graph of pre-defined operators that may be parallel, those of the narrowest slices first."""
    maps = {}
    for index, node in enumerate(graph.nodes):
        if node.inputs and (found := index_maps_of(node, [graph.tensor(value).shape for value in node.inputs])) is not None:
            maps[index] = found
    widths = [1] if simple else _widths(maps.values())
    classes = _Classes()
    for index, node_maps in maps.items():
        for width in widths:
            for one, other in _aligned(graph, index, node_maps, width):
                classes.unite(one, other)
    inputs = [Value(index) for index, node in enumerate(graph.nodes) if node.is_input]
    axes: dict[_Dim, dict[int, _Dim]] = {}
    for number, value in enumerate(inputs):
        for dim, size in enumerate(graph.tensor(value).shape):
            for width in (width for width in widths if size > width and size % width == 0):
                place = _Dim(value, dim, width)
                axes.setdefault(classes.find(place), {})[number] = place
    candidates = [
        _Candidate(
            tuple(places[number].dim if number in places else None for number in range(len(inputs))),
            tuple(places[number].width if number in places else 1 for number in range(len(inputs))),
        )
        for places in axes.values()
    ]
    return sorted(candidates, key=lambda candidate: max(candidate.widths))


def _widths(maps: Iterable[IndexMaps]) -> list[int]:
    """How many neighbours views and reductions may keep together: a few times over, what they split off."""
    splits: set[int] = set()
    for node_maps in maps:
        for index in itertools.chain(*node_maps.operands, node_maps.result):
            sizes = [node_maps.sizes[digit] for digit in _digits(node_maps, index) or ()]
            splits.update(math.prod(sizes[place:]) for place in range(1, len(sizes)))
    found = {1}
    for _ in range(_NESTED):
        found |= {width * split for width in found for split in splits}
    return sorted(found)[:_WIDTHS]


_NESTED = 3
"""Windows of windows of windows are looked for, ..."""
_WIDTHS = 16
"""... and so many widths at most."""


def _aligned(graph: Graph, index: int, maps: IndexMaps, width: int) -> Iterator[tuple[_Dim, _Dim]]:
    """Dimensions of the operands of a node, each with one that must be cut with it: of its result, or of another operand."""
    node = graph.nodes[index]
    for number, value in enumerate(node.inputs):
        for dim, size in enumerate(graph.tensor(value).shape):
            carried = _carried(maps, number, _Mark(dim, width=width)) if size > width and size % width == 0 else None
            if carried is not None and carried.dim is not None:
                yield _Dim(value, dim, width), _Dim(Value(index), carried.dim, carried.width)
    for left, right in operator(node.op).products:
        one, other = node.inputs[left], node.inputs[right]
        last, last_but_one = len(graph.tensor(one).shape) - 1, len(graph.tensor(other).shape) - 2
        yield _Dim(one, last, width), _Dim(other, last_but_one, width)


# --- the proof -------------------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    """Dimension `dim` of a value is the axis; `cuts` says, level by level, which grid dimensions run over its parts.

    `dim` is None where those parts are single slices: then every operator treats slices alike. `loops` says, level by level,
    whether the value has the part of one iteration of a for-loop over the axis. A slice is `width` neighbours along `dim`.

    Of a value that is `summed`, the sum over all those parts is what the slices add up to, and anything that no slice has a part
    in: `dim` has sums of some slices, or there is one.
    """

    dim: int | None
    cuts: tuple[tuple[int, ...], ...] = ()
    loops: tuple[bool, ...] = ()
    summed: bool = False
    width: int = 1

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
            size = mark.width if mark.dim is None else node.output.shape[mark.dim]
            if size % mark.width:
                raise NotParallel("input_iterator: a tile has parts of slices")
            inside = mark._replace(cuts=(*mark.cuts, cut), loops=loops)
            if size == mark.width and not any(loops):
                inside = inside._replace(dim=None, width=1)
        tile = replace(node.output, shape=self.taken(node.output.shape, inside))
        self.store(index, inside, self.builder.append(replace(node, outputs=(tile,))))

    def saver(self, index: int, node: Node) -> None:
        (value,) = node.inputs
        mark = self.marks[value]
        if mark is not None and mark.looped:
            raise NotParallel("output_saver: the for-loop runs over the axis, and its parts are not put together")
        outside = None
        if mark is not None:
            dim, width = self.saved_dim(node, mark)
            outside = mark._replace(dim=dim, width=width, cuts=mark.cuts[:-1], loops=mark.loops[:-1])
        if mark is None and self.over_axis:
            raise NotParallel("output_saver: a value that does not have the axis is repeated along it")
        self.store(index, outside, self.builder.add(node.op, self.values[value], **dict(node.attributes)))

    def saved_dim(self, node: Node, mark: _Mark) -> tuple[int | None, int]:
        """The dimension of the axis outside, and a slice's width: blocks' parts must be put back where they were taken from."""
        cut, omap, tile = mark.cuts[-1], node["omap"], self.graph.tensor(node.inputs[0]).shape
        assert isinstance(omap, tuple)
        targets = {omap[position] for position in cut} if cut else {mark.dim}
        (dim,) = targets if len(targets) == 1 else (None,)
        in_place = dim is None or (self.positions(node, "omap", dim) == cut and mark.dim in (dim, None))
        if {*cut} != self.over_axis or len(targets) > 1 or not in_place:
            raise NotParallel("output_saver: the blocks' parts of the axis are not put back where they were taken from")
        return dim, mark.width if dim is None or mark.dim is not None else tile[dim]

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
        if is_reduction(node.op) and (reduced := marks[0]) is not None and self.is_added_up(node, reduced):
            attributes["size"] = reduced.width
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
        axes: set[int] = set()
        for number, mark in enumerate(marks):
            if mark is not None:
                carried = _carried(maps, number, mark)
                results.add(self.added_up(node, marks, maps) if carried is None else carried)
                if maps is not None and mark.dim is not None:
                    axes |= _iterators(maps, maps.operands[number][mark.dim])
        if not results:
            return None
        if len(results) > 1:
            raise NotParallel(f"{node.op}: the axis stands in different places of the operands")
        for number, mark in enumerate(marks):
            if mark is None and maps is not None and any(axes & _iterators(maps, index) for index in maps.operands[number]):
                raise NotParallel(f"{node.op}: an operand without the axis tells its slices apart")
        return results.pop()

    def is_added_up(self, node: Node, mark: _Mark) -> bool:
        """Whether a reduction has the axis of its operand in its groups."""
        maps = index_maps_of(node, [self.graph.tensor(value).shape for value in node.inputs])
        return _carried(maps, 0, mark) is None

    def check_linear(self, node: Node, marks: Sequence[_Mark | None]) -> None:
        """Raises NotParallel unless a node does to a sum what it does to what is added up."""
        summed = [mark for mark in marks if mark is not None and mark.summed]
        if not summed:
            return
        marked = tuple(number for number, mark in enumerate(marks) if mark is not None)
        moves = operator(node.op).kind is Kind.DATA  # which is linear in all operands together
        linear = len(marked) == len(marks) if moves else is_linear(node.op, marked)
        shifted = all(mark.complete for mark in summed) and (moves or is_linear(node.op, tuple(range(len(marks)))))
        if not linear and not shifted:
            raise NotParallel(f"{node.op}: it is not linear in a sum over the axis")

    def added_up(self, node: Node, marks: Sequence[_Mark | None], maps: IndexMaps | None) -> _Mark:
        """The axis after an operator that adds up what stands along it, in all operands."""
        row, kept = operator(node.op), set[_Mark]()
        adds_up = row.kind is Kind.MULTILINEAR and row.structure in (Structure.REDUCTION, Structure.CONTRACTION)
        for number, mark in enumerate(marks):
            if not adds_up or maps is None or mark is None or mark.dim is None or _carried(maps, number, mark) is not None:
                raise NotParallel(f"{node.op}: the axis is not carried over slice by slice")
            axis, index = _leading(maps, number, mark)[0], maps.operands[number][mark.dim]
            digits = [_digits(maps, other) for other in maps.result if _iterators(maps, index) & _iterators(maps, other)]
            one = self.graph.tensor(node.inputs[number]).shape[mark.dim] == mark.width
            if (digits if one else not axis) or any(found is None or found != axis[: len(found)] for found in digits):
                raise NotParallel(f"{node.op}: the axis is not added up in order")
            place = next((place for place, other in enumerate(maps.result) if {*axis} & _iterators(maps, other)), None)
            kept.add(mark._replace(dim=place, width=1, summed=True))
        if len(kept) > 1 or self.size > 1 or len({mark.width for mark in marks if mark is not None}) > 1:
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
                alone = mark.dim is None or self.graph.tensor(node.inputs[0]).shape[mark.dim] == mark.width
                return after._replace(summed=True, dim=None if alone else mark.dim, width=1 if alone else mark.width)
        if not looped and node.accumulation is Accumulation.MAX:
            return mark
        raise NotParallel(f"{node.op}: the for-loop runs over the axis, and its parts are not put side by side")

    def taken(self, shape: Shape, mark: _Mark | None) -> Shape:
        if mark is None or mark.dim is None:
            return shape
        return (*shape[: mark.dim], self.size * mark.width, *shape[mark.dim + 1 :])


def _carried(maps: IndexMaps | None, operand: int, mark: _Mark) -> _Mark | None:
    """The axis of an operand in the result: slices are as many neighbours there as stand behind what it runs over; or None."""
    if mark.dim is None:
        return mark
    if maps is None:
        return None
    if (dim := maps.carried(operand, mark.dim)) is not None:
        return mark._replace(dim=dim)
    axis, width = _leading(maps, operand, mark)
    for place, index in enumerate(maps.result):
        digits = _digits(maps, index)
        if axis and digits is not None and digits[: len(axis)] == axis:
            return mark._replace(dim=place, width=width * math.prod(maps.sizes[digit] for digit in digits[len(axis) :]))
    return None


def _leading(maps: IndexMaps, operand: int, mark: _Mark) -> tuple[tuple[int, ...], int]:
    """The iterators that number the slices, slowest first, and how many neighbours of the last of them are one slice's; () if the
    slices are not numbered so."""
    digits, width = _digits(maps, maps.operands[operand][mark.dim]) if mark.dim is not None else None, mark.width
    while digits and width >= maps.sizes[digits[-1]]:
        width, rest = divmod(width, maps.sizes[digits[-1]])
        digits = () if rest else digits[:-1]
    if not digits or maps.sizes[digits[-1]] % width:
        return (), 1
    return digits, width


def _digits(maps: IndexMaps, index: Index) -> tuple[int, ...] | None:
    """The iterators of more than one step that an index runs over like the digits of a number, slowest first; or None."""
    whole = maps.whole(index)
    return None if whole is None else tuple(iterator for iterator in whole if maps.sizes[iterator] > 1)


def _iterators(maps: IndexMaps, index: Index) -> set[int]:
    """The iterators of more than one step that an index depends on."""
    return set() if index is None else {iterator for iterator, _ in index.terms if maps.sizes[iterator] > 1}
