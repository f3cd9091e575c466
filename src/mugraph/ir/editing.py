"""Graphs with some nodes replaced: every shape is inferred again, so that what comes out is well formed or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mugraph.errors import InvalidGraph
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import AttributeValue, Graph, Node, Tensor, Value


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
