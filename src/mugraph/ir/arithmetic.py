"""What an operator needs to be computed: the interface that floats, finite fields and expressions share.

Every operator of the table is written once against `Arithmetic`; evaluating a muGraph in float64, in float32 or over
Z_p x Z_q is the same definition under another arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mugraph.ir.scalar import Scalar

Array = npt.NDArray[Any]
V = TypeVar("V")
E = TypeVar("E")


class Arithmetic(Protocol[V]):
    """Operations on tensors of values `V`; binary operations broadcast as in NumPy, reductions keep the axis with size 1."""

    def constant(self, value: Scalar) -> V: ...
    def add(self, x: V, y: V) -> V: ...
    def sub(self, x: V, y: V) -> V: ...
    def mul(self, x: V, y: V) -> V: ...
    def div(self, x: V, y: V) -> V: ...
    def exp(self, x: V) -> V: ...
    def sqrt(self, x: V) -> V: ...
    def sum(self, x: V, axis: int) -> V: ...
    def max(self, x: V, axis: int) -> V: ...
    def matmul(self, x: V, y: V) -> V: ...
    def opaque(self, name: str, x: V) -> V:
        """An elementwise function outside LAX (`silu`, `relu`, ...)."""
        ...

    def view(self, x: V, move: Callable[[Array], Array]) -> V:
        """Apply a pure data movement (reshape, slice, tile) to every component of `x`."""
        ...

    def join(self, xs: Sequence[V], combine: Callable[[Sequence[Array]], Array]) -> V:
        """Join several tensors by a pure data movement (concatenate, stack), component by component."""
        ...


class Abstraction(Protocol[E]):
    """Constructors of abstract expressions (paper, Table 1); `mugraph.algebra.Algebra` is the implementation."""

    def constant(self, text: str) -> E: ...
    def add(self, x: E, y: E) -> E: ...
    def sub(self, x: E, y: E) -> E: ...
    def mul(self, x: E, y: E) -> E: ...
    def div(self, x: E, y: E) -> E: ...
    def exp(self, x: E) -> E: ...
    def sqrt(self, x: E) -> E: ...
    def sum(self, n: int, x: E) -> E: ...
    def opaque(self, name: str, *args: E) -> E: ...


class FloatArithmetic:
    """IEEE arithmetic on NumPy arrays of one dtype (float64 is the reference of every numerical check)."""

    def __init__(self, dtype: npt.DTypeLike = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def constant(self, value: Scalar) -> Array:
        return np.asarray(float(value), self.dtype)

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray(x + y)

    def sub(self, x: Array, y: Array) -> Array:
        return np.asarray(x - y)

    def mul(self, x: Array, y: Array) -> Array:
        return np.asarray(x * y)

    def div(self, x: Array, y: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(x / y)

    def exp(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(x))

    def sqrt(self, x: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(np.sqrt(x))

    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(np.sum(x, axis=axis, keepdims=True))

    def max(self, x: Array, axis: int) -> Array:
        return np.asarray(np.max(x, axis=axis, keepdims=True))

    def matmul(self, x: Array, y: Array) -> Array:
        return np.asarray(np.matmul(x, y))

    def opaque(self, name: str, x: Array) -> Array:
        from mugraph.ir.ops import OPERATORS  # the table imports this module

        function = OPERATORS[name].reference
        if function is None:
            raise KeyError(f"operator {name!r} has no float reference")
        return np.asarray(function(x), self.dtype)

    def view(self, x: Array, move: Callable[[Array], Array]) -> Array:
        return move(x)

    def join(self, xs: Sequence[Array], combine: Callable[[Sequence[Array]], Array]) -> Array:
        return combine(xs)
