"""Functions in pieces whose result for one size runs every smaller one: kernels, a library's layer and PyTorch's calls."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.errors import ShapeMismatch
from mugraph.pieces.data import PartitionedResult
from mugraph.pieces.packed_weights import PackedKernel
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.sliced_kernels import SlicedKernels
from mugraph.sizes.sliced_pieces import SlicedPieces, _agrees
from mugraph.support.deadline import NO_LIMIT, Deadline
from threads import at_once

pytestmark = pytest.mark.filterwarnings("ignore::mugraph.errors.GradientsDropped")

HIGH, TOKENS = 24, 6
COUNTS = (2, 3, 7, 23, HIGH)
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


class Layer(torch.nn.Module):
    """A program, a call that is none, a layer of the library, a program whose samples are second, and one more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.lone, self.last = (torch.nn.Parameter(drawn(16, 16) / 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.logcumsumexp(torch.softmax(F.silu(x @ self.first), -1), -1)
        z = torch.cumsum(F.linear(y.reshape(-1, 16), self.lone).view(-1, TOKENS, 16), 1)
        crossed = torch.softmax(F.silu(z.transpose(0, 1) @ self.second), -1).logcumsumexp(-1)
        heads = torch.logcumsumexp(crossed.transpose(0, 1).reshape(-1, TOKENS, 2, 8).transpose(1, 2), 2)
        return torch.softmax(F.silu(heads.transpose(1, 2).reshape(-1, TOKENS, 16) @ self.last), -1), heads


LAYER = Layer()


@functools.cache
def optimized() -> DynamicSuperoptimized:
    return superoptimized_for_sizes(
        mugraph.superoptimize,
        LAYER,
        ((drawn(5, TOKENS, 16),), {}),
        {0: {0: Dim("batch", 1, HIGH)}},
        [{"batch": HIGH}],
        None,
        {"profile": False},
    )


def first_slices(result: DynamicSuperoptimized) -> SlicedPieces:
    made = result.in_part[HIGH].kernels
    assert isinstance(made, SlicedPieces)
    return made


def run_at(result: DynamicSuperoptimized, count: int) -> Callable[..., Any]:
    """A call of so many samples by what was found for the most."""
    return result.covering(count, [Chunk(0, HIGH)])


def check(made: Any, x: torch.Tensor) -> None:
    """Beside float64, and beside the module as it is."""
    with torch.no_grad():
        references = (Layer.forward(copied(), x.double()), LAYER(x))
    for reference in references:
        for got, wanted in zip(made, reference, strict=True):
            torch.testing.assert_close(got, wanted.to(got.dtype), rtol=1e-4, atol=1e-5, equal_nan=True)


@functools.cache
def copied() -> Layer:
    layer = Layer().double()
    layer.load_state_dict(LAYER.state_dict())
    return layer


def test_kernels_the_library_and_pytorch_each_run_parts() -> None:
    result = optimized()
    made = result.table[HIGH,]
    assert isinstance(made, PartitionedResult)
    assert len(made.pieces) == 4
    runs = first_slices(result).runs
    assert sum(isinstance(run, SlicedKernels) for run in runs) == 2
    assert sum(isinstance(run, PackedKernel) for run in runs) == 2  # of pieces whose rows are not samples, or lie second


@pytest.mark.parametrize("count", COUNTS)
def test_fewer_slices_are_right(count: int) -> None:
    result = optimized()
    run = run_at(result, count) if count < HIGH else first_slices(result).at(count)
    memory = torch.full((2 * HIGH, TOKENS, 16), torch.nan)
    for _ in range(3):  # later calls are recognized, and multiply by packed weights
        x = memory[:count].normal_()
        check(run(x) if count < HIGH else run(x, *LAYER.parameters()), x)
    x[count // 2] = torch.inf
    check(run(x) if count < HIGH else run(x, *LAYER.parameters()), x)


@pytest.mark.parametrize("count", [2, 7])
def test_tensors_may_lie_in_any_way(count: int) -> None:
    run = run_at(optimized(), count)
    for x in (
        drawn(TOKENS, count, 16).transpose(0, 1),
        drawn(count, TOKENS, 40)[..., 3:35:2],
        drawn(1, TOKENS, 16).expand(count, -1, -1),
    ):
        before = x.clone()
        check(run(x), x)
        assert torch.equal(x, before)


def attended(x: torch.Tensor) -> torch.Tensor:
    """Heads, whose results lie as queries do, and are viewed as rows."""
    heads = x.reshape(-1, TOKENS, 2, 8).transpose(1, 2)
    rows = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(-1, TOKENS, 16)
    return torch.softmax(F.silu(rows.logcumsumexp(-1) @ LAYER.first), -1)


@pytest.mark.parametrize("swapped", [False, True])
def test_what_pytorch_views_may_lie_in_any_way(swapped: bool) -> None:
    """Also where it was recorded with its samples second in memory."""
    example = drawn(TOKENS, 5, 16).transpose(0, 1) if swapped else drawn(5, TOKENS, 16)
    dim, settings = Dim("batch", 1, 8), {"profile": False}
    result = superoptimized_for_sizes(
        mugraph.superoptimize, attended, ((example,), {}), {0: {0: dim}}, [{"batch": 8}], None, settings
    )
    assert isinstance(result.in_part[8].kernels, SlicedPieces)
    for count in (2, 7):
        run = result.covering(count, [Chunk(0, 8)])
        for x in (
            drawn(count, TOKENS, 16),
            drawn(TOKENS, count, 16).transpose(0, 1),
            drawn(count, TOKENS, 40)[..., 3:35:2],
            drawn(1, TOKENS, 16).expand(count, -1, -1),
        ):
            before = x.clone()
            torch.testing.assert_close(run(x), attended(x), rtol=1e-4, atol=1e-5)
            assert torch.equal(x, before)


def test_rows_that_are_several_of_a_sample_are_pytorchs() -> None:
    """Kernels of single rows would take as many rows as there are samples."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        y = torch.logcumsumexp(x.reshape(-1, 16), -1)
        return torch.logcumsumexp(torch.softmax(F.silu(y @ LAYER.first), -1), -1).reshape(-1, TOKENS, 16) * 2

    dim, settings = Dim("batch", 1, 8), {"profile": False}
    result = superoptimized_for_sizes(
        mugraph.superoptimize, rows, ((drawn(5, TOKENS, 16),), {}), {0: {0: dim}}, [{"batch": 8}], None, settings
    )
    for count in range(1, 9):
        x = drawn(count, TOKENS, 16)
        torch.testing.assert_close(result(x), rows(x), rtol=1e-4, atol=1e-5)


def test_nobody_gets_gradients() -> None:
    x = drawn(5, TOKENS, 16).requires_grad_()
    for made in run_at(optimized(), 5)(x):
        assert not made.requires_grad


def test_changed_weights_are_seen() -> None:
    run = run_at(optimized(), 3)
    x = drawn(3, TOKENS, 16)
    check(run(x), x)
    kept = [weight.detach().clone() for weight in LAYER.parameters()]
    copied.cache_clear()
    with torch.no_grad():
        for weight in LAYER.parameters():
            weight.mul_(-1.5)
        check(run(x), x)
        for weight, before in zip(LAYER.parameters(), kept, strict=True):
            weight.copy_(before)
    copied.cache_clear()
    check(run(x), x)


def test_threads_may_call_them() -> None:
    result = optimized()
    runs = {count: run_at(result, count) for count in (3, 7)}
    inputs = [drawn(count, TOKENS, 16) for count in (3, 7, 3, 3, 7, 7)]
    for made, x in zip(at_once(lambda x: runs[len(x)](x), inputs), inputs, strict=True):
        check(made, x)


def test_sizes_that_there_is_nothing_for_are_refused() -> None:
    result = optimized()
    made = first_slices(result)
    assert (made.least, made.capacity) == (2, HIGH)
    for count in (1, HIGH + 1):
        with pytest.raises(ShapeMismatch, match=f"{count} slices; there are kernels for 2 to {HIGH}"):
            made.at(count)
    with pytest.raises(ShapeMismatch):
        run_at(result, 3)(drawn(4, TOKENS, 16))
    assert result.plan(1).chunks == ()
    assert Costs({8: 1.0}, parts={8: {2: 0.5, 8: 1.0}}).plan(1).chunks == ()


def test_two_slices_have_no_fewer() -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.silu(x), -1).logcumsumexp(-1)

    dim, settings = Dim("batch", 1, 9), {"profile": False}
    result = superoptimized_for_sizes(
        mugraph.superoptimize, small, ((drawn(2, 16),), {}), {0: {0: dim}}, [{"batch": 2}], None, settings
    )
    assert [*result.costs.kernels] == [2]
    assert result.costs.parts == {}
    for count in (1, 2):
        x = drawn(count, 16)
        torch.testing.assert_close(result(x), small(x), rtol=1e-4, atol=1e-5)


def test_calls_that_give_something_else_at_fewer_slices_are_not_used() -> None:
    """Whatever the reason: results are looked at beside those of all slices."""
    result = optimized()
    made = first_slices(result)
    wanted = [torch.zeros(HIGH, TOKENS, 16), torch.zeros(HIGH, TOKENS, 16)]
    example = [drawn(HIGH, TOKENS, 16), *LAYER.parameters()]
    right = made(*example)
    assert _agrees(made, example, right, (0, 0), NO_LIMIT)
    assert not _agrees(made, example, wanted, (0, 0), NO_LIMIT)
    assert not _agrees(made, example, right, (0, 0), Deadline(0.0))


@pytest.mark.parametrize("error", [ShapeMismatch("of ours"), RuntimeError("of PyTorch")])
def test_calls_that_fail_at_fewer_slices_are_not_used(error: Exception) -> None:
    def failing(*_: object) -> list[torch.Tensor]:
        raise error

    example = [drawn(HIGH, TOKENS, 16), *LAYER.parameters()]
    made = replace(first_slices(optimized()), graph=failing)
    assert not _agrees(made, example, example[:1], (0,), NO_LIMIT)


def test_every_size_is_called_before_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    result, sizes = optimized(), list[int]()

    def noted(made: SlicedPieces, count: int, *_: Any) -> list[torch.Tensor]:
        sizes.append(count)
        return [torch.empty(count, TOKENS, 16), torch.empty(count, TOKENS, 2, 8)]

    monkeypatch.setattr("mugraph.sizes.first_calls._SECONDS", math.inf)
    monkeypatch.setattr(SlicedPieces, "_run", noted)
    result.prepare((drawn(5, TOKENS, 16),), {})
    assert [size for size in range(2, HIGH) if len(result.plan(size).chunks) == 1] == sizes


def test_an_interrupt_among_the_first_calls_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    result = optimized()
    monkeypatch.setattr("mugraph.sizes.first_calls.call_each_once", interrupted)
    result.prepare((drawn(5, TOKENS, 16),), {})
    monkeypatch.undo()
    assert len(result(drawn(7, TOKENS, 16))[0]) == 7
