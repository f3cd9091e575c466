"""Large exponents: products in them are rounded as those are of which the maximum was taken."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.lower.scalar_expressions import ROUNDED, Apply, Source, apply_row, as_written
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from targets.test_triton import program_text

LARGE = 1e12


def scaled(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.2041, -1) @ values


def divided(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x / x.abs().mean(-1, keepdim=True) * 7e11, -1) @ values


def quotients(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    scores = x / values.square().mean(-1, keepdim=True)
    return (scores - scores.amax(-1, keepdim=True)).exp()


def masked(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.2041 + x.mT, -1) @ values


FUNCTIONS = [scaled, divided, quotients, masked]
INPUTS = (LARGE * torch.randn(24, 24, generator=torch.Generator().manual_seed(1)), torch.randn(24, 16))


def test_products_that_are_added_are_rounded_first() -> None:
    x, y, z = map(Source, range(3))
    product = apply_row("mul", [x, y])
    exponent = apply_row("exp", [apply_row("sub", [product, z])])
    assert as_written(exponent) == apply_row("exp", [apply_row("sub", [Apply(ROUNDED, (product,)), z])])
    assert as_written(apply_row("mul", [product, z])) == apply_row("mul", [product, z])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_kernels_of_the_cpu_stay_within_the_range_of_numbers(function: Callable[..., torch.Tensor]) -> None:
    found = search(trace(function, INPUTS).graph, device_for("cpu"), budget=5.0).candidates
    assert found
    for candidate in found:
        (result,) = build(construct(candidate.graph), "cpu")(*INPUTS)
        assert bool(torch.isfinite(result).all())
        assert float(result.abs().max()) <= 1.01 * float(INPUTS[1].abs().max())


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_so_do_those_of_gpus(function: Callable[..., torch.Tensor]) -> None:
    found = search(trace(function, INPUTS).graph, device_for("cuda:sm_90"), budget=5.0).candidates
    machine = EmulatedCuda(Cuda("sm_90", 100_000), 0)
    for candidate in found[:3]:
        (result,) = Executable(construct(candidate.graph), machine)(*INPUTS)
        assert np.isfinite(result.numpy()).all()


def test_triton_is_told_not_to_fuse() -> None:
    programs = [trace(masked, INPUTS).graph, trace(lambda x: x * 2 + torch.relu(x), INPUTS[:1]).graph]
    found = [construct(search(program, device_for("triton:sm_90"), budget=5.0).candidates[0].graph) for program in programs]
    for text in map(program_text, found):
        assert text.count("enable_fp_fusion=False") == text.count("@triton.jit\ndef kernel_") > 0


def test_cuda_says_what_is_rounded() -> None:
    found = search(trace(masked, INPUTS).graph, device_for("cuda:sm_90"), budget=5.0).candidates
    assert any("rounded(" in source for source in Executable(construct(found[0].graph), Cuda("sm_90", 100_000)).sources.values())
