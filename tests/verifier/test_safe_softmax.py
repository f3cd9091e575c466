"""Logits of size 1e4 in fp16: what the search makes of an attention is finite and right; nothing else is shifted."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.devices import device_for
from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search import search
from mugraph.verifier.rounding import RoundedArithmetic
from mugraph.verifier.vectorized_eval import evaluate_batched

KEYS, WIDTH = 8, 8


def attention(normalised: bool) -> Graph:
    program = Program()
    q = program.input("q", (4, WIDTH), DType.FP16)
    k, v = program.input("k", (KEYS, WIDTH), DType.FP16), program.input("v", (KEYS, 4), DType.FP16)
    scores = q @ k.transpose(0, 1)
    weights: ProgramTensor = scores.softmax(-1) if normalised else scores.exp()
    program.output(weights @ v)
    return program.graph


def found(graph: Graph) -> list[Graph]:
    return [candidate.graph for candidate in search(graph, device_for("cpu"), budget=20).candidates]


def maxima(graph: Graph) -> bool:
    return any(node.op in ("max", "accumulate_rescaled") for _, node in graph.walk())


def in_fp16(graph: Graph, inputs: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        (output,) = evaluate_batched(graph, inputs, RoundedArithmetic(DType.FP16))
    return output.astype(np.float64)


@pytest.mark.parametrize("sign", [1, -1])
def test_attention_with_large_logits_in_fp16_is_finite_and_right(sign: int) -> None:
    """Logits are 1e4 for one key of each query and 0 elsewhere, or -1e4: the softmax picks, or leaves out, one key."""
    rng = np.random.default_rng(0)
    v = rng.normal(size=(KEYS, 4)).astype(np.float16)
    chosen = [3, 0, 6, 5]
    q, k = 100.0 * sign * np.eye(WIDTH)[chosen], 100.0 * np.eye(KEYS)
    expected = v[chosen] if sign > 0 else np.stack([np.delete(v, key, 0).astype(np.float64).mean(0) for key in chosen])
    graphs = found(attention(normalised=True))
    assert graphs
    for graph in graphs:
        output = in_fp16(graph, [array.astype(np.float16) for array in (q, k, v)])
        np.testing.assert_allclose(output, expected, atol=4e-3, err_msg=str(graph))


def test_exponentials_whose_factor_does_not_cancel_are_not_shifted() -> None:
    graphs = found(attention(normalised=False))
    assert graphs
    assert not any(maxima(graph) for graph in graphs)
    assert any(maxima(graph) for graph in found(attention(normalised=True))), "where it cancels, it is"
