"""Products of 16-bit tensors in fp32: PyTorch's results, whatever function asks for them, and nothing else is changed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from mugraph.host.wide_products import WideProducts

X, W, B = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in ((3, 24, 40), (3, 40, 16), (16,)))
PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matrices": lambda x, w, b: x[0] @ w[0],
    "batches": lambda x, w, b: x @ w,
    "linear": lambda x, w, b: torch.nn.functional.linear(x[0], w[0].T, b),
    "scaled and added": lambda x, w, b: torch.addmm(b, x[0], w[0], beta=0.5, alpha=2),
    "a vector": lambda x, w, b: x[0] @ w[0, :, 0],
    "einsum": lambda x, w, b: torch.einsum("bij,bjk->ik", x, w),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_results_are_pytorchs(name: str, dtype: torch.dtype) -> None:
    operands = tuple(tensor.to(dtype) for tensor in (X, W, B))
    with WideProducts():
        ours = PRODUCTS[name](*operands)
    assert ours.dtype is dtype
    exact, theirs = PRODUCTS[name](*(each.double() for each in operands)), PRODUCTS[name](*operands)
    largest = exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max() + torch.finfo(dtype).eps * largest / 4


def test_other_types_and_operators_are_left_alone() -> None:
    with WideProducts():
        assert torch.equal(X @ W, torch.matmul(X, W))
        assert (X.half() * 2).dtype is torch.float16
        with pytest.raises(RuntimeError, match="dtype"):
            X[0].half() @ W[0]


def test_products_of_fp16_take_no_longer_than_those_of_fp32_by_much() -> None:
    wide = torch.randn(512, 512)
    narrow = wide.half()

    def seconds(operand: torch.Tensor) -> float:
        started = time.perf_counter()
        with WideProducts():
            operand @ operand
        return time.perf_counter() - started

    seconds(narrow), seconds(wide)
    assert min(seconds(narrow) for _ in range(5)) < 20 * min(seconds(wide) for _ in range(5))
