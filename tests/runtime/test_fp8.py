"""Floating-point numbers of 8 bits as inputs of programs: read as they are, proved as variables, computed with in other types."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import mugraph
from mugraph.checker import check_folder
from mugraph.checker.form import check_shapes
from mugraph.checker.saved_files import Rejected
from mugraph.devices import device_for
from mugraph.errors import NotAProgram, UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.captured_tensors import has_negative_zeros
from mugraph.ir import DType, GraphBuilder, Level
from mugraph.ir.serialize import graph_to_json
from mugraph.lower import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.emulator import emulator_of
from mugraph.targets.machine import machine_for

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
ROWS, DEPTH, COLUMNS = 8, 128, 96
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

Function = Callable[..., torch.Tensor]


def codes(dtype: torch.dtype) -> torch.Tensor:
    """Every number of a type, with infinities and NaN, [256]."""
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)


def finite(dtype: torch.dtype) -> torch.Tensor:
    """Every finite number of a type, and zeros, [256]."""
    every = codes(dtype)
    return torch.where(every.float().isfinite(), every.view(torch.uint8), 0).to(torch.uint8).view(dtype)


def scaled(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x @ weight.to(x.dtype).t()) * scale


def given(kind: torch.dtype, dtype: torch.dtype, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(rows, DEPTH).to(dtype), torch.randn(COLUMNS, DEPTH).to(kind), (torch.rand(COLUMNS) + 0.5).to(dtype)


def relative(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())


def read(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.exp() * w.to(x.dtype)


@pytest.mark.parametrize("columns", [256, 250])
@pytest.mark.parametrize("dtype", FP8)
def test_kernels_read_every_number_as_pytorch_does(dtype: torch.dtype, columns: int) -> None:
    x, w = torch.randn(3, columns), codes(dtype)[:columns]
    (result,) = build(trace(read, (x, w)).graph)(x, w)
    torch.testing.assert_close(result, read(x, w), rtol=1e-6, atol=0, equal_nan=True)
    exact = read(torch.zeros(3, columns), w)
    (result,) = build(trace(read, (x, w)).graph)(torch.zeros(3, columns), w)
    torch.testing.assert_close(result, exact, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", FP8)
def test_weights_with_scales_are_part_of_one_kernel(kind: torch.dtype, dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = given(kind, dtype)
    opt = mugraph.superoptimize(scaled, inputs, profile=False)
    assert opt.found
    assert opt.certificate.accepted
    assert [kernel.op for kernel in opt.graph.kernels()] == ["graph_defined"]
    exact = scaled(*(tensor.double() for tensor in inputs))
    assert relative(opt(*inputs), exact) < {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    opt.save(tmp_path / "result")
    assert (check_folder(tmp_path / "result").error_bound or 1) < 1e-12
    assert torch.equal(mugraph.load(tmp_path / "result")(*inputs), opt(*inputs))


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("kind", FP8)
def test_parameters_of_modules(kind: torch.dtype, rows: int) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            _, weight, scale = given(kind, torch.bfloat16)
            self.weight, self.scale = (torch.nn.Parameter(each, requires_grad=False) for each in (weight, scale))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(x, self.weight, self.scale)

    layer, (x, _, _) = Layer(), given(kind, torch.bfloat16, rows)
    scale = layer.scale.detach()
    opt = mugraph.superoptimize(layer, (x,), budget=10)
    assert relative(opt(x), scaled(x.double(), layer.weight.double(), scale.double())) < 1e-2
    with torch.no_grad():
        layer.weight.copy_(finite(kind)[: layer.weight.shape[1]].expand_as(layer.weight))
    changed = scaled(x.double(), layer.weight.double(), scale.double())
    assert relative(opt(x), changed) < 1e-2, "a weight that changed in place is read anew"


def multiplied(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)


@pytest.mark.parametrize(("scale_a", "scale_b"), [((), ()), ((1,), (1, 1)), ((16, 1), (1, COLUMNS))])
def test_pytorchs_scaled_product_is_a_program(scale_a: tuple[int, ...], scale_b: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(size, DEPTH).to(torch.float8_e4m3fn) for size in (16, COLUMNS))
    inputs = a, b, torch.rand(scale_a) + 0.5, torch.rand(scale_b) + 0.5
    opt = mugraph.superoptimize(multiplied, inputs, profile=False)
    assert opt.found
    assert opt.certificate.accepted
    exact = a.double() @ b.double().t() * inputs[2].double() * inputs[3].double()
    assert relative(opt(*inputs), exact) < 5e-3
    torch.testing.assert_close(opt(*inputs), multiplied(*inputs), rtol=2e-2, atol=2e-2)


def test_a_bias_is_added_to_the_scaled_product() -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(size, DEPTH).to(torch.float8_e4m3fn) for size in (16, COLUMNS))
    inputs = a, b, torch.tensor(0.5), torch.tensor(1.5), torch.randn(COLUMNS).bfloat16()

    def biased(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), x, y, bias, out_dtype=torch.bfloat16)

    (result,) = build(trace(biased, inputs).graph)(*inputs)
    assert relative(result, a.double() @ b.double().t() * 0.75 + inputs[-1].double()) < 5e-3
    torch.testing.assert_close(result, biased(*inputs), rtol=2e-2, atol=2e-2)


def test_other_scales_of_the_product_are_refused() -> None:
    a, b = (torch.randn(256, 256).to(torch.float8_e4m3fn) for _ in range(2))
    with pytest.raises(NotAProgram, match="it takes a scale of each factor, or of each row and column"):
        trace(multiplied, (a, b, torch.rand(256, 2), torch.rand(2, 2)))


REFUSED: dict[str, tuple[Function, str]] = {
    "rounding": (lambda w: (w.float() * 2).to(w.dtype).float(), "computes e4m3fn and rounds to it"),
    "sums": (lambda w: (w + 1).float(), "computes e4m3fn and rounds to it"),
    "numbers that are rounded": (lambda w: torch.where(w < 0.3, 1.0, 2.0), "compares torch.float8_e4m3fn with a number"),
    "a lone number": (lambda w: torch.where(w[0, 0] == 0.3, 1.0, 2.0) + w.float(), "compares torch.float8_e4m3fn with a number"),
    "bits": (lambda w: w.view(torch.uint8).float(), "view"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_would_round_to_fp8_is_refused(name: str) -> None:
    function, why = REFUSED[name]
    with pytest.raises(NotAProgram, match=why):
        trace(function, (torch.randn(4, 4).to(torch.float8_e4m3fn),))


def test_functions_that_round_to_fp8_keep_that_in_pytorch() -> None:
    def quantized(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        own = x.abs().amax(-1, keepdim=True) / 448
        product = torch._scaled_mm((x / own).to(w.dtype), w.t(), own, scale, out_dtype=torch.bfloat16)
        return torch.relu(product) * 2

    inputs = torch.randn(16, DEPTH), torch.randn(COLUMNS, DEPTH).to(torch.float8_e4m3fn), torch.rand(1, COLUMNS)
    opt = mugraph.superoptimize(quantized, inputs, budget=10, profile=False)
    torch.testing.assert_close(opt(*inputs), quantized(*inputs), rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("kind", FP8)
def test_results_of_fp8_are_left_to_pytorch(kind: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = (x * 2).softmax(-1)
        return (weights * 100).to(kind), weights

    x = torch.randn(8, 64)
    for got, wanted in zip(mugraph.superoptimize(function, (x,), budget=10)(x), function(x), strict=True):
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0.25, atol=1e-6)


@pytest.mark.parametrize("kind", FP8)
def test_functions_with_tensors_of_fp8_are_compared(kind: torch.dtype) -> None:
    weight = torch.randn(32, DEPTH).to(kind)
    weight[0, 0] = -0.0
    assert has_negative_zeros(weight)

    def one(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight.float().t()) * 2

    def other(x: torch.Tensor) -> torch.Tensor:
        return (x * 2) @ weight.float().t()

    x = torch.randn(8, DEPTH)
    assert mugraph.verify(one, other, (x,)).equivalent
    assert mugraph.verify(lambda x: one(x.sort(-1).values), lambda x: other(x.sort(-1).values), (x,)).equivalent


def test_sizes_of_fp8_inputs_may_be_reduced() -> None:
    """What lies behind their elements is no infinity, of which e4m3fn has none."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.float(), 0) * 1.5

    inputs = [torch.randn(size, 64).to(torch.float8_e4m3fn) for size in (8, 5)]
    opt = mugraph.superoptimize_dynamic(function, (inputs[0],), {0: {0: mugraph.Dim("n", 1, 16)}}, budget=6)
    for x in inputs:
        torch.testing.assert_close(opt(x), function(x))


@pytest.mark.parametrize("dtype", [DType.E4M3, DType.E5M2])
def test_only_inputs_are_of_fp8_for_graphs_and_their_checker(dtype: DType) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4, 4), DType.FP32)
    with pytest.raises(UnsupportedOperator, match=f"only inputs are {dtype}"):
        kernel.add("cast", x, dtype=dtype)
    graph = cast("Any", graph_to_json(kernel.build([kernel.add("cast", x, dtype=DType.BF16)]))["graph"])
    check_shapes(graph, "graph")
    (rounding,) = (node for node in graph["nodes"] if node["op"] == "cast")
    rounding["attributes"]["dtype"]["dtype"] = str(dtype)
    with pytest.raises(Rejected, match=f"nothing but inputs is {dtype}"):
        check_shapes(graph, "graph")


def moved(w: torch.Tensor) -> torch.Tensor:
    return torch.cat((w.t(), w.t()), 1)


def on_gpu(function: Function, inputs: tuple[torch.Tensor, ...], target: str) -> torch.Tensor:
    """The result of the kernels for a GPU, on what runs them here."""
    graph = construct(search(trace(function, inputs).graph, device_for(target)).candidates[0].graph)
    machine: Any = emulator_of(machine_for(target))
    (result,) = Executable(graph, machine)(*inputs)
    assert list(machine.findings) == []
    assert isinstance(result, torch.Tensor)
    return result


@needs_compiler
@pytest.mark.parametrize("kind", FP8)
def test_kernels_for_gpus_read_every_number(kind: torch.dtype) -> None:
    pytest.importorskip("cuda.core")
    x, w = torch.randn(3, 256), codes(kind)
    torch.testing.assert_close(on_gpu(read, (x, w), "cuda:sm_90"), read(x, w), rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", FP8)
def test_triton_reads_every_finite_number(kind: torch.dtype) -> None:
    """Its interpreter knows no infinities and NaN of these types."""
    pytest.importorskip("triton")
    x, w = torch.randn(3, 256), finite(kind)
    torch.testing.assert_close(on_gpu(read, (x, w), "triton:sm_90"), read(x, w), rtol=1e-5, atol=0)


@pytest.mark.parametrize("target", ["cpu", pytest.param("cuda:sm_90", marks=needs_compiler)])
@pytest.mark.parametrize("kind", FP8)
def test_numbers_that_are_moved_keep_their_bytes(kind: torch.dtype, target: str) -> None:
    w = finite(kind).reshape(16, 16)
    graph = GraphBuilder(Level.KERNEL)
    x = graph.input("x", (16, 16), DType.E4M3 if kind is torch.float8_e4m3fn else DType.E5M2)
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    turned = block.add("transpose", block.iterator(0, graph.tensor(x), (1,), None), permutation=(1, 0))
    kernels = graph.build(graph.graph_defined(block.build([block.add("output_saver", turned, omap=(0,))]), [x]))
    machine = machine_for(target) if target == "cpu" else EmulatedCuda(Cuda.of(target))
    (result,) = Executable(kernels, machine)(w)
    assert torch.equal(result.view(torch.uint8), w.t().contiguous().view(torch.uint8))


@needs_compiler
@pytest.mark.parametrize("kind", FP8)
def test_scaled_weights_on_gpus(kind: torch.dtype) -> None:
    pytest.importorskip("cuda.core")
    inputs = given(kind, torch.bfloat16)
    exact = scaled(*(tensor.double() for tensor in inputs))
    assert relative(on_gpu(scaled, inputs, "cuda:sm_90"), exact) < 1e-2
    graph = construct(search(trace(scaled, inputs).graph, device_for("cuda:sm_90")).candidates[0].graph)
    for architecture in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120"):
        resources = Executable(graph, Cuda.of(f"cuda:{architecture}")).resources
        assert all(kernel.spill_bytes == 0 for kernel in resources)


def test_triton_reads_e4m3fn_from_compute_capability_8_9_on() -> None:
    pytest.importorskip("triton")
    inputs = given(torch.float8_e4m3fn, torch.bfloat16)
    with pytest.raises(UnsupportedOperator, match=r"Triton reads no e4m3fn on sm_80 \(input weight\); use target='cuda"):
        build(trace(scaled, inputs).graph, "triton:sm_80")
    assert np.isfinite(relative(on_gpu(scaled, inputs, "triton:sm_90"), scaled(*(tensor.double() for tensor in inputs))))
