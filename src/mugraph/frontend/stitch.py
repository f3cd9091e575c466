"""A torch graph again, with calls of kernels in the place of its pieces."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from mugraph.frontend.partition import Partition, Piece
from mugraph.frontend.pieces import tensor_of

Kernels = Callable[..., Sequence[torch.Tensor]]
"""From the inputs of a piece's program, in order, to the program's outputs."""


def stitched(module: fx.GraphModule, partition: Partition, kernels: Mapping[Piece, Kernels]) -> fx.GraphModule:
    """`module` with every piece of `partition` run by its kernels; needs kernels for all of them.

    Results have the strides that the graph's other calls were recorded with.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            copies[node] = graph.node_copy(node)
    order = {node: index for index, node in enumerate(module.graph.nodes)}
    steps: list[tuple[tuple[int, int], Piece | fx.Node]] = [
        ((piece.level, order[piece.nodes[0]]), piece) for piece in partition.pieces
    ]
    steps += [((left.level, len(order) + order[left.node]), left.node) for left in partition.left]
    for _, step in sorted(steps, key=operator.itemgetter(0)):
        if isinstance(step, Piece):
            _call(graph, step, kernels[step], copies)
        else:
            copies[step] = graph.node_copy(step, copies.__getitem__)
    (result,) = (node for node in module.graph.nodes if node.op == "output")
    graph.node_copy(result, copies.__getitem__)
    return fx.GraphModule(module, graph)


def as_torch(piece: Piece) -> fx.GraphModule:
    """The piece as torch runs it."""
    return fx.GraphModule({}, piece.torch_graph)


def _call(graph: fx.Graph, piece: Piece, kernels: Kernels, copies: dict[fx.Node, fx.Node]) -> None:
    arrays = graph.call_function(_named(kernels), tuple(copies[node] for node in piece.inputs))
    given: set[int] = set()
    for node, number in zip(piece.outputs, piece.numbers, strict=True):
        copies[node] = graph.call_function(operator.getitem, (arrays, number))
        if number in given:  # two results that are equal are two tensors all the same: one may be changed later
            copies[node] = graph.call_function(torch.clone, (copies[node],))
        given.add(number)
        tensor = tensor_of(node)
        assert tensor is not None, "results of several tensors never leave a piece whole"
        if not tensor.is_contiguous():
            sizes = (tuple(tensor.shape), tuple(tensor.stride()))
            copies[node] = graph.call_function(_with_strides, (copies[node], *sizes))


def _named(kernels: Kernels) -> Kernels:
    """The kernels as a function with the name that torch writes into the code of a graph."""

    def mugraph_kernels(*tensors: Any) -> Sequence[torch.Tensor]:
        return kernels(*tensors)

    return mugraph_kernels


def _with_strides(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=tensor.dtype).copy_(tensor)
