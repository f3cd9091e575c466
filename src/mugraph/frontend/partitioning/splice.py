"""A torch graph again, with calls of kernels in the place of its pieces."""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.calls.captured_tensors import lies_alike
from mugraph.frontend.operators.attention import causal_mask, hides_a_row
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES, arguments_of_call, name_of, tensor_of
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Left, Partition, Piece

STEP = "mugraph step"
"""Where a call of a spliced graph says which piece or which call of the original graph it belongs to."""

R = TypeVar("R")
ANY_STRIDES = frozenset(
    {
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_native_batch_norm_legit_no_training", "abs"),
        *("adaptive_avg_pool2d", "adaptive_avg_pool3d", "add", "avg_pool2d", "avg_pool3d", "cat", "clamp"),
        *("constant_pad_nd", "convolution", "div", "elu", "exp", "gelu", "getitem", "hardsigmoid", "hardswish"),
        *("hardtanh", "leaky_relu", "max_pool2d", "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices"),
        *("maximum", "minimum", "mish", "mul", "neg", "relu", "rsqrt", "sigmoid", "silu", "softplus", "sqrt", "sub"),
        *("tanh", "upsample_bilinear2d", "upsample_nearest2d"),
    }
)
"""Operators of PyTorch that read tensors however they lie, and fast, and write them as they lie."""
Kernels = Callable[..., Sequence[torch.Tensor]]
"""From the inputs of a piece's program to its outputs, both in the program's order, shapes and dtypes."""


Step = Piece | LibraryKernel | Left
"""What is one call, or several that stay together, in a graph that is cut."""


def nodes_of(step: Step) -> tuple[fx.Node, ...]:
    """The calls of a step, in order."""
    return (step.node,) if isinstance(step, Left) else step.nodes


def spliced(
    module: fx.GraphModule,
    partition: Partition,
    kernels: Mapping[Piece, Kernels],
    library: Mapping[LibraryKernel, Callable[..., torch.Tensor]] | None = None,
    arrange: Callable[[torch.Tensor], torch.Tensor] | None = None,
    restore: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor] | None = None,
    others: Mapping[fx.Node, Callable[..., Any]] | None = None,
    late: Container[fx.Node] = frozenset(),
) -> fx.GraphModule:
    """`module` with every piece of `partition` run by its kernels, and library kernels from their operands; needs all of them.

    What kernels and PyTorch's calls read has the strides that the graph was recorded with. Library kernels may give tensors that
    lie otherwise, and so may calls after them for which this makes no difference; `arrange` lays out the images they read, and
    `restore` does what `laid_out` does. `others` are called in the place of calls of PyTorch, with all arguments of these, where
    tensors lie as recorded; `late` is as in `in_order`.
    """
    read = {kernel.source for kernel in partition.library if kernel.geometry}
    splicing = _Splicing(fx.Graph(), read, arrange, restore or laid_out, others or {})
    graph, seen = splicing.graph, dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            splicing.copies[node] = graph.node_copy(node)
    for step in in_order(module.graph, partition, late):
        known = len(graph.nodes)
        if isinstance(step, Piece):
            _call(splicing, step, kernels[step], seen)
        elif isinstance(step, LibraryKernel):
            splicing.call(step, (library or {})[step])
        else:
            splicing.copy(step.node)
        for node in itertools.islice(reversed(graph.nodes), len(graph.nodes) - known):
            node.meta[STEP] = step
    (result,) = (node for node in module.graph.nodes if node.op == "output")
    graph.node_copy(result, splicing.as_recorded)
    return fx.GraphModule(module, graph)


@dataclass
class _Splicing:
    """A graph that is being put together, and what stands in it for the tensors of another one."""

    graph: fx.Graph
    read: Container[fx.Node]
    """The images that library kernels read."""
    arrange: Callable[[torch.Tensor], torch.Tensor] | None
    restore: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    others: Mapping[fx.Node, Callable[..., Any]]
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """Tensors with the strides that they were recorded with."""
    images: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """The same tensors as the library gives or wants them."""

    def as_recorded(self, node: fx.Node) -> fx.Node:
        """A tensor with the strides that it was recorded with."""
        if node not in self.copies:
            tensor = tensor_of(node)
            assert tensor is not None, "of several results, each is taken out of them first"
            self.copies[node] = self.graph.call_function(self.restore, (self.images[node], tuple(tensor.stride())))
        return self.copies[node]

    def call(self, kernel: LibraryKernel, run: Callable[..., torch.Tensor]) -> None:
        """Add a call of a library kernel."""
        if kernel.geometry is None:
            operands = tuple(self.as_recorded(node) for node in kernel.operands)
            self.copies[kernel.result] = self.graph.call_function(_named(run), operands)
            return
        parameters = [self.as_recorded(node) for node in kernel.parameters]
        added = [] if kernel.added is None else [self.in_any_layout(kernel.added)]
        operands = (self.in_any_layout(kernel.source), *parameters, *added)
        self.images[kernel.result] = self.graph.call_function(_named(run), operands)

    def copy(self, node: fx.Node) -> None:
        """Add a call that PyTorch makes, or what is called in its place."""
        if node in self.others and self.images.keys().isdisjoint(node.all_input_nodes):
            arguments = fx.map_arg(arguments_of_call(node), self.as_recorded)
            self.copies[node] = self.graph.call_function(_named(self.others[node]), arguments)
            return
        if name_of(node) not in ANY_STRIDES:
            self.copies[node] = self.graph.node_copy(node, self.as_recorded)
            return
        made = self.graph.node_copy(node, self.in_any_layout)
        loose = any(source in self.images for source in node.all_input_nodes)
        (self.images if loose else self.copies)[node] = made

    def in_any_layout(self, node: fx.Node) -> fx.Node:
        """A tensor as the library gives or wants it, if it does, and otherwise as recorded."""
        if node in self.read and node not in self.images and self.arrange is not None:
            self.images[node] = self.graph.call_function(self.arrange, (self.copies[node],))
        return self.images.get(node) or self.copies[node]


def in_order(graph: fx.Graph, partition: Partition, late: Container[fx.Node] = frozenset()) -> list[Step]:
    """Pieces and other calls such that each comes after what it reads, otherwise by level and then as in the graph.

    So the calls that draw random numbers, or change their operands, keep their order. Of `late` ones any other takes the turn.
    """
    ordered = _ordered(graph, partition, late)
    assert ordered is not None, "pieces wait for each other"
    return ordered


def can_run(graph: fx.Graph, partition: Partition) -> bool:
    """Whether no steps of a partition wait for each other, as they never do where rules cut them."""
    return _ordered(graph, partition) is not None


def _ordered(graph: fx.Graph, partition: Partition, late: Container[fx.Node] = frozenset()) -> list[Step] | None:
    """The steps in the order of `in_order`; None where some wait for each other."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    steps: list[Step] = [*partition.pieces, *partition.library, *partition.left]
    nodes = [nodes_of(step) for step in steps]
    producer = {node: number for number, members in enumerate(nodes) for node in members}
    needs = [{producer[source] for node in members for source in node.all_input_nodes if source in producer} for members in nodes]
    readers: list[list[int]] = [[] for _ in steps]
    for number, needed in enumerate(needs):
        needed.discard(number)
        for earlier in needed:
            readers[earlier].append(number)

    def turn(number: int) -> tuple[bool, int, int, int]:
        first = nodes[number][0]
        return first in late, steps[number].level, position[first], number

    ready = [turn(number) for number in range(len(steps)) if not needs[number]]
    heapq.heapify(ready)
    ordered: list[Step] = []
    while ready:
        *_, number = heapq.heappop(ready)
        ordered.append(steps[number])
        for later in readers[number]:
            needs[later].discard(number)
            if not needs[later]:
                heapq.heappush(ready, turn(later))
    return ordered if len(ordered) == len(steps) else None


def runnable(piece: Piece, kernels: Kernels) -> Kernels:
    """From the inputs of a piece to its program's outputs: by its kernels, or by torch where a mask forbids them.

    Images lie with channels last where the program has them so, and have their dimensions in PyTorch's order all the same.
    """
    if not piece.masks and not piece.causal_masks:
        return _on_images(piece, kernels)
    masks, run = piece.masks, _watched(piece, kernels)
    return lambda *tensors: run([hides_a_row(tensors[number]) for number in masks], *tensors)


def _on_images(piece: Piece, kernels: Kernels) -> Kernels:
    """The kernels on tensors with PyTorch's order of dimensions."""
    read, made = piece.images, piece.image_results
    if not read and not made:
        return kernels

    def run(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        results = kernels(*(tensor.movedim(1, -1) if number in read else tensor for number, tensor in enumerate(tensors)))
        return [result.movedim(-1, 1) if number in made else result for number, result in enumerate(results)]

    return run


def _watched(piece: Piece, kernels: Kernels) -> Callable[..., Sequence[torch.Tensor]]:
    """The same from what was seen of the piece's masks (whether each hides a row), and the inputs."""
    kernels = _on_images(piece, kernels)
    by_torch = functools.cache(functools.partial(as_torch, piece))  # hardly ever needed

    @functools.cache
    def causal(device: torch.device) -> list[torch.Tensor]:
        with _disable_current_modes():  # Dynamo's, under which tensors have no data
            masks = piece.causal_masks
            return [causal_mask((mask.shape[0], mask.shape[1]), TORCH_DTYPES[mask.dtype], device) for mask in masks]

    causal(piece.inputs[0].meta["val"].device)

    def run(hiding: Sequence[bool], *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        if True in hiding:
            results = dict(zip(piece.numbers, by_torch()(*tensors), strict=True))
            return [results[number] for number in range(len(results))]
        return kernels(*tensors, *causal(tensors[0].device))

    return run


def as_torch(piece: Piece) -> fx.GraphModule:
    """The piece as torch runs it."""
    return fx.GraphModule({}, piece.torch_graph)


def _call(splicing: _Splicing, piece: Piece, kernels: Kernels, seen: dict[fx.Node, fx.Node]) -> None:
    graph, copies = splicing.graph, splicing.copies
    reads = [
        splicing.in_any_layout(node) if number in piece.images else splicing.as_recorded(node)
        for number, node in enumerate(piece.inputs)
    ]
    arrays = _results(graph, piece, kernels, reads, seen)
    taken: set[int] = set()
    for node, number in zip(piece.outputs, piece.numbers, strict=True):
        result = graph.call_function(operator.getitem, (arrays, number))
        if number in taken:  # two results that are equal are two tensors all the same: one may be changed later
            result = graph.call_function(torch.clone, (result,))
        taken.add(number)
        if number in piece.image_results:
            splicing.images[node] = result
            continue
        copies[node] = result
        tensor = tensor_of(node)
        assert tensor is not None, "results of several tensors never leave a piece whole"
        if not tensor.is_contiguous():
            sizes = (tuple(tensor.shape), tuple(tensor.stride()))
            copies[node] = graph.call_function(_with_strides, (copies[node], *sizes))


def _results(graph: fx.Graph, piece: Piece, kernels: Kernels, inputs: list[fx.Node], seen: dict[fx.Node, fx.Node]) -> fx.Node:
    """A call of the kernels; `seen` has, by mask, the call that looks at it, for pieces that share one."""
    if not piece.masks and not piece.causal_masks:
        return graph.call_function(_named(runnable(piece, kernels)), tuple(inputs))
    masks = [inputs[number] for number in piece.masks]
    for mask in masks:
        seen[mask] = seen.get(mask) or graph.call_function(hides_a_row, (mask,))
    return graph.call_function(_named(_watched(piece, kernels)), ([seen[mask] for mask in masks], *inputs))


def _named(kernels: Callable[..., R]) -> Callable[..., R]:
    """The kernels as a function with the name that torch writes into the code of a graph."""

    def mugraph_kernels(*arguments: Any) -> R:
        return kernels(*arguments)

    return mugraph_kernels


def laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor with these strides, itself or a copy; contiguous where elements that they put into one place may differ."""
    if lies_alike(tensor, strides):
        return tensor
    if any(stride == 0 and size > 1 for stride, size in zip(strides, tensor.shape, strict=True)):
        return tensor.contiguous()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _with_strides(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor in memory with these strides; along those of 0 it is constant, and there once, as an expanded one is."""
    if 0 not in strides:  # in few calls of PyTorch: between kernels its code is in no cache
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    sizes = tuple(min(size, 1) if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    memory = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
    return memory.copy_(tensor.as_strided(sizes, tensor.stride())).expand(shape)
