"""The time below which no schedule of a program can go: its compulsory traffic and arithmetic at the device's full rates."""

from __future__ import annotations

from mugraph.devices.device import Device
from mugraph.ir.cores import bytes_read
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.ir.ops import flops_of, is_contraction


def roofline_seconds(program: Graph, device: Device) -> float:
    """Seconds to read a kernel graph's inputs and write its outputs once, or to do its matrix products if that is longer."""
    return max(memory_seconds(program, device), arithmetic_seconds(program, device))


def memory_seconds(program: Graph, device: Device) -> float:
    """Seconds to read a kernel graph's inputs and write its outputs once."""
    return compulsory_bytes(program) / device.memory_bandwidth


def arithmetic_seconds(program: Graph, device: Device) -> float:
    """Seconds of a kernel graph's matrix products at the device's full rate."""
    return sum(flops / device.matmul_flops[dtype.of_arithmetic] for dtype, flops in product_flops(program).items())


def compulsory_bytes(program: Graph) -> int:
    """Bytes of a kernel graph's inputs, of tables only of what is looked up in them, and of its outputs."""
    return bytes_read(program) + sum(tensor.bytes for tensor in program.output_tensors)


def product_flops(program: Graph) -> dict[DType, float]:
    """Floating-point operations of a kernel graph's products, by the type of their results."""
    flops: dict[DType, float] = {}
    for node in program.nodes:
        if is_contraction(node.op):
            flops[node.output.dtype] = flops.get(node.output.dtype, 0.0) + flops_of(program, [node])
    return flops
