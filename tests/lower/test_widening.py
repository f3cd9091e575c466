"""Factors of fewer bits than their product's: widened once in shared memory, and copied there ahead of their iteration."""

from __future__ import annotations

import shutil

import pytest
import torch

from mugraph.devices import Device, device_for
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct, cooperative, lower
from mugraph.lower.check import check
from mugraph.lower.tile_form import Kernel, Matmul, Memory
from mugraph.lower.widening import with_widened_factors
from mugraph.runtime import Executable
from mugraph.search.algorithm1.candidates import demand
from mugraph.targets.cuda import print_program
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda

H100 = device_for("cuda:sm_90")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
KINDS = {DType.E4M3: torch.float8_e4m3fn, DType.E5M2: torch.float8_e5m2}
TYPES = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16}


def product(
    kind: DType = DType.E4M3, dtype: DType = DType.BF16, *, depth: int = 512, loop: int = 4, rows: int = 8, turned: bool = False
) -> Graph:
    """A product with weights of 8 bits, which lie along columns or, turned, along k."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (rows, depth), dtype), kernel.input("w", (96, depth) if turned else (depth, 96), kind)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    left = block.iterator(0, kernel.tensor(x), (None,), 1)
    weight = block.iterator(1, kernel.tensor(w), (0 if turned else 1,), 1 if turned else 0)
    right = block.add("transpose", weight, permutation=(1, 0)) if turned else weight
    total = block.add("accumulate", block.add("matmul", left, right), combine="sum")
    return construct(kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), [x, w])))


def lowered(graph: Graph, device: Device = H100) -> Kernel:
    (launch,) = lower(graph).values()
    kernel = cooperative(
        launch.kernel, device.shared_memory_bytes, engines=device.engines, multiprocessors=device.multiprocessors
    )
    check(kernel)
    return kernel


@pytest.mark.parametrize("turned", [False, True], ids=["along columns", "along k"])
def test_they_are_copied_ahead_and_read_by_ldmatrix(turned: bool) -> None:
    graph = product(turned=turned)
    kernel = lowered(graph)
    (matmul,) = (statement for statement in kernel.statements if isinstance(statement, Matmul))
    right = kernel.buffer(matmul.right.buffer)
    assert (right.memory, right.dtype) == (Memory.SHARED, DType.BF16)
    assert [staged.source.buffer for staged in kernel.staged] == ["in1"]
    text = print_program([kernel])
    assert "gather_right<" not in text
    assert "cp_async<16" in text


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_exact_weights(kind: DType, dtype: DType, turned: bool, architecture: str) -> None:
    graph = product(kind, dtype, turned=turned, rows=5)
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(node.output.shape, generator=generator) for node in graph.inputs())
    x, w = x.to(TYPES[dtype]), w.to(KINDS[kind])
    machine = EmulatedCuda(Cuda.of(f"cuda:{architecture}"), apart=True)
    (result,) = Executable(graph, machine)(x, w)
    assert machine.findings == []
    exact = x.double() @ (w.double().T if turned else w.double())
    assert (result.double() - exact).abs().max() < (1e-2 if dtype is DType.BF16 else 2e-3) * exact.abs().max()


def scaled_product(left: DType, right: DType, *, rows: int = 16) -> Graph:
    """A product of two tensors of 8 bits, in fp32."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (rows, 256), left), kernel.input("w", (256, 96), right)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    factors = block.iterator(0, kernel.tensor(x), (None,), 1), block.iterator(1, kernel.tensor(w), (1,), 0)
    total = block.add("accumulate", block.add("matmul", *factors), combine="sum")
    return construct(kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), [x, w])))


@needs_compiler
@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize(("left", "right"), [(DType.E4M3, DType.E4M3), (DType.E5M2, DType.E4M3), (DType.E5M2, DType.E5M2)])
def test_two_factors_of_fp8_are_multiplied_in_fp16_without_a_rounding(left: DType, right: DType, rows: int) -> None:
    """Every number of both types among them. Products are exact; hardware cuts off what of a sum of two is beyond fp32."""
    graph = scaled_product(left, right, rows=rows)
    (matmul,) = (statement for statement in lowered(graph).statements if isinstance(statement, Matmul))
    assert matmul.dtype is DType.FP16
    generator = torch.Generator().manual_seed(0)
    x, w = (every_number(KINDS[node.output.dtype], node.output.shape, generator) for node in graph.inputs())
    x[:, 2:] = 0  # two terms of up to 8 bits each
    machine = EmulatedCuda(Cuda.of("cuda:sm_90"), apart=True)
    (result,) = Executable(graph, machine)(x.to(KINDS[left]), w.to(KINDS[right]))
    assert machine.findings == []
    unit = 2.0**-23 * (x.double().abs() @ w.double().abs())
    assert ((result.double() - x.double() @ w.double()).abs() <= unit).all()


def every_number(kind: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Finite numbers of a type of 8 bits in random order, as fp32."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).float()
    finite = codes[codes.isfinite()]
    return finite[torch.randint(len(finite), shape, generator=generator)]


def test_fp16_has_all_numbers_of_fp8() -> None:
    for kind in KINDS.values():
        numbers = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).float()
        assert torch.equal(numbers.half().float().nan_to_num(nan=-1.0), numbers.nan_to_num(nan=-1.0))


def test_they_stay_where_they_are_without_room() -> None:
    graph = product(depth=8192, loop=2)
    (launch,) = lower(graph).values()
    assert with_widened_factors(launch.kernel) is not launch.kernel
    assert all(tile.buffer in ("in0", "in1") for s in lowered(graph).statements if isinstance(s, Matmul) for tile in s.sources)


def test_products_in_fp32_and_factors_of_16_bits_have_no_copies() -> None:
    for graph in (product(DType.E4M3, DType.FP32), product(DType.BF16, DType.BF16)):
        (launch,) = lower(graph).values()
        assert with_widened_factors(launch.kernel) is launch.kernel


def test_costs_expect_what_is_copied_ahead() -> None:
    """With more iterations there is room for the slots and the copy; with few there is not, and threads wait."""
    depth = 8192
    waiting = []
    for loop in (4, 32):
        graph = product(depth=depth, loop=loop)
        (body,) = (node.body for node in graph.kernels() if node.body is not None)
        waiting.append(demand(body, H100).waiting)
        assert bool(lowered(graph).staged) == (waiting[-1] == 0)
    assert waiting == [depth * 48, 0]
