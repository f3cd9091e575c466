"""Running sums and products of PyTorch and ONNX become scans: exclusive, backwards and masked ones, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mugraph.errors import UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.partitioning.partition import partition
from mugraph.frontend.rewriting.arrangements import with_arrangements
from mugraph.ir.dtypes import DType
from mugraph.ir.parts import parted
from mugraph.ir.scans import SCANS

from ..agreement import assert_agrees, random

X, MASK, CUBE, LINE = random(4, 7, seed=1), random(4, 7, seed=2) > 0, random(3, 5, 2, seed=3), random(11, seed=4)
SINGLE, SCALAR, COLUMN = random(1, 1, seed=5), random(seed=6), random(5, 1, seed=7)


def exclusive(x: torch.Tensor) -> torch.Tensor:
    """As KernelBench writes it."""
    return torch.cumsum(torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), x), dim=1)[:, :-1], dim=1)


def zeros_in_front(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(x[:, :1]), x.cumsum(1)[:, :-1]], 1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "sums": (lambda x: x.cumsum(1), (X,)),
    "products": (lambda x: torch.cumprod(x, 0), (X,)),
    "along a dimension counted from the end": (lambda x: (x.cumsum(-1), x.cumsum(-2), x.cumprod(-3)), (CUBE,)),
    "of a line": (lambda x: x.cumsum(0) * 2, (LINE,)),
    "of a number": (lambda x: (x.cumsum(0), x.cumprod(-1)), (SCALAR,)),
    "of one element": (lambda x: (x.cumsum(0), x.cumprod(1)), (SINGLE,)),
    "along a dimension of one element": (lambda x: x.cumsum(1) + x.cumsum(0), (COLUMN,)),
    "masked": (lambda x, m: torch.cumsum(x * m, dim=1), (X, MASK)),
    "filled": (lambda x, m: x.masked_fill(m, 0.0).cumsum(-1), (X, MASK)),
    "backwards": (lambda x: torch.cumsum(x.flip(1), dim=1).flip(1), (X,)),
    "products backwards": (lambda x: torch.cumprod(x.flip(0), dim=0).flip(0), (X,)),
    "backwards in another dimension": (lambda x: x.flip(0).cumsum(1).flip(0), (X,)),
    "backwards in all": (lambda x: x.flip(0, 1).cumsum(1).flip(0, 1), (X,)),
    "turned once": (lambda x: x.flip(1).cumsum(1), (X,)),
    "exclusive": (exclusive, (X,)),
    "zeros in front of it": (zeros_in_front, (X,)),
    "in double": (lambda x: x.cumsum(1, dtype=torch.float64), (X,)),
    "of a mask": (lambda m: m.cumsum(1, dtype=torch.float64) - 1, (MASK,)),
    "two of them": (lambda x: x.cumsum(0).cumsum(1), (X,)),
    "transposed": (lambda x: x.t().cumsum(0).t() + 1, (X,)),
    "functions around it": (lambda x: torch.exp(-torch.relu(x).cumsum(1)) * x, (X,)),
    "shares of the sum": (lambda x: x.abs().cumsum(1) / x.abs().sum(1, keepdim=True), (X,)),
    "the first of it": (lambda x: x.cumsum(1)[:, :3], (X,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_means_what_pytorch_computes(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    assert_agrees(function, *inputs)


def operators(function: Callable[..., Any], *inputs: torch.Tensor) -> list[str]:
    found = parted(trace(function, inputs).graph)
    assert found is not None
    return [node.op for node in found.core.nodes]


def test_what_is_turned_before_and_behind_is_a_scan_from_the_other_end() -> None:
    assert [op for op in operators(FUNCTIONS["backwards"][0], X) if op in SCANS] == ["cumsum_back"]
    assert [op for op in operators(FUNCTIONS["products backwards"][0], X) if op in SCANS] == ["cumprod_back"]
    assert [op for op in operators(FUNCTIONS["backwards in another dimension"][0], X) if op in SCANS] == ["cumsum"]


def test_results_of_another_type_are_cast_before_they_are_added_up() -> None:
    x = (torch.arange(4000).float() % 7).half().view(2, 2000)
    (wide,) = trace(lambda x: x.cumsum(1, dtype=torch.float32), (x,)).graph.output_tensors
    assert wide.dtype is DType.FP32
    assert_agrees(lambda x: x.cumsum(1, dtype=torch.float64), x)


def test_integers_and_what_is_beside_the_values_stay_with_pytorch() -> None:
    with pytest.raises(UnsupportedOperator, match=r"torch\.int64"):
        trace(lambda x: x.cumsum(0), (torch.arange(4),))
    with pytest.raises(UnsupportedOperator, match=r"torch\.int64; only floating-point"):
        trace(lambda x: (x > 0).cumsum(0), (LINE,))
    with pytest.raises(UnsupportedOperator, match="cummax"):
        trace(lambda x: x.cummax(0).values, (LINE,))


@pytest.mark.parametrize("name", ["sums", "masked", "backwards", "two of them"])
def test_on_the_cpu_a_scan_is_in_a_piece_and_on_a_gpu_pytorch_has_it(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    reason = "running sums and products are kernels of the CPU alone"
    for device, runs in (("cpu", True), ("cuda", False)):
        with FakeTensorMode():
            tensors = [torch.empty(x.shape, dtype=torch.bool if x.dtype is torch.bool else None, device=device) for x in inputs]
            found = partition(with_arrangements(make_fx(function)(*tensors)).graph, device=device)
        assert any(node.op in SCANS for piece in found.pieces for node in piece.program.nodes) is runs
        assert {left.reason for left in found.left if "cumsum" in left.node.name} == (set() if runs else {reason})
