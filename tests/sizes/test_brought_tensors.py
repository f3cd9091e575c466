"""Tensors that a function brings along, where one result serves any length: calls with others are refused, not answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.brought_tensors import BroughtTensors
from mugraph.sizes.dims import Declared
from mugraph.sizes.masked_functions import MaskedFunction, masked_function

LENGTH = mugraph.Dim("length", 1, 12)


class Weighted(torch.nn.Module):
    """A mean over a length of what is scaled by a buffer and a parameter, and by a size of another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: torch.Tensor = torch.nn.Buffer(torch.full((4,), 2.0))
        self.gain = torch.nn.Parameter(torch.randn(4))
        self.asked: torch.Tensor = torch.nn.Buffer(torch.zeros(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).mean(0) * self.gain * self.asked.shape[0]


def masked_of(fn: Callable[..., Any]) -> MaskedFunction:
    return masked_function(fn, Declared.of({0: {0: LENGTH}}), (torch.randn(5, 4),), {})


def replace_buffer(model: Weighted) -> None:
    model.scale = torch.full((4,), 3.0)


def replace_parameter(model: Weighted) -> None:
    model.gain = torch.nn.Parameter(torch.ones(4))


def replace_data(model: Weighted) -> None:
    model.gain.data = torch.ones(4)


def take_away(model: Weighted) -> None:
    del model.scale


def reshape_asked(model: Weighted) -> None:
    model.asked = torch.zeros(6, 2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (replace_buffer, InvalidInput, "tensor scale of the function is another one.*write new values into it"),
        (replace_parameter, InvalidInput, "tensor gain of the function is another one"),
        (replace_data, InvalidInput, "tensor gain of the function is another one"),
        (take_away, InvalidInput, "scale was a tensor when the function was traced, and is none now"),
        (reshape_asked, ShapeMismatch, "tensor asked of the function"),
    ],
)
def test_another_tensor_is_refused(change: Callable[[Weighted], None], error: type[MugraphError], words: str) -> None:
    model = Weighted()
    found = masked_of(model)
    run = found.brought.watching(lambda x: found.original(x)[0])
    x = torch.randn(7, 4)
    torch.testing.assert_close(run(x), model(x))
    with torch.no_grad():
        model.scale.mul_(2)
        model.gain.add_(1)
    torch.testing.assert_close(run(x), model(x))
    model.asked = torch.ones(5, 2)  # nothing of it is read
    torch.testing.assert_close(run(x), model(x))
    change(model)
    for _ in range(2):
        with pytest.raises(error, match=words):
            run(x)


class Mixed(torch.nn.Module):
    """A mean over a length of products with a square matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix: torch.Tensor = torch.nn.Buffer(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.matrix).mean(0)


@pytest.mark.parametrize(
    "view", [torch.t, lambda matrix: matrix[:1].expand(4, 4), torch._neg_view], ids=["transpose", "first row", "negative"]
)
def test_a_view_that_begins_at_the_same_place_is_another_tensor(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, x = Mixed(), torch.randn(7, 4)
    found = masked_of(model)
    run = found.brought.watching(lambda x: found.original(x)[0])
    before = model.matrix
    model.matrix = view(before)
    with pytest.raises(InvalidInput, match="tensor matrix of the function is another one"):
        run(x)
    model.matrix = before.view(4, 4)
    torch.testing.assert_close(run(x), model(x))


def test_a_graph_that_holds_a_copy_serves_no_length() -> None:
    model = Weighted()
    traced = mugraph.frontend.trace(model, (torch.randn(5, 4),))
    with pytest.raises(SizeMatters, match="a copy of tensor scale"):
        BroughtTensors.of([traced], [model.gain, model.scale.clone()])


def test_functions_that_bring_nothing_along_are_not_watched() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x

    assert masked_of(lambda x: x.mean(0)).brought.watching(run) is run


def test_results_of_any_length_refuse_and_those_of_a_batch_beside_it_too() -> None:
    model = Weighted()
    length, batch = mugraph.Dim("length", 1, 40), mugraph.Dim("batch", 1, 4)

    def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ k * model.scale

    q, k = torch.randn(2, 1, 4), torch.randn(2, 7, 4)
    one = mugraph.superoptimize(attention, (q, k), profile=False, dynamic={1: {1: length}})
    both = mugraph.superoptimize(attention, (q, k), profile=False, dynamic={0: {0: batch}, 1: {0: batch, 1: length}})
    assert one.capacities is not None, one.reason
    assert both.batches is not None, both.reason
    for result in (one, both):
        for _ in range(4):
            torch.testing.assert_close(result(q, k), attention(q, k), rtol=1e-4, atol=1e-5)
    model.scale = torch.full((4,), 3.0)
    for result in (one, both):
        with pytest.raises(InvalidInput, match="scale of the function is another one"):
            result(q, k)
