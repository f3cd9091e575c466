"""A tensor needed along two axes at once is two loads of a recipe: what a block reads twice in the same way, it reads once."""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.ir.editing import Site, edited
from mugraph.ir.graph import Graph, Node, Tensor, Value


def read_once(body: Graph, operands: Sequence[Value], sources: Sequence[Tensor]) -> tuple[Graph, Sequence[Value]]:
    """A block graph and the operands it is applied to, with one iterator for each operand and way to cut it.

    `operands` are values of the kernel graph, `sources` their tensors.
    """

    def way(node: Node) -> tuple[Value, object, object]:
        return operands[node.integer("operand")], node["imap"], node["fmap"]

    loads = [index for index, node in enumerate(body.nodes) if node.is_iterator]
    ways = list(dict.fromkeys(way(body.nodes[index]) for index in loads))
    if len(ways) == len(loads):
        return body, operands
    read: dict[int, Value] = {}

    def once(site: Site) -> Value:
        number = ways.index(way(site.node))
        if number not in read:
            read[number] = site.copy(attributes={**dict(site.node.attributes), "operand": number})
        return read[number]

    tensors = dict(zip(operands, sources, strict=True))
    left = [operand for operand, _, _ in ways]
    return edited(body, dict.fromkeys(loads, once), [tensors[operand] for operand in left]), left
