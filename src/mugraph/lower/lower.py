"""From kernel graphs to the lowered form: which buffers each graph-defined kernel is launched on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugraph.errors import InvalidGraph, UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import LOOKUP, VIEWS, Graph, Level, Node, Shape, Tensor, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower import tiles
from mugraph.lower.blocks import lower_block
from mugraph.lower.exact_quotients import Need, with_exact_quotients
from mugraph.lower.flattening import flattened
from mugraph.lower.memory import with_places
from mugraph.lower.packing import Packing
from mugraph.lower.thread_graphs import RULES, FusionRule, construct
from mugraph.lower.tile_form import Buffer, Kernel, Memory, Tile
from mugraph.lower.tile_text import format_kernel
from mugraph.lower.views import view


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

    `body` is the block graph that was lowered; each of its outputs is one of `outputs`, or with others in one that puts them
    together: `results` are the number of it, and the window that the kernel writes. `orders` are those of operands that are not
    row-major, `packings` how those are packed that the kernel does not read where they lie.
    """

    kernel: Kernel
    body: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    results: tuple[tuple[int, Tile], ...]
    orders: Mapping[Value, DimensionOrder] = field(default_factory=dict)
    packings: Mapping[Value, Packing] = field(default_factory=dict)


Strides = Mapping[Value, tuple[int, ...]]
"""Of inputs of a kernel graph that lie in another way than row-major."""


def lower(
    graph: Graph,
    rules: tuple[FusionRule, ...] = RULES,
    passes: Sequence[Callable[[Kernel], Kernel]] = (),
    strides: Strides = MappingProxyType({}),
) -> dict[int, Launch]:
    """The launch of every graph-defined node of a kernel graph, by node index, with a place in memory for each shared buffer.

    `rules` are those of thread graphs; `passes` change kernels before there are places.
    """

    def finished(kernel: Kernel) -> Kernel:
        return with_places(reduce(lambda changed, each: each(changed), passes, kernel))

    made = launches(grouped(graph, rules), strides)
    return {index: replace(launch, kernel=finished(launch.kernel)) for index, launch in made.items()}


def with_shared_kernels(launches: Mapping[int, Launch]) -> dict[int, Launch]:
    """The launches with one kernel for all that differ in nothing but their names, which has the name of the first of them."""
    first: dict[tuple[Kernel, str], Kernel] = {}
    shared: dict[int, Launch] = {}
    for index, launch in launches.items():
        nameless = replace(launch.kernel, name="")
        kernel = first.setdefault((nameless, format_kernel(nameless)), launch.kernel)  # in the text 0.0 is not -0.0
        shared[index] = replace(launch, kernel=kernel)
    return shared


def grouped(graph: Graph, rules: tuple[FusionRule, ...]) -> Graph:
    """The kernel graph with the thread graphs that `rules` allow in place of those that it has."""
    if graph.level is not Level.KERNEL:
        raise InvalidGraph(f"lowering starts at a kernel graph, not a {graph.level} graph")
    return construct(flattened(graph), rules)


def launches(graph: Graph, strides: Strides = MappingProxyType({})) -> dict[int, Launch]:
    """The launch of every graph-defined node of a kernel graph, by node index: kernels in the form that all targets share."""
    windows = kernel_windows(graph, strides)
    made: dict[int, Launch] = {}
    needs: dict[Value, Need] = {}
    for index, node in reversed([*enumerate(graph.nodes)]):
        if node.op == GRAPH_DEFINED and node.body is not None:
            made[index], read = _with_exact_quotients(_launch(graph, index, node, node.body, windows), needs)
        else:
            need = needs.get(windows[Value(index)][0], Need.NONE)
            read = dict.fromkeys((windows[value][0] for value in node.inputs), need)
        for root, need in read.items():
            needs[root] = max(need, needs.get(root, Need.NONE))
    return dict(reversed(made.items()))


def _with_exact_quotients(launch: Launch, needs: Mapping[Value, Need]) -> tuple[Launch, dict[Value, Need]]:
    """The launch with exact quotients by what its results are needed for, and what its operands are."""
    kernel = launch.kernel
    outside = {name: needs[root] for name, root in zip(kernel.outputs, launch.outputs, strict=True) if root in needs}
    exact, found = with_exact_quotients(kernel, outside)
    read = zip(kernel.inputs, launch.inputs, strict=True)
    return replace(launch, kernel=exact), {root: found.get(name, Need.NONE) for name, root in read}


def require_no_lookups(launches: Mapping[int, Launch]) -> None:
    """Raise UnsupportedOperator for kernels that read where integers say, which those of GPUs do not."""
    for launch in launches.values():
        if launch.kernel.integers:
            raise UnsupportedOperator(
                f"{LOOKUP} ({launch.kernel.name}): kernels of GPUs read no integers; look up before, and pass what is found"
            )


def require_fp32(name: str, body: Graph) -> None:
    """Raise UnsupportedOperator for a block graph with tensors of fp64, inside or at its borders: kernels compute in fp32."""
    for _, node in body.walk():
        if any(tensor.dtype is DType.FP64 for tensor in node.outputs):
            raise UnsupportedOperator(f"kernels compute in fp32 and cannot take fp64 tensors ({name}, {node.op}); cast to fp32")


def kernel_windows(graph: Graph, strides: Strides = MappingProxyType({})) -> dict[Value, tuple[Value, Tile]]:
    """Each value of a kernel graph as a window of the value that owns its memory: itself, unless it is a view, or looked up in it
    at the integers of another (`index_of`)."""
    windows: dict[Value, tuple[Value, Tile]] = {}
    placed = {value: window for parts in concatenations(graph).values() for value, window in parts.items()}
    for index, node in enumerate(graph.nodes):
        if node.op in VIEWS:
            root, tile = windows[node.inputs[0]]
            viewed = view(node, tile)
            if viewed is not None:
                windows[Value(index)] = (root, viewed)
                continue
        if node.op == LOOKUP:
            (root, table), (_, integers) = (windows[value] for value in node.inputs)
            found = tiles.looked_up(table, node.integer("dim"), integers, node["negative"] == "wrapped")
            if found is not None:
                windows[Value(index)] = (root, found)
                continue
        for number, tensor in enumerate(node.outputs):
            value = Value(index, number)
            windows[value] = placed.get(value, (value, _whole(tensor, strides.get(value))))
    return windows


def index_of(graph: Graph, value: Value) -> Value:
    """The integers at which a value is looked up whose window says that it is."""
    node = graph.nodes[value.node]
    return node.inputs[1] if node.op == LOOKUP else index_of(graph, node.inputs[0])


def _whole(tensor: Tensor, strides: tuple[int, ...] | None = None) -> Tile:
    return Tile("", tensor.shape, tiles.row_major(tensor.shape) if strides is None else strides)


def concatenations(graph: Graph) -> dict[int, dict[Value, tuple[Value, Tile]]]:
    """The concatenations, by node, into which kernels write all parts at once: where in them each result of a kernel lies.

    Parts of parts are parts, and nobody else reads them.
    """
    found: dict[int, dict[Value, tuple[Value, Tile]]] = {}
    inside: set[int] = set()
    for index in reversed(range(len(graph.nodes))):
        # by name: other operators of data movement copy one operand, or none
        if graph.nodes[index].op == "concat" and index not in inside:
            passed: set[int] = set()
            windows = _parts(graph, Value(index), (Value(index), _whole(graph.nodes[index].output)), passed)
            if windows is not None:
                found[index] = windows
                inside |= passed
    return found


def _parts(graph: Graph, value: Value, window: tuple[Value, Tile], passed: set[int]) -> dict[Value, tuple[Value, Tile]] | None:
    """Where the results of kernels lie of which a value is made, if that is at `window`; None where it is made of others, too."""
    node, (root, tile) = graph.nodes[value.node], window
    if value != root and (
        value in graph.outputs or len(graph.users(value)) > 1 or graph.tensor(value).dtype != graph.tensor(root).dtype
    ):
        return None
    if node.op == GRAPH_DEFINED:
        return {value: window}
    passed.add(value.node)
    inner: list[tuple[Value, Tile | None]] = []
    # by name: what puts parts together, or gives them other dimensions
    if node.op == "reshape":
        inner = [(node.inputs[0], tiles.reshaped(tile, graph.tensor(node.inputs[0]).shape))]
    elif node.op == "concat" and len({*node.inputs}) == len(node.inputs):
        start, dim = 0, node.integer("dim")
        for part in node.inputs:
            size = graph.tensor(part).shape[dim]
            inner.append((part, tiles.sliced(tile, dim, start, size, 1)))
            start += size
    found: dict[Value, tuple[Value, Tile]] = {}
    for part, place in inner:
        windows = None if place is None else _parts(graph, part, (root, place), passed)
        if windows is None:
            return None
        found |= windows
    return found or None


def needed_nodes(graph: Graph, strides: Strides = MappingProxyType({})) -> list[int]:
    """The nodes of a kernel graph that run, in order: not inputs, nor views that only kernels read, as strides, nor
    concatenations of what kernels write in place."""
    windows, joined = kernel_windows(graph, strides), concatenations(graph)
    needed = set(graph.outputs)
    indices: list[int] = []
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.is_input or not any(Value(index, number) in needed for number in range(len(node.outputs))):
            continue
        if index in joined:
            needed.update(joined[index])
            continue
        needed.update(windows[value][0] if node.op == GRAPH_DEFINED else value for value in node.inputs)
        indices.append(index)
    return indices[::-1]


def _launch(graph: Graph, index: int, node: Node, body: Graph, windows: Mapping[Value, tuple[Value, Tile]]) -> Launch:
    require_fp32(f"kernel_{index}", body)
    read = [(value, *windows[value]) for value in node.inputs]
    indices = {value: index_of(graph, value) for value, _, tile in read if tile.lookup is not None}
    roots = tuple(dict.fromkeys([*(root for _, root, _ in read), *indices.values()]))
    inputs = tuple(_device_buffer(f"in{number}", graph.tensor(root)) for number, root in enumerate(roots))
    written = [windows[Value(index, number)] for number in range(len(node.outputs))]
    memories = tuple(dict.fromkeys(root for root, _ in written))
    outputs = tuple(_device_buffer(f"out{number}", graph.tensor(root)) for number, root in enumerate(memories))
    names = {root: buffer.name for root, buffer in zip(roots, inputs, strict=True)}
    operands = [_named(tile, names[root], names[indices.get(value, root)]) for value, root, tile in read]
    results = [replace(tile, buffer=outputs[memories.index(root)].name) for root, tile in written]
    kernel = lower_block(f"kernel_{index}", body, operands, inputs, outputs, results)
    return Launch(kernel, body, roots, memories, tuple((memories.index(root), tile) for root, tile in written))


def _named(tile: Tile, buffer: str, integers: str) -> Tile:
    """A window of this buffer, of which the integers lie in that one if it is looked up."""
    if tile.lookup is None:
        return replace(tile, buffer=buffer)
    return replace(tile, buffer=buffer, lookup=replace(tile.lookup, index=replace(tile.lookup.index, buffer=integers)))


def _device_buffer(name: str, tensor: Tensor) -> Buffer:
    return Buffer(name, Memory.DEVICE, tensor.dtype, tensor.elements)
