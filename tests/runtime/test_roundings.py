"""Operators that round, in compiled kernels of every target: the bits of PyTorch's casts, with nothing left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.errors import UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.runtime import Executable, build
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.machine import Cpu

pytest.importorskip("torch", reason="roundings are compared with PyTorch's")
import torch

NARROW = {"round_fp16": torch.float16, "round_bf16": torch.bfloat16}
COLUMNS = 64


def floats() -> torch.Tensor:
    """Numbers of fp32 of every exponent and sign, each 16-bit number's neighbourhood, ties, infinities, NaN: [n, 64]."""
    generator = torch.Generator().manual_seed(0)
    patterns = (
        torch.randint(-(2**31), 2**31, (1 << 14,), generator=generator, dtype=torch.int64).to(torch.int32).view(torch.float32)
    )
    parts = [patterns, torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65519.9, 65520.0, 3.3961e38, 1e-45])]
    for dtype in NARROW.values():
        exact = torch.arange(0, 1 << 16, 5, dtype=torch.int32).to(torch.uint16).view(dtype).float()
        middle = ((exact.double() + exact.roll(-1).double()) / 2).float()
        parts += [exact, middle, middle.nextafter(torch.tensor(1e38)), middle.nextafter(torch.tensor(-1e38))]
    values = torch.cat(parts)
    return values[: values.numel() // COLUMNS * COLUMNS].reshape(-1, COLUMNS)


def rounding_graph(name: str, rows: int) -> Graph:
    """x rounded, and what rounding 3 x takes away, in one kernel: [rows, 64] both."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, COLUMNS), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(rows // 2,))
    tile = block.iterator(0, kernel.tensor(x), (0,), None)
    product = block.add("mul", tile, block.constant(3, DType.FP32))
    rest = block.add("sub", product, block.add(name, product))
    saved = [block.add("output_saver", value, omap=(0,)) for value in (block.add(name, tile), rest)]
    return kernel.build(kernel.graph_defined(block.build(saved), [x]))


def check(name: str, run: Callable[[Graph], Executable], rows: int | None = None) -> None:
    x = floats()[:rows]
    x = x[: len(x) // 2 * 2]
    rounded, rest = run(rounding_graph(name, len(x)))(x)
    wanted = x.to(NARROW[name]).float()
    torch.testing.assert_close(rounded, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(rounded[~wanted.isnan()]), torch.signbit(wanted[~wanted.isnan()]))
    lost = 3 * x - (3 * x).to(NARROW[name]).float()
    torch.testing.assert_close(rest, lost, rtol=0, atol=0, equal_nan=True)
    assert (lost.nan_to_num(0, 0, 0) != 0).float().mean() > 0.3


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("vectors", [Vectors(16, 32), Vectors(8, 16), Vectors(4, 16)], ids=lambda v: f"{v.lanes} lanes")
def test_compiled_c_rounds(name: str, vectors: Vectors) -> None:
    check(name, lambda graph: Executable(graph, Cpu(vectors)))


@pytest.mark.parametrize("name", NARROW)
def test_emulated_cuda_rounds(name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("the emulator compiles kernels with g++")
    from mugraph.targets.cuda.emulated import EmulatedCuda
    from mugraph.targets.cuda.machine import Cuda

    check(name, lambda graph: Executable(graph, EmulatedCuda(Cuda.of("cuda:sm_90"))), rows=128)


@pytest.mark.parametrize("name", NARROW)
def test_interpreted_triton_rounds(name: str) -> None:
    pytest.importorskip("triton")
    from mugraph.targets.triton.interpreted import InterpretedTriton
    from mugraph.targets.triton.machine import Triton

    check(name, lambda graph: Executable(graph, InterpretedTriton(Triton.of("triton:sm_90"))), rows=16)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_triton_leaves_the_roundings_in_machine_code(architecture: str) -> None:
    pytest.importorskip("triton")
    from mugraph.targets.triton.machine import Triton

    def ptx(name: str) -> str:
        machine = Triton.of(f"triton:{architecture}")
        (launch,) = machine.lower(rounding_graph(name, 8)).values()
        return str(machine.compiled(launch.kernel, machine.print([launch.kernel])).handle.asm["ptx"])

    assert "cvt.rn.f16.f32" in ptx("round_fp16")
    assert "cvt.f32.f16" in ptx("round_fp16")
    assert "32767" in ptx("round_bf16")


@pytest.mark.parametrize("name", NARROW)
def test_a_rounding_of_its_own_is_computed_by_the_library(name: str) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (2, COLUMNS), DType.FP32)
    graph = kernel.build([kernel.add(name, x)])
    values = floats()[:2]
    for given in (values, values.numpy()):
        (result,) = build(graph)(given)
        np.testing.assert_array_equal(np.asarray(result), values.to(NARROW[name]).float().numpy())


def test_kernels_do_not_pretend_to_compute_in_fp64() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4, 8), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    wide = block.add("cast", block.iterator(0, kernel.tensor(x), (0,), None), dtype=DType.FP64)
    narrow = block.add("cast", block.add("square", wide), dtype=DType.FP32)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", narrow, omap=(0,))]), [x]))
    with pytest.raises(UnsupportedOperator, match=r"kernels compute in fp32 and cannot take fp64 tensors \(kernel_1, cast\)"):
        build(graph)
