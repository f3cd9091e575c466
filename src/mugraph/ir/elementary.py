"""Elementwise functions outside LAX that are named as in C's math library: texts for the targets, and what they are in NumPy.

Most are spelled out with a few that every target has, arranged so that nothing cancels where the result is small, and nothing
overflows where the result does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array


@dataclass(frozen=True, slots=True)
class Elementary:
    """A function: a C-family expression over {0}, {1}, a NumPy reference, and about how many floating-point operations it takes.

    Of one that jumps, `jumps` gives for its operands in floating point how far the first is from the nearest jump: an array of
    their shape, NaN or infinity where there is none.
    """

    name: str
    scalar: str
    reference: Callable[..., Array]
    cost: int = 20
    arity: int = 1
    jumps: Callable[..., Array] | None = None


def _quiet(function: Callable[..., Array]) -> Callable[..., Array]:
    def reference(*xs: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*xs))

    return reference


def erf(x: Array) -> Array:
    """The error function."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _erfc(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(x))


def _from_integer(x: Array) -> Array:
    return np.asarray(np.abs(x - np.rint(x)))


def _from_half(x: Array) -> Array:
    return np.asarray(np.abs(np.abs(x - np.floor(x)) - 0.5))


def _from_multiple(x: Array, y: Array) -> Array:
    """Distance from the nearest multiple of y but 0, where a remainder begins again."""
    times = np.rint(x / y)
    return np.where(times == 0, np.inf, np.abs(x - times * y))


def _from_axis(y: Array, x: Array) -> Array:
    """Angles jump where y changes its sign left of 0."""
    return np.where(x > 0, np.inf, np.abs(y))


_HYPERBOLIC_SINE = (
    "copysign(select(less(abs({0}), 1.0f), 0.5f * (expm1(abs({0})) + expm1(abs({0})) / (expm1(abs({0})) + 1.0f)), "
    "(0.5f * exp(0.5f * abs({0}))) * exp(0.5f * abs({0})) - 0.5f * exp(-abs({0}))), {0})"
)
_INVERSE_HYPERBOLIC_SINE = (
    "copysign(select(less(abs({0}), 1e10f), log1p(abs({0}) + abs({0}) / (1.0f / abs({0}) + sqrt(1.0f / ({0} * {0}) + 1.0f))), "
    "log(abs({0})) + 0.69314718f), {0})"
)
_INVERSE_HYPERBOLIC_COSINE = (
    "select(less({0}, 1e10f), log1p(({0} - 1.0f) + sqrt({0} - 1.0f) * sqrt({0} + 1.0f)), log({0}) + 0.69314718f)"
)

FUNCTIONS = (
    Elementary("sin", "sin({0})", _quiet(np.sin)),
    Elementary("cos", "cos({0})", _quiet(np.cos)),
    Elementary("tan", "(sin({0}) / cos({0}))", _quiet(np.tan), cost=40),
    Elementary("asin", "asin({0})", _quiet(np.arcsin)),
    Elementary("acos", "acos({0})", _quiet(np.arccos)),
    Elementary("atan", "atan2({0}, 1.0f)", _quiet(np.arctan), cost=25),
    Elementary("sinh", _HYPERBOLIC_SINE, _quiet(np.sinh), cost=50),
    Elementary(
        "cosh", "((0.5f * exp(0.5f * abs({0}))) * exp(0.5f * abs({0})) + 0.5f * exp(-abs({0})))", _quiet(np.cosh), cost=35
    ),
    Elementary("asinh", _INVERSE_HYPERBOLIC_SINE, _quiet(np.arcsinh), cost=50),
    Elementary("acosh", _INVERSE_HYPERBOLIC_COSINE, _quiet(np.arccosh), cost=50),
    Elementary("atanh", "copysign(0.5f * log1p(2.0f * abs({0}) / (1.0f - abs({0}))), {0})", _quiet(np.arctanh), cost=30),
    Elementary("exp2", "exp2({0})", _quiet(np.exp2), cost=15),
    Elementary("expm1", "expm1({0})", _quiet(np.expm1)),
    Elementary("log2", "log2({0})", _quiet(np.log2)),
    Elementary("log1p", "log1p({0})", _quiet(np.log1p)),
    Elementary("erf", "erf({0})", erf),
    Elementary("erfc", "erfc({0})", _erfc, cost=45),
    Elementary("floor", "floor({0})", np.floor, cost=1, jumps=_from_integer),
    Elementary("ceil", "(-floor(-{0}))", np.ceil, cost=1, jumps=_from_integer),
    Elementary("trunc", "copysign(floor(abs({0})), {0})", np.trunc, cost=1, jumps=_from_integer),
    Elementary("round", "rint({0})", np.rint, cost=1, jumps=_from_half),
    Elementary("atan2", "atan2({0}, {1})", _quiet(np.arctan2), cost=25, arity=2, jumps=_from_axis),
    Elementary("fmod", "fmod({0}, {1})", _quiet(np.fmod), arity=2, jumps=_from_multiple),
    Elementary("pow", "pow({0}, {1})", _quiet(np.power), cost=60, arity=2),
    Elementary("copysign", "copysign({0}, {1})", np.copysign, cost=1, arity=2, jumps=lambda x, y: np.abs(y)),
)
"""The rows of the operator table made of these."""

WHOLE_NUMBERS = frozenset({"floor", "ceil", "trunc", "round"})
"""Functions that give nothing but whole numbers."""

JUMPS = {function.name: function.jumps for function in FUNCTIONS if function.jumps is not None}
"""Of functions that jump, the distance of operands from a jump."""
