"""A program evaluated in the precision of one element type, and which of its operators lose it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Arithmetic, Array
from mugraph.ir.dtypes import DType, round_to, rounded_in_place
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Shape
from mugraph.ir.scalar import Scalar
from mugraph.verifier.deviations import farthest_where_finite
from mugraph.verifier.vectorized_eval import evaluate_batched


class RoundedArithmetic(FloatArithmetic):
    """Arithmetic whose every operation rounds its result to one element type; sums accumulate in float32 at least."""

    def __init__(self, rounded: DType) -> None:
        super().__init__(round_to(rounded, 0.0).dtype)
        self.rounded = rounded

    def constant(self, value: Scalar) -> Array:
        return round_to(self.rounded, super().constant(value))

    def add(self, x: Array, y: Array) -> Array:
        return rounded_in_place(self.rounded, super().add(x, y))

    def sub(self, x: Array, y: Array) -> Array:
        return rounded_in_place(self.rounded, super().sub(x, y))

    def mul(self, x: Array, y: Array) -> Array:
        return rounded_in_place(self.rounded, super().mul(x, y))

    def div(self, x: Array, y: Array) -> Array:
        return rounded_in_place(self.rounded, super().div(x, y))

    def exp(self, x: Array) -> Array:
        return rounded_in_place(self.rounded, super().exp(x))

    def sqrt(self, x: Array) -> Array:
        return rounded_in_place(self.rounded, super().sqrt(x))

    def opaque(self, name: str, *xs: Array) -> Array:
        return round_to(self.rounded, super().opaque(name, *xs))

    def sum(self, x: Array, axis: int) -> Array:
        return rounded_in_place(self.rounded, super().sum(x.astype(self._wide, copy=False), axis))

    def matmul(self, x: Array, y: Array) -> Array:
        x, y = (each.astype(self._wide, copy=False) for each in (x, y))
        return rounded_in_place(self.rounded, super().matmul(x, y))

    @property
    def _wide(self) -> type[np.floating[Any]]:
        return np.float64 if self.rounded is DType.FP64 else np.float32


@dataclass(frozen=True, slots=True)
class OperatorError:
    """What an operator with results of one shape does to precision, where it does the most.

    Errors are the largest absolute deviations from float64, relative to the largest exact result: of the `operands`, of the
    result, and `local`, what the operation alone rounds away. Infinity stands for results that leave the number range.
    `undefined` says that the operation has no result for some of its operands, in whatever precision.
    """

    op: str
    shape: Shape
    operands: float
    local: float
    result: float
    undefined: bool = False

    @property
    def growth(self) -> float:
        """How much more error the result has than the operands."""
        if self.undefined:
            return math.inf
        return self.result - self.operands if math.isfinite(self.operands) else 0.0

    def __str__(self) -> str:
        what = f"{self.op} of shape {list(self.shape)}"
        if self.undefined:
            return f"{what} has no result for some of its operands"
        if math.isinf(self.result):
            return f"{what} leaves the number range"
        return f"{what} turns errors of {self.operands:.2g} into {self.result:.2g}, of which it makes {self.local:.2g}"


def operator_errors(graph: Graph, inputs: Sequence[Array], dtype: DType) -> list[OperatorError]:
    """The operators of a muGraph evaluated in `dtype`, bodies of kernels included: those that add the most error first."""
    audit = _Audit(RoundedArithmetic(dtype))
    with np.errstate(all="ignore"):
        evaluate_batched(graph, [_Pair(round_to(dtype, x), np.asarray(x, np.float64)) for x in inputs], audit)
    return sorted(audit.worst.values(), key=lambda entry: -entry.growth)


@dataclass(frozen=True)
class _Pair:
    """A tensor as it is computed, and as it should be."""

    rounded: Array
    exact: Array

    @functools.cached_property
    def error(self) -> float:
        return relative_error(self.exact, self.rounded)


def relative_error(expected: Array, actual: Array, measure: Array | None = None) -> float:
    """The largest absolute deviation where the expected value is finite, relative to the largest finite value of `measure` (by
    default of the expected values); infinity for what is not finite there."""
    found = farthest_where_finite(expected, actual).deviation
    scale = expected if measure is None else measure
    largest = float(np.max(np.abs(scale), initial=0.0, where=np.isfinite(scale)))
    return found / largest if largest else found


@dataclass(slots=True)
class _Audit:
    """`mugraph.ir.arithmetic.Arithmetic` on pairs, which keeps the worst application of each operator and result shape."""

    rounding: RoundedArithmetic
    exact: FloatArithmetic = field(default_factory=FloatArithmetic)
    worst: dict[tuple[str, Shape], OperatorError] = field(default_factory=dict)

    def constant(self, value: Scalar) -> _Pair:
        return _Pair(self.rounding.constant(value), self.exact.constant(value))

    def add(self, x: _Pair, y: _Pair) -> _Pair:
        return self.apply("add", lambda arith, a, b: arith.add(a, b), x, y)

    def sub(self, x: _Pair, y: _Pair) -> _Pair:
        return self.apply("sub", lambda arith, a, b: arith.sub(a, b), x, y)

    def mul(self, x: _Pair, y: _Pair) -> _Pair:
        return self.apply("mul", lambda arith, a, b: arith.mul(a, b), x, y)

    def div(self, x: _Pair, y: _Pair) -> _Pair:
        return self.apply("div", lambda arith, a, b: arith.div(a, b), x, y)

    def exp(self, x: _Pair) -> _Pair:
        return self.apply("exp", lambda arith, a: arith.exp(a), x)

    def sqrt(self, x: _Pair) -> _Pair:
        return self.apply("sqrt", lambda arith, a: arith.sqrt(a), x)

    def sum(self, x: _Pair, axis: int) -> _Pair:
        return self.apply("sum", lambda arith, a: arith.sum(a, axis), x)

    def max(self, x: _Pair, axis: int) -> _Pair:
        return self.apply("max", lambda arith, a: arith.max(a, axis), x)

    def matmul(self, x: _Pair, y: _Pair) -> _Pair:
        return self.apply("matmul", lambda arith, a, b: arith.matmul(a, b), x, y)

    def opaque(self, name: str, *xs: _Pair) -> _Pair:
        return self.apply(name, lambda arith, *arrays: arith.opaque(name, *arrays), *xs)

    def view(self, x: _Pair, move: Callable[[Array], Array]) -> _Pair:
        return _Pair(move(x.rounded), move(x.exact))

    def join(self, xs: Sequence[_Pair], combine: Callable[[Sequence[Array]], Array]) -> _Pair:
        return _Pair(combine([x.rounded for x in xs]), combine([x.exact for x in xs]))

    def apply(self, op: str, operation: Callable[..., Array], *operands: _Pair) -> _Pair:
        exact = self._run(self.exact, operation, [x.exact for x in operands])
        rounded = self._run(self.rounding, operation, [x.rounded for x in operands])
        alone = self._run(self.exact, operation, [x.rounded.astype(np.float64) for x in operands])
        result = _Pair(rounded, exact)
        local = relative_error(np.where(np.isfinite(exact), alone, np.inf), rounded, exact)
        undefined = bool(np.isnan(exact).any()) and not any(np.isnan(x.exact).any() for x in operands)
        found = OperatorError(op, exact.shape, max(x.error for x in operands), local, result.error, undefined)
        known = self.worst.get((op, exact.shape))
        if known is None or found.growth > known.growth:
            self.worst[op, exact.shape] = found
        return result

    def _run(self, arith: Arithmetic[Array], operation: Callable[..., Array], arrays: Sequence[Array]) -> Array:
        return operation(arith, *arrays)
