"""Which graphs of Algorithm 1 the closure engine has, and which conditions of docs/theory.md the others break.

Graphs of one kernel are compared by how they compute (`way`), whatever their nodes are called and in which order they stand,
under the schedule that Algorithm 1 gave them, at any size. What the closures do not have is read along logical axes for what
they leave out by design.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from mugraph.algebra import Algebra, Expr
from mugraph.algebra.fields import FieldArithmetic
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Graph, Level, Node, Value
from mugraph.ir.ops import OPERATORS, Scope, apply_call, operator
from mugraph.lower.flattening import flattened
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.loop_insertion import Fmaps, loops_to_some_end, with_loop, worthwhile
from mugraph.search.closure.saturation import Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.scheduling.emission import KernelOutput, Schedule, emit_block

Dims = tuple[int | None, ...]
"""The axis of each dimension of a tensor, None where it has one element."""


@dataclass(frozen=True, slots=True)
class TileCut:
    """How a graph's grid and for-loop cut the axes of a program."""

    schedule: Schedule
    loop_axis: int | None


class Derivations:
    """All derivations of a program of one output as one kernel of at most so many operators, with and without for-loops."""

    def __init__(self, program: Graph, operators: int) -> None:
        self.program, self.axes = program, axis_program(program)
        self._limit = operators
        self._closure = Closure(self.axes, Context.of(self.axes, None), Tier.FULL)
        Saturation(self._closure, FieldArithmetic(seed=0), TinyInputs(0), Limits()).run()
        assert self._closure.saturated
        self._sketches: dict[int | None, list[tuple[Sketch, bool]]] = {}
        self._ways: dict[Hashable, int] = {}
        self._emitted: dict[TileCut, dict[tuple[int, ...], bool]] = {}

    def of(self, graph: Graph) -> str:
        """Where a graph of one kernel is found, or the conditions that it breaks."""
        reading = Reading(self.axes, graph)
        cut = reading.cut()
        if cut is not None:
            listed = self._under(cut).get(way(_squares(graph), self._ways))
            if listed is not None:
                return LISTED if listed else IN_CLOSURE
        broken = sorted(reading.broken())
        return f"breaks condition {', '.join(map(str, broken))}" if broken else MISSED

    def _under(self, cut: TileCut) -> dict[tuple[int, ...], bool]:
        """The ways of all derivations that this schedule suits, and whether the search lists them."""
        if cut not in self._emitted:
            found = self._emitted[cut] = {}
            for sketch, listed in self.sketches(cut.loop_axis):
                if {axis for group, _ in cut.schedule.grid for axis in group} <= sketch.parallel_axes:
                    computed = way(_squares(self._graph(sketch, cut.schedule)), self._ways)
                    found[computed] = found.get(computed, False) or listed
        return self._emitted[cut]

    def sketches(self, loop_axis: int | None) -> list[tuple[Sketch, bool]]:
        """The derivations with a for-loop over an axis, and whether the search lists them."""
        if loop_axis not in self._sketches:
            fmaps = [Fmaps.ALL] if loop_axis is None else [Fmaps.ALL, worthwhile(self.axes, loop_axis)]
            every, listed = (frozenset(self._extracted(loop_axis, fmap)) for fmap in (fmaps[0], fmaps[-1]))
            self._sketches[loop_axis] = [(sketch, sketch in listed and loops_to_some_end(sketch)) for sketch in every | listed]
        return self._sketches[loop_axis]

    def _extracted(self, loop_axis: int | None, fmaps: Fmaps) -> Iterator[Sketch]:
        closure = self._closure if loop_axis is None else with_loop(self._closure, loop_axis, fmaps)
        limits = ExtractionLimits(self._limit, derivations=10**6, expansions=10**6)
        extractor = Extractor(closure, lambda edge: 1.0)
        for goal in closure.goals[0]:
            yield from (sketch for _, sketch in extractor.derivations((goal,), limits))
        assert limits.complete

    def _graph(self, sketch: Sketch, schedule: Schedule) -> Graph:
        builder = GraphBuilder(Level.KERNEL)
        inputs = [builder.append(node) for node in self.program.inputs()]
        operands = [inputs[leaf.source] for leaf in sketch.leaves]
        output = KernelOutput(self.axes.outputs[0][1], self.program.output_tensors[0].dtype)
        sources = [builder.tensor(operand) for operand in operands]
        body = emit_block(sketch, schedule, self.axes.sizes, sources, [output])
        return builder.build(list(builder.graph_defined(body, operands)))


class Reading:
    """A graph of one kernel along the axes of the program that it computes."""

    def __init__(self, axes: AxisProgram, graph: Graph) -> None:
        self.axes = axes
        (self.kernel,) = (node for node in graph.kernels())
        assert self.kernel.body is not None
        self.body = self.kernel.body
        self._slots = {term.source: term.slots for _, term in axes.loads()}
        self._inside = loop_nodes(self.body)
        self._cuts = [*self._cuts_of_inputs()]

    def cut(self) -> TileCut | None:
        """The axes that grid and for-loop cut, where each cuts one of all inputs that have it, or the loop of some; else None."""
        grid = [self._axis(position) for position in range(len(self.body.grid))]
        loop = {axis for _, _, axis in self._cuts if axis is not None}
        if None in grid or len(loop) > 1:
            return None
        counts = tuple(((axis,), count) for axis, count in zip(grid, self.body.grid, strict=True) if axis is not None)
        return TileCut(Schedule(counts, self.body.loop), next(iter(loop), None))

    def broken(self) -> set[int]:
        """The numbers of the conditions in docs/theory.md that the graph breaks, as far as they are seen along axes."""
        return {number for number, breaks in enumerate(self._breaks(), start=1) if breaks}

    def _breaks(self) -> Iterator[bool]:
        outputs = frozenset.intersection(*(self.axes.terms[term].axes for term, _ in self.axes.outputs))
        grid = [self._axis(position) for position in range(len(self.body.grid))]
        dims = [*self._dims()]
        yield any(axis is None or axis not in outputs for axis in grid)
        yield len({axis for _, _, axis in self._cuts if axis is not None}) > 1 or any(self._sums_the_same())
        yield any(made is None for made in dims)
        yield any(self._partial(node, made) for node, made in zip(self.body.nodes, dims, strict=True))
        yield any(node.is_iterator and self._one_element(node) for node in self.body.nodes)
        yield self._repeats()

    def _cuts_of_inputs(self) -> Iterator[tuple[int, Dims, int | None]]:
        """For each input the program's, the axes that the grid's dimensions cut, and that of the for-loop."""
        for node in self.body.nodes:
            if node.is_iterator:
                source = self.kernel.inputs[node.integer("operand")].node
                imap, fmap = node["imap"], node["fmap"] if self.body.loop > 1 else None
                assert isinstance(imap, tuple)
                dims = self._of_source(source)
                yield (
                    source,
                    tuple(None if dim is None else dims[dim] for dim in imap if not isinstance(dim, str)),
                    (dims[fmap] if isinstance(fmap, int) else None),
                )

    def _of_source(self, source: int) -> Dims:
        return tuple(slot[0] if slot else None for slot in self._slots[source])

    def _axis(self, position: int) -> int | None:
        """The axis that a dimension of the grid cuts, of all inputs that have it; None where there is no such."""
        cut = {grid[position] for _, grid, _ in self._cuts} - {None}
        if len(cut) != 1:
            return None
        (axis,) = cut
        alike = all(axis in grid or axis not in self._of_source(source) for source, grid, _ in self._cuts)
        return axis if alike else None

    def _dims(self) -> Iterator[Dims | None]:
        """The axes of each tensor; None from an elementwise operator on that joins axes of which neither includes the other's."""
        known: list[Dims | None] = []
        for node in self.body.nodes:
            operands = [known[value.node] for value in node.inputs]
            if node.is_iterator:
                whole = self._of_source(self.kernel.inputs[node.integer("operand")].node)
                made: Dims | None = whole
            else:
                made = None if None in operands else _joined(node, [dims for dims in operands if dims is not None])
            known.append(made)
        return iter(known)

    def _partial(self, node: Node, made: Dims | None) -> bool:
        """Whether iterations put summands side by side: along anything but the axis that the for-loop cuts."""
        loop = {axis for _, _, axis in self._cuts}
        return node.get("combine") == "concat" and made is not None and made[node.integer("dim")] not in loop - {None}

    def _sums_the_same(self) -> Iterator[bool]:
        """For each accumulator, whether it sums up what is the same in every iteration."""
        looped: set[int] = set()
        for index, node in enumerate(self.body.nodes):
            if index not in self._inside:
                yield node.get("combine") == "sum" and node.inputs[0].node not in looped
            elif node.get("fmap") is not None or any(value.node in looped for value in node.inputs):
                looped.add(index)

    def _one_element(self, node: Node) -> bool:
        """Whether the tile of an input has one element along an axis that has several."""
        whole = self._of_source(self.kernel.inputs[node.integer("operand")].node)
        return any(size == 1 and axis is not None for size, axis in zip(node.output.shape, whole, strict=True))

    def _repeats(self) -> bool:
        """Whether two operators of one phase make tensors of one abstract expression and shape."""
        algebra = Algebra()
        known: list[Expr] = []
        made: Counter[tuple[Expr, tuple[int, ...], bool]] = Counter()
        for index, node in enumerate(self.body.nodes):
            if node.is_iterator:
                known.append(algebra.variable(str(self.kernel.inputs[node.integer("operand")].node)))
            elif node.is_saver:
                known.append(known[node.inputs[0].node])
            else:
                tensors = [self.body.tensor(value) for value in node.inputs]
                call = apply_call(node.op, tensors, dict(node.attributes), Scope(self.body.grid, self.body.loop))
                known.append(operator(node.op).express(algebra, call, [known[value.node] for value in node.inputs]))
                made[known[-1], node.output.shape, index in self._inside] += 1
        return max(made.values(), default=0) > 1


def _joined(node: Node, operands: Sequence[Dims]) -> Dims | None:
    """The axes of what an operator makes; None where axes do not nest."""
    shape = node.output.shape
    if node.op == "matmul":
        return operands[0][-2], operands[1][-1]
    if operator(node.op).elementwise and len(operands) > 1:
        aligned = [(*(None,) * (len(shape) - len(dims)), *dims) for dims in operands]
        pairs = [{axis for axis in pair if axis is not None} for pair in zip(*aligned, strict=True)]
        axes = [{axis for axis in dims if axis is not None} for dims in operands]
        nested = axes[0] <= axes[1] or axes[1] <= axes[0]
        return tuple(next(iter(pair), None) for pair in pairs) if nested and max(map(len, pairs), default=0) <= 1 else None
    if node.op == "sum":
        return tuple(None if dim == node.integer("dim") else axis for dim, axis in enumerate(operands[0]))
    return operands[0] if node.op in ACCUMULATORS or node.is_saver or operator(node.op).elementwise else None


def _squares(graph: Graph) -> Graph:
    """A graph in which products of a tensor with itself are squares."""

    def squared(node: Node) -> Node:
        if node.body is not None:
            return replace(node, body=replace(node.body, nodes=tuple(map(squared, node.body.nodes))))
        twice = node.op == "mul" and node.inputs[0] == node.inputs[1]
        return replace(node, op="square", inputs=node.inputs[:1]) if twice else node

    return replace(graph, nodes=tuple(map(squared, graph.nodes)))


# --- how a graph computes ----------------------------------------------------------------------------------------------


def way(graph: Graph, ways: dict[Hashable, int]) -> tuple[int, ...]:
    """How a kernel graph computes its outputs, as numbers that `ways` gives: operators, operands, grids, loops and maps.

    Views, types, and the order of nodes and of the operands of commutative operators make no difference, nor do thread graphs.
    """
    names: dict[Value, int] = {}
    flat = flattened(graph)
    for index, node in enumerate(flat.nodes):
        operands = [names[value] for value in node.inputs]
        if node.op == "graph_defined" and node.body is not None:
            made = _ways_of_body(node.body, operands, ways)
            names.update((Value(index, number), made[number]) for number in range(len(made)))
        else:
            names[Value(index)] = _numbered(node.op, operands, node.get("name") or node.get("value"), ways)
    return tuple(names[value] for value in flat.outputs)


def _ways_of_body(body: Graph, operands: Sequence[int], ways: dict[Hashable, int]) -> list[int]:
    names: dict[Value, int] = {}
    for index, node in enumerate(body.nodes):
        read = [names[value] for value in node.inputs]
        operand = node.get("operand")
        if isinstance(operand, int):
            said: Hashable = (node["imap"], node.get("fmap") if body.loop > 1 else None, body.grid, body.loop, body.level)
            if body.level is Level.THREAD:
                names[Value(index)] = operands[operand]
            else:
                names[Value(index)] = _numbered(node.op, [operands[operand]], said, ways)
        elif node.body is not None:
            made = _ways_of_body(node.body, read, ways)
            names.update((Value(index, number), made[number]) for number in range(len(made)))
        elif node.is_saver:
            names[Value(index)] = read[0] if body.level is Level.THREAD else _numbered(node.op, read, node["omap"], ways)
        else:
            names[Value(index)] = _numbered(node.op, read, str(node.get("value")) + str(node.get("combine")), ways)
    return [names[value] for value in body.outputs]


def _numbered(op: str, operands: Sequence[int], said: Hashable, ways: dict[Hashable, int]) -> int:
    if op in VIEWS or op == "cast":
        return operands[0]
    if op in OPERATORS and OPERATORS[op].commutative:
        operands = sorted(operands)
    return ways.setdefault((op, tuple(operands), said), len(ways))


LISTED, IN_CLOSURE, MISSED = "listed by the search", "in the closure, not listed", "missed"
