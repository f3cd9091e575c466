"""Thread graphs as operators of the block graph around them; which ones pay is decided anew from there (`thread_graphs.py`).

What reads and writes whole tensors, and what can be said as one expression over whole operands, is its operators applied to
these. Other thread graphs have block dimensions (their threads), a for-loop, and maps that say which part of an operand each
thread reads in each iteration. Here the threads and the iterations become leading dimensions of tensors of the block: imap and
fmap are a reshape and a transpose, and so is omap; an accumulator is a reduction along the iterations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mugraph.errors import UnsupportedOperator
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.graph import AttributeValue, Graph, Level, Node, Shape, Value, attributes_of
from mugraph.ir.ops import OPERATORS, Scope, apply_call, is_contraction, is_reduction, partition_of

_OF_EXPRESSIONS = frozenset({"input_iterator", "output_saver", "constant", "cast"})


def flattened(graph: Graph) -> Graph:
    """The same kernel graph without thread graphs; nodes keep their numbers.

    Nodes of block graphs that no output depends on are left out, and operands of kernels that none is read of. Raises
    UnsupportedOperator, naming the operator, for a thread graph with one that has no counterpart in a block graph.
    """
    flat = (node if node.body is None else replace(node, body=_flat_block(node.body)) for node in graph.nodes)
    nodes = tuple(map(_without_dead_operands, flat))
    return graph.with_nodes(nodes, graph.outputs)


def is_expression(node: Node, shapes: Sequence[Shape]) -> bool:
    """Whether a thread graph applied to operands of these shapes computes each element of its output from one of each operand.

    Then the parts that its threads read and write are those that broadcasting whole operands gives them.
    """
    body = node.body
    assert body is not None
    elementwise = all(
        inner.op in _OF_EXPRESSIONS or (inner.op in OPERATORS and OPERATORS[inner.op].elementwise) for inner in body.nodes
    )
    if not elementwise or body.loop != 1 or len(body.outputs) != 1:
        return False
    result, omap = node.output.shape, body.nodes[body.outputs[0].node].integers("omap")
    read = [(shapes[inner.integer("operand")], inner["imap"]) for inner in body.nodes if inner.is_iterator]
    whole = _broadcast([shape for shape, _ in read]) == result
    return whole and all(_follows(shape, imap, result, omap, body.block) for shape, imap in read)


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape of tensors broadcast together; None where they do not fit."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        return None


def _follows(shape: Shape, imap: object, result: Shape, omap: Sequence[int], threads: Sequence[int]) -> bool:
    """Whether each thread reads of an operand what broadcasting it against the result gives for the part that it writes."""
    assert isinstance(imap, tuple)
    missing = len(result) - len(shape)
    for count, read, written in zip(threads, imap, omap, strict=True):
        dim = written - missing
        repeats = dim < 0 or shape[dim] == 1
        if count > 1 and not (read is None if repeats else read == dim):
            return False
    return True


def _flat_block(graph: Graph) -> Graph:
    """A block graph with thread graphs replaced by what they do."""
    graph = _with_own_savers(without_dead_nodes(graph))
    builder = GraphBuilder(Level.BLOCK, graph.grid, graph.block, graph.loop)
    moved: dict[Value, Value] = {}
    for index, node in enumerate(map(_without_dead_operands, graph.nodes)):
        inputs = tuple(moved[value] for value in node.inputs)
        if node.body is None:
            results: Sequence[Value] = [builder.append(replace(node, inputs=inputs))]
        elif _reads_whole(node.body) or is_expression(node, [graph.tensor(value).shape for value in node.inputs]):
            results = _inlined(builder, node.body, inputs)
        else:
            results = _Threads(builder, node.body, inputs).run()
        moved.update((Value(index, number), result) for number, result in enumerate(results))
    return without_dead_nodes(builder.build([moved[value] for value in graph.outputs]))


def _reads_whole(body: Graph) -> bool:
    """Whether a thread graph has one thread and one iteration, which read and write whole tensors."""
    return not body.block and body.loop == 1


def _inlined(builder: GraphBuilder, body: Graph, operands: Sequence[Value]) -> list[Value]:
    """The operators of a thread graph applied to whole operands in the graph around it, and what it saves of them."""
    values: dict[Value, Value] = {}
    for index, node in enumerate(body.nodes):
        inputs = [values[value] for value in node.inputs]
        # by name: boundaries vanish, each in its own way
        match node.op:
            case "input_iterator":
                values[Value(index)] = operands[node.integer("operand")]
            case "output_saver" | "accumulate":
                values[Value(index)] = inputs[0]
            case _:
                values[Value(index)] = builder.add(node.op, *inputs, **dict(node.attributes))
        result, dtype = values[Value(index)], node.output.dtype
        if builder.tensor(result).dtype is not dtype:
            values[Value(index)] = builder.add("cast", result, dtype=dtype)
    return [values[value] for value in body.outputs]


def _with_own_savers(graph: Graph) -> Graph:
    """A block graph in which no saver is an output twice: each output is written to a tensor of its own."""
    nodes, outputs = list(graph.nodes), list[Value]()
    for value in graph.outputs:
        if value in outputs:
            nodes.append(graph.nodes[value.node])
            value = Value(len(nodes) - 1)
        outputs.append(value)
    return graph.with_nodes(tuple(nodes), tuple(outputs))


def _without_dead_operands(node: Node) -> Node:
    """A graph-defined node without the operands and nodes of its body that none of its outputs depends on; others as they are."""
    if node.body is None:
        return node
    body = without_dead_nodes(node.body)
    read = sorted({inner.integer("operand") for inner in body.nodes if inner.is_iterator})

    def renumbered(inner: Node) -> Node:
        if not inner.is_iterator:
            return inner
        return replace(
            inner, attributes=attributes_of({**dict(inner.attributes), "operand": read.index(inner.integer("operand"))})
        )

    body = body.with_nodes(tuple(map(renumbered, body.nodes)), body.outputs)
    return replace(node, inputs=tuple(node.inputs[number] for number in read), body=body)


class _Threads:
    """One thread graph, added to a block graph: its tensors with one dimension per block dimension and one for the loop in front.

    Such a dimension has size 1 where the tensor does not depend on it. Constants stay what they are.
    """

    def __init__(self, builder: GraphBuilder, body: Graph, operands: Sequence[Value]) -> None:
        self.builder, self.body, self.operands = builder, body, operands
        self.counts = (*body.block, body.loop)
        self.lead = len(self.counts)
        self.values: dict[Value, Value] = {}

    def run(self) -> list[Value]:
        """The outputs, whole."""
        for index, node in enumerate(self.body.nodes):
            result = self.computed(index, node)
            dtype = node.output.dtype
            self.values[Value(index)] = (
                result if self.builder.tensor(result).dtype is dtype else self.add("cast", result, dtype=dtype)
            )
        return [self.values[value] for value in self.body.outputs]

    def add(self, op: str, *inputs: Value, **attributes: AttributeValue) -> Value:
        return self.builder.add(op, *inputs, **attributes)

    def computed(self, index: int, node: Node) -> Value:
        xs = [self.values[value] for value in node.inputs]
        attributes = dict(node.attributes)
        if is_reduction(node.op):
            return self.add(node.op, xs[0], **{**attributes, "dim": self.lead + node.integer("dim")})
        if is_contraction(node.op) or (node.op in OPERATORS and OPERATORS[node.op].elementwise):
            return self.add(node.op, *self.aligned(xs), **attributes)
        # by name: boundaries turn into views and reductions, each in its own way
        match node.op:
            case "input_iterator":
                return self.tiles(node)
            case "output_saver":
                return self.joined(self.spread(self.led(xs[0]), self.lead - 1), node.integers("omap"))
            case "accumulate":
                return self.accumulated(node, self.led(xs[0]))
            case "constant":
                return self.add(node.op, **attributes)
            case "cast":
                return self.add(node.op, xs[0], **attributes)
        raise UnsupportedOperator(f"{node.op} in a thread graph; write it in the block graph around it")

    def shape(self, value: Value) -> Shape:
        return self.builder.tensor(value).shape

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        return value if self.shape(value) == tuple(shape) else self.add("reshape", value, shape=tuple(shape))

    def transposed(self, value: Value, permutation: Sequence[int]) -> Value:
        return value if list(permutation) == sorted(permutation) else self.add("transpose", value, permutation=tuple(permutation))

    def led(self, value: Value) -> Value:
        """A tensor with its leading dimensions, which constants lack."""
        return value if self.shape(value) else self.reshaped(value, (1,) * self.lead)

    def aligned(self, values: Sequence[Value]) -> list[Value]:
        """Tensors with dimensions of size 1 behind the leading ones, until all have equally many; constants as they are."""
        most = max(len(self.shape(value)) for value in values)

        def padded(value: Value) -> Value:
            shape = self.shape(value)
            return (
                self.reshaped(value, (*shape[: self.lead], *(1,) * (most - len(shape)), *shape[self.lead :])) if shape else value
            )

        return [padded(value) for value in values]

    def spread(self, value: Value, dims: int) -> Value:
        """A tensor repeated along those of its first `dims` leading dimensions on which it does not depend."""
        for dim in range(dims):
            if self.shape(value)[dim] != self.counts[dim]:
                value = self.add("repeat", value, dim=dim, times=self.counts[dim])
        return value

    def tiles(self, node: Node) -> Value:
        """What all threads read in all iterations: dimensions split by imap and fmap, the parts' numbers in front."""
        source = self.operands[node.integer("operand")]
        call = apply_call(node.op, [], dict(node.attributes), Scope(self.body.block, self.body.loop))
        parts = partition_of(call)
        split: list[int] = []
        numbers: dict[int, int] = {}
        inside: list[int] = []
        for dim, size in enumerate(self.shape(source)):
            cut = [position for position, (_, mapped) in enumerate(parts) if mapped == dim]
            for position in cut:
                numbers[position] = len(split)
                split.append(parts[position][0])
            inside.append(len(split))
            split.append(size // math.prod(parts[position][0] for position in cut))
        order = [*(numbers[position] for position in sorted(numbers)), *inside]
        moved = self.transposed(self.reshaped(source, split), order)
        counts = (count if position in numbers else 1 for position, (count, _) in enumerate(parts))
        return self.reshaped(moved, (*counts, *node.output.shape))

    def joined(self, value: Value, omap: Sequence[int]) -> Value:
        """The parts of all threads in one tensor, put side by side along the dimensions that omap names."""
        tile = self.shape(value)[self.lead :]
        order = [self.lead - 1]
        for dim in range(len(tile)):
            order += [*(position for position, mapped in enumerate(omap) if mapped == dim), self.lead + dim]
        counts = [math.prod(n for n, mapped in zip(self.counts, omap, strict=False) if mapped == dim) for dim in range(len(tile))]
        whole = tuple(size * count for size, count in zip(tile, counts, strict=True))
        return self.reshaped(self.transposed(value, order), whole)

    def accumulated(self, node: Node, value: Value) -> Value:
        """The values of all iterations combined."""
        axis, combine = self.lead - 1, node["combine"]
        loop = self.counts[axis]
        # by name: how accumulators combine has the names of the reductions that do the same
        if combine != "max" and self.shape(value)[axis] != loop:
            value = self.add("repeat", value, dim=axis, times=loop)
        if is_reduction(str(combine)):
            return self.add(str(combine), value, dim=axis, size=self.shape(value)[axis])
        shape, dim = list(self.shape(value)), self.lead + node.integer("dim")
        dims = range(len(shape))
        order = list(itertools.chain((d for d in dims if d < dim and d != axis), [axis], (d for d in dims if d >= dim)))
        shape[dim] *= loop
        shape[axis] = 1
        return self.reshaped(self.transposed(value, order), shape)
