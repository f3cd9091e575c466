"""Families of elementwise functions: algebra, powers, roots, exponentials and logarithms, activations, and domains.

Each pair is also placed in programs (`CONTEXTS`): what is true of two elementwise functions is true of them there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import gelu, relu, silu

from mugraph.testing.pairs.pair import Function, Pair, Shape, Truth, pair, register

Placed = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class PairContext:
    """`place(h)` is a function of tensors of `shapes(arity)` around the elementwise function `h` of `arity` tensors."""

    name: str
    place: Callable[[Function], Placed]
    shapes: Callable[[int], tuple[Shape, ...]]


def _bare(h: Function) -> Placed:
    return h


def _of_a_product(h: Function) -> Placed:
    return lambda w, x, *rest: h(x @ w, *rest)


def _into_a_product(h: Function) -> Placed:
    return lambda w, *rest: h(*rest) @ w


def _summed(h: Function) -> Placed:
    return lambda *rest: h(*rest).sum(-1)


def _residual(h: Function) -> Placed:
    return lambda scale, x, *rest: x + h(x, *rest) * scale


def _second_output(h: Function) -> Placed:
    return lambda *rest: (rest[0] * 2, h(*rest))


def _of_a_biased_row(h: Function) -> Placed:
    return lambda bias, x, *rest: h(x + bias, *rest)


def _of_a_scaled_column(h: Function) -> Placed:
    return lambda column, x, *rest: h(x * column, *rest)


CONTEXTS = (
    PairContext("a vector", _bare, lambda arity: ((7,),) * arity),
    PairContext("a matrix", _bare, lambda arity: ((3, 4),) * arity),
    PairContext("a batch of one", _bare, lambda arity: ((1, 2, 5),) * arity),
    PairContext("of a product", _of_a_product, lambda arity: ((4, 5), (3, 4), *((3, 5),) * (arity - 1))),
    PairContext("into a product", _into_a_product, lambda arity: ((4, 2), *((3, 4),) * arity)),
    PairContext("summed", _summed, lambda arity: ((2, 3),) * arity),
    PairContext("residual", _residual, lambda arity: ((4,), *((2, 4),) * arity)),
    PairContext("the second output", _second_output, lambda arity: ((3, 2),) * arity),
    PairContext("of a biased row", _of_a_biased_row, lambda arity: ((5,), *((2, 5),) * arity)),
    PairContext("of a scaled column", _of_a_scaled_column, lambda arity: ((3, 1), *((3, 3),) * arity)),
)


def elementwise(construct: str, truth: Truth, name: str, left: Function, right: Function, *, most: int = len(CONTEXTS)) -> None:
    """Register the family of two elementwise functions at their first `most` places."""

    def make() -> Iterator[Pair]:
        arity = len(inspect.signature(left).parameters)
        for context in CONTEXTS[:most]:
            yield pair(truth, context.name, context.place(left), context.place(right), *context.shapes(arity))

    register(name, construct, make)


_GELU = 0.7978845608028654
"""The float nearest to sqrt(2 / pi), as everybody writes it."""

Row = tuple[Truth, str, Function, Function]
EQUAL, DIFFERENT, PART, NEARLY, EMPTY, READING = Truth


def _gelu_by_tanh(x: torch.Tensor, cubic: float = 0.044715) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(_GELU * (x + cubic * x**3)))


def _polynomial(x: torch.Tensor, roots: range) -> torch.Tensor:
    product = x - roots[0]
    for root in roots[1:]:
        product = product * (x - root)
    return product


def _taylor(x: torch.Tensor, terms: int) -> torch.Tensor:
    total = term = x * 0 + 1
    for order in range(1, terms):
        term = term * x / order
        total = total + term
    return total


ALGEBRA: tuple[Row, ...] = (
    (EQUAL, "a square of a sum multiplied out", lambda x, y: (x + y) ** 2, lambda x, y: x * x + 2 * x * y + y * y),
    (DIFFERENT, "a square of a sum without its middle", lambda x, y: (x + y) ** 2, lambda x, y: x * x + y * y),
    (EQUAL, "a difference of squares", lambda x, y: (x + y) * (x - y), lambda x, y: x * x - y * y),
    (DIFFERENT, "a square of a difference for a difference of squares", lambda x, y: (x - y) ** 2, lambda x, y: x * x - y * y),
    (EQUAL, "Horner's scheme", lambda x: ((2 * x + 3) * x - 5) * x + 7, lambda x: 2 * x**3 + 3 * x**2 - 5 * x + 7),
    (DIFFERENT, "Horner's scheme backwards", lambda x: ((2 * x + 3) * x - 5) * x + 7, lambda x: ((7 * x - 5) * x + 3) * x + 2),
    (EQUAL, "a product distributed", lambda x, y, z: x * (y + z), lambda x, y, z: x * y + x * z),
    (DIFFERENT, "a product distributed over one term", lambda x, y, z: x * (y + z), lambda x, y, z: x * y + z),
    (EQUAL, "sums reassociated", lambda x, y, z: (x + y) + z, lambda x, y, z: y + (z + x)),
    (DIFFERENT, "differences reassociated", lambda x, y, z: (x - y) - z, lambda x, y, z: x - (y - z)),
    (EQUAL, "quotients of quotients", lambda x, y, z: x / y / z, lambda x, y, z: x / (y * z)),
    (DIFFERENT, "quotients reassociated", lambda x, y, z: (x / y) / z, lambda x, y, z: x / (y / z)),
    (EQUAL, "a sum over one denominator", lambda x, y: 1 / x + 1 / y, lambda x, y: (x + y) / (x * y)),
    (DIFFERENT, "a denominator distributed", lambda x, y, z: x / (y + z), lambda x, y, z: x / y + x / z),
    (EQUAL, "signs moved", lambda x, y: -(x - y) * -1, lambda x, y: x + -y),
    (DIFFERENT, "a sign squared away", lambda x, y: (-x) ** 3 * y, lambda x, y: x**3 * y),
    (EQUAL, "a sum of cubes", lambda x, y: x**3 + y**3, lambda x, y: (x + y) * (x * x - x * y + y * y)),
    (DIFFERENT, "a sum of cubes with a wrong sign", lambda x, y: x**3 + y**3, lambda x, y: (x + y) * (x * x + x * y + y * y)),
    (EQUAL, "interpolation", lambda x, y, t: torch.lerp(x, y, t), lambda x, y, t: (1 - t) * x + t * y),
    (DIFFERENT, "interpolation the other way", lambda x, y, t: torch.lerp(x, y, t), lambda x, y, t: t * x + (1 - t) * y),
    (DIFFERENT, "zero at the integers to three", lambda x: _polynomial(x, range(-3, 4)), lambda x: x * 0),
    (DIFFERENT, "zero at the integers to ten", lambda x: _polynomial(x, range(11)) * 1e-9, lambda x: x * 0),
    (EQUAL, "the four squares of Euler", lambda x, y: (x * x + y * y) * 13,
     lambda x, y: (2 * x + 3 * y) ** 2 + (3 * x - 2 * y) ** 2),
    (DIFFERENT, "powers that agree modulo 7", lambda x: x**7, lambda x: x),
    (DIFFERENT, "powers that agree modulo the paper's primes", lambda x: x**113, lambda x: x),
)  # fmt: skip

ROOTS: tuple[Row, ...] = (
    (EQUAL, "the root of a square and the absolute value", lambda x: torch.sqrt(x * x), torch.abs),
    (DIFFERENT, "the root of a square and its base", lambda x: torch.sqrt(x * x), lambda x: x),
    (EQUAL, "the square of an absolute value", lambda x: torch.abs(x) ** 2, lambda x: x * x),
    (EQUAL, "the absolute value of a product", lambda x, y: torch.abs(x * y), lambda x, y: torch.abs(x) * torch.abs(y)),
    (DIFFERENT, "the absolute value of a sum", lambda x, y: torch.abs(x + y), lambda x, y: torch.abs(x) + torch.abs(y)),
    (PART, "the square of a root", lambda x: torch.sqrt(x) ** 2, lambda x: x),
    (PART, "the root of a product", lambda x, y: torch.sqrt(x * y), lambda x, y: torch.sqrt(x) * torch.sqrt(y)),
    (PART, "the root of a quotient", lambda x, y: torch.sqrt(x / y), lambda x, y: torch.sqrt(x) / torch.sqrt(y)),
    (EQUAL, "the root of a fourth power", lambda x: torch.sqrt(x**4), lambda x: x * x),
    (DIFFERENT, "the root of a sixth power", lambda x: torch.sqrt(x**6), lambda x: x**3),
    (DIFFERENT, "the root of a product of squares", lambda x, y: torch.sqrt(x * x * y * y), lambda x, y: x * y),
    (DIFFERENT, "the root of a sum of squares", lambda x, y: torch.sqrt(x * x + y * y), lambda x, y: torch.abs(x) + torch.abs(y)),
    (NEARLY, "a number over its root", lambda x: x / torch.sqrt(x), torch.sqrt),
    (PART, "the square of a reciprocal root", lambda x: torch.rsqrt(x) ** 2, lambda x: 1 / x),
    (EQUAL, "a root of a root of a fourth power", lambda x: torch.sqrt(torch.sqrt(x**4)), torch.abs),
    (PART, "the fourth power of a root of a root", lambda x: torch.sqrt(torch.sqrt(x)) ** 4, lambda x: x),
    (PART, "roots of a sum and a difference", lambda x: torch.sqrt(x + 1) * torch.sqrt(x - 1), lambda x: torch.sqrt(x * x - 1)),
    (PART, "a difference of roots", lambda x, y: (torch.sqrt(x) - torch.sqrt(y)) * (torch.sqrt(x) + torch.sqrt(y)),
     lambda x, y: x - y),
    (NEARLY, "a rational denominator", lambda x: 1 / (torch.sqrt(x) + 1), lambda x: (torch.sqrt(x) - 1) / (x - 1)),
    (EQUAL, "a root of a sum of squares and one", lambda x: torch.sqrt(x * x + 1) ** 2, lambda x: x * x + 1),
    (DIFFERENT, "a root distributed over a sum", lambda x: torch.sqrt(x * x + 1), lambda x: torch.sqrt(x * x) + 1),
    (EQUAL, "a reciprocal root spelled out", lambda x: torch.rsqrt(x * x + 2), lambda x: 1 / torch.sqrt(x * x + 2)),
)  # fmt: skip

EXPONENTIALS: tuple[Row, ...] = (
    (EQUAL, "an exponential of a sum", lambda x, y: torch.exp(x + y), lambda x, y: torch.exp(x) * torch.exp(y)),
    (DIFFERENT, "a sum of exponentials", lambda x, y: torch.exp(x + y), lambda x, y: torch.exp(x) + torch.exp(y)),
    (EQUAL, "an exponential of a difference", lambda x, y: torch.exp(x - y), lambda x, y: torch.exp(x) / torch.exp(y)),
    (DIFFERENT, "an exponential of a product", lambda x, y: torch.exp(x * y), lambda x, y: torch.exp(x) * torch.exp(y)),
    (EQUAL, "the square of an exponential", lambda x: torch.exp(x) ** 2, lambda x: torch.exp(2 * x)),
    (DIFFERENT, "an exponential of a square", lambda x: torch.exp(x) ** 2, lambda x: torch.exp(x * x)),
    (EQUAL, "an exponential times its reciprocal", lambda x, y: torch.exp(x) * torch.exp(-x) * y, lambda x, y: y),
    (EQUAL, "the root of an exponential", lambda x: torch.sqrt(torch.exp(x)), lambda x: torch.exp(x / 2)),
    (EQUAL, "exponentials of exponentials", lambda x, y: torch.exp(torch.exp(x) * 0.25 + torch.exp(y) * 0.25),
     lambda x, y: torch.exp(torch.exp(x) * 0.25) * torch.exp(torch.exp(y) * 0.25)),
    (DIFFERENT, "an exponential and its series", lambda x: torch.exp(x), lambda x: _taylor(x, 9)),
    (PART, "the exponential of a logarithm", lambda x: torch.exp(torch.log(x)), lambda x: x),
    (EQUAL, "the logarithm of an exponential", lambda x: torch.log(torch.exp(x)), lambda x: x),
    (EQUAL, "the logarithm of a square", lambda x: torch.log(x * x), lambda x: 2 * torch.log(torch.abs(x))),
    (PART, "twice a logarithm", lambda x: torch.log(x * x), lambda x: 2 * torch.log(x)),
    (PART, "the logarithm of a product", lambda x, y: torch.log(x * y), lambda x, y: torch.log(x) + torch.log(y)),
    (PART, "the logarithm of a quotient", lambda x, y: torch.log(x / y), lambda x, y: torch.log(x) - torch.log(y)),
    (DIFFERENT, "the logarithm of a sum", lambda x, y: torch.log(x * x + y * y + 1),
     lambda x, y: torch.log(x * x + 1) + torch.log(y * y + 1)),
    (EQUAL, "the logarithm of two exponentials", lambda x, y: torch.log(torch.exp(x) + torch.exp(y)),
     lambda x, y: x + torch.log(1 + torch.exp(y - x))),
    (DIFFERENT, "the logarithm of two exponentials shifted once", lambda x, y: torch.log(torch.exp(x) + torch.exp(y)),
     lambda x, y: y + torch.log(1 + torch.exp(y - x))),
    (EQUAL, "the exponential of half a logarithm", lambda x: torch.exp(torch.log(x * x + 1) / 2),
     lambda x: torch.sqrt(x * x + 1)),
)  # fmt: skip

ACTIVATIONS: tuple[Row, ...] = (
    (EQUAL, "silu as a product", lambda x: silu(x), lambda x: x * torch.sigmoid(x)),
    (EQUAL, "silu as a quotient", lambda x: silu(x), lambda x: x / (1 + torch.exp(-x))),
    (EQUAL, "sigmoid as a quotient", lambda x: torch.sigmoid(x), lambda x: 1 / (1 + torch.exp(-x))),
    (EQUAL, "sigmoid as a share of an exponential", lambda x: torch.sigmoid(x), lambda x: torch.exp(x) / (torch.exp(x) + 1)),
    (EQUAL, "sigmoid reflected", lambda x: 1 - torch.sigmoid(x), lambda x: torch.sigmoid(-x)),
    (EQUAL, "sigmoid by tanh", lambda x: torch.sigmoid(x), lambda x: (1 + torch.tanh(x / 2)) / 2),
    (EQUAL, "tanh by sigmoid", lambda x: torch.tanh(x), lambda x: 2 * torch.sigmoid(2 * x) - 1),
    (EQUAL, "tanh by exponentials", lambda x: torch.tanh(x),
     lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))),
    (EQUAL, "tanh is odd", lambda x: torch.tanh(-x), lambda x: -torch.tanh(x)),
    (DIFFERENT, "sigmoid taken for odd", lambda x: torch.sigmoid(-x), lambda x: -torch.sigmoid(x)),
    (EQUAL, "the derivative of sigmoid", lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)),
     lambda x: torch.sigmoid(x) * torch.sigmoid(-x)),
    (EQUAL, "softplus by a logarithm of sigmoid", lambda x: torch.log(1 + torch.exp(x)), lambda x: -torch.log(torch.sigmoid(-x))),
    (EQUAL, "softplus shifted", lambda x: torch.log(1 + torch.exp(x)), lambda x: x + torch.log(1 + torch.exp(-x))),
    (EQUAL, "softplus that cannot overflow", lambda x: torch.log(1 + torch.exp(x)),
     lambda x: relu(x) + torch.log(1 + torch.exp(-torch.abs(x)))),
    (DIFFERENT, "softplus and the rectifier", lambda x: torch.log(1 + torch.exp(x)), relu),
    (DIFFERENT, "the two forms of gelu", lambda x: gelu(x), lambda x: gelu(x, approximate="tanh")),
    (DIFFERENT, "gelu by a logistic function", lambda x: gelu(x), lambda x: x * torch.sigmoid(1.702 * x)),
    (EQUAL, "gelu by tanh spelled out", lambda x: gelu(x, approximate="tanh"), _gelu_by_tanh),
    (DIFFERENT, "gelu by tanh with a wrong digit", lambda x: gelu(x, approximate="tanh"), lambda x: _gelu_by_tanh(x, 0.044714)),
    (EQUAL, "gelu against its reflection", lambda x: gelu(x), lambda x: x + gelu(-x)),
    (EQUAL, "gelu of commuted arguments", lambda x, y: gelu(x * y + x), lambda x, y: gelu(x * (y + 1))),
    (DIFFERENT, "gelu of another argument", lambda x, y: gelu(x * y + x), lambda x, y: gelu(x * y + y)),
    (EQUAL, "a rectifier of a rectifier", lambda x: relu(relu(x)), relu),
    (EQUAL, "a number as two rectifiers", lambda x: relu(x) - relu(-x), lambda x: x),
    (EQUAL, "a rectifier by an absolute value", lambda x: relu(x), lambda x: (x + torch.abs(x)) / 2),
    (EQUAL, "an absolute value by rectifiers", lambda x: relu(x) + relu(-x), torch.abs),
    (EQUAL, "a rectifier of a multiple", lambda x: relu(3 * x), lambda x: 3 * relu(x)),
    (DIFFERENT, "a rectifier of a negative multiple", lambda x: relu(-3 * x), lambda x: -3 * relu(x)),
    (DIFFERENT, "a rectifier of a sum", lambda x, y: relu(x + y), lambda x, y: relu(x) + relu(y)),
    (DIFFERENT, "a rectifier of a product", lambda x, y: relu(x * y), lambda x, y: relu(x) * relu(y)),
    (EQUAL, "a rectifier times its argument", lambda x: relu(x) ** 2, lambda x: x * relu(x)),
    (EQUAL, "a rectifier of a square", lambda x: relu(x * x), lambda x: x * x),
    (EQUAL, "a rectifier of an exponential", lambda x: relu(torch.exp(x)), torch.exp),
    (DIFFERENT, "a rectifier of a cube", lambda x: relu(x**3), lambda x: x**3),
    (EQUAL, "silu against its reflection", lambda x: silu(x) - silu(-x), lambda x: x),
    (DIFFERENT, "silu taken for odd", lambda x: silu(-x), lambda x: -silu(x)),
    (DIFFERENT, "a gate on the other side", lambda x, y: silu(x) * y, lambda x, y: x * silu(y)),
    (DIFFERENT, "silu with a slope", lambda x: silu(x), lambda x: x * torch.sigmoid(1.0001 * x)),
    (DIFFERENT, "sigmoid by a line", lambda x: torch.sigmoid(x), lambda x: 0.5 + x / 4),
    (DIFFERENT, "tanh by a cubic", lambda x: torch.tanh(x), lambda x: x - x**3 / 3),
    (EQUAL, "a lower bound by a rectifier", lambda x: torch.clamp(x, min=0.5), lambda x: relu(x - 0.5) + 0.5),
    (DIFFERENT, "another lower bound", lambda x: torch.clamp(x, min=0.5), lambda x: torch.clamp(x, min=0.25)),
)  # fmt: skip

CHOICES: tuple[Row, ...] = (
    (EQUAL, "a choice by a condition read from the other side", lambda x, y: torch.where(x > y, x * y, y),
     lambda x, y: torch.where(y < x, y * x, y)),
    (EQUAL, "a choice of a product multiplied out", lambda x, y: torch.where(x > 0, x * (y + 1), y),
     lambda x, y: torch.where(x > 0, x * y + x, y)),
    (EQUAL, "a choice as a mask", lambda x, y: (x > y).to(x.dtype) * 2, lambda x, y: (y < x).to(x.dtype) + (x > y).to(x.dtype)),
    (EQUAL, "a contrary condition", lambda x, y: 1 - (x < y).to(x.dtype), lambda x, y: torch.logical_not(x < y).to(x.dtype)),
    (DIFFERENT, "a choice with its branches exchanged", lambda x, y: torch.where(x > 0, x, 0.1 * y),
     lambda x, y: torch.where(x > 0, 0.1 * y, x)),
    (DIFFERENT, "a comparison the other way", lambda x, y: torch.where(x > y, x, 2 * y),
     lambda x, y: torch.where(x < y, x, 2 * y)),
    (DIFFERENT, "a choice by another threshold", lambda x: torch.where(x > 1, x, 0 * x), lambda x: torch.where(x > -1, x, 0 * x)),
    (DIFFERENT, "a choice with another slope", lambda x: torch.where(x > 0, x, 0.1 * x),
     lambda x: torch.where(x > 0, x, 0.01 * x)),
    (DIFFERENT, "a mask of other numbers", lambda x, y: x * (y > 0).to(x.dtype), lambda x, y: x * (x > 0).to(x.dtype)),
    (DIFFERENT, "one condition for two", lambda x, y: torch.logical_and(x > 0, y > 0).to(x.dtype),
     lambda x, y: (x > 0).to(x.dtype)),
    (DIFFERENT, "one condition or the other", lambda x, y: torch.logical_and(x > 0, y > 0).to(x.dtype),
     lambda x, y: torch.logical_or(x > 0, y > 0).to(x.dtype)),
    (DIFFERENT, "a sign and a number", lambda x: torch.sign(x), lambda x: x),
)  # fmt: skip

ELEMENTARY: tuple[Row, ...] = (
    (EQUAL, "a sine of a product multiplied out", lambda x, y: torch.sin(x * (y + 1)), lambda x, y: torch.sin(x * y + x)),
    (EQUAL, "whole parts of a sum in another order", lambda x, y: torch.floor(x * 2 + y), lambda x, y: torch.floor(y + x + x)),
    (EQUAL, "a remainder of commuted sums", lambda x, y: torch.fmod(x + y, y + 3), lambda x, y: torch.fmod(y + x, 3 + y)),
    (EQUAL, "twice the angle of a point", lambda x, y: 2 * torch.atan2(x * x, y), lambda x, y: torch.atan2(x**2, y) * 2),
    (EQUAL, "a cosine added to itself", lambda x: torch.cos(x) + torch.cos(x), lambda x: 2 * torch.cos(x)),
    (EQUAL, "a fractional part", lambda x: torch.frac(x), lambda x: x - torch.trunc(x)),
    (EQUAL, "an inverse sine and its argument", lambda x: torch.asin(x) + x * 2, lambda x: x + torch.asin(x) + x),
    (DIFFERENT, "a sine for a cosine", lambda x: torch.sin(x), lambda x: torch.cos(x)),
    (DIFFERENT, "a sine of a sum", lambda x, y: torch.sin(x + y), lambda x, y: torch.sin(x) + torch.sin(y)),
    (DIFFERENT, "a sine with another frequency", lambda x: torch.sin(3.14159265 * x), lambda x: torch.sin(3.1416 * x)),
    (DIFFERENT, "a sine by a cubic", lambda x: torch.sin(x), lambda x: x - x**3 / 6),
    (DIFFERENT, "a tangent for its angle", lambda x: torch.atan(x), lambda x: torch.tan(x)),
    (DIFFERENT, "a hyperbolic sine for a sine", lambda x: torch.sinh(x), lambda x: torch.sin(x)),
    (DIFFERENT, "an even function for an odd one", lambda x: torch.cosh(x), lambda x: torch.sinh(x)),
    (DIFFERENT, "angles of exchanged coordinates", lambda x, y: torch.atan2(x, y), lambda x, y: torch.atan2(y, x)),
    (DIFFERENT, "an angle by a quotient", lambda x, y: torch.atan2(x, y), lambda x, y: torch.atan(x / y)),
    (DIFFERENT, "an exponential of another base", lambda x: torch.exp2(x), lambda x: torch.exp(x)),
    (DIFFERENT, "an exponential without the one", lambda x: torch.expm1(x), lambda x: torch.exp(x)),
    (DIFFERENT, "a logarithm of another base", lambda x: torch.log2(x * x + 1), lambda x: torch.log(x * x + 1)),
    (DIFFERENT, "a logarithm without the one", lambda x: torch.log1p(x * x), lambda x: torch.log(x * x + 0.5)),
    (DIFFERENT, "an error function and what it leaves", lambda x: torch.erf(x), lambda x: torch.erfc(x)),
    (DIFFERENT, "an error function by tanh", lambda x: torch.erf(x), lambda x: torch.tanh(1.128379 * x)),
    (DIFFERENT, "rounded up for down", lambda x: torch.floor(x), lambda x: torch.ceil(x)),
    (DIFFERENT, "rounded towards zero for down", lambda x: torch.floor(x), lambda x: torch.trunc(x)),
    (DIFFERENT, "rounded to the nearest for down", lambda x: torch.floor(x), lambda x: torch.round(x)),
    (DIFFERENT, "whole parts of terms", lambda x, y: torch.floor(x + y), lambda x, y: torch.floor(x) + torch.floor(y)),
    (DIFFERENT, "whole parts of a shifted number", lambda x: torch.floor(x), lambda x: torch.floor(x + 0.001)),
    (DIFFERENT, "remainders of either sign", lambda x: torch.fmod(x, 3.0), lambda x: torch.remainder(x, 3.0)),
    (DIFFERENT, "remainders by another number", lambda x: torch.fmod(x, 0.5), lambda x: torch.fmod(x, 0.25)),
    (DIFFERENT, "a power with its operands exchanged", lambda x, y: (x * x + 1) ** y, lambda x, y: (y * y + 1) ** x),
    (DIFFERENT, "a power with another exponent", lambda x: (x * x + 1) ** 0.3, lambda x: (x * x + 1) ** 0.31),
    (DIFFERENT, "a sign of the other operand", lambda x, y: torch.copysign(x, y), lambda x, y: torch.copysign(y, x)),
)  # fmt: skip

QUOTIENTS: tuple[Row, ...] = (
    (NEARLY, "a number over itself", lambda x, y: x / x * y, lambda x, y: y),
    (NEARLY, "a factor that cancels", lambda x, y: x * y / y, lambda x, y: x),
    (NEARLY, "a reciprocal of a reciprocal", lambda x: 1 / (1 / x), lambda x: x),
    (NEARLY, "a square over its base", lambda x: x * x / x, lambda x: x),
    (NEARLY, "a difference of squares over a difference", lambda x, y: (x * x - y * y) / (x - y), lambda x, y: x + y),
    (DIFFERENT, "a term that does not cancel", lambda x, y: (x + y) / y, lambda x, y: x + 1),
)  # fmt: skip

EMPTY_DOMAINS: tuple[Row, ...] = (
    (EMPTY, "zero times the logarithm of a negative number", lambda x: x + 0 * torch.log(-torch.exp(x)), lambda x: x),
    (EMPTY, "the root of a negative exponential", lambda x, y: torch.sqrt(-torch.exp(x)) * 0 + y, lambda x, y: y),
    (EMPTY, "the root of a negative sum of squares", lambda x: torch.sqrt(-1 - x * x), lambda x: 2 * torch.sqrt(-1 - x * x)),
    (EMPTY, "the logarithm of a negative square", lambda x: torch.log(-x * x) + x, lambda x: x),
    (EMPTY, "a denominator that is zero", lambda x, y: y / (x - x), lambda x, y: y),
    (EMPTY, "a denominator that is zero by an identity", lambda x, y: x / ((x + y) ** 2 - x * x - 2 * x * y - y * y),
     lambda x, y: y),
    (EMPTY, "logarithms of opposite numbers", lambda x: torch.log(x) + torch.log(-x), lambda x: x),
    (EMPTY, "the root of a negative root", lambda x: torch.sqrt(-1 - torch.sqrt(x)), lambda x: torch.sqrt(x)),
    (EMPTY, "a denominator that is rectified away", lambda x, y: y / relu(-torch.exp(x)), lambda x, y: y),
    (EMPTY, "the logarithm of a negative sigmoid", lambda x: torch.log(-torch.sigmoid(x)),
     lambda x: torch.log(-torch.sigmoid(x)) + 1),
    (EMPTY, "the domains of the two do not meet", lambda x: torch.sqrt(x - 1), lambda x: torch.sqrt(-x - 1)),
    (EMPTY, "a root of a number below and above", lambda x: torch.sqrt(x - 2) * torch.sqrt(1 - x), lambda x: x),
)  # fmt: skip

for _construct, _rows in {
    "algebra": ALGEBRA,
    "roots": ROOTS,
    "exponentials and logarithms": EXPONENTIALS,
    "activations": ACTIVATIONS,
    "comparisons and choices": CHOICES,
    "elementary functions": ELEMENTARY,
    "quotients": QUOTIENTS,
    "empty domains": EMPTY_DOMAINS,
}.items():
    for _truth, _name, _left, _right in _rows:
        elementwise(_construct, _truth, _name, _left, _right)
