"""Finished prefixes of Algorithm 1 as muGraphs, and the predicted seconds of a muGraph, whoever wrote it.

Schedules are costed before there is a graph, many at once; here a graph is read: Algorithm 1's, a person's, or PyTorch's, whose
operators are kernels of the vendor's libraries. The roofs are those that schedules are ranked by
(`mugraph.search.scheduling.cost_table`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mugraph.devices import Device
from mugraph.errors import MugraphError
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.definitions import spelled_out
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import VIEWS, Accumulation, Graph, Level, Node, Tensor, Value
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.ops import GRAPH_DEFINED, OPERATORS, flops_of, is_contraction
from mugraph.ir.scalar import Scalar
from mugraph.search.algorithm1.block import BlockPlan
from mugraph.search.algorithm1.construct import Application
from mugraph.search.algorithm1.loaded_tiles import crosses_levels, cut_dims, device_shape, loaded_tiles
from mugraph.search.partition.lower_bounds import library_seconds
from mugraph.search.scheduling.cost_table import Demand, kernel_seconds, short_run_factor, times_from_memory
from mugraph.search.scheduling.loads import waiting_bytes


@dataclass(frozen=True, slots=True)
class BlockLaunch:
    """A graph-defined kernel operator: the positions of its operands in the kernel prefix, and its block graph."""

    operands: tuple[int, ...]
    plan: BlockPlan


KernelOperator = Application | BlockLaunch


def kernel_graph(
    inputs: Sequence[Node], constants: Sequence[Node], operators: Sequence[KernelOperator], outputs: Sequence[tuple[int, DType]]
) -> Graph:
    """The kernel graph of a prefix; positions count inputs, constants, and then what each operator makes."""
    builder = GraphBuilder(Level.KERNEL)
    values = [builder.append(node) for node in (*inputs, *constants)]
    for operator in operators:
        if isinstance(operator, Application):
            operands = [values[position] for position in operator.inputs]
            values.append(builder.add(operator.op, *operands, **dict(operator.attributes)))
        else:
            operands = [values[position] for position in operator.operands]
            body = block_graph(operator.plan, [builder.tensor(value) for value in operands], constants)
            values.extend(builder.graph_defined(body, operands))
    return builder.build([_as_dtype(builder, values[position], dtype) for position, dtype in outputs])


def block_graph(plan: BlockPlan, sources: Sequence[Tensor], constants: Sequence[Node]) -> Graph:
    """The block graph of a plan over device tensors `sources`; constants it does not read are left out."""
    schedule = plan.schedule
    builder = GraphBuilder(Level.BLOCK, grid=schedule.grid, loop=schedule.loop)
    values: dict[int, Value] = {}
    for operand, (source, imap, fmap) in enumerate(zip(sources, schedule.imaps, schedule.fmaps, strict=True)):
        values[operand] = builder.iterator(operand, source, imap, fmap)
    read = {position for application in plan.applications for position in application.inputs}
    for index, constant in enumerate(constants):
        if len(sources) + index in read:
            values[len(sources) + index] = builder.append(constant)
    for position, application in enumerate(plan.applications, len(sources) + len(constants)):
        operands = [values[operand] for operand in application.inputs]
        values[position] = builder.add(application.op, *operands, **dict(application.attributes))
    return builder.build([builder.add("output_saver", values[saved.position], omap=saved.omap) for saved in plan.saved])


def _as_dtype(builder: GraphBuilder, value: Value, dtype: DType) -> Value:
    return value if builder.tensor(value).dtype is dtype else builder.add("cast", value, dtype=dtype)


def predicted_seconds(graph: Graph, device: Device) -> float:
    """Predicted seconds of a kernel graph on `device`: its kernels run one after the other."""
    graph = spelled_out(graph)  # a library has a kernel for each part
    return sum(
        float(kernel_seconds(device, demand(node.body, device))) if node.body else _library(graph, node, device)
        for node in graph.kernels()
    )


def _library(graph: Graph, node: Node, device: Device) -> float:
    """One operator by itself: a product as fast as libraries multiply, anything else as a kernel cut along one dimension."""
    tensors = tuple(graph.tensor(value) for value in node.inputs)
    if not is_contraction(node.op):
        return _alone(replace(node, inputs=()), tensors, device)
    left, right = tensors[0].shape, tensors[-1].shape
    batch, depth = math.prod(right[:-2]), left[-1]
    rows, columns = math.prod(left[:-1]), batch * right[-1]
    moved = sum(tensor.bytes for tensor in (*tensors, *node.outputs))
    return library_seconds(device, tensors[0].dtype, rows, columns, depth, flops_of(graph, [node]), moved, batch=batch)


@lru_cache(maxsize=1 << 12)
def _alone(node: Node, tensors: tuple[Tensor, ...], device: Device) -> float:
    """An operator on `tensors` as the best of the kernels that are cut along one dimension or none."""
    bodies = (_cut(node, tensors, dim, device) for dim in (None, *range(len(node.output.shape))))
    demands = [demand(body, device)._replace(waiting=0.0) for body in bodies if body is not None]  # libraries hide latency
    moved = float(sum(tensor.bytes for tensor in (*tensors, *node.outputs)))
    whole = Demand(1, 1, moved, moved, 0.0, 0, 0)  # of what no block computes, which is no arithmetic
    return min(float(kernel_seconds(device, each)) for each in demands or [whole])


def _cut(node: Node, tensors: Sequence[Tensor], dim: int | None, device: Device) -> Graph | None:
    """An operator as a kernel whose blocks have a part each of dimension `dim` of its output, and of those that broadcast with
    it; as one block where that is None. None where there is nothing to cut, or the operator does not take such parts."""
    shape = node.output.shape
    count = 1 if dim is None else next(n for n in range(device.multiprocessors, 0, -1) if shape[dim] % n == 0)
    if (count == 1) != (dim is None):
        return None
    builder = GraphBuilder(Level.BLOCK, grid=() if dim is None else (count,))

    def cut(source: Tensor) -> tuple[int | None, ...]:
        own = None if dim is None else dim - len(shape) + len(source.shape)
        return () if dim is None else (own if own is not None and own >= 0 and source.shape[own] == shape[dim] else None,)

    try:
        tiles = [builder.iterator(number, source, cut(source), None) for number, source in enumerate(tensors)]
        value = builder.add(node.op, *tiles, **dict(node.attributes))
        return builder.build([builder.add("output_saver", value, omap=() if dim is None else (dim,))])
    except MugraphError:
        return None


def demand(body: Graph, device: Device) -> Demand:
    """Resources that a graph-defined kernel uses of a device."""
    inside = loop_nodes(body)
    memory = cache = compute = 0.0
    parts = sum(_part(body, node, index in inside) for index, node in enumerate(body.nodes) if crosses_levels(node))
    for index, node in enumerate(body.nodes):
        times = body.loop if index in inside else 1
        if crosses_levels(node):
            whole, tile = _transferred(body, node, device, times, parts)
            memory, cache = memory + whole, cache + times * tile
        compute += times * _work(body, node, device)
    steps = sum(body.nodes[index].op not in VIEWS for index in inside)
    held = peak_bytes(body, device.operands_in_place)
    waiting = waiting_bytes(device, held, loaded_tiles(body))
    return Demand(math.prod(body.grid), body.loop, memory, cache, compute, steps, held, waiting)


def _part(body: Graph, node: Node, repeated: bool) -> int:
    """Bytes that a block moves of a device tensor, each once."""
    return _tile(body, node).bytes * (body.loop if repeated and node.get("fmap") is not None else 1)


def _tile(body: Graph, node: Node) -> Tensor:
    """What an iterator reads or a saver writes in one iteration."""
    return node.output if node.is_iterator else body.tensor(node.inputs[0])


def _transferred(body: Graph, node: Node, device: Device, times: int, parts: int) -> tuple[float, float]:
    """Bytes of the device tensor and of a block's tile of it, in one of so many iterations, as they count for short runs, where
    a block's parts of all tensors take so many bytes."""
    tile = _tile(body, node)
    shape = device_shape(body, node, tile.shape, times)
    whole = math.prod(shape) * tile.dtype.bytes
    run = run_of_tile(body, node, tile.shape, shape, device.operands_in_place) * tile.dtype.bytes
    factor = float(short_run_factor(device, float(run), float(whole)))
    blocks = math.prod(body.grid)
    again = float(times_from_memory(device, whole, parts, blocks * times * tile.bytes / whole, blocks))
    return whole * factor * again, tile.bytes * factor


def run_of_tile(body: Graph, node: Node, tile: Sequence[int], shape: Sequence[int], in_turn: bool) -> int:
    """Elements in a contiguous run of a tile, and of those that follow it where blocks run one after the other (`in_turn`)."""
    dim = next((dim for dim in reversed(range(len(tile))) if tile[dim] != shape[dim]), None)
    if dim is None:
        return math.prod(tile)
    run = math.prod(tile[dim:])
    return run * (shape[dim] // tile[dim]) if in_turn and math.prod(tile[:dim]) == 1 and _follow(body, node, dim) else run


def _follow(body: Graph, node: Node, dim: int) -> bool:
    """Whether blocks and iterations go through the tiles along a dimension one after the other."""
    loop = node.get("fmap")
    if body.loop > 1 and loop is not None and loop != dim:
        return False
    cuts = [
        cut for cut, count in zip(cut_dims(node, "imap" if node.is_iterator else "omap"), body.grid, strict=True) if count > 1
    ]
    return dim not in cuts or cuts[-1] == dim


def _work(graph: Graph, node: Node, device: Device) -> float:
    """Seconds of an operator of one block, if all multiprocessors shared it."""
    if node.op == GRAPH_DEFINED and node.body is not None:
        return sum(_work(node.body, inner, device) for inner in node.body.nodes)
    if node.op not in OPERATORS:
        return 0.0
    operations: float = flops_of(graph, [node])
    if not is_contraction(node.op):
        return operations / _rate(graph, node, device)
    if device.operations_of_reading:
        weights = _weights(graph, node)
        read = sum(graph.tensor(value).elements * (1.0 if value in weights else device.product_left) for value in node.inputs)
        operations = operations / 2 * device.operations_of_sums + read * device.operations_of_reading
    computed = sum(graph.tensor(value).elements for value in _computed_rights(graph, node))
    seconds = computed * device.computed_factor_seconds.get(node.output.dtype, 0.0)
    return operations / (device.product_efficiency * _rate(graph, node, device)) + seconds


def _computed_rights(graph: Graph, product: Node) -> list[Value]:
    """The right factors of a product that a block computes."""
    rights = [product.inputs[right] for _, right in OPERATORS[product.op].products]
    sources = [_source(graph, value) for value in rights]
    return [value for value, node in zip(rights, sources, strict=True) if not node.is_iterator and node.accumulation is None]


def _weights(graph: Graph, product: Node) -> list[Value]:
    """Of each two factors the one that alone is loaded, else that on the right."""
    pairs = ((product.inputs[left], product.inputs[right]) for left, right in OPERATORS[product.op].products)
    loaded = [tuple((_source(graph, value).is_iterator, value) for value in pair) for pair in pairs]
    return [left if from_device and not other else right for (from_device, left), (other, right) in loaded]


def _rate(graph: Graph, node: Node, device: Device) -> float:
    """Operations per second of an operator; computed factors of fp16 are multiplied in TF32, exponentials and what is chosen of
    numbers of fp16 aside."""
    if not is_contraction(node.op):
        return device.vector_flops
    dtype = node.output.dtype
    in_fp16 = all(_source(graph, value).op == "exp" or _is_in_fp16(graph, value) for value in node.inputs)
    if graph.grid and dtype is DType.FP16 and device.tf32_flops is not None and not in_fp16:
        return device.tf32_flops
    types = [graph.tensor(value).dtype for value in node.inputs]
    return min(device.product_rate(types[left], types[right], dtype) for left, right in OPERATORS[node.op].products)


def _source(graph: Graph, value: Value) -> Node:
    """The node that computes a value, whichever way views look at it."""
    node = graph.nodes[value.node]
    return _source(graph, node.inputs[0]) if node.op in VIEWS else node


def _is_in_fp16(graph: Graph, value: Value) -> bool:
    """Whether lowering knows that fp16 has the numbers of a value of a block where it has those of the block's operands."""
    node = _source(graph, value)
    if node.is_constant:
        return DType.FP16.has(_number(node))
    if node.op == "mul":  # by name: by -1 it negates
        others = [each for each in node.inputs if not _is_minus_one(graph.nodes[each.node])]
        return len(others) < len(node.inputs) and all(_is_in_fp16(graph, each) for each in others)
    if node.accumulation is Accumulation.CONCAT:
        return all(_is_in_fp16(graph, each) for each in node.inputs)
    picked = [node.inputs[place] for place in OPERATORS[node.op].picks] if node.op in OPERATORS else []
    return node.is_iterator or (bool(picked) and all(_is_in_fp16(graph, each) for each in picked))


def _is_minus_one(node: Node) -> bool:
    return node.is_constant and _number(node) == -1


def _number(constant: Node) -> float:
    value = constant["value"]
    assert isinstance(value, Scalar)
    return float(value)
