"""The bound below which no schedule can go."""

from __future__ import annotations

import pytest

from mugraph.devices import device_for, roofline_seconds
from mugraph.ir import DType, Graph, GraphBuilder, Level


def product(rows: int, inner: int, columns: int) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (rows, inner), DType.BF16), kernel.input("w", (inner, columns), DType.BF16)
    return kernel.build([kernel.add("matmul", x, w)])


def test_a_skinny_product_is_bound_by_its_traffic() -> None:
    device = device_for("cuda:sm_90")
    elements = 8 * 4096 + 4096 * 4096 + 8 * 4096
    assert roofline_seconds(product(8, 4096, 4096), device) == pytest.approx(2 * elements / device.memory_bandwidth)


def test_a_large_product_is_bound_by_its_arithmetic() -> None:
    device = device_for("cuda:sm_90")
    assert roofline_seconds(product(4096, 4096, 4096), device) == pytest.approx(2 * 4096**3 / device.matmul_flops[DType.BF16])
