"""Compiled random muGraphs against the evaluator in float64."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array, FloatArithmetic
from mugraph.ir.evaluate import evaluate
from mugraph.runtime import build
from runtime.block_graphs import many_kernels


def relative_error(result: Array, expected: Array) -> float:
    """Largest error relative to the largest entry."""
    assert np.isfinite(expected).all()
    return float(np.max(np.abs(result - expected)) / max(float(np.max(np.abs(expected))), 1e-6))


def random_inputs(graph: Graph, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]


@pytest.mark.parametrize("seed", range(3))
def test_fp32_kernels_agree_with_the_evaluator(seed: int) -> None:
    graph = many_kernels(seed, 25, DType.FP32)
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    for number, (result, reference) in enumerate(zip(build(graph)(*inputs), expected, strict=True)):
        assert result.shape == reference.shape
        assert relative_error(result, reference) < 1e-5, f"output {number}"
