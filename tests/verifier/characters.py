"""Pairs of programs that are equal by properties of functions, and near misses of the same rules."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor

from .graphs import program

Function = Callable[..., ProgramTensor]
T = ProgramTensor
SHAPES = (4, 3), (4, 3), (3, 3)


def relu(x: T) -> T:
    return x.relu()


def half(x: T) -> T:
    return x.rounded("fp16")


def brain(x: T) -> T:
    return x.rounded("bf16")


def absolute(x: T) -> T:
    return x.apply("abs")


def logarithm(x: T) -> T:
    return x.apply("log")


def top(x: T) -> T:
    return x.amax(-1, keepdim=True)


def norm(x: T) -> T:
    return (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def leaky(x: T) -> T:
    return relu(x) - relu(-x) * 0.01


EQUAL: dict[str, tuple[Function, Function]] = {
    "a scale taken out of relu and a product": (lambda x, y, w: relu(x * 3) @ w, lambda x, y, w: (relu(x) @ w) * 3),
    "a divisor taken out": (lambda x, y, w: relu(x / 7) @ w, lambda x, y, w: (relu(x) @ w) / 7),
    "a root taken out": (lambda x, y, w: relu(x / 2**0.5), lambda x, y, w: relu(x) / 2**0.5),
    "scales that cancel": (lambda x, y, w: relu(x * 3) * relu(y / 3), lambda x, y, w: relu(x) * relu(y)),
    "leaky relu": (lambda x, y, w: leaky(x * 3) @ w, lambda x, y, w: (leaky(x) @ w) * 3),
    "relu of a multiple that is a sum": (lambda x, y, w: relu(x * 3 + y * 6), lambda x, y, w: relu(x + y * 2) * 3),
    "relu of a product scaled before": (lambda x, y, w: relu((x * 5) @ w), lambda x, y, w: relu(x @ w) * 5),
    "relu of normalised rows": (lambda x, y, w: relu(x / norm(x)) @ w, lambda x, y, w: (relu(x) @ w) / norm(x)),
    "magnitudes of normalised rows": (lambda x, y, w: absolute(x / norm(y)) @ w, lambda x, y, w: (absolute(x) @ w) / norm(y)),
    "relu of weights times values": (
        lambda x, y, w: relu((x.exp() @ w) / x.exp().sum(-1, keepdim=True)),
        lambda x, y, w: relu(x.exp() @ w) / x.exp().sum(-1, keepdim=True),
    ),
    "absolute value of a negative multiple": (lambda x, y, w: absolute(x * -3) @ w, lambda x, y, w: (absolute(x) @ w) * 3),
    "absolute value of a product": (lambda x, y, w: absolute(x * y), lambda x, y, w: absolute(x) * absolute(y)),
    "maximum of multiples": (lambda x, y, w: top(x / 3), lambda x, y, w: top(x) / 3),
    "maximum of shifted ones": (lambda x, y, w: top(x * 3 + 6), lambda x, y, w: (top(x) + 2) * 3),
    "maximum less a constant": (lambda x, y, w: top(x - 2), lambda x, y, w: top(x) - 2),
    "maximum of relu": (lambda x, y, w: top(relu(x * 2)), lambda x, y, w: relu(top(x)) * 2),
    "maximum of exponentials": (lambda x, y, w: top(x.exp()), lambda x, y, w: top(x).exp()),
    "maximum of tanh of sigmoid": (lambda x, y, w: top(x.sigmoid().tanh()), lambda x, y, w: top(x).sigmoid().tanh()),
    "maximum of roots": (lambda x, y, w: top(x.sqrt()), lambda x, y, w: top(x).sqrt()),
    "maximum over rows in another order": (
        lambda x, y, w: relu(x.transpose(0, 1)).amax(0),
        lambda x, y, w: relu(x.amax(-1)),
    ),
    "logarithm of a square": (lambda x, y, w: logarithm(x) * 2, lambda x, y, w: logarithm(x * x)),
    "logarithm of a quotient": (lambda x, y, w: logarithm(x / y * 2), lambda x, y, w: logarithm(x * 2) - logarithm(y)),
    "logarithm of weights": (
        lambda x, y, w: logarithm(x.exp() / x.exp().sum(-1, keepdim=True)),
        lambda x, y, w: x - logarithm(x.exp().sum(-1, keepdim=True)),
    ),
    "relu of rounded": (lambda x, y, w: relu(half(x)) @ w, lambda x, y, w: half(relu(x)) @ w),
    "relu of the negative of rounded": (lambda x, y, w: relu(-brain(x)), lambda x, y, w: brain(relu(-x))),
    "absolute value of rounded": (lambda x, y, w: absolute(brain(x)), lambda x, y, w: brain(absolute(x))),
    "negative of rounded": (lambda x, y, w: -half(x), lambda x, y, w: half(-x)),
    "maximum of rounded": (lambda x, y, w: top(half(x)), lambda x, y, w: half(top(x))),
    "maximum of relu of rounded": (lambda x, y, w: top(relu(half(x * 3))), lambda x, y, w: half(relu(top(x) * 3))),
    "rounded twice by different types": (lambda x, y, w: relu(half(brain(x))), lambda x, y, w: half(brain(relu(x)))),
}  # fmt: skip

DIFFERENT: dict[str, tuple[Function, Function]] = {
    "a negative scale": (lambda x, y, w: relu(x * -3), lambda x, y, w: relu(x) * -3),
    "a negative divisor": (lambda x, y, w: relu(x / -7) @ w, lambda x, y, w: (relu(x) @ w) / -7),
    "a negative root": (lambda x, y, w: relu(x * -(2**0.5)), lambda x, y, w: relu(x) * -(2**0.5)),
    "a scale that may be negative": (lambda x, y, w: relu(x * y), lambda x, y, w: relu(x) * y),
    "a divisor that may be negative": (lambda x, y, w: relu(x / y), lambda x, y, w: relu(x) / y),
    "a row that may be negative": (
        lambda x, y, w: relu(x / x.sum(-1, keepdim=True)),
        lambda x, y, w: relu(x) / x.sum(-1, keepdim=True),
    ),
    "another scale": (lambda x, y, w: relu(x * 3), lambda x, y, w: relu(x) * 4),
    "a square root of the scale": (lambda x, y, w: relu(x * 4), lambda x, y, w: relu(x) * 2),
    "0 inside": (lambda x, y, w: relu(x * 0 + y), lambda x, y, w: relu(x)),
    "a shift out of relu": (lambda x, y, w: relu(x + 2), lambda x, y, w: relu(x) + 2),
    "relu of a sum": (lambda x, y, w: relu(x + y), lambda x, y, w: relu(x) + relu(y)),
    "relu of minus an exponential": (lambda x, y, w: relu(-(x.exp())), lambda x, y, w: -(x.exp())),
    "a scale out of tanh": (lambda x, y, w: (x * 3).tanh(), lambda x, y, w: x.tanh() * 3),
    "a scale out of a square": (lambda x, y, w: relu(x * 3).square(), lambda x, y, w: relu(x).square() * 3),
    "absolute value and sign": (lambda x, y, w: absolute(x * y), lambda x, y, w: absolute(x) * y),
    "absolute value of a sum": (lambda x, y, w: absolute(x + y), lambda x, y, w: absolute(x) + absolute(y)),
    "maximum of negatives": (lambda x, y, w: top(-x), lambda x, y, w: -top(x)),
    "maximum of negative multiples": (lambda x, y, w: top(x * -3), lambda x, y, w: top(x) * -3),
    "maximum of squares": (lambda x, y, w: top(x.square()), lambda x, y, w: top(x).square()),
    "maximum of absolute values": (lambda x, y, w: top(absolute(x)), lambda x, y, w: absolute(top(x))),
    "maximum of silu": (lambda x, y, w: top(x.silu()), lambda x, y, w: top(x).silu()),
    "maximum of inverses": (lambda x, y, w: top(1 / x.exp()),
                            lambda x, y, w: 1 / top(x).exp()),
    "maximum of a constant less": (lambda x, y, w: top(2 - x), lambda x, y, w: 2 - top(x)),
    "maximum over another axis": (lambda x, y, w: relu(w).amax(0), lambda x, y, w: relu(w.amax(-1))),
    "maximum of sums": (lambda x, y, w: top(x + y), lambda x, y, w: top(x) + top(y)),
    "logarithm of a sum": (lambda x, y, w: logarithm(x.exp() + y.exp()), lambda x, y, w: x + y),
    "logarithm of a multiple": (lambda x, y, w: logarithm(x.exp() * 2), lambda x, y, w: x * 2),
    "rounded to another type": (lambda x, y, w: relu(half(x)), lambda x, y, w: brain(relu(x))),
    "not rounded": (lambda x, y, w: relu(half(x)), lambda x, y, w: relu(x)),
    "rounded before and after a scale": (lambda x, y, w: half(x * 3), lambda x, y, w: half(x) * 3),
    "rounded before and after a sum": (lambda x, y, w: half(x + y), lambda x, y, w: half(x) + half(y)),
    "rounded before and after tanh": (lambda x, y, w: half(x).tanh(), lambda x, y, w: half(x.tanh())),
    "roundings in another order": (lambda x, y, w: half(brain(x)), lambda x, y, w: brain(half(x))),
    "scaled between roundings": (lambda x, y, w: half(half(x) * 3), lambda x, y, w: half(x) * 3),
}  # fmt: skip


def pair(functions: tuple[Function, Function]) -> tuple[Graph, Graph]:
    left, right = (program(function, *SHAPES) for function in functions)
    return left, right
