"""Activations and other functions of single elements that PyTorch names and the table of operators composes: one row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators import spelled
from mugraph.ir.program import ProgramTensor as Tensor

Operand = Tensor | int | float


def _clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    x = x if min is None or min == -math.inf else x.maximum(min)
    return x if max is None or max == math.inf else x.minimum(max)


def _clamp_max(x: Tensor, max: Operand) -> Tensor:
    return _clamp(x, None, max)


def _hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return _clamp(x, min_val, max_val)


def _hardsigmoid(x: Tensor) -> Tensor:
    return _clamp(x + 3, 0, 6) / 6


def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return x.relu() - (-x).relu() * negative_slope


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    slope = weight if len(x.shape) < 2 else weight.reshape(1, -1, *(1,) * (len(x.shape) - 2))
    return x.relu() - (-x).relu() * slope


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """exp(y) - 1 of numbers y that are not positive is 2 t / (1 - t) for t = tanh(y / 2), which cancels nothing near 0."""
    half = ((-x).relu() * (-input_scale / 2)).tanh()
    return (x.relu() + half / (1 - half) * (2 * alpha)) * scale


def _celu(x: Tensor, alpha: float = 1) -> Tensor:
    return _elu(x, alpha, 1, 1 / alpha)


def _selu(x: Tensor) -> Tensor:
    return _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta; beyond PyTorch's threshold of 20 the two differ by 2e-9 at most."""
    if threshold < 16:
        raise UnsupportedOperator(f"a threshold of {threshold}, from which on it is another function; use 20")
    return spelled.softplus(x * beta) / beta


def _log_sigmoid(x: Tensor) -> Tensor:
    return -_softplus(-x)


def _lerp(start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return start + (end - start) * weight


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return x.gelu()
    inner = (x + x**3 * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.tanh() + 1)


ROWS: dict[str, Callable[..., Any]] = {
    "gelu": _gelu,
    "lerp": _lerp,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp_max,
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: x * _hardsigmoid(x),
    "relu6": lambda x: _clamp(x, 0, 6),
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "_prelu_kernel": lambda x, weight: x.relu() - (-x).relu() * weight,
    "elu": _elu,
    "celu": _celu,
    "selu": _selu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "log_sigmoid_forward": lambda x: (_log_sigmoid(x), None),
    "mish": lambda x: x * _softplus(x).tanh(),
}
