"""What Triton's operators on fp32 are where NVIDIA's GPUs approximate them, for Triton's interpreter, which computes with NumPy.

Each is as inexact as its instructions may be, and inexact where they are, but not bit for bit what a GPU gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_LEAST = np.finfo(np.float32).tiny
"""The smallest number of fp32 that is not subnormal."""
_LOG2_E = np.float32(1.44269504)


def quotient(x: _Floats, y: _Floats) -> _Floats:
    """`x / y` as x times the reciprocal of y, rounded twice (div.full.f32: two units in the last place at most)."""
    mantissa, exponent = np.frexp(y)
    product = x.astype(np.float64) * (np.float32(1) / mantissa)
    return np.ldexp(product, -exponent).astype(np.float32)


def root(x: _Floats) -> _Floats:
    """The square root as x times the reciprocal of the root, rounded twice (sqrt.approx.ftz.f32: 2^-23 at most)."""
    approximate = x * (1 / np.sqrt(x.astype(np.float64))).astype(np.float32)
    return np.where((x == 0) | np.isinf(x), np.sqrt(x), approximate)


def exponential(x: _Floats) -> _Floats:
    """`exp(x)` as a power of 2 whose exponent is a product rounded to fp32 (ex2.approx.f32)."""
    power: _Floats = np.exp2(x * _LOG2_E)
    return power


def flushed(function: Callable[[_Floats], _Floats]) -> Callable[[_Floats], _Floats]:
    """A function for which subnormal operands and results are 0 (.ftz)."""
    return lambda x: _flush(function(_flush(x)))


def _flush(x: _Floats) -> _Floats:
    return np.where(np.abs(x) < _LEAST, np.copysign(np.float32(0), x), x)


APPROXIMATIONS: Mapping[str, Callable[..., _Floats]] = {
    "create_fdiv": quotient,
    "create_sqrt": flushed(root),
    "create_exp": exponential,
    "create_exp2": flushed(np.exp2),
    "create_floor": flushed(np.floor),
    "create_sin": flushed(np.sin),
}
"""By the name of the interpreter's method for the operator."""


def approximate() -> None:
    """Let Triton's interpreter approximate in this process what GPUs approximate."""
    from triton.runtime.interpreter import InterpreterBuilder

    for name, function in APPROXIMATIONS.items():
        setattr(InterpreterBuilder, name, _of_fp32(function, getattr(InterpreterBuilder, name)))


def _of_fp32(function: Callable[..., _Floats], exact: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the interpreter that applies a function to operands of fp32, and is another one for other types."""

    def method(builder: Any, *operands: Any) -> Any:
        if any(operand.data.dtype != np.float32 for operand in operands):
            return exact(builder, *operands)
        apply = builder.unary_op if len(operands) == 1 else builder.binary_op
        return apply(*operands, function)

    return method
