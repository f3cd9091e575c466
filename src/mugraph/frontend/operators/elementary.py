"""Elementwise functions of PyTorch that are made of others of the table, at infinities and NaN as PyTorch has them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators.choices import equal, isinf, isnan, less, logical_or, not_equal, select, tensor_of, truth
from mugraph.ir.program import ProgramTensor

Tensor = ProgramTensor
Operand = ProgramTensor | int | float


def _tensors(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    beside = x if isinstance(x, Tensor) else y
    assert isinstance(beside, Tensor)
    return tensor_of(x, beside), tensor_of(y, beside)


def of_two(name: str, x: Operand, y: Operand) -> Tensor:
    """A function of the table with two operands, of which one may be a number."""
    first, second = _tensors(x, y)
    return first.apply(name, second)


def power(x: Operand, exponent: Operand) -> Tensor:
    """Powers with whole and half exponents are products and roots; others are a function of two operands."""
    if isinstance(x, Tensor) and not isinstance(exponent, Tensor) and (2 * exponent) % 1 == 0:
        return x**exponent
    if x == 2 and isinstance(exponent, Tensor):
        return exponent.apply("exp2")
    return of_two("pow", x, exponent)


def fractional(x: Tensor) -> Tensor:
    """What lies behind the point."""
    return x - x.apply("trunc")


def remainder(x: Operand, y: Operand) -> Tensor:
    """What whole multiples of y leave of x, with the sign of y."""
    x, y = _tensors(x, y)
    rest = x.apply("fmod", y)
    return select(_of_other_sign(rest, y), rest + y, rest)


def _of_other_sign(rest: Tensor, y: Tensor) -> Tensor:
    """Whether a remainder is not 0 and has not the sign of the divisor."""
    return not_equal(less(rest, 0), less(y, 0)) * truth(rest)


def divided(x: Operand, y: Operand, rounding_mode: str | None) -> Tensor:
    """Quotients rounded towards 0, or down: then without what is left of x, as the quotient itself may be rounded up."""
    x, y = _tensors(x, y)
    if rounding_mode is None:
        return x / y
    if rounding_mode == "trunc":
        return (x / y).apply("trunc")
    if rounding_mode != "floor":
        raise UnsupportedOperator(f"rounding_mode={rounding_mode!r}; use 'trunc' or 'floor'")
    rest = x.apply("fmod", y)
    whole = ((x - rest) / y).apply("round") - _of_other_sign(rest, y)
    return select(equal(y, 0), x / y, whole)


def floor_divided(x: Operand, y: Operand) -> Tensor:
    """Quotients rounded down."""
    return divided(x, y, "floor")


def rounded(x: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest numbers with so many digits behind the point, ties to even."""
    if decimals == 0:
        return x.apply("round")
    scale = 10.0 ** abs(decimals)
    return (x * scale).apply("round") / scale if decimals > 0 else (x / scale).apply("round") * scale


def larger_number(x: Operand, y: Operand) -> Tensor:
    """The larger of two, or the one that is not NaN."""
    x, y = _tensors(x, y)
    return select(isnan(x), y, select(isnan(y), x, x.maximum(y)))


def smaller_number(x: Operand, y: Operand) -> Tensor:
    """The smaller of two, or the one that is not NaN."""
    x, y = _tensors(x, y)
    return select(isnan(x), y, select(isnan(y), x, x.minimum(y)))


def hypot(x: Operand, y: Operand) -> Tensor:
    """sqrt(x^2 + y^2) by the quotient of both, whose square does not overflow."""
    sizes = [z.apply("abs") for z in _tensors(x, y)]
    large, small = sizes[0].maximum(sizes[1]), sizes[0].minimum(sizes[1])
    length = large * (select(equal(small, large), 1, small / large).square() + 1).sqrt()
    return select(logical_or(*map(isinf, sizes)), math.inf, length)


def logaddexp(x: Operand, y: Operand) -> Tensor:
    """log(exp(x) + exp(y)): the larger, and what the other adds to it."""
    x, y = _tensors(x, y)
    added = (-(x - y).apply("abs")).exp().apply("log1p")
    return select(equal(x, y), x + x.program.constant(2).apply("log"), x.maximum(y) + added)


def logaddexp2(x: Operand, y: Operand) -> Tensor:
    """log2(2^x + 2^y)"""
    x, y = _tensors(x, y)
    added = (-(x - y).apply("abs")).apply("exp2").apply("log1p") / x.program.constant(2).apply("log")
    return select(equal(x, y), x + 1, x.maximum(y) + added)


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of numbers between eps and 1 - eps."""
    inside = x if eps is None else x.maximum(eps).minimum(1 - eps)
    return (inside / (1 - inside)).apply("log")


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    angle = x * math.pi
    return select(equal(x, 0), 1, angle.apply("sin") / angle)


def xlog1py(x: Operand, y: Operand) -> Tensor:
    """x log(1 + y), and 0 where x is 0, unless y is NaN."""
    x, y = _tensors(x, y)
    return select(isnan(y), math.nan, select(equal(x, 0), 0, x * y.apply("log1p")))


def entropy(x: Tensor) -> Tensor:
    """-x log(x), 0 at 0, and -inf below."""
    return select(equal(x, 0), 0, select(less(x, 0), -math.inf, -x * x.apply("log")))


def ldexp(x: Operand, exponent: Operand) -> Tensor:
    """x 2^exponent"""
    x, exponent = _tensors(x, exponent)
    return x * exponent.apply("exp2")


def signbit(x: Tensor) -> Tensor:
    """Whether the sign is negative, which it may be of 0."""
    return less(of_two("copysign", 1, x), 0)


def heaviside(x: Tensor, values: Operand) -> Tensor:
    """0 below 0, 1 above, and `values` at 0."""
    return select(equal(x, 0), values, less(0, x))


def addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """x + value first second"""
    return x + first * second * value


def addcdiv(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """x + value first / second"""
    return x + first / second * value


def _of_one(name: str, x: Tensor) -> Tensor:
    return x.apply(name)


_OF_ONE = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "exp2", "expm1", "log2", "log1p"),
    *("erf", "erfc", "floor", "ceil", "trunc"),
)

ROWS: dict[str, Callable[..., Any]] = {
    **{name: functools.partial(_of_one, name) for name in _OF_ONE},
    **{name: functools.partial(of_two, name) for name in ("atan2", "copysign", "fmod")},
    "pow": power,
    "frac": fractional,
    "remainder": remainder,
    "floor_divide": floor_divided,
    "round": rounded,
    "fmax": larger_number,
    "fmin": smaller_number,
    "hypot": hypot,
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "logit": logit,
    "sinc": sinc,
    "special_xlog1py": xlog1py,
    "special_entr": entropy,
    "ldexp": ldexp,
    "signbit": signbit,
    "heaviside": heaviside,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
}
"""Rows of the ATen table, written with operators of the same names or with the functions above."""
