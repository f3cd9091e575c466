"""Compiled random muGraphs against the evaluator in float64."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.runtime import build
from runtime.block_graphs import many_kernels


def relative_error(result: Array, expected: Array) -> float:
    """Largest error relative to the largest entry."""
    assert result.shape == expected.shape
    assert np.isfinite(expected).all()
    return float(np.max(np.abs(result - expected)) / max(float(np.max(np.abs(expected))), 1e-6))


def compare_fp32(graph: Graph, seed: int) -> None:
    """1e-5, or a few times what any fp32 evaluation loses where a random graph subtracts nearly equal numbers."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]
    expected = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    rounded = evaluate(graph, inputs, FloatArithmetic(np.float32))
    for number, (result, exact, fp32) in enumerate(zip(build(graph)(*inputs), expected, rounded, strict=True)):
        assert relative_error(result, exact) < max(1e-5, 4 * relative_error(fp32, exact)), f"output {number}"


@pytest.mark.parametrize("seed", range(2))
def test_fp32_kernels_agree_with_the_evaluator(seed: int) -> None:
    compare_fp32(many_kernels(seed, 25, DType.FP32), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 40))
def test_many_more_fp32_kernels(seed: int) -> None:
    compare_fp32(many_kernels(seed, 25, DType.FP32), seed)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_16_bit_kernels_agree_with_the_evaluator(dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    graph = many_kernels(5, 15, dtype)
    kind = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16}[dtype]
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(node.output.shape, generator=generator).to(kind) for node in graph.inputs()]
    expected = evaluate(graph, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())
    for result, reference in zip(build(graph)(*inputs), expected, strict=True):
        assert result.dtype is kind
        assert relative_error(result.double().numpy(), reference) < 2e-2
