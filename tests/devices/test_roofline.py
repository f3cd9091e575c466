"""The bound below which no schedule can go."""

from __future__ import annotations

import pytest

from mugraph.devices import device_for, roofline_seconds
from mugraph.devices.roofline import arithmetic_seconds
from mugraph.ir import DType, Graph, GraphBuilder, Level


def product(rows: int, inner: int, columns: int, left: DType = DType.BF16, right: DType = DType.BF16) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (rows, inner), left), kernel.input("w", (inner, columns), right)
    return kernel.build([kernel.add("matmul", x, w)])


def test_a_skinny_product_is_bound_by_its_traffic() -> None:
    device = device_for("cuda:sm_90")
    elements = 8 * 4096 + 4096 * 4096 + 8 * 4096
    assert roofline_seconds(product(8, 4096, 4096), device) == pytest.approx(2 * elements / device.memory_bandwidth)


def test_a_large_product_is_bound_by_its_arithmetic() -> None:
    device = device_for("cuda:sm_90")
    assert roofline_seconds(product(4096, 4096, 4096), device) == pytest.approx(2 * 4096**3 / device.matmul_flops[DType.BF16])


@pytest.mark.parametrize(
    ("left", "right", "target", "multiplied"),
    [
        (DType.E4M3, DType.E4M3, "cuda:sm_90", DType.FP16),
        (DType.E5M2, DType.E4M3, "cuda:sm_100", DType.FP16),
        (DType.BF16, DType.E4M3, "cuda:sm_90", DType.BF16),
        (DType.E4M3, DType.INT8, "cuda:sm_90", DType.FP32),
        (DType.INT8, DType.INT8, "cuda:sm_90", DType.FP32),
        (DType.E4M3, DType.E4M3, "triton:sm_90", DType.FP32),
        (DType.E4M3, DType.E4M3, "triton:gfx942", DType.FP32),
        (DType.E4M3, DType.E4M3, "cpu", DType.FP32),
    ],
)
def test_products_of_two_inputs_of_fp8_are_bound_by_the_type_they_are_multiplied_in(
    left: DType, right: DType, target: str, multiplied: DType
) -> None:
    device = device_for(target)
    bound = 2 * 4096**3 / device.matmul_flops[multiplied]
    assert roofline_seconds(product(4096, 4096, 4096, left, right), device) == pytest.approx(bound)


def test_products_of_a_sum_are_each_counted_by_their_types() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    names, kinds = "abcd", (DType.E4M3, DType.FP32, DType.E4M3, DType.FP32)
    shapes = ((512, 4096), (512, 1024), (4096, 512), (1024, 512))
    inputs = [kernel.input(name, shape, kind) for name, shape, kind in zip(names, shapes, kinds, strict=True)]
    device = device_for("cuda:sm_90")
    halves = 2 * 512 * 512 * 4096 / device.matmul_flops[DType.FP16], 2 * 512 * 512 * 1024 / device.matmul_flops[DType.FP32]
    assert arithmetic_seconds(kernel.build([kernel.add("concat_matmul", *inputs)]), device) == pytest.approx(sum(halves))
