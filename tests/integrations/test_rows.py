"""Graphs of `torch.compile` at any batch and length: rows run in chunks from the first call on, and are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mugraph.integrations.torch_compile import compilations
from threads import at_once

ALL: dict[str, Any] = {"budget": 60.0, "keep": "all", "strict": True}


class Perceptron(nn.Module):
    """What stands behind attention in a transformer; the second result has one dimension of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + self.down(F.gelu(self.up(self.norm(x))))
        return y, y.flatten(0, 1).sum(-1)


class Attention(nn.Module):
    """Positions of a sample are mixed, so that rows are not by themselves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x) + x


class Norm(nn.Module):
    """A norm whose number is an argument of the graph where everything varies."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.linear = 1e-5, nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))
        return y


def compiled(fn: Callable[..., Any], options: dict[str, Any] = ALL, dynamic: bool | None = None) -> Callable[..., Any]:
    torch._dynamo.reset()
    compilations.clear()
    run: Callable[..., Any] = torch.compile(fn, backend="mugraph", options=options, dynamic=dynamic)
    return run


def rows(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    return x


@pytest.fixture(scope="module")
def perceptron() -> tuple[nn.Module, Callable[..., Any]]:
    model = Perceptron().eval()
    fast = compiled(model)
    with torch.inference_mode():
        fast(rows(20, 30, 16))
    assert [bool(done.partition.pieces) for done in compilations][1:] == [True] * 5, "4, 16, 64, 256 and 1,024 rows"
    return model, fast


def assert_right(pair: tuple[nn.Module, Callable[..., Any]], batch: int, length: int) -> None:
    with torch.inference_mode():
        x = torch.randn(batch, length, 16)
        torch.testing.assert_close(pair[1](x), pair[0](x), rtol=1e-4, atol=1e-5)


def test_a_model_runs_at_any_batch_and_length(perceptron: tuple[nn.Module, Callable[..., Any]]) -> None:
    made, draw = len(compilations), random.Random(0)
    pairs = [(draw.randint(2, 40), draw.randint(2, 50)) for _ in range(200)]
    for batch, length in [*pairs, (2, 2), (2, 3), (3, 2), (31, 33), (64, 16), (16, 64), (2, 1023)]:
        assert_right(perceptron, batch, length)
    assert len(compilations) == made, "nothing is compiled again"


def test_rows_that_are_no_numbers_stay_alone(perceptron: tuple[nn.Module, Callable[..., Any]]) -> None:
    with torch.inference_mode():
        x = torch.randn(5, 13, 16)
        x[2, 7], x[4, 12, 3] = float("nan"), float("inf")
        torch.testing.assert_close(perceptron[1](x), perceptron[0](x), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_tensors_may_lie_in_memory_in_any_way(perceptron: tuple[nn.Module, Callable[..., Any]]) -> None:
    with torch.inference_mode():
        for x in (torch.randn(13, 5, 16).transpose(0, 1), torch.randn(7, 20, 16)[:, 3:14], torch.randn(7, 11, 32)[..., ::2]):
            torch.testing.assert_close(perceptron[1](x), perceptron[0](x), rtol=1e-4, atol=1e-5)


def test_several_threads_call_at_different_sizes(perceptron: tuple[nn.Module, Callable[..., Any]]) -> None:
    def calls(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(20):
            assert_right(perceptron, draw.randint(2, 40), draw.randint(2, 50))

    at_once(calls, range(4))


def test_a_number_that_is_an_argument_may_change() -> None:
    model = Norm().eval()
    fast = compiled(model, dynamic=True)
    with torch.inference_mode():
        fast(torch.randn(20, 30, 16))
    made = len(compilations)
    assert [bool(done.partition.pieces) for done in compilations][1:] == [True] * 5, "4, 16, 64, 256 and 1,024 rows"
    for eps, batch, length in ((1e-5, 7, 13), (0.5, 7, 13), (2.0, 3, 2), (0.0, 16, 33), (1e-5, 2, 2)):
        model.eps = eps
        assert_right((model, fast), batch, length)
    assert len(compilations) == made, "nothing is compiled again"


def test_attention_along_the_length_is_not_taken_for_rows() -> None:
    model = Attention()
    fast = compiled(model)
    with torch.inference_mode():
        for shape in ((6, 10, 16), (7, 3, 16), (2, 30, 16)):
            x = rows(*shape)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
