"""Predicted seconds of a finished muGraph: a roofline for each kernel, to rank what Algorithm 1 found."""

from __future__ import annotations

import math

from mugraph.devices import Device
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import Graph, Node
from mugraph.ir.ops import GRAPH_DEFINED, OPERATORS, Scope, apply_call

_MATMULS = frozenset({"matmul", "concat_matmul"})


def predicted_seconds(graph: Graph, device: Device) -> float:
    """Seconds of all kernels of a kernel graph on `device`: each is bound by device memory or by arithmetic."""
    total = 0.0
    for node in graph.kernels():
        moved = sum(graph.tensor(value).bytes for value in node.inputs) + sum(tensor.bytes for tensor in node.outputs)
        compute = _body_seconds(node.body, device) if node.body is not None else _operator_seconds(graph, node, device)
        total += device.launch_seconds + max(moved / device.memory_bandwidth, compute)
    return total


def _body_seconds(body: Graph, device: Device) -> float:
    """Arithmetic of all blocks, with the multiprocessors that the last wave leaves idle, and the for-loop's own time."""
    blocks = math.prod(body.grid)
    waves = math.ceil(blocks / device.multiprocessors)
    inside = loop_nodes(body)
    block = 0.0
    for index, node in enumerate(body.nodes):
        if node.op in OPERATORS:
            block += _operator_seconds(body, node, device) * (body.loop if index in inside else 1)
        elif node.op == GRAPH_DEFINED and node.body is not None:
            block += sum(_operator_seconds(node.body, inner, device) for inner in node.body.nodes)
    return waves * (block * device.multiprocessors + (body.loop - 1) * device.iteration_seconds)


def _operator_seconds(graph: Graph, node: Node, device: Device) -> float:
    tensors = [graph.tensor(value) for value in node.inputs]
    call = apply_call(node.op, tensors, dict(node.attributes), Scope(graph.grid, graph.loop))
    flops = OPERATORS[node.op].flops(call, node.output.shape) if tensors else 0
    return flops / (
        device.matmul_flops.get(tensors[0].dtype, device.matmul_flops[DType.FP32]) if node.op in _MATMULS else device.vector_flops
    )
