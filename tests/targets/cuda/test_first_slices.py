"""CUDA kernels that compute as many slices as a launch says: the bits of those for all, and nothing touched behind."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from lower.graphs import attention
from mugraph.devices import Engines
from mugraph.errors import UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.tile_form import Bands, Kernel, Memory
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.runtime import Executable
from mugraph.sizes.sliced_kernels import SlicedKernels, example_inputs
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda, launch_shape
from mugraph.targets.cuda.nvrtc import SOURCE_NAME
from sizes.test_sliced_kernels import (
    added,
    dot_products,
    drawn,
    norm_linear,
    program,
    split_k,
    turned,
    two_kernels,
)
from sizes.test_sliced_kernels import attention as heads
from targets.test_cuda import ERRORS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

PLAIN, BULK, MAPS = Engines(), Engines(bulk_row_bytes=32), Engines(tensor_maps=True)
GROUPS = Engines(warp_group_rows=1, tensor_maps=True, producer_warps=True)


def on(engines: Engines = PLAIN, edit: Callable[[str], str] = str, **more: int) -> EmulatedCuda:
    """An emulator whose warps take turns in a random order."""
    return EmulatedCuda(Cuda("sm_90", 100_000, engines=engines, **more), seed=3, edit=edit)


def softmax(rows: int, width: int, blocks: int) -> Graph:
    """Rows of few numbers, which runs of one load reach across."""
    kernel, (x,) = program(((rows, width), DType.FP32))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    powers = block.add("exp", block.iterator(0, kernel.tensor(x), (0,), None))
    total = block.add("sum", powers, dim=1, size=width)
    saved = block.add("output_saver", block.add("div", powers, total), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), [x])))


def doubled(rows: int, width: int, blocks: int, dtype: DType = DType.FP32) -> Graph:
    """Rows and nothing else, one run of numbers behind another."""
    kernel, (x,) = program(((rows, width), dtype))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    inside = block.iterator(0, kernel.tensor(x), (0,), None)
    saved = block.add("output_saver", block.add("add", inside, inside), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), [x])))


def linear(rows: int, inner: int, columns: int, grid: tuple[int, int], loop: int, dtype: DType) -> Graph:
    """Rows times a matrix, and an epilogue that reads them again."""
    kernel, values = program(((rows, inner), dtype), ((inner, columns), dtype), ((rows, columns), dtype))
    block = GraphBuilder(Level.BLOCK, grid=grid, loop=loop)
    x = block.iterator(0, kernel.tensor(values[0]), (0, None), 1)
    w = block.iterator(1, kernel.tensor(values[1]), (None, 1), 0)
    bias = block.iterator(2, kernel.tensor(values[2]), (0, 1), None)
    total = block.add("accumulate", block.add("matmul", x, w), combine="sum")
    saved = block.add("output_saver", block.add("mul", total, bias), omap=(0, 1))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), values)))


def sliced(graph: Graph, machine: EmulatedCuda, dims: tuple[int | None, ...]) -> tuple[Executable, SlicedKernels]:
    """A graph's kernels, and those for its first slices, which are in these dimensions of the inputs."""
    executable = Executable(graph, machine)
    number, dim = next((number, dim) for number, dim in enumerate(dims) if dim is not None)
    capacity = graph.inputs()[number].output.shape[dim]
    return executable, SlicedKernels(executable, dims, (dims[0],) * len(graph.outputs), capacity)


CASES: dict[str, tuple[Graph, Engines, tuple[int | None, ...]]] = {
    "every block has all rows": (norm_linear(24, (1, 2)), PLAIN, (0, None)),
    "a grid along rows": (norm_linear(24, (3, 1)), PLAIN, (0, None)),
    "a grid along both": (norm_linear(20, (2, 5)), PLAIN, (0, None)),
    "rows one by one": (norm_linear(12, (12, 1)), PLAIN, (0, None)),
    "a prime number of rows": (norm_linear(13, (1, 1)), PLAIN, (0, None)),
    "bf16": (norm_linear(24, (2, 1), DType.BF16), PLAIN, (0, None)),
    "dot products of bf16": (dot_products(7, DType.BF16), PLAIN, (0, None)),
    "runs across rows": (softmax(24, 7, 2), PLAIN, (0,)),
    "a run of several rows": (doubled(24, 2, 3), PLAIN, (0,)),
    "rows of a single byte": (doubled(24, 1, 1, DType.INT8), PLAIN, (0,)),
    "a table that is cut as rows are": (added(24, 3), PLAIN, (0, None)),
    "two kernels": (two_kernels(12), Engines(early_launches=True), (1, None)),
    "parts of k": (split_k(6), Engines(early_launches=True), (0, None)),
    "halves beside each other": (turned(8, 2), PLAIN, (0, None)),
    "heads of a sample": (heads(6, 6), PLAIN, (0, 0, 0)),
    "heads of several samples": (heads(6, 2), PLAIN, (0, 0, 0)),
    "a part of a sample": (heads(6, 12), PLAIN, (0, 0, 0)),
    "an epilogue in registers": (linear(40, 128, 96, (1, 2), 2, DType.FP16), PLAIN, (0, None, 0)),
    "bulk copies": (linear(40, 128, 96, (2, 1), 2, DType.FP16), BULK, (0, None, 0)),
    "tensor maps": (linear(40, 128, 64, (2, 1), 2, DType.BF16), MAPS, (0, None, 0)),
    "warp groups": (linear(128, 128, 64, (2, 1), 2, DType.BF16), GROUPS, (0, None, 0)),
    "scores in registers": (attention(queries=16, keys=128, width=64, loop=4, dtype=DType.FP16, grid=2), PLAIN, (0, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_first_slices_have_the_bits_of_all(name: str) -> None:
    """At corners of sizes, with NaN behind the inputs; the emulator reports what is read or written behind them."""
    graph, engines, dims = CASES[name]
    machine = on(engines)
    executable, kernels = sliced(graph, machine, dims)
    example = example_inputs(graph)
    exact = evaluate(graph, [tensor.double().numpy() for tensor in example], FloatArithmetic())
    for made, wanted in zip(executable(*example), exact, strict=True):
        tolerance = ERRORS.get(graph.output_tensors[0].dtype, 0.0) * float(np.abs(wanted).max())
        np.testing.assert_allclose(made.double().numpy(), wanted, rtol=0, atol=2 * tolerance)
    assert kernels.agree_with(executable, example)
    assert machine.findings == []
