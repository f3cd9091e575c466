"""Divisions that need not be rounded correctly: which kernels have them, and how far off they are."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import cooperative, lower
from mugraph.targets.cuda import print_program
from mugraph.targets.cuda.emulator import emulate
from mugraph.targets.launch import LaunchShape

DIVIDED = re.compile(r"const float v\d+ = \(\S+ / ")


def source_of(graph: Graph) -> str:
    (launch,) = lower(graph).values()
    source = print_program([cooperative(launch.kernel, 100_000)])
    return source[source.index("__global__") :]


def rounded_quotient() -> Graph:
    """floor(x / y), in bf16: quotients that are a little too small are one too small."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input(name, (8, 64), DType.BF16) for name in "xy"]
    block = GraphBuilder(Level.BLOCK, grid=(8,), loop=1)
    x, y = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(operands))
    floors = block.add("floor", block.add("div", x, y))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", floors, omap=(0,))]), operands))


def root_of_a_difference() -> Graph:
    """The root of x / y - z, in bf16: NaN where a quotient that is z is a little too small."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input(name, (8, 64), DType.BF16) for name in "xyz"]
    block = GraphBuilder(Level.BLOCK, grid=(8,), loop=1)
    x, y, z = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(operands))
    roots = block.add("sqrt", block.add("sub", block.add("div", x, y), z))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", roots, omap=(0,))]), operands))


CORRECT = {
    "fp32": rms_norm_linear(rows=8, inner=256, columns=128, grid=2, loop=2, dtype=DType.FP32),
    "exponentials": attention(queries=16, keys=128, width=64, loop=2, dtype=DType.BF16),
    "roundings": rounded_quotient(),
    "roots of differences": root_of_a_difference(),
}


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_norms_whose_results_have_16_bits_take_quotients(dtype: DType) -> None:
    source = source_of(rms_norm_linear(rows=8, inner=256, columns=128, grid=2, loop=2, dtype=dtype))
    assert "quotient(" in source
    assert not DIVIDED.search(source)


@pytest.mark.parametrize("name", CORRECT)
def test_divisions_are_rounded_correctly_where_more_could_be_lost(name: str) -> None:
    source = source_of(CORRECT[name])
    assert "quotient(" not in source
    assert DIVIDED.search(source)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
def test_a_quotient_of_the_emulator_errs_as_those_of_gpus_may() -> None:
    """By two units in the last place at most, and not always by less than one half: else nothing would be noticed."""
    rng = np.random.default_rng(0)
    x, y = (np.ldexp(rng.uniform(1, 2, 1 << 16), rng.integers(-60, 60, 1 << 16)).astype(np.float32) for _ in range(2))
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 3e38, 1e-38], np.float32)
    x[:81], y[:81] = np.repeat(special, 9), np.tile(special, 9)
    z = np.empty_like(x)
    source = (
        'extern "C" __global__ void k(const float *x, const float *y, float *z)'
        "{ const int i = blockIdx.x * blockDim.x + threadIdx.x; z[i] = quotient(x[i], y[i]); }"
    )
    shown = emulate(source, "k", LaunchShape((64,), 1024, 1024), [x, y], [z])
    assert shown.findings == ()
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) / y
        nearest = exact.astype(np.float32)
    normal = np.isfinite(nearest) & (abs(nearest) > 1.2e-38)
    units = abs(z[normal] - exact[normal]) / np.spacing(abs(nearest[normal]))
    assert 1 < units.max() <= 2
    np.testing.assert_array_equal(z[~np.isfinite(nearest)], nearest[~np.isfinite(nearest)])
