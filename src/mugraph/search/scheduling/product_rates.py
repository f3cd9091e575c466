"""How fast products are taken to be in a program, in generated kernels and by a library, by what it multiplies and how many rows.

Packed weights, and matrices of a batch that stay in a core's cache, are met faster than factors whose rows lie far apart, and a
matrix unit multiplies sixteen rows in the time of one. Costs have one share of a machine's rate for all products of a program:
that of the slowest kind.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.devices import Device
from mugraph.devices.device import RightFactor
from mugraph.ir.graph import Graph, Node, owner_of
from mugraph.ir.ops import is_contraction

_ROWS = 16
"""Of each left matrix of a batch, from which on what is prepared of the right one serves enough of them."""


def with_product_rate(program: Graph, device: Device) -> Device:
    """The machine as costs see it in a kernel graph, whose constants are weights that are packed.

    Reading factors counts by itself where products are alike in that.
    """
    machines = [_multiplying(program, node, device) for node in program.nodes if is_contraction(node.op)]
    slowest = min(machines, key=lambda machine: machine.product_efficiency, default=device)
    if all(_as_they_read(machine) == _as_they_read(slowest) for machine in machines):
        return slowest
    return replace(slowest, product_rows=0, product_reading=0.0, product_left=0.0, computed_factor_seconds={})


def _as_they_read(machine: Device) -> tuple[object, ...]:
    """What costs know of the factors of products beside their rate."""
    return machine.product_rows, machine.product_reading, machine.product_left, machine.computed_factor_seconds


def _multiplying(program: Graph, product: Node, device: Device) -> Device:
    """The machine as costs see it in programs of nothing but such products.

    A library multiplies several pairs of matrices by code of its own, of whatever size they are.
    """
    left, right = program.tensor(product.inputs[0]), program.tensor(product.inputs[-1])
    rows = math.prod(product.output.shape[:-1]) // math.prod(right.shape[:-2])  # of each right matrix
    if owner_of(program, product.inputs[-1]).node in program.constants:
        return device.multiplying(RightFactor.PACKED, left.dtype, rows)
    if math.prod(right.shape[:-2]) == 1:
        return device.multiplying(RightFactor.PLAIN, left.dtype, rows)
    small = right.shape[-2] * right.shape[-1] * right.dtype.bytes <= device.shared_memory_bytes
    by = RightFactor.BATCHED if small and left.shape[-2] >= _ROWS else RightFactor.PLAIN
    return device.multiplying(by, left.dtype, left.shape[-2], RightFactor.BATCHED)
