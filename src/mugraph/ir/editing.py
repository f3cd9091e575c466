"""Graphs changed: without dead nodes, with some nodes replaced, with other tiles.

Every shape is inferred again, so that what comes out is well formed or refused. A kernel with other tiles has the same body under
another grid and loop, down to one tile, which needs no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import ACCUMULATORS, AttributeValue, Graph, Level, Node, Tensor, Value


def without_dead_nodes(graph: Graph) -> Graph:
    """The same graph without the nodes no output needs; `input` nodes stay, for they are the graph's signature."""
    needed = graph.needed()
    kept = [index for index, node in enumerate(graph.nodes) if index in needed or node.is_input]
    place = {index: position for position, index in enumerate(kept)}

    def moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(Value(place[value.node], value.output) for value in values)

    nodes = [graph.nodes[index] for index in kept]
    return graph.with_nodes(tuple(replace(node, inputs=moved(node.inputs)) for node in nodes), moved(graph.outputs))


def without_duplicates(graph: Graph) -> Graph:
    """The same graph with one node where several apply an operator to the same operands; inputs and savers stay."""
    nodes: list[Node] = []
    place: dict[int, int] = {}
    first: dict[Node, int] = {}
    for index, node in enumerate(graph.nodes):
        moved = replace(node, inputs=tuple(Value(place[value.node], value.output) for value in node.inputs))
        stays = node.is_input or node.is_saver
        place[index] = len(nodes) if stays else first.setdefault(moved, len(nodes))
        if place[index] == len(nodes):
            nodes.append(moved)
    return graph.with_nodes(tuple(nodes), tuple(Value(place[value.node], value.output) for value in graph.outputs))


@dataclass(frozen=True, slots=True)
class Site:
    """The place of a node in the graph being built: its operands there, and the parent's operands, which iterators read."""

    builder: GraphBuilder
    node: Node
    operands: tuple[Value, ...]
    sources: Sequence[Tensor]

    def copy(self, operands: tuple[Value, ...] | None = None, attributes: Mapping[str, AttributeValue] | None = None) -> Value:
        """The node again, with other operands or attributes where given; its first output. Raises MugraphError."""
        chosen = self.operands if operands is None else operands
        described = dict(self.node.attributes) if attributes is None else attributes
        if self.node.body is not None:
            tensors = [self.builder.tensor(value) for value in chosen]
            return self.builder.graph_defined(edited(self.node.body, {}, tensors), chosen)[0]
        if not self.node.is_iterator:
            return self.builder.add(self.node.op, *chosen, **described)
        operand, imap, fmap = described["operand"], described["imap"], described["fmap"]
        assert isinstance(operand, int)
        assert isinstance(imap, tuple)
        assert fmap is None or isinstance(fmap, int)
        return self.builder.iterator(operand, self.sources[operand], imap, fmap)


Edit = Callable[[Site], Value]
"""What stands in a node's place; for a node with several outputs, a node with as many."""


def edited(graph: Graph, edits: Mapping[int, Edit], sources: Sequence[Tensor] = ()) -> Graph:
    """The graph with the nodes of these numbers edited; `sources` are the operands of a block or thread graph's parent.

    Raises MugraphError where an operator's rule is broken.
    """
    builder = GraphBuilder(graph.level, graph.grid, graph.block, graph.loop)
    values: dict[Value, Value] = {}
    for index, node in enumerate(graph.nodes):
        site = Site(builder, node, tuple(values[value] for value in node.inputs), sources)
        first = edits[index](site) if index in edits else site.copy()
        if len(builder.nodes[first.node].outputs) < first.output + len(node.outputs):
            raise InvalidGraph(f"%{index} {node.op}: an edit left fewer than its {len(node.outputs)} outputs")
        values.update((Value(index, number), Value(first.node, first.output + number)) for number in range(len(node.outputs)))
    return builder.build([values[value] for value in graph.outputs])


def with_counts(body: Graph, grid: tuple[int, ...], loop: int, sources: list[Tensor]) -> Graph:
    """A block graph that reads `sources` under another grid and loop; reductions of whole tiles reduce the new tiles.

    Whether the new tiles compute the same is for a verifier to say. Raises MugraphError where shapes do not fit.
    """

    def whole(node: Node) -> Edit | None:
        dim, size = node.get("dim"), node.get("size")
        if not isinstance(dim, int) or not isinstance(size, int) or body.tensor(node.inputs[0]).shape[dim] != size:
            return None

        def edit(site: Site) -> Value:
            extent = site.builder.tensor(site.operands[0]).shape[dim]
            return site.copy(attributes={**dict(node.attributes), "size": extent})

        return edit

    edits = {index: edit for index, node in enumerate(body.nodes) if (edit := whole(node)) is not None}
    return edited(replace(body, grid=grid, loop=loop), edits, sources)


def untiled(graph: Graph) -> Graph:
    """The kernel graph with the body of every graph-defined operator in its place, computed in one tile.

    Whether that is the same function is for a verifier to say. Raises MugraphError where a body has no single-tile form.
    """
    builder = GraphBuilder(Level.KERNEL)
    values: dict[Value, Value] = {}
    for index, node in enumerate(graph.nodes):
        operands = [values[value] for value in node.inputs]
        if node.body is None:
            values[Value(index)] = builder.append(replace(node, inputs=tuple(operands)))
        else:
            results = _inlined(builder, node.body, operands)
            if [builder.tensor(result).shape for result in results] != [tensor.shape for tensor in node.outputs]:
                raise InvalidGraph(f"%{index} {node.op}: one tile is not all of its tiles, as where each is summed")
            values.update((Value(index, number), result) for number, result in enumerate(results))
    return builder.build([values[value] for value in graph.outputs])


def _inlined(builder: GraphBuilder, body: Graph, operands: list[Value]) -> list[Value]:
    single = with_counts(body, (1,) * len(body.grid), 1, [builder.tensor(value) for value in operands])
    values: dict[Value, Value] = {}
    for index, node in enumerate(single.nodes):
        if node.body is not None:
            raise UnsupportedOperator("thread graphs have no single-tile form; take the muGraph before they were constructed")
        operand = node.get("operand")
        if isinstance(operand, int):
            values[Value(index)] = operands[operand]
        elif node.is_saver or node.op in ACCUMULATORS:
            values[Value(index)] = values[node.inputs[0]]
        else:
            inputs = [values[value] for value in node.inputs]
            values[Value(index)] = builder.add(node.op, *inputs, **dict(node.attributes))
    return [values[value] for value in single.outputs]
