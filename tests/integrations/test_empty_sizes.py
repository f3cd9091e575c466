"""Calls with nothing in a dimension that varies, as an empty batch or a cache of no keys, return what eager PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mugraph
from integrations.test_rows import compiled
from mugraph import Dim, DynamicSuperoptimized
from mugraph.errors import InvalidInput, ShapeMismatch

BATCH, LENGTH, KEYS = Dim("batch", 0, 6), Dim("length", 0, 5), Dim("keys", 0, 20)
GENERATOR = torch.Generator().manual_seed(0)
OPTIONS: dict[str, Any] = {"keep": "all", "budget": 4.0, "strict": True}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


W, V = drawn(16, 24), drawn(24, 16)


def perceptron(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ W) @ V


def in_pieces(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.silu(x @ W).logcumsumexp(-1) @ V, -1)


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def over_all(x: torch.Tensor) -> torch.Tensor:
    return x * 2 - x.std(0)


def rows(*sizes: int) -> tuple[torch.Tensor, ...]:
    return (drawn(*sizes, 16),)


def keys(size: int) -> tuple[torch.Tensor, ...]:
    return drawn(2, 1, 16), drawn(2, size, 16), drawn(2, size, 16)


def samples(batch: int, size: int) -> tuple[torch.Tensor, ...]:
    return drawn(batch, 2, 1, 16), drawn(batch, 2, size, 16), drawn(batch, 2, size, 16)


def assert_right(fast: Callable[..., Any], fn: Callable[..., Any], *given: torch.Tensor) -> None:
    """Also where a mean over nothing is no number."""
    torch.testing.assert_close(fast(*given), fn(*given), rtol=1e-4, atol=1e-5, equal_nan=True)


Declaration = Mapping[int | str, Mapping[int, Dim]]
RANGES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Declaration, list[tuple[int, ...]]]] = {
    "slices": (perceptron, rows, {0: {0: BATCH}}, [(3,), (0,), (6,), (0,), (1,)]),
    "pieces": (in_pieces, rows, {0: {0: BATCH}}, [(3,), (0,), (6,), (1,)]),
    "capacities": (decode, keys, {1: {1: KEYS}, 2: {1: KEYS}}, [(3,), (0,), (20,), (1,)]),
    "rows": (perceptron, rows, {0: {0: BATCH, 1: LENGTH}}, [(2, 3), (0, 3), (2, 0), (0, 0), (1, 5)]),
    "batches": (
        decode,
        samples,
        {0: {0: BATCH}, 1: {0: BATCH, 2: KEYS}, 2: {0: BATCH, 2: KEYS}},
        [(2, 3), (0, 3), (2, 0), (0, 0), (1, 20)],
    ),
    "each size by itself": (over_all, rows, {0: {0: BATCH}}, [(3,), (0,), (3,)]),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_from_nothing_on_is_the_function_at_nothing(name: str) -> None:
    fn, arguments, dynamic, sizes = RANGES[name]
    result = mugraph.superoptimize(fn, arguments(*sizes[0]), budget=6.0, profile=False, dynamic=dynamic)
    assert isinstance(result, DynamicSuperoptimized)
    with torch.inference_mode():
        for each in sizes:
            assert_right(result, fn, *arguments(*each))
    assert "The function itself answers where" in result.claim
    with pytest.raises(ShapeMismatch, match="nothing is made"):
        result.at(*arguments(*(0 for _ in sizes[0])))
    with pytest.raises(ShapeMismatch, match="declared from 0 to"):
        result(*arguments(*(25 for _ in sizes[0])))


def test_a_range_from_one_on_refuses_nothing_as_before() -> None:
    result = mugraph.superoptimize(perceptron, rows(3), budget=4.0, profile=False, dynamic={0: {0: Dim("batch", 1, 6)}})
    assert isinstance(result, DynamicSuperoptimized)
    with pytest.raises(ShapeMismatch, match="batch has size 0, declared from 1 to 6"):
        result(*rows(0))
    assert "function itself answers where" not in result.claim


def test_nothing_is_no_example() -> None:
    with pytest.raises(InvalidInput, match=r"the example has size 0 of batch.*give one of size 1 or more"):
        mugraph.superoptimize(perceptron, rows(0), budget=4.0, dynamic={0: {0: BATCH}})


def test_a_folder_has_answers_from_one_on(tmp_path: Path) -> None:
    result = mugraph.superoptimize(perceptron, rows(3), budget=6.0, profile=False, dynamic={0: {0: BATCH}})
    assert isinstance(result, DynamicSuperoptimized)
    loaded = DynamicSuperoptimized.load(result.save(tmp_path / "range"))
    assert "function itself answers where" not in loaded.claim
    x = drawn(2, 16)
    torch.testing.assert_close(loaded(x, W, V), perceptron(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeMismatch, match="batch has size 0, declared from 1 to 6"):
        loaded(*rows(0), W, V)


def test_a_decorated_function_of_a_declared_range_may_be_called_with_nothing_first() -> None:
    optimized = mugraph.optimize(perceptron, dynamic={0: {0: BATCH}}, budget=6.0)
    with torch.inference_mode():
        for size in (0, 3, 0, 6):
            assert_right(optimized, perceptron, *rows(size))
    assert len(optimized.answers) == 1, "of calls with something"


def test_a_decorated_function_takes_all_sizes_as_they_come() -> None:
    optimized = mugraph.optimize(perceptron, dynamic=True, budget=6.0, strict=True)
    with torch.inference_mode():
        for size in (0, 5, 3, 0, 6, 1):
            assert_right(optimized, perceptron, *rows(size))
    assert len(optimized.answers) == 2, "of five samples, and of any number from 1 on"
    assert optimized(drawn(3, 16).requires_grad_()).requires_grad


class Layer(nn.Module):
    """A layer of a decoder over a cache, which may be empty."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(16, eps=1e-5), nn.Linear(16, 48, bias=False), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), k, v


def cached(batch: int, size: int) -> tuple[torch.Tensor, ...]:
    return drawn(batch, 1, 16), drawn(batch, 2, size, 8), drawn(batch, 2, size, 8)


Fn = Callable[..., Any]
Sizes = tuple[int, ...]
GRAPHS: dict[str, tuple[Callable[[], Fn], Fn, list[Sizes], tuple[Sizes, ...]]] = {
    "a batch": (lambda: perceptron, rows, [(4,), (0,), (7,), (0,), (1,), (3,)], ((0,),)),
    "a batch that is empty first": (lambda: perceptron, rows, [(0,), (4,), (0,), (7,)], ((0,),)),
    "over a batch": (lambda: over_all, rows, [(4,), (0,), (7,), (1,)], ((0,),)),
    "a cache": (Layer, cached, [(1, 5), (1, 0), (1, 1), (1, 7), (1, 0)], ((), (2,), (2,))),
    "a cache that is empty first": (Layer, cached, [(1, 0), (1, 1), (1, 2), (1, 3), (1, 0)], ((), (2,), (2,))),
    "a batch and a cache": (Layer, cached, [(3, 5), (0, 5), (3, 0), (0, 0), (2, 7)], ((0,), (0, 2), (0, 2))),
}


@pytest.mark.parametrize("way", ["None", "True", "marked"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_of_any_size_may_be_called_with_nothing(name: str, way: str) -> None:
    made, arguments, sizes, varying = GRAPHS[name]
    fn = made()
    if isinstance(fn, nn.Module):
        fn = fn.eval()
    fast = compiled(fn, OPTIONS, True if way == "True" else None)
    with torch.inference_mode():
        for number, each in enumerate(sizes):
            given = arguments(*each)
            for tensor, dims in zip(given, varying, strict=True):
                for dim in dims if way == "marked" and not number else ():
                    if tensor.shape[dim] > 1:  # PyTorch makes graphs of their own for sizes 0 and 1
                        torch._dynamo.mark_dynamic(tensor, dim)
            assert_right(fast, fn, *given)
