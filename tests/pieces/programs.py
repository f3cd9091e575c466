"""Functions and modules that are no programs as a whole, and example inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Example(NamedTuple):
    """A function with inputs of an example, the operators that PyTorch must run, and at least how many programs there are."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    left: set[str]
    programs: int


class Layer(nn.Module):
    """A layer of a decoder: embedding, norm, rotary embedding, causal attention and a gated MLP; and the largest features."""

    def __init__(self, width: int = 32, heads: int = 2, tokens: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(11, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(*sizes) for sizes in ((width, 48), (width, 48), (48, width)))
        self.cos, self.sin = (nn.Buffer(torch.randn(tokens, width // heads)) for _ in range(2))

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(ids)
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        h = self.norm2(x)
        return {"hidden": x + self.down(F.silu(self.gate(h)) * self.up(h)), "largest": x.argmax(-1)}


class Between(nn.Module):
    """What stands between the attentions of two layers: its parts that are norms and sums surround those that are products."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((64, 64), (64, 128), (64, 128), (128, 64), (64, 32), (64, 32), (64, 32))
        self.out, self.gate, self.up, self.down, *projections = (nn.Linear(*size, bias=False) for size in sizes)
        self.projections, self.norms = nn.ModuleList(projections), nn.ModuleList([nn.RMSNorm(64), nn.RMSNorm(64)])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x + self.out(y)
        h = self.norms[0](x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        h = self.norms[1](x)
        return (x.logcumsumexp(0), *(projection(h) for projection in self.projections))


class Counting(nn.Module):
    """Batch norm in training mode, which changes its statistics and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(16), nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(self.norm(x)), -1)


def _normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.rms_norm(x, x.shape[-1:]) @ w, -1)


def _appended(cache: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    cache[:, 2:4] = x @ w
    return torch.softmax(cache @ w.t(), -1)


def _in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = _normalised(x, w)
    x.mul_(2)
    return y + x.sum()


def _same_memory(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y = _normalised(x.logcumsumexp(0), w)
    return y, y[:2], y.view(-1)


def _random(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _normalised(F.dropout(x, 0.5, training=True), w) + F.dropout(x, 0.25, training=True).sum()


def _number_of(x: torch.Tensor, w: torch.Tensor, many: int, label: str) -> tuple[torch.Tensor, int, str]:
    return _normalised(x.logcumsumexp(0), w) * many, many, label


def _floats(*shapes: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


EXAMPLES = {
    "logcumsumexp": Example(lambda x, w: _normalised(x.logcumsumexp(0), w), _floats((8, 16), (16, 24)), {"logcumsumexp"}, 1),
    "slices": Example(
        lambda x, w: _normalised(x.logcumsumexp(0)[1:, ::2], w)[:, 3:], _floats((9, 32), (16, 24)), {"logcumsumexp"}, 1
    ),
    "cat": Example(
        lambda x, y, w: _normalised(torch.cat([x.logcumsumexp(0), y], 1), w),
        _floats((8, 16), (8, 3), (19, 24)),
        {"logcumsumexp"},
        1,
    ),
    "gather": Example(
        lambda table, ids, w: _normalised(table.gather(0, ids[:, None].expand(-1, 16)), w),
        lambda: (torch.randn(12, 16), torch.tensor([3, 0, 11, 3]), torch.randn(16, 8)),
        {"gather"},
        1,
    ),
    "where": Example(
        lambda x, w: _normalised(torch.where(x > 0, x, x.logcumsumexp(-1) * 0.1), w),
        _floats((8, 16), (16, 24)),
        {"logcumsumexp"},
        1,
    ),
    "top": Example(lambda x, w: _normalised(x, w).topk(3), _floats((8, 16), (16, 24)), {"topk", "getitem"}, 1),
    "convolution": Example(
        lambda x, k, w: _normalised(F.conv2d(x, k).flatten(2), w),
        _floats((2, 3, 6, 6), (5, 3, 3, 3), (16, 8)),
        set(),
        1,
    ),
    "integers": Example(lambda x: x * 2, lambda: (torch.arange(4),), {"mul"}, 0),
    "nothing": Example(lambda x: x * 2, _floats((0, 4)), {"mul"}, 0),
    "views alone": Example(lambda x: (x[1:], x.t()), _floats((3, 4)), {"slice", "t"}, 0),
    "strided": Example(
        lambda x, w: _normalised(x.logcumsumexp(1), w),
        lambda: (torch.randn(16, 8).t(), torch.randn(24, 32)[:, ::2].t()),
        {"logcumsumexp"},
        1,
    ),
    "cache": Example(_appended, _floats((2, 6, 16), (2, 2, 16), (16, 16)), set(), 1),
    "in place": Example(_in_place, _floats((8, 16), (16, 24)), set(), 1),
    "same memory": Example(_same_memory, _floats((8, 16), (16, 24)), {"logcumsumexp"}, 1),
    "random": Example(_random, _floats((8, 16), (16, 24)), {"native_dropout"}, 1),
    "values": Example(_number_of, lambda: (*_floats((8, 16), (16, 24))(), 3, "name"), {"logcumsumexp"}, 1),
    "layer": Example(Layer().eval(), lambda: (torch.randint(0, 11, (2, 8)),), {"argmax"}, 2),
    "between": Example(Between().eval(), _floats((2, 16, 64), (2, 16, 64)), {"logcumsumexp"}, 3),
    "counting": Example(Counting().train(), _floats((8, 16)), {"add"}, 1),
    "half": Example(
        lambda x, w: _normalised(x.logcumsumexp(0), w),
        lambda: (torch.randn(8, 16, dtype=torch.bfloat16), torch.randn(16, 24, dtype=torch.bfloat16)),
        {"logcumsumexp"},
        1,
    ),
    "complex": Example(lambda x, w: _normalised(torch.fft.rfft(x).abs(), w), _floats((8, 16), (9, 24)), {"_fft_r2c", "abs"}, 1),
}
