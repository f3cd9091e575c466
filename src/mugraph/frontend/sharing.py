"""A pass over torch graphs: results that share memory become views that nothing else reads, of one tensor.

Kernels write every result to memory of its own. Where a model returns a tensor and a view of it, or two views, a change of one
must show in the other: so the views are left to torch, which makes them of what the kernels wrote.
"""

from __future__ import annotations

import operator
from collections import Counter

import torch
from torch import fx


def with_views_of_results(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of ATen calls in which results that share memory are made by calls of their own from what they are views of."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = list(dict.fromkeys(output.all_input_nodes))
    owners = {node: _owner(node) for node in results}
    count = Counter(owners.values())
    views = [node for node in results if owners[node] is not node and count[owners[node]] > 1]
    if not views:
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(module.graph, copies)
    again: dict[fx.Node, fx.Node] = {}

    def made_again(node: fx.Node) -> fx.Node:
        source = viewed(node)
        if source is None:
            return copies[node]
        if node not in again:
            made_again(source)
            again[node] = graph.node_copy(node, lambda read: again.get(read, copies[read]))
        return again[node]

    returned = {node: made_again(node) if node in views else copies[node] for node in results}
    graph.output(fx.map_arg(output.args[0], returned.__getitem__))
    for node in reversed(list(copies.values())):
        if node.op == "call_function" and not node.users and viewed(node) is not None:
            graph.erase_node(node)
    return fx.GraphModule(module, graph)


def viewed(node: fx.Node) -> fx.Node | None:
    """The operand that an ATen call gives a view of; None for a tensor with memory of its own, as far as schemas tell."""
    if node.target is operator.getitem:
        producer = node.args[0]
        return producer if isinstance(producer, fx.Node) and viewed(producer) is not None else None
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target.is_view:
        return None
    arguments = node.target._schema.arguments
    position = next(position for position, argument in enumerate(arguments) if argument.alias_info is not None)
    operand = node.args[position] if position < len(node.args) else node.kwargs.get(arguments[position].name)
    return operand if isinstance(operand, fx.Node) else None


def _owner(node: fx.Node) -> fx.Node:
    """What a tensor is, after all, a view of."""
    while (source := viewed(node)) is not None:
        node = source
    return node
