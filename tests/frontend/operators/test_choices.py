"""Functions that compare, choose and mask become programs: booleans go in and out, and mean what they mean in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from mugraph.frontend import trace
from mugraph.ir.dtypes import DType

from ..agreement import assert_agrees, random, run

X, Y, W = random(4, 6, seed=1), random(4, 6, seed=2), random(6, 3, seed=3)
MASK, ROW = random(4, 6, seed=4) > 0, random(6, seed=5) > 0
TINY = torch.tensor([0.0, 1e-300, -0.0, math.nan, -3.0, math.inf], dtype=torch.float64)
SIGNS = Y.sign()
KINDS = {torch.float64: DType.FP64, torch.bool: DType.BOOL}

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a slope below 0": (lambda x, w: torch.where(x > 0, x, 0.1 * x) @ w, (X, W)),
    "scores that are hidden": (lambda x, m: x.masked_fill(m, float("-inf")).softmax(-1), (X, MASK)),
    "a row that is hidden": (lambda x, m: torch.where(m, x, -math.inf).softmax(-1), (X, torch.zeros(4, 6, dtype=torch.bool))),
    "a mask given": (lambda x, m: x * m, (X, MASK)),
    "a mask as numbers": (lambda m, w: m.double() @ w, (MASK, W)),
    "a mask of masks": (lambda m, row: (m & ~row) | (row ^ m), (MASK, ROW)),
    "masks added up": (lambda m, row: m + row, (MASK, ROW)),
    "masks counted": (lambda m: m.double().sum(-1), (MASK,)),
    "numbers as a mask and back": (lambda x: x.bool().double() + x.to(torch.bool).to(torch.float64), (TINY,)),
    "a comparison that is returned": (lambda x, y: (x <= y, x != y, torch.isnan(x)), (X, Y)),
    "a comparison that is returned and used": (lambda x, y: (x < y, torch.where(x < y, x, y)), (X, Y)),
    "a mask returned as it came": (lambda x, m: (x * 2, m.view(-1)), (X, MASK)),
    "whether any or all": (lambda x: (torch.any(x > 1, dim=-1), torch.all(x > -1, dim=0, keepdim=True)), (X,)),
    "numbers in the place of others": (lambda x: torch.nan_to_num(x / x * 0.5, nan=2.0), (TINY,)),
    "a threshold": (lambda x: functional.threshold(x, 0.1, 20.0), (X,)),
    "shrunk": (lambda x: functional.hardshrink(x, 0.3) + functional.softshrink(x, 0.2), (X,)),
    "a margin": (lambda x, y, s: functional.margin_ranking_loss(x, y, s, margin=0.2), (X, Y, SIGNS)),
    "a hinge": (lambda x, s: torch.clamp(1 - x * s, min=0).mean(), (X, SIGNS)),
    "a divergence": (lambda x, y: functional.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), (X, Y)),
    "x log y": (lambda x, y: torch.xlogy(x.relu(), y.abs()), (X, Y)),
    "the sign": (lambda x, w: torch.sign(x) @ w, (X, W)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_means_what_pytorch_computes(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    graph, wanted = trace(function, inputs).graph, function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert [tensor.dtype for tensor in graph.output_tensors] == [KINDS[tensor.dtype] for tensor in wanted]
    assert [node.output.dtype for node in graph.inputs()] == [KINDS[tensor.dtype] for tensor in inputs]
    for ours, theirs in zip(run(graph, inputs), wanted, strict=True):
        torch.testing.assert_close(ours, theirs.double(), rtol=1e-12, atol=1e-12, equal_nan=True)


def test_a_mask_that_a_module_owns_is_an_input_of_the_program() -> None:
    class Masked(torch.nn.Module):
        mask: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", ROW)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(self.mask, x, x * 0.5)

    found = assert_agrees(Masked(), X)
    assert [node.output.dtype for node in found.graph.inputs()] == [DType.FP64, DType.BOOL]


def test_what_is_known_to_be_a_boolean_is_not_compared_again() -> None:
    graph = trace(lambda x, y: ((x < y) & (y < 2)).logical_not() | (x > 1), (X, Y)).graph
    assert "truth" not in [node.op for node in graph.nodes]
    assert "truth" in [node.op for node in trace(lambda x, y: torch.logical_and(x, y), (X, Y)).graph.nodes]
