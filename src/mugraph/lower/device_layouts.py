"""Layouts of the tensors between kernels: their dimension orders in device memory, chosen together (paper, section 6).

Only tensors that generated kernels make and only generated kernels read have a choice: what a library's kernel or the caller
reads is row-major, as is every input. The program is that of shared memory (`layouts.py`); here accesses cost the sectors
of device memory that they ask for, so that what is read often is read in whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.ir.graph import Graph, Value
from mugraph.lower.choices import Relation, choose, narrowed
from mugraph.lower.layouts import (
    BufferLayout,
    Dimensions,
    common_dimensions,
    meeting_in,
    relaid,
    relations_of,
    tiles_of,
    times_of,
)
from mugraph.lower.lower import DimensionOrder, Launch, concatenations, kernel_windows
from mugraph.lower.pipeline import block_threads
from mugraph.lower.tile_form import Kernel

_ORDER_COST = 1e-3
"""Sectors that leaving row-major order must save."""


def with_device_layouts(graph: Graph, launches: Mapping[int, Launch]) -> dict[int, Launch]:
    """The launches of a kernel graph with the tensors between them in the orders that cost fewest sectors."""
    tensors = [tensor for value in _between(graph, launches) if (tensor := _tensor(value, launches)) is not None]
    if not tensors:
        return dict(launches)
    every = {tensor.name: tensor.dimensions.orders() for tensor in tensors}
    options = narrowed(every, (names for index, launch in launches.items() for names in _meeting(index, launch.kernel, tensors)))
    relations = [Relation((name,), {(o,): _ORDER_COST * (o != orders[0]) for o in orders}) for name, orders in options.items()]
    for index, launch in launches.items():
        relations.extend(_relations(index, launch.kernel, tensors, options))
    chosen = choose(options, relations)
    return {index: _laid_out(index, launch, tensors, chosen) for index, launch in launches.items()}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor between kernels: its dimensions, and the buffer it is for each kernel (by node) that touches it."""

    value: Value
    dimensions: Dimensions
    buffers: Mapping[int, str]

    @property
    def name(self) -> str:
        """What it is called in the integer program."""
        return f"{self.value.node}.{self.value.output}"


def _between(graph: Graph, launches: Mapping[int, Launch]) -> list[Value]:
    """The values that generated kernels make and that nothing but generated kernels reads."""
    windows = kernel_windows(graph)
    shown = {windows[value][0] for value in graph.outputs}
    shown.update(map(Value, concatenations(graph)))
    for index, node in enumerate(graph.nodes):
        is_strides = bool(node.outputs) and windows[Value(index)][0] != Value(index)
        if index not in launches and not is_strides:
            shown.update(windows[value][0] for value in node.inputs)
    return [value for launch in launches.values() for value in launch.outputs if value not in shown]


def _tensor(value: Value, launches: Mapping[int, Launch]) -> _Tensor | None:
    """A value with the dimensions that all kernels agree on; None where they do not, or there is one alone."""
    buffers: dict[int, str] = {}
    for index, launch in launches.items():
        values, names = (*launch.inputs, *launch.outputs), (*launch.kernel.inputs, *launch.kernel.outputs)
        if value in values:
            buffers[index] = names[values.index(value)]
    kernels = [(launches[index].kernel, name) for index, name in buffers.items()]
    uses = [(kernel, tile) for kernel, name in kernels for tile in tiles_of(kernel, name)]
    kernel, name = kernels[0]
    dimensions = common_dimensions(uses, kernel.buffer(name).elements)
    return None if dimensions is None else _Tensor(value, dimensions, buffers)


def _meeting(index: int, kernel: Kernel, tensors: list[_Tensor]) -> Iterator[tuple[str, ...]]:
    """The names of the tensors that a kernel's relations speak of."""
    here = {tensor.buffers[index]: tensor.name for tensor in tensors if index in tensor.buffers}
    yield from (tuple(here[buffer] for buffer in buffers) for buffers in meeting_in(kernel, here))


def _relations(
    index: int, kernel: Kernel, tensors: list[_Tensor], options: Mapping[str, Sequence[BufferLayout]]
) -> Iterator[Relation[BufferLayout]]:
    """What a kernel costs for the layouts of the tensors it touches, over the names of the tensors, and of their `options`."""
    here = {tensor.buffers[index]: tensor for tensor in tensors if index in tensor.buffers}
    dimensions = {buffer: tensor.dimensions for buffer, tensor in here.items()}
    offered = {buffer: options[tensor.name] for buffer, tensor in here.items()}
    kernel = replace(kernel, threads=block_threads(kernel))
    for statement, times in times_of(kernel):
        for relation in relations_of(kernel, statement, times * math.prod(kernel.grid), dimensions, offered):
            yield replace(relation, variables=tuple(here[buffer].name for buffer in relation.variables))


def _laid_out(index: int, launch: Launch, tensors: list[_Tensor], chosen: Mapping[str, BufferLayout]) -> Launch:
    here = {tensor.buffers[index]: tensor for tensor in tensors if index in tensor.buffers}
    dimensions = {buffer: tensor.dimensions for buffer, tensor in here.items()}
    kernel = relaid(launch.kernel, dimensions, {buffer: chosen[tensor.name] for buffer, tensor in here.items()})
    orders = {tensor.value: _order(tensor.dimensions, chosen[tensor.name]) for tensor in here.values()}
    return replace(launch, kernel=kernel, orders={value: order for value, order in orders.items() if not order.is_row_major})


def _order(dimensions: Dimensions, layout: BufferLayout) -> DimensionOrder:
    order = sorted(range(len(layout.strides)), key=layout.strides.__getitem__, reverse=True)
    return DimensionOrder(dimensions.extents, tuple(order))
