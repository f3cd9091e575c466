"""Which functions act on slices at every size of a dimension, and why others do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.symbolic_shapes import optimization_hint, statically_known_true

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.dims import Declared, Dim
from mugraph.sizes.sliced_functions import SlicedFunction, compared_sizes, sliced_function

BATCH = Dim("batch", 1, 64)
ROWS = 6
"""Slices of the examples: no other dimension has this size."""


def sliced(fn: Callable[..., Any], *inputs: torch.Tensor, dim: Dim = BATCH) -> SlicedFunction:
    """The function on examples, whose dimensions of size ROWS vary."""
    places = {number: [place for place, size in enumerate(each.shape) if size == ROWS] for number, each in enumerate(inputs)}
    declared = Declared.of({number: dict.fromkeys(found, dim) for number, found in places.items() if found})
    return sliced_function(fn, declared, inputs, {})


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(ROWS, *shape)


ATTENTION = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 48))


def heads(x: torch.Tensor) -> torch.Tensor:
    q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in ATTENTION(x).chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], -1, 16)


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda x, w: F.rms_norm(x, (8,)) @ w, (rows(8), torch.randn(8, 16))),
        (lambda x, w, v: (F.silu(x @ w) * (x @ v)) @ v.T, (rows(8), torch.randn(8, 16), torch.randn(8, 16))),
        (lambda q, k: torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ k, (rows(4, 8, 16), rows(4, 8, 16))),
        (heads, (rows(5, 16),)),
        (lambda x, m: torch.where(m > 0, x, 0.0).masked_fill(m < -1, 2.0), (rows(8), rows(8))),
        (lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), (rows(8),)),
        (lambda i, t: F.embedding(i, t).sum(1), (torch.randint(0, 5, (ROWS, 3)), torch.randn(5, 8))),
        (lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), (rows(2, 3, 4), rows(2, 5, 4))),
        (lambda x: torch.cat([x.chunk(2, -1)[0] * 2, x[:, 4:].exp()], -1), (rows(8),)),
        (lambda w, x: w.T @ x.T, (torch.randn(8, 4), rows(8))),
        (nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True), nn.Dropout(), nn.BatchNorm1d(4)).eval(), (rows(8),)),
        (lambda x: {"y": x.exp(), "n": 3}, (rows(8),)),
        (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), (rows(5, 16),)),
        (lambda x, w: (x.transpose(0, 1).reshape(-1, 8) @ w).view(5, -1, 4).exp(), (rows(5, 8), torch.randn(8, 4))),
        (lambda x: x.repeat_interleave(3, 1) + x.repeat(1, 3), (rows(8),)),
    ],
)  # fmt: skip
def test_these_act_on_slices(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    found = sliced(fn, *inputs)
    assert 1 in found.sizes
    assert found.claim.startswith("for every size from 1 to 64 of batch: ")


def test_slices_may_stand_in_any_dimension_and_have_several_rows() -> None:
    assert sliced(lambda x: x.T.exp(), rows(8)).slice.outputs == (1,)
    wide = sliced(lambda x: x.reshape(-1, 4) * 2, rows(8)).slice
    assert (wide.outputs, wide.widths) == ((0,), (2,))
    both = sliced(lambda x, w: (x.exp(), w.exp()), rows(8), torch.randn(3)).slice
    assert both.outputs == (0, None)


def branches(at: Callable[[int], bool]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.exp() if at(x.shape[0]) else x.exp() * 2


def in_chunks(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part - part.mean() for part in torch.split(x, 2)])


SPECIAL = {"7": 2.0}


def tried(x: torch.Tensor) -> torch.Tensor:
    try:
        return x.exp() * [2.0, 3.0][x.shape[0] - 7]
    except IndexError:
        return x.exp()


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]
def unread(x: torch.Tensor) -> torch.Tensor:
    return x * SPECIAL.get(str(x.shape[0]), 1.0)


PLANTED: dict[str, Callable[..., Any]] = {
    "at 7": branches(lambda size: size == 7),
    "at 1": branches(lambda size: size == 1),
    "at 61, which is looked at": branches(lambda size: size == 61),
    "divisible by 3": branches(lambda size: size % 3 == 0),
    "large": branches(lambda size: size > 40),
    "even": branches(lambda size: not size & 1),
    "len": lambda x: x / len(x),
    "size": lambda x: x / x.shape[0],
    "half": lambda x: x * (x.size(0) // 2),
    "first half": lambda x: x[: x.size(0) // 2].exp(),
    "root": lambda x: x * x.shape[0] ** -0.5,
    "logarithm": lambda x: x * math.log(x.shape[0] + 1),
    "at most ten": lambda x: x * min(x.shape[0], 10),
    "numel": lambda x: x / x.numel(),
    "as a tensor": lambda x: x / torch.tensor(x.shape[0]),
    "filled": lambda x: x + torch.full((1,), x.shape[0]),
    "ones summed": lambda x: x / torch.ones(x.shape[0]).sum(),
    "cumsum": lambda x: x.cumsum(0),
    "flip": lambda x: x.flip(0),
    "flip and exp": lambda x: x + x.flip(0).exp(),
    "roll": lambda x: x.roll(1, 0),
    "roll by what 59 and 61 divide": lambda x: x.roll(59 * 61, 0),
    "softmax": lambda x: x.softmax(0),
    "mean": lambda x: x - x.mean(0),
    "mean of all": lambda x: x - x.mean(),
    "largest": lambda x: x / x.amax(0),
    "sum": lambda x: x.sum(0),
    "loss": lambda x: F.mse_loss(x, x.exp()),
    "positions": lambda x: x + torch.arange(x.shape[0])[:, None],
    "triangle": lambda x: x.tril(),
    "triangle beyond 100": lambda x: x.tril(-100) + x,
    "first": lambda x: x * x[0],
    "last": lambda x: x * x[-1:],
    "every other": lambda x: x[::2].exp(),
    "the first thousand": lambda x: x[:1000].exp(),
    "rows in pairs": in_chunks,
    "rows one by one": lambda x: torch.stack([row * number for number, row in enumerate(x)]),
    "products of rows": lambda x: x @ x.T,
    "gram": lambda x: x.T @ x,
    "scrambled": lambda x: x.reshape(-1) + x.T.reshape(-1),
    "outer": lambda x: x[:, 0, None] * x[None, :, 0],
    "batch norm in training": nn.BatchNorm1d(8, track_running_stats=False),
    "norm over rows": lambda x: F.layer_norm(x.T, (x.shape[0],)),
    "padded": lambda x: F.pad(x, (0, 0, 1, 1)),
    "pooled": lambda x: F.avg_pool1d(x.T, 3, 1, 1).T,
    "sorted": lambda x: x.sort(0).values,
    "dropped": lambda x: F.dropout(x),
    "noise": lambda x: x + torch.rand_like(x),
    "size returned": lambda x: (x.exp(), x.shape[0]),
    "shape returned": lambda x: (x.exp(), x.shape),
    "squeezed": lambda x: x.exp().squeeze(),
    "a view": lambda x: x[:, :4],
    "a number of Python": branches(lambda size: isinstance(size, int) and size == 7),
    "a number of that very type": branches(lambda size: type(size) is int and size % 3 == 0),
    "its digits": lambda x: x * SPECIAL.get(f"{x.shape[0]}", 1.0),
    "in Python that Dynamo does not read": lambda x: unread(x),
    "where Dynamo does not look": branches(lambda size: not torch.compiler.is_dynamo_compiling() and size == 7),
    "known of a number only": branches(lambda size: statically_known_true(size == 7)),
    "a hint": branches(lambda size: optimization_hint(size) == 7),
    "its text": branches(lambda size: str(size) == "7"),
    "a key": lambda x: x * {7: 2.0}.get(x.shape[0], 1.0),
    "one of several": branches(lambda size: size in (7, 9)),
    "in another order": lambda x: x.T.reshape(-1).exp(),
    "orders together": lambda x: (x.reshape(-1, 1) + x.T.reshape(-1, 1)).reshape(-1, 8),
    "parted elsewhere": lambda x: x.T.reshape(-1, 4).sum(-1),
    "several times": lambda x: x.repeat(2, 1),
    "each twice": lambda x: x.repeat_interleave(2, 0),
    "as often as another says": lambda x: x.repeat_interleave(torch.ones(8, dtype=torch.int64).expand(8), 1) * x.shape[0],
    "a caught error": lambda x: tried(x),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_what_depends_on_the_size_is_refused(name: str) -> None:
    with pytest.raises(SizeMatters) as refused:
        sliced(PLANTED[name], rows(8))
    assert str(refused.value)


@pytest.mark.parametrize(
    ("fn", "inputs", "match"),
    [
        (lambda x, w: x.T @ w, (rows(8), rows(8)), "sums over the axis"),
        (lambda i, t: t[i], (torch.randint(0, 3, (4,)), rows(8)), "operand self has the axis"),
        (lambda t, i: t.gather(1, i), (torch.randn(64, 8), torch.randint(0, 8, (ROWS, 3))), "same dimension"),
        (lambda x, y: torch.cat([x, y]), (rows(8), rows(8)), "no multiple|joins tensors along the axis"),
        (lambda q, k: F.scaled_dot_product_attention(q, k, k), (torch.randn(2, ROWS, 4), torch.randn(2, 9, 4)), "along the axis"),
        (nn.TransformerEncoderLayer(16, 4, 32, dropout=0.5), (rows(5, 16),), "random|cannot|act"),
    ],
)  # fmt: skip
def test_so_are_several_tensors(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], match: str) -> None:
    with pytest.raises(SizeMatters, match=match):
        sliced(fn, *inputs)


def test_a_range_of_few_sizes_is_looked_at_in_it() -> None:
    assert set(sliced(lambda x: x.exp(), rows(8), dim=Dim("batch", 5, 6)).sizes) == {5, 6}
    with pytest.raises(SizeMatters, match="has one size"):
        sliced(lambda x: x.exp(), rows(8), dim=Dim("batch", 6, 6))


@pytest.mark.parametrize(
    ("low", "high", "slice_bytes", "sizes"),
    [
        (1, 64, 4, [61, 59, 1]),
        (1, 256, 1 << 23, [31, 29, 1]),
        (1, 8, 1 << 27, [2, 3, 1]),
        (1, 8, 1 << 40, [2, 3, 1]),
        (9, 10, 4, [10, 9]),
        (1, 2, 1 << 40, [2, 1]),
    ],
)
def test_large_slices_are_looked_at_in_small_numbers(low: int, high: int, slice_bytes: int, sizes: list[int]) -> None:
    assert compared_sizes(Dim("batch", low, high), slice_bytes) == sizes


def test_named_arguments_act_on_slices() -> None:
    declared = Declared.of({"x": {0: BATCH}})
    found = sliced_function(lambda x, w: x.exp() @ w, declared, (), {"w": torch.randn(8, 4), "x": rows(8)})
    assert sorted(map(str, found.inputs)) == ["0", "None"]
    with pytest.raises(SizeMatters):
        sliced_function(lambda x, w: x.softmax(0) @ w, declared, (), {"w": torch.randn(8, 4), "x": rows(8)})


def test_several_dimensions_are_refused() -> None:
    declared = Declared.of({0: {0: BATCH, 1: Dim("width", 1, 8)}})
    with pytest.raises(SizeMatters, match="2 dimensions"):
        sliced_function(lambda x: x.exp(), declared, (rows(8),), {})


def test_what_pytorch_says_of_refused_functions_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SizeMatters):
        sliced(PLANTED["at 7"], rows(8))
    assert not capfd.readouterr().err
