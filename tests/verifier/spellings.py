"""Functions as PyTorch's users spell them: in each family all spellings are equal, and none of the near misses is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Spellings of one function of tensors of these shapes, and functions that are not it."""

    shapes: tuple[Shape, ...]
    equal: tuple[Function, ...]
    different: tuple[Function, ...]


def family(shapes: tuple[Shape, ...], equal: list[Function], different: list[Function]) -> Family:
    return Family(shapes, tuple(equal), tuple(different))


def top(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return x.amax(dim, keepdim=True)


def total(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return x.sum(dim, keepdim=True)


def mean(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return x.mean(dim, keepdim=True)


def spelled_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x))


def spelled_lse(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.log(torch.sum(torch.exp(x), dim))


def softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + torch.exp(x))


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def norm(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1, keepdim=True).sqrt()


ROWS = ((4, 6),)
CUBE = ((2, 3, 4),)
PAIR = ((4, 6), (4, 6))
COLUMN = ((4, 6), (4, 1))
ROW = ((4, 6), (6,))
GELU = math.sqrt(2 / math.pi)

FAMILIES: dict[str, Family] = {
    "logsumexp": family(
        ROWS,
        [
            lambda x: torch.logsumexp(x, -1),
            lambda x: x.exp().sum(-1).log(),
            lambda x: (x - top(x)).exp().sum(-1).log() + x.amax(-1),
            lambda x: ((x - top(x)).exp().sum(-1, keepdim=True).log() + top(x)).squeeze(-1),
            lambda x: (x - top(x).detach()).exp().sum(-1).log() + x.amax(-1).detach(),
            lambda x: (x - mean(x)).exp().sum(-1).log() + x.mean(-1),
            lambda x: (x - 3).exp().sum(-1).log() + 3,
            lambda x: (x - norm(x)).exp().sum(-1).log() + norm(x).squeeze(-1),
            lambda x: torch.logsumexp(x - mean(x), -1) + x.mean(-1),
            lambda x: torch.log((x.exp() / 6).sum(-1)) + torch.log(torch.full_like(x, 6.0)).amax(-1),
            lambda x: torch.log(x.exp().mean(-1) * 6),
            lambda x: (x + x.amax(-1, keepdim=True)).exp().sum(-1).log() - x.amax(-1),
            lambda x: -torch.log(1 / x.exp().sum(-1)),
            lambda x: 2 * x.exp().sum(-1).sqrt().log(),
            lambda x: 0.5 * x.exp().sum(-1).square().log(),
            lambda x: (x.transpose(0, 1).exp()).sum(0).log(),
            lambda x: torch.logsumexp(x.reshape(4, 2, 3), (1, 2)),
            lambda x: torch.logsumexp(torch.logsumexp(x.reshape(4, 2, 3), 2), 1),
            lambda x: (torch.logsumexp(x, -1, keepdim=True) - x + x).amax(-1),
        ],
        [
            lambda x: torch.logsumexp(x, -1) + 1,
            lambda x: (x - top(x)).exp().sum(-1).log(),
            lambda x: (x - top(x)).exp().sum(-1).log() - x.amax(-1),
            lambda x: (x - top(x, 0)).exp().sum(-1).log() + x.amax(-1),
            lambda x: (x - mean(x)).exp().sum(-1).log() + x.amax(-1),
            lambda x: (x - x * 0.5).exp().sum(-1).log() + x.amax(-1),
            lambda x: x.exp().mean(-1).log(),
            lambda x: x.exp().log().sum(-1),
            lambda x: (x / 2).exp().sum(-1).log() * 2,
            lambda x: x.exp().sum(-1).sqrt().log(),
            lambda x: torch.logsumexp(-x, -1),
            lambda x: -torch.logsumexp(-x, -1),
            lambda x: x.amax(-1),
            lambda x: (x - top(x)).exp().sum(-1).log() + 2 * x.amax(-1),
            lambda x: torch.logsumexp(x + x, -1) / 2,
            lambda x: torch.logsumexp(torch.logsumexp(x.reshape(4, 2, 3), 2, keepdim=True).expand(4, 2, 3), (1, 2)),
        ],
    ),
    "logsumexp over the first axis": family(
        ((6, 6),),
        [
            lambda x: torch.logsumexp(x, 0),
            lambda x: (x - top(x, 0)).exp().sum(0).log() + x.amax(0),
            lambda x: torch.logsumexp(x.transpose(0, 1), 1),
        ],
        [
            lambda x: torch.logsumexp(x, 1),
            lambda x: (x - top(x, 0)).exp().sum(0).log() + x.amax(1),
            lambda x: (x - x.amax(1)).exp().sum(0).log() + x.amax(1).amax(0),
            lambda x: (x - top(x, 1)).exp().sum(0).log() + top(x, 1).squeeze(1),
        ],
    ),
    "logsumexp shifted by another tensor": family(
        COLUMN,
        [
            lambda x, c: torch.logsumexp(x, -1, keepdim=True),
            lambda x, c: (x - c).exp().sum(-1, keepdim=True).log() + c,
            lambda x, c: torch.logsumexp(x + c * 2, -1, keepdim=True) - 2 * c,
            lambda x, c: torch.logsumexp(x + c.abs(), -1, keepdim=True) - c.abs(),
            lambda x, c: (x.exp() * c.exp()).sum(-1, keepdim=True).log() - c,
            lambda x, c: (x.exp() * c.square()).sum(-1, keepdim=True).log() - 2 * c.abs().log(),
            lambda x, c: (x.exp() / torch.sigmoid(c)).sum(-1, keepdim=True).log() + torch.sigmoid(c).log(),
        ],
        [
            lambda x, c: (x - c).exp().sum(-1, keepdim=True).log() - c,
            lambda x, c: (x - c).exp().sum(-1, keepdim=True).log() + c.abs(),
            lambda x, c: (x.exp() * c.exp()).sum(-1, keepdim=True).log() - c.exp(),
            lambda x, c: (x.exp() * c.square()).sum(-1, keepdim=True).log() - c.abs().log(),
            lambda x, c: (x * c).exp().sum(-1, keepdim=True).log() / c,
        ],
    ),
    "a shift that varies along the row": family(
        ROW,
        [lambda x, c: torch.logsumexp(x + c, -1), lambda x, c: (x.exp() * c.exp()).sum(-1).log()],
        [
            lambda x, c: torch.logsumexp(x, -1) + c.amax(-1),
            lambda x, c: torch.logsumexp(x, -1) + c.mean(-1),
            lambda x, c: torch.logsumexp(x, -1) + torch.logsumexp(c, -1),
        ],
    ),
    "log-softmax": family(
        ROWS,
        [
            lambda x: torch.log_softmax(x, -1),
            lambda x: x - torch.logsumexp(x, -1, keepdim=True),
            lambda x: torch.log(torch.softmax(x, -1)),
            lambda x: torch.log_softmax(x + 5, -1),
            lambda x: torch.log_softmax(x - mean(x), -1),
            lambda x: (x - top(x)) - (x - top(x)).exp().sum(-1, keepdim=True).log(),
            lambda x: -torch.log(total(x.exp()) / x.exp()),
            lambda x: torch.log(x.exp()) - torch.log(total(x.exp())),
            lambda x: torch.log_softmax(torch.log_softmax(x, -1), -1),
            lambda x: F.log_softmax(x.transpose(0, 1), 0).transpose(0, 1),
        ],
        [
            lambda x: torch.log_softmax(x, 0),
            lambda x: x - torch.logsumexp(x, 0, keepdim=True),
            lambda x: torch.log_softmax(2 * x, -1),
            lambda x: 2 * torch.log_softmax(x / 2, -1),
            lambda x: -torch.log_softmax(x, -1),
            lambda x: torch.log_softmax(-x, -1),
            lambda x: x - torch.log(torch.softmax(x, -1)),
            lambda x: (x - top(x)) - x.exp().sum(-1, keepdim=True).log(),
            lambda x: torch.softmax(x, -1),
        ],
    ),
    "softmax": family(
        ROWS,
        [
            lambda x: torch.softmax(x, -1),
            lambda x: x.exp() / total(x.exp()),
            lambda x: torch.exp(torch.log_softmax(x, -1)),
            lambda x: torch.exp(x - torch.logsumexp(x, -1, keepdim=True)),
            lambda x: (lambda e: e / total(e))((x - mean(x)).exp()),
            lambda x: (lambda e: e * (1 / total(e)))((x - x.square().sum(-1, keepdim=True).sqrt()).exp()),
            lambda x: torch.softmax(x.relu() - (-x).relu(), -1),
            lambda x: torch.softmax(torch.log(x.exp()), -1),
            lambda x: torch.softmax(torch.softmax(x, -1).log(), -1),
        ],
        [
            lambda x: torch.softmax(x, 0),
            lambda x: torch.softmax(x / 2, -1),
            lambda x: torch.softmax(x, -1) / 2,
            lambda x: (x - top(x, 0)).exp() / total(x.exp()),
            lambda x: (x - top(x)).exp() / total(x.exp()),
            lambda x: torch.softmax(x.abs(), -1),
            lambda x: torch.softmax(x.relu(), -1),
            lambda x: torch.softmax(torch.softmax(x, -1), -1),
        ],
    ),
    "softmax of softmax": family(
        ROWS,
        [
            lambda x: torch.softmax(torch.softmax(x, -1), -1),
            lambda x: (lambda s: s.exp() / total(s.exp()))(x.exp() / total(x.exp())),
            lambda x: (lambda s: (s - 1).exp() / total((s - 1).exp()))(torch.softmax(x, -1)),
            lambda x: torch.exp(torch.log_softmax(torch.softmax(x, -1), -1)),
        ],
        [
            lambda x: torch.softmax(torch.softmax(x, -1), 0),
            lambda x: torch.softmax(torch.softmax(x, 0), -1),
            lambda x: torch.softmax(-torch.softmax(x, -1), -1),
        ],
    ),
    "temperature": family(
        ((4, 6), (4, 1)),
        [
            lambda x, t: torch.softmax(x / t, -1),
            lambda x, t: (lambda e: e / total(e))(((x - top(x)) / t).exp()),
            lambda x, t: (lambda e: e / total(e))((x / t - 3 / t).exp()),
            lambda x, t: torch.exp(x / t - torch.logsumexp(x / t, -1, keepdim=True)),
        ],
        [
            lambda x, t: torch.softmax(x, -1) / t,
            lambda x, t: torch.softmax(x * t, -1),
            lambda x, t: torch.softmax(x / t.abs(), -1),
            lambda x, t: (lambda e: e / total(e))((x / t - x).exp()),
        ],
    ),
    "absolute value": family(
        ROWS,
        [
            lambda x: x.abs(),
            lambda x: (x * x).sqrt(),
            lambda x: x.square().sqrt(),
            lambda x: (-x).abs(),
            lambda x: x.abs().abs(),
            lambda x: x.relu() + (-x).relu(),
            lambda x: 2 * x.relu() - x,
            lambda x: (4 * x * x).sqrt() / 2,
            lambda x: (x**4).sqrt().sqrt(),
            lambda x: x.abs().relu(),
            lambda x: (x.abs() * x.abs()).sqrt(),
            lambda x: x.square() / x.abs(),
            lambda x: torch.exp(0.5 * torch.log(x * x)),
            lambda x: torch.exp(torch.log(x.abs())),
        ],
        [
            lambda x: x,
            lambda x: -x,
            lambda x: x.relu(),
            lambda x: (-x).relu(),
            lambda x: x.sqrt().square(),
            lambda x: -x.abs(),
            lambda x: (x * x).sqrt() * 2,
            lambda x: x.abs().sqrt(),
            lambda x: (x**3).sqrt(),
            lambda x: x.relu() - (-x).relu(),
            lambda x: x.square(),
            lambda x: torch.exp(torch.log(x)),
            lambda x: (x * x + 1).sqrt(),
        ],
    ),
    "absolute value of a product": family(
        PAIR,
        [
            lambda x, y: (x * y).abs(),
            lambda x, y: x.abs() * y.abs(),
            lambda x, y: (x * x * y * y).sqrt(),
            lambda x, y: ((x * y) ** 2).sqrt(),
            lambda x, y: (x * y.abs()).abs(),
            lambda x, y: x.square().sqrt() * y.abs(),
            lambda x, y: (-x * y).abs(),
        ],
        [
            lambda x, y: x * y,
            lambda x, y: x * y.abs(),
            lambda x, y: x.abs() + y.abs(),
            lambda x, y: (x + y).abs(),
            lambda x, y: (x * x * y).sqrt(),
            lambda x, y: (x * y).relu(),
        ],
    ),
    "absolute difference": family(
        PAIR,
        [
            lambda x, y: (x - y).abs(),
            lambda x, y: (y - x).abs(),
            lambda x, y: (x - y).square().sqrt(),
            lambda x, y: (x - y).relu() + (y - x).relu(),
            lambda x, y: (2 * x - 2 * y).abs() / 2,
        ],
        [
            lambda x, y: (x + y).abs(),
            lambda x, y: x.abs() - y.abs(),
            lambda x, y: (x.abs() - y.abs()).abs(),
            lambda x, y: x - y,
            lambda x, y: (x - y).relu() - (y - x).relu(),
        ],
    ),
    "quotient of absolute values": family(
        PAIR,
        [lambda x, y: x.abs() / y.abs(), lambda x, y: (x / y).abs(), lambda x, y: (x * x / (y * y)).sqrt()],
        [lambda x, y: x / y, lambda x, y: x / y.abs(), lambda x, y: y.abs() / x.abs()],
    ),
    "identity with a domain": family(
        ROWS,
        [
            lambda x: x * 1.0 + 0,
            lambda x: torch.exp(torch.log(x)),
            lambda x: torch.log(torch.exp(x)),
            lambda x: x.sqrt() * x.sqrt(),
            lambda x: x.sqrt() ** 2,
            lambda x: x.relu() - (-x).relu(),
            lambda x: F.gelu(x) - F.gelu(-x),
            lambda x: torch.log(x.exp().square()) / 2,
            lambda x: torch.exp(2 * torch.log(x.sqrt())),
            lambda x: F.silu(x) - F.silu(-x),
        ],
        [
            lambda x: torch.log(torch.exp(x) + 1),
            lambda x: torch.exp(torch.log(x) + 1),
            lambda x: torch.exp(torch.log(x + 1)),
            lambda x: torch.exp(2 * torch.log(x)),
            lambda x: F.gelu(x) + F.gelu(-x),
            lambda x: torch.log(x.exp().square()),
            lambda x: (x * x).sqrt(),
        ],
    ),
    "logarithm of a product": family(
        PAIR,
        [
            lambda x, y: torch.log(x.exp() * y.square()),
            lambda x, y: x + torch.log(y * y),
            lambda x, y: x + 2 * torch.log(y.abs()),
            lambda x, y: x + torch.log(y.abs()) + torch.log(y.square()) / 2,
            lambda x, y: -torch.log((-x).exp() / y.square()),
            lambda x, y: 2 * torch.log((x.exp() * y.square()).sqrt()),
        ],
        [
            lambda x, y: x + torch.log(y.abs()),
            lambda x, y: x * torch.log(y * y),
            lambda x, y: torch.log(x.exp() + y.square()),
            lambda x, y: torch.log(x.exp() / y.square()),
            lambda x, y: x - torch.log(y * y),
        ],
    ),
    "logarithm of a product of unknown sign": family(
        PAIR,
        [
            lambda x, y: torch.log(x * y),
            lambda x, y: torch.log(-x * -y),
            lambda x, y: torch.log(x * y * 2) - torch.log(2 + 0 * x),
        ],
        [
            lambda x, y: torch.log(x.abs()) - torch.log(y.abs()),
            lambda x, y: torch.log(-x * y),
            lambda x, y: torch.log(x + y),
            lambda x, y: torch.log(x) * torch.log(y),
        ],
    ),
    "sigmoid": family(
        ROWS,
        [
            torch.sigmoid,
            spelled_sigmoid,
            lambda x: x.exp() / (1 + x.exp()),
            lambda x: (torch.tanh(x / 2) + 1) / 2,
            lambda x: 1 - torch.sigmoid(-x),
            lambda x: torch.exp(-softplus(-x)),
            lambda x: F.silu(x) / x,
            lambda x: (1 + torch.exp(-x)) ** -1,
            lambda x: torch.exp(x / 2) / (torch.exp(x / 2) + torch.exp(-x / 2)),
            lambda x: torch.reciprocal(1 + torch.exp(-x)),
            lambda x: 1 - 1 / (1 + x.exp()),
            lambda x: torch.exp(x - softplus(x)),
        ],
        [
            lambda x: torch.sigmoid(-x),
            lambda x: torch.sigmoid(2 * x),
            lambda x: 1 / (1 + torch.exp(x)),
            lambda x: 1 / (1 - torch.exp(-x)),
            lambda x: 1 / (2 + torch.exp(-x)),
            lambda x: torch.tanh(x),
            lambda x: (torch.tanh(x) + 1) / 2,
            F.silu,
            lambda x: torch.sigmoid(x).square(),
            lambda x: torch.sigmoid(x.abs()),
        ],
    ),
    "silu": family(
        ROWS,
        [
            F.silu,
            lambda x: x * torch.sigmoid(x),
            lambda x: x / (1 + torch.exp(-x)),
            lambda x: x * spelled_sigmoid(x),
            lambda x: x * x.exp() / (1 + x.exp()),
            lambda x: x - x * torch.sigmoid(-x),
            lambda x: F.silu(-x) + x,
            lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x)),
        ],
        [
            torch.sigmoid,
            lambda x: x / (1 + torch.exp(x)),
            lambda x: F.silu(-x),
            lambda x: F.silu(x) + x,
            lambda x: -x * torch.sigmoid(-x),
            lambda x: F.silu(2 * x) / 2,
            lambda x: x.relu(),
            F.gelu,
            lambda x: x.abs() * torch.sigmoid(x),
        ],
    ),
    "tanh": family(
        ROWS,
        [
            torch.tanh,
            lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
            lambda x: 2 * torch.sigmoid(2 * x) - 1,
            lambda x: ((2 * x).exp() - 1) / ((2 * x).exp() + 1),
            lambda x: 1 - 2 / ((2 * x).exp() + 1),
            lambda x: -torch.tanh(-x),
            lambda x: (1 - (-2 * x).exp()) / (1 + (-2 * x).exp()),
            lambda x: torch.sigmoid(2 * x) - torch.sigmoid(-2 * x),
        ],
        [
            lambda x: 2 * torch.sigmoid(x) - 1,
            lambda x: torch.tanh(-x),
            lambda x: torch.tanh(2 * x),
            lambda x: ((2 * x).exp() + 1) / ((2 * x).exp() - 1),
            lambda x: 1 - 2 / (x.exp() + 1),
            lambda x: torch.tanh(x.abs()),
        ],
    ),
    "softplus": family(
        ROWS,
        [
            softplus,
            F.softplus,
            lambda x: torch.log1p(torch.exp(x)),
            lambda x: torch.log(2 + torch.expm1(x)),
            lambda x: x.relu() + torch.log(1 + torch.exp(-x.abs())),
            lambda x: -torch.log(torch.sigmoid(-x)),
            lambda x: x + softplus(-x),
            lambda x: x - torch.log(torch.sigmoid(x)),
            lambda x: torch.log(torch.exp(-x.relu()) + torch.exp(x - x.relu())) + x.relu(),
            lambda x: -torch.log(1 - torch.sigmoid(x)),
            lambda x: x.relu() - torch.log(torch.sigmoid(x.abs())),
            lambda x: x / 2 + torch.log(torch.exp(x / 2) + torch.exp(-x / 2)),
        ],
        [
            lambda x: torch.log1p(torch.exp(-x)),
            lambda x: torch.log(1 + torch.expm1(x)),
            lambda x: torch.log(1 + torch.exp(-x)),
            lambda x: x.relu() + torch.log(1 + torch.exp(x.abs())),
            lambda x: x.relu() - torch.log(1 + torch.exp(-x.abs())),
            lambda x: torch.log(torch.sigmoid(-x)),
            lambda x: torch.log(torch.exp(x) - 1),
            lambda x: torch.log(2 + torch.exp(x)),
            lambda x: x.abs() + torch.log(1 + torch.exp(-x.abs())),
            lambda x: x.relu() + torch.log(1 + torch.exp(-x)),
            lambda x: x.relu(),
        ],
    ),
    "log-sigmoid": family(
        ROWS,
        [
            lambda x: torch.log(torch.sigmoid(x)),
            lambda x: -softplus(-x),
            lambda x: x - softplus(x),
            lambda x: -((-x).relu() + torch.log(1 + torch.exp(-x.abs()))),
            lambda x: torch.log(F.silu(x) / x),
        ],
        [
            lambda x: -softplus(x),
            lambda x: softplus(-x),
            lambda x: torch.log(torch.sigmoid(-x)),
            lambda x: torch.log(torch.tanh(x)),
        ],
    ),
    "gelu by tanh": family(
        ROWS,
        [
            tanh_gelu,
            lambda x: 0.5 * x * (1 + torch.tanh(GELU * (x + 0.044715 * x**3))),
            lambda x: x * torch.sigmoid(2 * GELU * (x + 0.044715 * x * x * x)),
            lambda x: x / (1 + torch.exp(-2 * GELU * x * (1 + 0.044715 * x * x))),
            lambda x: x * 0.5 + x * 0.5 * torch.tanh(GELU * x + GELU * (0.044715 * x * x * x)),
            lambda x: F.silu(2 * GELU * (x + 0.044715 * x**3)) / (2 * GELU * (1 + 0.044715 * x**2)),
        ],
        [
            F.gelu,
            lambda x: x * torch.sigmoid(1.702 * x),
            lambda x: 0.5 * x * (1 + torch.tanh(GELU * (x + 0.044 * x**3))),
            lambda x: 0.5 * x * (1 + torch.tanh(GELU * (x + 0.044715 * x**2))),
            lambda x: 0.5 * x * (1 - torch.tanh(GELU * (x + 0.044715 * x**3))),
            lambda x: tanh_gelu(-x),
        ],
    ),
    "gelu": family(
        ROWS,
        [F.gelu, lambda x: x + F.gelu(-x), lambda x: F.gelu(x.relu() - (-x).relu()), lambda x: -(-x - F.gelu(-x) * 1)],
        [tanh_gelu, lambda x: F.gelu(-x), lambda x: x - F.gelu(-x), lambda x: F.gelu(2 * x) / 2, lambda x: x.relu()],
    ),
    "relu": family(
        ROWS,
        [
            torch.relu,
            lambda x: x.relu().relu(),
            lambda x: (x + x.abs()) / 2,
            lambda x: x + (-x).relu(),
            lambda x: (3 * x).relu() / 3,
            lambda x: x.clamp(min=0),
            lambda x: x.relu().abs(),
            lambda x: x.relu().square().sqrt(),
            lambda x: (x * x.relu()).sqrt(),
            lambda x: x.relu().relu().relu() * 1.0,
            lambda x: x * torch.exp(0 * x) * 0 + F.relu(x),
            lambda x: F.relu(F.relu(x) + F.relu(-x) * 0),
            lambda x: x.relu().clamp(min=0),
        ],
        [
            lambda x: x,
            lambda x: (-x).relu(),
            lambda x: x.abs(),
            lambda x: (x - x.abs()) / 2,
            lambda x: (-3 * x).relu() / -3,
            lambda x: (x + 1).relu() - 1,
            lambda x: (2 * x).relu(),
            lambda x: x.relu().square(),
            lambda x: x.clamp(min=1),
            lambda x: -(-x).relu(),
        ],
    ),
    "relu of a multiple": family(
        COLUMN,
        [
            lambda x, c: (x * c.square()).relu(),
            lambda x, c: x.relu() * c * c,
            lambda x, c: (x * c.abs()).relu() * c.abs(),
            lambda x, c: x.clamp(min=0) * c.square(),
            lambda x, c: ((x * c.abs()).relu().square()).sqrt() * c.abs(),
        ],
        [
            lambda x, c: (x * c).relu() * c,
            lambda x, c: (x * c).relu() * c.abs(),
            lambda x, c: x.relu() * c,
            lambda x, c: (x + c.square()).relu(),
            lambda x, c: x.relu() * c.relu().square(),
        ],
    ),
    "relu squared": family(
        ROWS,
        [
            lambda x: x.relu().square(),
            lambda x: x.relu() * x,
            lambda x: x * (x + x.abs()) / 2,
            lambda x: x.relu() * x.abs(),
            lambda x: (x * x + x * x.abs()) / 2,
            lambda x: x.square() - (-x).relu().square(),
        ],
        [lambda x: x.square(), lambda x: x.relu(), lambda x: x * x.abs(), lambda x: (-x).relu() * x, lambda x: x.relu() ** 3],
    ),
    "clamp from below": family(
        ROWS,
        [
            lambda x: x.clamp(min=1.0),
            lambda x: (x - 1).relu() + 1,
            lambda x: (x + 1 + (x - 1).abs()) / 2,
            lambda x: x + (1 - x).relu(),
            lambda x: x.clamp(min=1.0).relu(),
            lambda x: x.clamp(min=1.0).abs(),
            lambda x: (2 * x).clamp(min=2.0) / 2,
            lambda x: x.clamp(min=1.0).clamp(min=1.0),
        ],
        [
            lambda x: x.relu(),
            lambda x: x.relu() + 1,
            lambda x: (x - 1).relu(),
            lambda x: x.clamp(min=2.0),
            lambda x: (1 - x).relu() + 1,
            lambda x: x - (1 - x).relu(),
        ],
    ),
    "maximum of multiples": family(
        COLUMN,
        [
            lambda x, c: (x * c.square()).amax(-1),
            lambda x, c: x.amax(-1) * c.squeeze(-1) * c.squeeze(-1),
            lambda x, c: ((x * c.square()).amax(-1, keepdim=True)).squeeze(-1),
            lambda x, c: (x * c.abs()).amax(-1) * c.abs().squeeze(-1),
            lambda x, c: (3 * x * c.square()).amax(-1) / 3,
            lambda x, c: ((x - c) * c.square()).amax(-1) + c.squeeze(-1) ** 3,
        ],
        [
            lambda x, c: (x * c).amax(-1) * c.squeeze(-1),
            lambda x, c: x.amax(-1) * c.squeeze(-1),
            lambda x, c: (x * c.square()).sum(-1),
            lambda x, c: (x * c).amax(-1) * c.abs().squeeze(-1),
            lambda x, c: -(-x * c.square()).amax(-1),
            lambda x, c: (x * c.square()).amax(0),
            lambda x, c: (x + c.square()).amax(-1),
        ],
    ),
    "maximum of multiples of unknown sign": family(
        COLUMN,
        [lambda x, c: (x * c).amax(-1), lambda x, c: (2 * x * c).amax(-1) / 2],
        [
            lambda x, c: x.amax(-1) * c.squeeze(-1),
            lambda x, c: (x * c.abs()).amax(-1),
            lambda x, c: -(-x * c).amax(-1),
            lambda x, c: (x * c).abs().amax(-1),
        ],
    ),
    "maximum of a sum": family(
        COLUMN,
        [
            lambda x, c: (x + c).amax(-1),
            lambda x, c: x.amax(-1) + c.squeeze(-1),
            lambda x, c: (x - 1 + c).amax(-1) + 1,
            lambda x, c: (2 * (x + c)).amax(-1) / 2,
            lambda x, c: torch.log((x + c).exp().amax(-1)),
            lambda x, c: (x.exp() * c.exp()).amax(-1).log(),
        ],
        [
            lambda x, c: x.amax(-1) - c.squeeze(-1),
            lambda x, c: (x - c).amax(-1),
            lambda x, c: x.amax(-1),
            lambda x, c: x.amax(-1) * c.squeeze(-1),
            lambda x, c: (x + c).mean(-1),
        ],
    ),
    "maximum of a sum that varies": family(
        ROW,
        [lambda x, c: (x + c).amax(-1), lambda x, c: (x + c + 1).amax(-1) - 1, lambda x, c: ((x + c).exp()).amax(-1).log()],
        [lambda x, c: x.amax(-1) + c.amax(-1), lambda x, c: x.amax(-1) + c.sum(-1), lambda x, c: (x - c).amax(-1)],
    ),
    "maximum of an exponential": family(
        ROWS,
        [
            lambda x: x.exp().amax(-1),
            lambda x: x.amax(-1).exp(),
            lambda x: (x / 2).exp().amax(-1).square(),
            lambda x: (2 * x).exp().amax(-1).sqrt(),
            lambda x: (3 * x.exp()).amax(-1) / 3,
        ],
        [
            lambda x: (-x).exp().amax(-1),
            lambda x: 1 / (-x).exp().amax(-1),
            lambda x: x.exp().sum(-1),
            lambda x: x.amax(0).amax(0).exp().expand(4),
            lambda x: (-x.amax(-1)).exp(),
        ],
    ),
    "maximum of monotone functions": family(
        ROWS,
        [
            lambda x: torch.sigmoid(x).amax(-1) + x.tanh().amax(-1) + x.relu().amax(-1),
            lambda x: (lambda m: torch.sigmoid(m) + m.tanh() + m.relu())(x.amax(-1)),
            lambda x: spelled_sigmoid(x).amax(-1) + torch.tanh(x.amax(-1)) + x.clamp(min=0).amax(-1),
            lambda x: (lambda m: torch.sigmoid(m) + 2 * torch.sigmoid(2 * m) - 1)(x.amax(-1)) + ((x + x.abs()) / 2).amax(-1),
        ],
        [
            lambda x: torch.sigmoid(x).amax(-1) + x.tanh().amax(-1) + x.amax(-1),
            lambda x: torch.sigmoid(-x).amax(-1) + x.tanh().amax(-1) + x.relu().amax(-1),
            lambda x: (lambda m: torch.sigmoid(m) + m.tanh() + m.relu())(-(-x).amax(-1)),
            lambda x: torch.sigmoid(x).amax(-1) + x.tanh().amax(-1) + x.abs().amax(-1),
        ],
    ),
    "maximum of sigmoids": family(
        ROWS,
        [
            lambda x: torch.sigmoid(-x).amax(-1),
            lambda x: torch.sigmoid((-x).amax(-1)),
            lambda x: (1 / (1 + x.exp())).amax(-1),
            lambda x: 1 - torch.sigmoid(-(-x).amax(-1)),
        ],
        [lambda x: torch.sigmoid(-x.amax(-1)), lambda x: torch.sigmoid(x).amax(-1), lambda x: 1 - torch.sigmoid(-x).amax(-1)],
    ),
    "maximum of roots and logarithms": family(
        ROWS,
        [
            lambda x: (x.square() + 1).sqrt().amax(-1) + (x.square() + 1).log().amax(-1),
            lambda x: (lambda m: (m + 1).sqrt() + (m + 1).log())(x.square().amax(-1)),
            lambda x: (lambda m: (m.square() + 1).sqrt() + (m.square() + 1).log())(x.abs().amax(-1)),
        ],
        [
            lambda x: (lambda m: (m.square() + 1).sqrt() + (m.square() + 1).log())(x.amax(-1)),
            lambda x: (lambda m: (m + 1).sqrt() + m.log())(x.square().amax(-1)),
        ],
    ),
    "maximum of squares": family(
        ROWS,
        [
            lambda x: x.square().amax(-1),
            lambda x: x.abs().amax(-1).square(),
            lambda x: x.abs().amax(-1) * x.abs().amax(-1),
            lambda x: x.square().sqrt().amax(-1) ** 2,
        ],
        [lambda x: x.amax(-1).square(), lambda x: x.abs().amax(-1), lambda x: (x * x.abs()).amax(-1)],
    ),
    "maximum over repeats": family(
        ROWS,
        [
            lambda x: x,
            lambda x: x.unsqueeze(-1).expand(4, 6, 5).amax(-1),
            lambda x: x.unsqueeze(0).repeat(7, 1, 1).amax(0),
            lambda x: x.repeat_interleave(3, dim=1).reshape(4, 6, 3).amax(-1),
            lambda x: x.unsqueeze(1).amax(1),
            lambda x: x.repeat(3, 1).reshape(3, 4, 6).amax(0),
        ],
        [
            lambda x: x.unsqueeze(-1).expand(4, 6, 5).sum(-1),
            lambda x: x.repeat(1, 3).reshape(4, 6, 3).amax(-1),
            lambda x: top(x).expand(4, 6),
        ],
    ),
    "maximum of repeats": family(
        ROWS,
        [
            lambda x: x.amax(-1),
            lambda x: x.repeat(1, 3).amax(-1),
            lambda x: x.repeat_interleave(2, dim=1).amax(-1),
            lambda x: x.transpose(0, 1).amax(0),
            lambda x: x.reshape(4, 2, 3).amax(-1).amax(-1),
            lambda x: x.reshape(4, 2, 3).amax((1, 2)),
            lambda x: x.reshape(4, 3, 2).permute(2, 0, 1).amax(0).amax(1),
            lambda x: x.amax(-1, keepdim=True).amax(-1),
            lambda x: top(x).expand(4, 6).amax(-1),
            lambda x: x.reshape(4, 3, 2).amax(1).amax(1),
        ],
        [
            lambda x: x.reshape(6, 4).amax(0),
            lambda x: x.sum(-1),
            lambda x: -(-x).amax(-1),
            lambda x: x.repeat(1, 3).sum(-1),
            lambda x: x.abs().amax(-1),
            lambda x: x.reshape(4, 2, 3).amax(-1).sum(-1),
        ],
    ),
    "maximum over two axes": family(
        CUBE,
        [
            lambda x: x.amax((1, 2)),
            lambda x: x.amax(1).amax(1),
            lambda x: x.amax(2).amax(1),
            lambda x: x.reshape(2, 12).amax(1),
            lambda x: x.permute(2, 1, 0).amax(0).amax(0),
            lambda x: (x + 1).amax(2).amax(1) - 1,
            lambda x: x.exp().amax(2).amax(1).log(),
        ],
        [
            lambda x: x.amax(1).sum(1),
            lambda x: x.amax(2).sum(1),
            lambda x: x.sum(2).amax(1),
            lambda x: x.reshape(12, 2).amax(0),
            lambda x: x.mean((1, 2)),
        ],
    ),
    "rms norm": family(
        ROW,
        [
            lambda x, w: F.rms_norm(x, (6,), w, eps=1e-5),
            lambda x, w: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w,
            lambda x, w: x * torch.rsqrt(mean(x * x) + 1e-5) * w,
            lambda x, w: x * (mean(x**2) + 1e-5).pow(-0.5) * w,
            lambda x, w: w * (x * (1 / (total(x**2) / 6 + 1e-5).sqrt())),
            lambda x, w: torch.exp(-0.5 * torch.log(mean(x**2) + 1e-5)) * x * w,
            lambda x, w: x.abs() * (x / x.abs()) * torch.rsqrt(mean(x.abs() ** 2) + 1e-5) * w,
        ],
        [
            lambda x, w: F.rms_norm(x, (6,), w, eps=1e-6),
            lambda x, w: x / (mean(x * x).sqrt() + 1e-5) * w,
            lambda x, w: x * (mean(x * x) + 1e-5) ** 0.5 * w,
            lambda x, w: x / (total(x * x) + 1e-5).sqrt() * w,
            lambda x, w: x / (mean(x * x, 0) + 1e-5).sqrt() * w,
            lambda x, w: x.abs() * torch.rsqrt(mean(x * x) + 1e-5) * w,
            lambda x, w: x * torch.rsqrt(mean(x) ** 2 + 1e-5) * w,
        ],
    ),
    "layer norm": family(
        ROWS,
        [
            lambda x: F.layer_norm(x, (6,)),
            lambda x: (x - mean(x)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
            lambda x: (x - mean(x)) * torch.rsqrt(mean((x - mean(x)) ** 2) + 1e-5),
            lambda x: (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(x) ** 2 + 1e-5),
            lambda x: (x - mean(x)) * torch.rsqrt(mean((x - mean(x)).abs() ** 2) + 1e-5),
            lambda x: (x - mean(x)) * torch.exp(-0.5 * torch.log(mean((x - mean(x)) ** 2) + 1e-5)),
        ],
        [
            lambda x: (x - mean(x)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
            lambda x: x / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
            lambda x: (x - mean(x)) / (mean(x * x) + 1e-5).sqrt(),
            lambda x: (x - mean(x)) / (x.std(-1, unbiased=False, keepdim=True) + 1e-5),
            lambda x: (x - mean(x, 0)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt(),
        ],
    ),
    "L2 normalisation": family(
        ROWS,
        [
            lambda x: x / x.norm(dim=-1, keepdim=True),
            lambda x: x / norm(x),
            lambda x: x * torch.rsqrt(total(x * x)),
            lambda x: x / total(x.abs() ** 2).sqrt(),
            lambda x: (3 * x) / norm(3 * x),
            lambda x: x * torch.exp(-0.5 * torch.log(total(x * x))),
            lambda x: (x * top(x).exp()) / norm(x * top(x).exp()),
        ],
        [
            lambda x: x / total(x.abs()),
            lambda x: x / norm(x).square(),
            lambda x: x / norm(x.transpose(0, 1)).transpose(0, 1),
            lambda x: (-3 * x) / norm(3 * x),
            lambda x: x.abs() / norm(x),
            lambda x: x / (norm(x) + 1e-6),
        ],
    ),
    "L2 normalisation of a multiple": family(
        COLUMN,
        [
            lambda x, c: (c.abs() * x) / norm(c * x),
            lambda x, c: x / norm(x),
            lambda x, c: (x * c.exp()) / norm(x * c.exp()),
            lambda x, c: (x / c.abs()) / norm(x / c),
        ],
        [lambda x, c: (c * x) / norm(c * x), lambda x, c: c * x / norm(x), lambda x, c: x / norm(c * x)],
    ),
    "clamped L2 normalisation": family(
        ROWS,
        [
            lambda x: F.normalize(x, dim=-1, eps=1e-3),
            lambda x: x / norm(x).clamp(min=1e-3),
            lambda x: x / ((total(x.abs().square()).sqrt() - 1e-3).relu() + 1e-3),
        ],
        [lambda x: x / norm(x), lambda x: x / (norm(x) + 1e-3), lambda x: x / norm(x).clamp(min=1e-2)],
    ),
    "standard deviation": family(
        ROWS,
        [
            lambda x: x.std(-1),
            lambda x: x.var(-1).sqrt(),
            lambda x: ((x - mean(x)) ** 2).sum(-1).div(5).sqrt(),
            lambda x: torch.exp(0.5 * torch.log(x.var(-1))),
            lambda x: (-x).std(-1),
            lambda x: (x + 2).std(-1),
            lambda x: (x * 2).std(-1) / 2,
            lambda x: x.std(-1).abs(),
        ],
        [
            lambda x: x.std(-1, unbiased=False),
            lambda x: x.var(-1),
            lambda x: (x * x).sum(-1).div(5).sqrt(),
            lambda x: -x.std(-1),
            lambda x: (x.abs()).std(-1),
        ],
    ),
    "attention": family(
        ((3, 4), (6, 4), (6, 5)),
        [
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
            lambda q, k, v: torch.softmax(q @ k.transpose(0, 1) / 2, -1) @ v,
            lambda q, k, v: (lambda s: (s.exp() @ v) / total(s.exp()))(q @ k.transpose(0, 1) / 2),
            lambda q, k, v: torch.exp(torch.log_softmax((q / 2) @ k.transpose(0, 1), -1)) @ v,
            lambda q, k, v: (lambda s: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v)(q @ (k / 2).transpose(0, 1)),
        ],
        [
            lambda q, k, v: torch.softmax(q @ k.transpose(0, 1), -1) @ v,
            lambda q, k, v: torch.softmax(q @ k.transpose(0, 1) / 2, 0) @ v,
            lambda q, k, v: torch.softmax(q @ k.transpose(0, 1), -1) @ v / 2,
            lambda q, k, v: torch.sigmoid(q @ k.transpose(0, 1) / 2) @ v,
        ],
    ),
    "cross entropy": family(
        ((4, 6), (4, 6)),
        [
            lambda x, t: -(t * torch.log_softmax(x, -1)).sum(-1),
            lambda x, t: (t * (torch.logsumexp(x, -1, keepdim=True) - x)).sum(-1),
            lambda x, t: -(t * torch.log(torch.softmax(x, -1))).sum(-1),
            lambda x, t: t.sum(-1) * torch.logsumexp(x, -1) - (t * x).sum(-1),
        ],
        [
            lambda x, t: (t * torch.log_softmax(x, -1)).sum(-1),
            lambda x, t: torch.logsumexp(x, -1) - (t * x).sum(-1),
            lambda x, t: -(t * torch.log_softmax(x, 0)).sum(-1),
            lambda x, t: -(x * torch.log_softmax(t, -1)).sum(-1),
        ],
    ),
    "binary cross entropy": family(
        ((4, 6), (4, 6)),
        [
            lambda x, t: -(t * torch.log(torch.sigmoid(x)) + (1 - t) * torch.log(1 - torch.sigmoid(x))),
            lambda x, t: x.relu() - x * t + torch.log(1 + torch.exp(-x.abs())),
            lambda x, t: softplus(x) - x * t,
            lambda x, t: (1 - t) * x + softplus(-x),
        ],
        [
            lambda x, t: softplus(x) + x * t,
            lambda x, t: softplus(-x) - x * t,
            lambda x, t: -(t * torch.log(torch.sigmoid(x))),
            lambda x, t: x.relu() - x * t + torch.log(1 + torch.exp(x.abs())),
        ],
    ),
    "gated product": family(
        ((3, 4), (4, 5), (4, 5), (5, 2)),
        [
            lambda x, w, v, u: (F.silu(x @ w) * (x @ v)) @ u,
            lambda x, w, v, u: (lambda h: (h / (1 + torch.exp(-h))) * (x @ v))(x @ w) @ u,
            lambda x, w, v, u: (x @ w * torch.sigmoid(x @ w) * (x @ v)) @ u,
            lambda x, w, v, u: ((x @ v) * (x @ w) * (1 + torch.tanh((x @ w) / 2)) / 2) @ u,
        ],
        [
            lambda x, w, v, u: (F.silu(x @ v) * (x @ w)) @ u,
            lambda x, w, v, u: (torch.sigmoid(x @ w) * (x @ v)) @ u,
            lambda x, w, v, u: F.silu((x @ w) * (x @ v)) @ u,
        ],
    ),
    "relu layers": family(
        ((3, 4), (4, 5), (5, 2)),
        [
            lambda x, w, u: (x @ w).relu() @ u,
            lambda x, w, u: ((x @ w + (x @ w).abs()) / 2) @ u,
            lambda x, w, u: (2 * x @ w).relu() @ (u / 2),
            lambda x, w, u: (x @ w).relu().relu() @ u,
            lambda x, w, u: (x @ w) @ u + (x @ -w).relu() @ u,
        ],
        [
            lambda x, w, u: (x @ w @ u).relu(),
            lambda x, w, u: (x @ w) @ u,
            lambda x, w, u: (-2 * x @ w).relu() @ (u / -2),
            lambda x, w, u: (x @ w).abs() @ u / 2,
        ],
    ),
}
