"""Products of 16-bit tensors in fp32: PyTorch's results, whatever function asks for them, and nothing else is changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


WRITTEN: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matrices": lambda x, w, out: torch.mm(x[0], w[0], out=out[0]),
    "any matrices": lambda x, w, out: torch.matmul(x, w, out=out),
    "batches": lambda x, w, out: torch.bmm(x, w, out=out),
    "added": lambda x, w, out: torch.addmm(out[1], x[0], w[0], beta=0.5, alpha=2, out=out[0]),
    "in place": lambda x, w, out: out[0].addmm_(x[0], w[0], beta=0.5),
    "batches in place": lambda x, w, out: out.baddbmm_(x, w, alpha=2),
    "a batch, summed": lambda x, w, out: out[0].addbmm_(x, w),
    "a vector in place": lambda x, w, out: out[0, :, 0].addmv_(x[0], w[0, :, 0]),
    "a transposed view": lambda x, w, out: torch.mm(w[0].T, x[0].T, out=out[0].T).T,
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_into_holds_pytorchs_results(name: str, inference: bool) -> None:
    start = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(inference):
        operands = [tensor.half() for tensor in (X, W, start)]
        exact, theirs = [[t.double() for t in operands], [t.clone() for t in operands]]
        with NarrowProducts() as narrow, WideProducts():
            written = WRITTEN[name](*operands)
        WRITTEN[name](*exact), WRITTEN[name](*theirs)
        assert not narrow.seen
        assert written.untyped_storage().data_ptr() == operands[2].untyped_storage().data_ptr()
        error, usual = ((each[2] - exact[2]).abs().max() for each in (operands, theirs))
        assert error <= 2 * usual + torch.finfo(torch.float16).eps * exact[2].abs().max() / 4


@pytest.mark.parametrize("name", PRODUCTS)
def test_inference_mode_changes_nothing(name: str) -> None:
    with torch.inference_mode():
        operands = tuple(tensor.half() for tensor in (X, W, B))
        with NarrowProducts() as narrow, WideProducts():
            ours = PRODUCTS[name](*operands)
    assert not narrow.seen
    with WideProducts():
        assert torch.equal(ours, PRODUCTS[name](*(tensor.half() for tensor in (X, W, B))))


def test_a_result_of_another_shape_or_type_is_pytorchs() -> None:
    x, w = X[0].half(), W[0].half()
    with WideProducts(), pytest.raises(RuntimeError):
        torch.mm(x, w, out=torch.empty(24, 16))
    with WideProducts(), pytest.raises(RuntimeError):
        torch.empty(1, 16).half().addmm_(x, w)
    empty = torch.empty(0).half()
    with WideProducts():
        torch.mm(x, w, out=empty)
    assert empty.shape == (24, 16)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_inference_mode_leaves_nested_tensors_their_own_operators(layout: torch.layout) -> None:
    rows = [X[0].half(), X[1, :7].half()]
    with torch.inference_mode(), WideProducts():
        nested = torch.nested.nested_tensor(rows, layout=layout)
        found = torch.nn.functional.linear(nested, W[0].T.half()).unbind()
    for each, row in zip(found, rows, strict=True):
        torch.testing.assert_close(each, row @ W[0].half(), rtol=1e-2, atol=1e-2)


class NarrowProducts(TorchDispatchMode):
    """The products of fp16 that reach PyTorch's kernels, behind every mode that is entered inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated by torch
        self.seen: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        multiplies = any(name in func.__name__ for name in ("mm", "mv", "matmul"))
        if multiplies and any(isinstance(each, torch.Tensor) and each.dtype is torch.float16 for each in args):
            self.seen.append(func)
        return func(*args, **(kwargs or {}))


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
        """Of the processor: others may have it meanwhile."""
        started = time.process_time()
        with WideProducts():
            operand @ operand
        return time.process_time() - started

    seconds(narrow), seconds(wide)
    ours, theirs = (sum(seconds(operand) for _ in range(5)) for operand in (narrow, wide))
    assert ours < 20 * theirs
