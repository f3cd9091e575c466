"""Operators in IEEE floating point, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mugraph.ir.arithmetic import Array
from mugraph.ir.ops import OPERATORS
from mugraph.ir.scalar import Scalar
from mugraph.ir.tiled_products import tiled_product

_IEEE = np.errstate(all="ignore")
"""What leaves the range of numbers is infinite or no number, as in the kernels that are compared with it: NumPy need not warn."""


class FloatArithmetic:
    """IEEE arithmetic on NumPy arrays of one dtype (float64 is the reference of every numerical check)."""

    def __init__(self, dtype: npt.DTypeLike = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def constant(self, value: Scalar) -> Array:
        return np.asarray(float(value), self.dtype)

    @_IEEE
    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(x + y)

    @_IEEE
    def sub(self, x: Array, y: Array) -> Array:
        return np.asarray(x - y)

    @_IEEE
    def mul(self, x: Array, y: Array) -> Array:
        return np.asarray(x * y)

    @_IEEE
    def div(self, x: Array, y: Array) -> Array:
        return np.asarray(x / y)

    @_IEEE
    def exp(self, x: Array) -> Array:
        return np.asarray(np.exp(x))

    @_IEEE
    def sqrt(self, x: Array) -> Array:
        return np.asarray(np.sqrt(x))

    @_IEEE
    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(np.sum(x, axis=axis, keepdims=True))

    def max(self, x: Array, axis: int) -> Array:
        return np.asarray(np.max(x, axis=axis, keepdims=True))

    @_IEEE
    def matmul(self, x: Array, y: Array) -> Array:
        return tiled_product(x, y)

    @_IEEE
    def opaque(self, name: str, *xs: Array) -> Array:
        function = OPERATORS[name].reference
        if function is None:
            raise KeyError(f"operator {name!r} has no float reference")
        return np.asarray(function(*xs), self.dtype)

    def view(self, x: Array, move: Callable[[Array], Array]) -> Array:
        return move(x)

    def join(self, xs: Sequence[Array], combine: Callable[[Sequence[Array]], Array]) -> Array:
        return combine(xs)
