"""How much memory the tensors of one graph need at once, in the order its nodes stand in."""

from __future__ import annotations

from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import ACCUMULATORS, VIEWS, Graph, Level, Node, Value

_NO_STORAGE = frozenset({"constant", "output_saver"}) | VIEWS


def peak_bytes(graph: Graph) -> int:
    """Largest number of bytes live at one node of this graph, its own tensors only.

    A tensor lives from the node that makes it to the last that reads it or a view of it. Accumulators live as long as
    the for-loop runs, and a kernel graph's inputs and outputs always. Constants are part of the code, savers write
    to the level above, and views own nothing. Sizes are those of the tensors' dtypes.
    """
    births, deaths = _intervals(graph)
    change = [0] * (len(graph.nodes) + 1)
    for index, node in enumerate(graph.nodes):
        change[births[index]] += _stored(node)
        change[deaths[index] + 1] -= _stored(node)
    live = peak = 0
    for difference in change:
        live += difference
        peak = max(peak, live)
    return peak


def _stored(node: Node) -> int:
    return 0 if node.op in _NO_STORAGE else sum(tensor.bytes for tensor in node.outputs)


def _intervals(graph: Graph) -> tuple[list[int], list[int]]:
    """First and last node during which each node's outputs are live."""
    births = list(range(len(graph.nodes)))
    deaths = list(births)
    inside = loop_nodes(graph)
    for index, node in enumerate(graph.nodes):
        for value in node.inputs:
            owner = _owner(graph, value)
            deaths[owner] = max(deaths[owner], index)
        if node.op in ACCUMULATORS:
            births[index] = min(inside, default=index)
            deaths[index] = max(index, *inside)
        if node.op == "input":
            births[index], deaths[index] = 0, len(graph.nodes) - 1
    if graph.level is Level.KERNEL:
        for value in graph.outputs:
            deaths[_owner(graph, value)] = len(graph.nodes) - 1
    return births, deaths


def _owner(graph: Graph, value: Value) -> int:
    """The node whose memory a value lies in, looking through views."""
    node = graph.nodes[value.node]
    return _owner(graph, node.inputs[0]) if node.op in VIEWS else value.node
