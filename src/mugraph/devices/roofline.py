"""The time below which no schedule of a program can go: its compulsory traffic and arithmetic at the device's full rates."""

from __future__ import annotations

from mugraph.devices.device import Device
from mugraph.ir.graph import Graph
from mugraph.ir.ops import OPERATORS, apply_call, is_contraction


def roofline_seconds(program: Graph, device: Device) -> float:
    """Seconds to read a kernel graph's inputs and write its outputs once, or to do its matrix products if that is longer."""
    tensors = [node.output for node in program.inputs()] + list(program.output_tensors)
    traffic = sum(tensor.bytes for tensor in tensors) / device.memory_bandwidth
    arithmetic = 0.0
    for node in program.nodes:
        if is_contraction(node.op):
            call = apply_call(node.op, [program.tensor(value) for value in node.inputs], dict(node.attributes))
            arithmetic += OPERATORS[node.op].flops(call, node.output.shape) / device.matmul_flops[node.output.dtype]
    return max(traffic, arithmetic)
