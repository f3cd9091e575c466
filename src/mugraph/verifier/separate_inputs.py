"""Axes along which graphs treat slices alike once an input that is read in two ways is two: one of slices, and one that is whole.

Row i of self-attention depends on row i of its input by a query, and on all of them by keys; so it does on the tables of a rotary
embedding that queries and keys are turned by. So no dimension of such inputs is a parallel axis. But where both graphs are the
same function of the rows and of the whole, for any values of the two, they are the same where the whole is made of the rows.
Which operator reads which is chosen here, operator by operator, such that slices are kept apart; a choice that could be better
costs time. docs/theory.md ("Parallel axes", "Inputs read twice") has the theorem.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mugraph.errors import ShapeMismatch
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.graph import Graph, Level, Node, Value, attributes_of
from mugraph.verifier.axis_candidates import Candidate, candidates_apart
from mugraph.verifier.axis_marks import ONE, Mark
from mugraph.verifier.known_values import NOTHING, Known
from mugraph.verifier.parallel_axes import Cut, ParallelAxis, Slice, marks_behind
from mugraph.verifier.slice_walk import NotParallel
from mugraph.verifier.zero_divisors import nowhere_defined

LARGE = 1 << 16
"""Elements of what two slices compute beyond which it is worth looking for such axes."""


def separate_slice(found: Slice, worthwhile: Callable[[Graph, Graph, ParallelAxis], bool], known: Known = NOTHING) -> Slice:
    """Two graphs at size 1 of every axis that is proved parallel in both where inputs that are read twice are two, besides.

    Inputs as a whole follow the others. `worthwhile` may decline an axis, as for `shared_slice`. Slices that are small stay as
    they are, and those of which one graph divides by zero wherever the whole is made of the slices (inputs as `known` included):
    as x_i - x_j has a zero for every i, and x_i - x_1 for one of them, and x_i - y_j and x_i - y_1 have none.
    """
    joint = found
    tried: set[Candidate] = set()
    while _elements(found) > LARGE:
        cut = next(_cuts(found, tried, worthwhile), None)
        if cut is None:
            break
        found = cut
    return found if found is joint or not nowhere_defined(joint.left, joint.right, known) else joint


def _elements(found: Slice) -> int:
    """How many the tensors have that both graphs compute."""
    nodes = (node for graph in (found.left, found.right) for node in graph.kernels())
    return sum(tensor.elements for node in nodes for tensor in node.outputs)


def _cuts(found: Slice, tried: set[Candidate], worthwhile: Callable[[Graph, Graph, ParallelAxis], bool]) -> Iterator[Slice]:
    """The slice cut along one more axis, for each that there is."""
    for candidate in candidates_apart(found.left, found.right):
        if candidate in tried:
            continue
        tried.add(candidate)
        sides = [separated(graph, candidate) for graph in (found.left, found.right)]
        if sides[0] is None or sides[1] is None:
            continue
        left, right, apart = _with_inputs_read(sides[0], sides[1], candidate)
        extended = Candidate((*candidate.inputs, *(None for _ in apart)), (*candidate.widths, *(ONE for _ in apart)))
        try:
            ours, theirs = Cut.of(left, *extended), Cut.of(right, *extended)
        except (NotParallel, ShapeMismatch):
            continue
        if replace(ours, graph=theirs.graph, narrow=theirs.narrow) == theirs and not ours.sums:
            axis = ParallelAxis(
                ours.slices, extended.inputs, ours.dims, (), extended.widths, ours.widths, narrow=False, apart=apart
            )
            made = Slice(ours.graph, theirs.graph, (*found.axes, axis))
            if _elements(made) < _elements(found) and worthwhile(found.left, ours.graph, axis):
                yield made


def separated(graph: Graph, axis: Candidate) -> Graph | None:
    """A kernel graph that takes all inputs that have the axis once more, as a whole, and reads slices where they are kept apart.

    It gives what the graph gives where these are the same tensors. None where it finds no way to compute an output.
    """
    sizes = {
        node.output.shape[dim] // sum(widths) for node, dim, widths in zip(graph.inputs(), *axis, strict=True) if dim is not None
    }
    if len(sizes) > 1:
        return None
    return _Separation(graph, axis, sizes.pop()).run()


def _with_inputs_read(left: Graph, right: Graph, axis: Candidate) -> tuple[Graph, Graph, tuple[int, ...]]:
    """Both graphs without inputs as a whole that neither reads, and the numbers of the inputs that are left twice."""
    numbers = [number for number, dim in enumerate(axis.inputs) if dim is not None]
    first = len(axis.inputs)
    read = {number for graph in (left, right) for number in _read(graph)}
    unread = {first + place for place in range(len(numbers)) if first + place not in read}
    apart = tuple(number for place, number in enumerate(numbers) if first + place not in unread)
    return _without_inputs(left, unread), _without_inputs(right, unread), apart


def _read(graph: Graph) -> set[int]:
    """The numbers of the inputs that outputs need."""
    needed = graph.needed()
    inputs = (index for index, node in enumerate(graph.nodes) if node.is_input)
    return {number for number, index in enumerate(inputs) if index in needed}


def _without_inputs(graph: Graph, numbers: set[int]) -> Graph:
    builder, moved, count = GraphBuilder(Level.KERNEL), dict[Value, Value](), itertools.count()
    for index, node in enumerate(graph.nodes):
        if node.is_input and next(count) in numbers:
            continue
        copy = builder.append(replace(node, inputs=tuple(moved[value] for value in node.inputs)))
        moved.update({Value(index, output): Value(copy.node, output) for output in range(len(node.outputs))})
    return builder.build([moved[value] for value in graph.outputs])


@dataclass
class _Separation:
    """One walk over a kernel graph that computes values of slices, and as a whole where something reads them so."""

    graph: Graph
    axis: Candidate
    slices: int
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder(Level.KERNEL))
    sliced: dict[Value, Value] = field(default_factory=dict)
    whole: dict[Value, Value] = field(default_factory=dict)
    marks: dict[Value, Mark] = field(default_factory=dict)
    """Where those of slices have the axis."""

    def run(self) -> Graph | None:
        self.inputs()
        for index, node in enumerate(self.graph.nodes):
            if node.is_input:
                continue
            if all(value in self.whole for value in node.inputs):
                self.keep(index, self.builder.append(replace(node, inputs=tuple(map(self.whole.__getitem__, node.inputs)))), ())
            if any(value in self.sliced for value in node.inputs):
                self.of_slices(index, node)
        outputs = [self.sliced.get(value, self.whole.get(value)) for value in self.graph.outputs]
        made = [value for value in outputs if value is not None]
        return without_dead_nodes(self.builder.build(made)) if len(made) == len(outputs) else None

    def inputs(self) -> None:
        places = [(Value(index), node) for index, node in enumerate(self.graph.nodes) if node.is_input]
        given = [self.builder.append(node) for _, node in places]
        for (value, node), copy, dim, widths in zip(places, given, *self.axis, strict=True):
            if dim is None:
                self.whole[value] = copy
            else:
                self.sliced[value], self.marks[value] = copy, Mark(dim, widths=widths)
                self.whole[value] = self.builder.input(f"{node['name']} as a whole", node.output.shape, node.output.dtype)

    def keep(self, index: int, copy: Value, marks: Sequence[Mark | None]) -> None:
        """Note what a node became: with the axis as `marks` say, or without."""
        for number in range(len(self.graph.nodes[index].outputs)):
            value, made = Value(index, number), Value(copy.node, number)
            if (mark := marks[number] if marks else None) is None:
                self.whole.setdefault(value, made)
            else:
                self.sliced[value], self.marks[value] = made, mark

    def of_slices(self, index: int, node: Node) -> None:
        """A node that reads slices, as the first choice has them that keeps them apart; none where there is no such choice."""
        node = _with_an_operand_for_each(node)
        tensors = [self.graph.tensor(value) for value in node.inputs]
        for wholes in self.choices(node):
            marks = [None if place in wholes else self.marks.get(value) for place, value in enumerate(node.inputs)]
            try:
                found = marks_behind(node, tensors, marks, self.slices)
            except (NotParallel, ShapeMismatch):
                continue
            if any(mark is not None and mark.summed for mark in found):
                continue
            chosen = [self.whole if mark is None else self.sliced for mark in marks]
            operands = tuple(versions[value] for versions, value in zip(chosen, node.inputs, strict=True))
            self.keep(index, self.builder.append(replace(node, inputs=operands)), found)
            return

    def choices(self, node: Node) -> Iterator[frozenset[int]]:
        """Which operands are read as a whole: none, those of which blocks read all slices, one, or several; the last ones first,
        as keys and values stand behind queries."""
        free = [place for place, value in enumerate(node.inputs) if value in self.sliced and value in self.whole]
        fixed = frozenset(place for place, value in enumerate(node.inputs) if value not in self.sliced)
        uncut = frozenset(place for place in free if node.body is not None and not self.is_cut(node, place))
        several = range(1, len(free) + 1) if node.body is None else range(1, 2)
        subsets = (frozenset(some) for count in several for some in itertools.combinations(reversed(free), count))
        for wholes in dict.fromkeys([frozenset[int](), uncut, *subsets]):
            if len(fixed | wholes) < len(node.inputs):
                yield fixed | wholes

    def is_cut(self, node: Node, place: int) -> bool:
        """Whether a grid dimension cuts the axis of an operand."""
        assert node.body is not None, "only kernels have grids"
        iterators = (inner for inner in node.body.nodes if inner.is_iterator and inner["operand"] == place)
        return any(self.marks[node.inputs[place]].dim in _mapped(inner) for inner in iterators)


def _with_an_operand_for_each(node: Node) -> Node:
    """A kernel whose iterators read operands of their own; anything else as it is."""
    if node.body is None:
        return node
    inputs: list[Value] = []
    nodes: list[Node] = []
    for inner in node.body.nodes:
        if inner.is_iterator:
            attributes = attributes_of({**dict(inner.attributes), "operand": len(inputs)})
            inputs.append(node.inputs[inner.integer("operand")])
            inner = replace(inner, attributes=attributes)
        nodes.append(inner)
    return replace(node, inputs=tuple(inputs), body=node.body.with_nodes(tuple(nodes), node.body.outputs))


def _mapped(iterator: Node) -> tuple[int | None, ...]:
    mapped = iterator["imap"]
    assert isinstance(mapped, tuple)
    return mapped
