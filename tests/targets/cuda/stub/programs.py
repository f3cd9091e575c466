"""What is run on the stub: built before, as NVRTC does not work with a driver that is not NVIDIA's, and kept in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

import mugraph
from lower.graphs import chain_of_kernels, elementwise_kernel, rms_norm_linear
from lower.test_tensor_maps import product
from mugraph.devices import Engines
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.pieces.data import PartitionedResult
from mugraph.runtime import Executable
from mugraph.sizes.sliced_kernels import SlicedKernels
from mugraph.targets.cuda.machine import Cuda
from sizes.test_sliced_kernels import norm_linear

TARGET = "cuda:sm_90"
SHAPE = (64, 256)


def mixed() -> Graph:
    """A product by the library between two kernels."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = (kernel.input(name, (64, 64), DType.FP32) for name in ("x", "w"))
    product = kernel.add("matmul", elementwise_kernel(kernel, "tanh", [x]), w)
    return kernel.build([elementwise_kernel(kernel, "exp", [product])])


GRAPHS = {
    "one": rms_norm_linear(rows=16, inner=256, columns=64, dtype=DType.FP16),
    "two": chain_of_kernels(2, SHAPE),
    "three": chain_of_kernels(3, SHAPE),
    "mixed": mixed(),
    "early": chain_of_kernels(3, SHAPE),
    "early mixed": mixed(),
    "boxes": product(16, 512, 256, grid=2, loop=2, dtype=DType.FP16),
}
ENGINES = {
    "boxes": Engines(tensor_maps=True),
    "early": Engines(early_launches=True),
    "early mixed": Engines(early_launches=True),
}
"""Of those graphs that use more units than the device's description says."""


SLICED = {"rows": norm_linear(24, (3, 1)), "boxes": GRAPHS["boxes"]}
"""Graphs of which kernels compute the first slices, which lie in the first dimension of their first input."""

DIVIDED = "divided"
"""A folder with the saved result for a function that PyTorch runs a part of."""


def divided(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.relu(torch.exp(x * 2).cumsum(-1)) * 2 + 1, g.cumprod(0)


def save_divided(folder: Path) -> None:
    """Save the result, whose machine code is kept in the cache that the process on the stub has, too."""
    inputs = torch.randn(SHAPE), torch.randn(SHAPE[1])
    made = mugraph.superoptimize(divided, inputs, TARGET, 600, profile=False, cache="off")  # which ends long before
    assert isinstance(made, PartitionedResult)
    assert [len(part.executable.launches) for part in made.cut.plan.results.values()] == [1, 1], "before and behind a call"
    made.save(folder / DIVIDED)


def first_slices(name: str) -> SlicedKernels:
    """Kernels for the first slices, whose machine code is kept in the cache that the process on the stub has, too."""
    graph, machine = SLICED[name], replace(Cuda.of(TARGET), engines=ENGINES.get(name, Engines()))
    return SlicedKernels(Executable(graph, machine), (0, None), (0,), graph.inputs()[0].output.shape[0])


def built(name: str, folder: Path) -> Executable:
    """An executable of its own, its machine code from `folder` if that has it."""
    machine = Cuda.of(TARGET)
    return Executable(GRAPHS[name], replace(machine, engines=ENGINES.get(name, machine.engines)), cache_directory=folder)
