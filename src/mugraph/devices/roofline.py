"""The time below which no schedule of a program can go: its compulsory traffic and arithmetic at the device's full rates."""

from __future__ import annotations

from typing import NamedTuple

from mugraph.devices.device import Device
from mugraph.ir.cores import bytes_read
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.ir.ops import is_contraction, operator


class ProductTypes(NamedTuple):
    """The types of a product's factors and of its result."""

    left: DType
    right: DType
    result: DType


def roofline_seconds(program: Graph, device: Device) -> float:
    """Seconds to read a kernel graph's inputs and write its outputs once, or to do its matrix products if that is longer."""
    return max(memory_seconds(program, device), arithmetic_seconds(program, device))


def memory_seconds(program: Graph, device: Device) -> float:
    """Seconds to read a kernel graph's inputs and write its outputs once."""
    return compulsory_bytes(program) / device.memory_bandwidth


def arithmetic_seconds(program: Graph, device: Device) -> float:
    """Seconds of a kernel graph's matrix products at the device's full rate."""
    return sum(flops / device.product_rate(*types) for types, flops in product_flops(program).items())


def compulsory_bytes(program: Graph) -> int:
    """Bytes of a kernel graph's inputs, of tables only of what is looked up in them, and of its outputs."""
    return bytes_read(program) + sum(tensor.bytes for tensor in program.output_tensors)


def product_flops(program: Graph) -> dict[ProductTypes, float]:
    """Floating-point operations of a kernel graph's products, by the types of their factors and results."""
    flops: dict[ProductTypes, float] = {}
    for node in program.nodes:
        tensors = [program.tensor(value) for value in node.inputs]
        for left, right in operator(node.op).products if is_contraction(node.op) else ():
            types = ProductTypes(tensors[left].dtype, tensors[right].dtype, node.output.dtype)
            flops[types] = flops.get(types, 0.0) + 2.0 * node.output.elements * tensors[left].shape[-1]
    return flops
