"""Dead node elimination."""

from __future__ import annotations

from dataclasses import replace

from mugraph.ir.graph import Graph, Value


def without_dead_nodes(graph: Graph) -> Graph:
    """The same graph without the nodes no output needs; `input` nodes stay, for they are the graph's signature."""
    needed = graph.needed()
    kept = [index for index, node in enumerate(graph.nodes) if index in needed or node.is_input]
    place = {index: position for position, index in enumerate(kept)}

    def moved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(Value(place[value.node], value.output) for value in values)

    nodes = [graph.nodes[index] for index in kept]
    return graph.with_nodes(tuple(replace(node, inputs=moved(node.inputs)) for node in nodes), moved(graph.outputs))
