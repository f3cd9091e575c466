"""From kernel graphs to the lowered form: which buffers each graph-defined kernel is launched on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import VIEWS, Graph, Level, Node, Shape, Tensor, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower import tiles
from mugraph.lower.blocks import lower_block, view
from mugraph.lower.flattening import flattened
from mugraph.lower.memory import with_places
from mugraph.lower.thread_graphs import RULES, FusionRule, construct
from mugraph.lower.tile_form import Buffer, Kernel, Memory, Tile


@dataclass(frozen=True, slots=True)
class DimensionOrder:
    """How a tensor lies in device memory: as an array of `extents` whose dimensions vary in `order`, the slowest first."""

    extents: Shape
    order: Sequence[int]

    @property
    def is_row_major(self) -> bool:
        """Whether the last dimension varies fastest, and so on."""
        return list(self.order) == list(range(len(self.extents)))

    def stored(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Elements in row-major order as they lie in memory."""
        return elements.reshape(self.extents).transpose(self.order).reshape(-1)

    def restored(self, memory: NDArray[Any]) -> NDArray[Any]:
        """What lies in memory in row-major order."""
        stored = memory.reshape([self.extents[dim] for dim in self.order])
        return stored.transpose(np.argsort(self.order)).reshape(-1)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel and the kernel graph's values that are its operands: roots, after views are turned into strides.

    `body` is the block graph that was lowered, and `orders` are those of operands that do not lie in row-major order.
    """

    kernel: Kernel
    body: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    orders: Mapping[Value, DimensionOrder] = field(default_factory=dict)


def lower(
    graph: Graph, rules: tuple[FusionRule, ...] = RULES, passes: Sequence[Callable[[Kernel], Kernel]] = ()
) -> dict[int, Launch]:
    """The launch of every graph-defined node of a kernel graph, by node index, with a place in memory for each shared buffer.

    `rules` are those of thread graphs; `passes` change kernels before there are places.
    """

    def finished(kernel: Kernel) -> Kernel:
        return with_places(reduce(lambda changed, each: each(changed), passes, kernel))

    return {index: replace(launch, kernel=finished(launch.kernel)) for index, launch in launches(grouped(graph, rules)).items()}


def grouped(graph: Graph, rules: tuple[FusionRule, ...]) -> Graph:
    """The kernel graph with the thread graphs that `rules` allow in place of those that it has."""
    if graph.level is not Level.KERNEL:
        raise InvalidGraph(f"lowering starts at a kernel graph, not a {graph.level} graph")
    return construct(flattened(graph), rules)


def launches(graph: Graph) -> dict[int, Launch]:
    """The launch of every graph-defined node of a kernel graph, by node index: kernels in the form that all targets share."""
    windows = kernel_windows(graph)
    return {
        index: _launch(graph, index, node, node.body, windows)
        for index, node in enumerate(graph.nodes)
        if node.op == GRAPH_DEFINED and node.body is not None
    }


def require_fp32(name: str, body: Graph) -> None:
    """Raise UnsupportedOperator for a block graph with tensors of fp64, inside or at its borders: kernels compute in fp32."""
    for _, node in body.walk():
        if any(tensor.dtype is DType.FP64 for tensor in node.outputs):
            raise UnsupportedOperator(f"kernels compute in fp32 and cannot take fp64 tensors ({name}, {node.op}); cast to fp32")


def kernel_windows(graph: Graph) -> dict[Value, tuple[Value, Tile]]:
    """Each value of a kernel graph as a window of the value that owns its memory (itself, unless it is a view)."""
    windows: dict[Value, tuple[Value, Tile]] = {}
    for index, node in enumerate(graph.nodes):
        if node.op in VIEWS:
            root, tile = windows[node.inputs[0]]
            viewed = view(node, tile)
            if viewed is not None:
                windows[Value(index)] = (root, viewed)
                continue
        for number, tensor in enumerate(node.outputs):
            value = Value(index, number)
            windows[value] = (value, Tile("", tensor.shape, tiles.row_major(tensor.shape)))
    return windows


def needed_nodes(graph: Graph) -> list[int]:
    """The nodes of a kernel graph that run, in order: not inputs, nor views that only kernels read, as strides."""
    windows = kernel_windows(graph)
    needed = set(graph.outputs)
    indices: list[int] = []
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.is_input or not any(Value(index, number) in needed for number in range(len(node.outputs))):
            continue
        needed.update(windows[value][0] if node.op == GRAPH_DEFINED else value for value in node.inputs)
        indices.append(index)
    return indices[::-1]


def _launch(graph: Graph, index: int, node: Node, body: Graph, windows: Mapping[Value, tuple[Value, Tile]]) -> Launch:
    require_fp32(f"kernel_{index}", body)
    roots = tuple(dict.fromkeys(windows[value][0] for value in node.inputs))
    inputs = tuple(_device_buffer(f"in{number}", graph.tensor(root)) for number, root in enumerate(roots))
    outputs = tuple(_device_buffer(f"out{number}", tensor) for number, tensor in enumerate(node.outputs))
    operands = [replace(tile, buffer=inputs[roots.index(root)].name) for root, tile in (windows[value] for value in node.inputs)]
    kernel = lower_block(f"kernel_{index}", body, operands, inputs, outputs, node.outputs)
    return Launch(kernel, body, roots, tuple(Value(index, number) for number in range(len(node.outputs))))


def _device_buffer(name: str, tensor: Tensor) -> Buffer:
    return Buffer(name, Memory.DEVICE, tensor.dtype, tensor.elements)
