"""A torch graph again, with calls of kernels in the place of its pieces."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.attention import causal_mask, hides_a_row
from mugraph.frontend.node_traits import tensor_of
from mugraph.frontend.partition import Left, Partition, Piece
from mugraph.frontend.torch_casts import TORCH_DTYPES

STEP = "mugraph step"
"""Where a call of a spliced graph says which piece or which call of the original graph it belongs to."""

Kernels = Callable[..., Sequence[torch.Tensor]]
"""From the inputs of a piece's program to its outputs, both in the program's order, shapes and dtypes."""


def spliced(module: fx.GraphModule, partition: Partition, kernels: Mapping[Piece, Kernels]) -> fx.GraphModule:
    """`module` with every piece of `partition` run by its kernels; needs kernels for all of them.

    Results have the strides that the graph's other calls were recorded with.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    seen: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            copies[node] = graph.node_copy(node)
    for step in in_order(module.graph, partition):
        known = len(graph.nodes)
        if isinstance(step, Piece):
            _call(graph, step, kernels[step], copies, seen)
        else:
            copies[step.node] = graph.node_copy(step.node, copies.__getitem__)
        for node in itertools.islice(reversed(graph.nodes), len(graph.nodes) - known):
            node.meta[STEP] = step
    (result,) = (node for node in module.graph.nodes if node.op == "output")
    graph.node_copy(result, copies.__getitem__)
    return fx.GraphModule(module, graph)


def in_order(graph: fx.Graph, partition: Partition) -> list[Piece | Left]:
    """Pieces and other calls such that each comes after what it reads, otherwise by level and then as in the graph.

    So the calls that draw random numbers, or change their operands, keep their order.
    """
    position = {node: index for index, node in enumerate(graph.nodes)}
    steps: list[Piece | Left] = [*partition.pieces, *partition.left]
    nodes = [step.nodes if isinstance(step, Piece) else (step.node,) for step in steps]
    producer = {node: number for number, members in enumerate(nodes) for node in members}
    needs = [{producer[source] for node in members for source in node.all_input_nodes if source in producer} for members in nodes]
    readers: list[list[int]] = [[] for _ in steps]
    for number, needed in enumerate(needs):
        needed.discard(number)
        for earlier in needed:
            readers[earlier].append(number)
    ready = [(step.level, position[nodes[number][0]], number) for number, step in enumerate(steps) if not needs[number]]
    heapq.heapify(ready)
    ordered: list[Piece | Left] = []
    while ready:
        _, _, number = heapq.heappop(ready)
        ordered.append(steps[number])
        for later in readers[number]:
            needs[later].discard(number)
            if not needs[later]:
                heapq.heappush(ready, (steps[later].level, position[nodes[later][0]], later))
    assert len(ordered) == len(steps), "pieces wait for each other"
    return ordered


def runnable(piece: Piece, kernels: Kernels) -> Kernels:
    """From the inputs of a piece to its program's outputs: by its kernels, or by torch where a mask forbids them."""
    if not piece.masks and not piece.causal_masks:
        return kernels
    masks, run = piece.masks, _watched(piece, kernels)
    return lambda *tensors: run([hides_a_row(tensors[number]) for number in masks], *tensors)


def _watched(piece: Piece, kernels: Kernels) -> Callable[..., Sequence[torch.Tensor]]:
    """The same from what was seen of the piece's masks (whether each hides a row), and the inputs."""
    by_torch, device = as_torch(piece), piece.inputs[0].meta["val"].device
    with _disable_current_modes():  # Dynamo's, under which tensors have no data
        causal = [causal_mask((mask.shape[0], mask.shape[1]), TORCH_DTYPES[mask.dtype], device) for mask in piece.causal_masks]

    def run(hiding: Sequence[bool], *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        if True in hiding:
            results = dict(zip(piece.numbers, by_torch(*tensors), strict=True))
            return [results[number] for number in range(len(results))]
        return kernels(*tensors, *causal)

    return run


def as_torch(piece: Piece) -> fx.GraphModule:
    """The piece as torch runs it."""
    return fx.GraphModule({}, piece.torch_graph)


def _call(graph: fx.Graph, piece: Piece, kernels: Kernels, copies: dict[fx.Node, fx.Node], seen: dict[fx.Node, fx.Node]) -> None:
    arrays = _results(graph, piece, kernels, [copies[node] for node in piece.inputs], seen)
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


def _results(graph: fx.Graph, piece: Piece, kernels: Kernels, inputs: list[fx.Node], seen: dict[fx.Node, fx.Node]) -> fx.Node:
    """A call of the kernels; `seen` has, by mask, the call that looks at it, for pieces that share one."""
    if not piece.masks and not piece.causal_masks:
        return graph.call_function(_named(kernels), tuple(inputs))
    masks = [inputs[number] for number in piece.masks]
    for mask in masks:
        seen[mask] = seen.get(mask) or graph.call_function(hides_a_row, (mask,))
    return graph.call_function(_named(_watched(piece, kernels)), ([seen[mask] for mask in masks], *inputs))


def _named(kernels: Callable[..., Sequence[torch.Tensor]]) -> Callable[..., Sequence[torch.Tensor]]:
    """The kernels as a function with the name that torch writes into the code of a graph."""

    def mugraph_kernels(*arguments: Any) -> Sequence[torch.Tensor]:
        return kernels(*arguments)

    return mugraph_kernels


def _with_strides(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor in memory with these strides; along those of 0 it is constant, and there once, as an expanded one is."""
    sizes = tuple(min(size, 1) if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    memory = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
    return memory.copy_(tensor.as_strided(sizes, tensor.stride())).expand(shape)
