"""What operators of the table mean, where that is more than one line of their row.

To an `Arithmetic`, of floats or of finite fields, a meaning is what is computed of the values of the operands; to abstract
expressions (paper, Table 1), the expression of the result. Opaque functions are NumPy's, or one of the references at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mugraph.errors import ShapeMismatch
from mugraph.ir.arithmetic import Abstraction, Arithmetic, Array, broadcast_shape
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.ir.lookups import taken
from mugraph.ir.ops.row import Call, ComputeRule
from mugraph.ir.scalar import Scalar

LOWEST = Scalar.of(-DType.FP32.largest)
"""The least number of the type in which kernels compute; the verifier, to which it is a variable, knows it as this object."""

TRUTH = "truth"
"""The operator that gives 1 for whatever is not 0, as casts to booleans do."""


# --- values ----------------------------------------------------------------------------------------------------------


def _regroup(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], shape[dim] // size, size, *shape[dim + 1 :])


def grouped(reduce: str) -> ComputeRule:
    """Sums (`sum`) or maxima (`max`) of groups of `size` neighbours along `dim`; with `least`, maxima of them and `LOWEST`."""

    def compute(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
        dim, size = call.dim(), call.integer("size")
        split = arith.view(xs[0], lambda x: x.reshape(_regroup(x.shape, dim, size)))
        if call.attributes.get("least") is not None:
            split = arith.join([split, arith.constant(LOWEST)], _with_one_more(dim + 1))
        reduced = arith.sum(split, dim + 1) if reduce == "sum" else arith.max(split, dim + 1)
        return arith.view(reduced, lambda x: x.reshape((*x.shape[: dim + 1], *x.shape[dim + 2 :])))

    return compute


def _with_one_more(axis: int) -> Callable[[Sequence[Array]], Array]:
    """A number, the second part, put behind the elements of the first along an axis."""

    def combine(parts: Sequence[Array]) -> Array:
        elements, number = parts
        one = (*elements.shape[:axis], 1, *elements.shape[axis + 1 :])
        return np.concatenate([elements, np.broadcast_to(number, one)], axis=axis)

    return combine


def repeat(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The operand `times` times, one behind the other along `dim`."""
    times, dim = call.integer("times"), call.dim()
    return arith.view(xs[0], lambda x: np.tile(x, [times if d == dim else 1 for d in range(x.ndim)]))


def slice_(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """`size` elements along `dim`, from `start` on in steps of `step`, which may be negative."""
    dim, start, size, step = call.dim(), call.integer("start"), call.integer("size"), call.integer("step")
    first = min(start, start + (size - 1) * step)
    there: list[Any] = [*(slice(None),) * dim, slice(first, first + (size - 1) * abs(step) + 1, abs(step)), ...]

    def taken(x: Array) -> Array:
        part: Array = x[tuple(there)]
        return part if step > 0 else np.flip(part, dim)

    return arith.view(xs[0], taken)


def concat(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The operands one behind the other along `dim`."""
    return arith.join(xs, _joined_axis(call.dim()))


def lookup(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The slices of the table, the first operand, at the places that the second one names."""
    return arith.join(xs, taken(call.dim(), str(call.attributes["negative"])))


def _joined_axis(dim: int) -> Callable[[Sequence[Array]], Array]:
    return lambda parts: np.concatenate(parts, axis=dim)


def _stack(parts: Sequence[Array]) -> Array:
    return np.stack(parts, axis=0)


def _beside(parts: Sequence[Array]) -> Array:
    """Tensors that broadcast with each other, one behind the other along a first axis."""
    shape = broadcast_shape(*(part.shape for part in parts))
    return np.stack([np.broadcast_to(part, shape) for part in parts], axis=0)


def larger(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The larger of two operands, element by element."""
    return arith.view(arith.max(arith.join(xs, _beside), 0), lambda x: x[0])


def accumulate(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """What the iterations of a loop give, one operand each, added up, put behind each other, or the largest of it."""
    if call.attributes["combine"] == "concat":
        return arith.join(xs, _joined_axis(call.dim()))
    stacked = arith.join(xs, _stack)
    reduced = arith.sum(stacked, 0) if call.attributes["combine"] == "sum" else arith.max(stacked, 0)
    return arith.view(reduced, lambda x: x[0])


def accumulate_rescaled(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The sum of terms, the first half of the operands, each times exp(its shift, of the second half, less the largest shift)."""
    terms = arith.join(xs[: len(xs) // 2], _stack)
    shifts = arith.join(xs[len(xs) // 2 :], _stack)
    common = arith.max(shifts, 0)
    rescaled = arith.mul(terms, arith.exp(arith.sub(shifts, common)))
    return arith.view(arith.sum(rescaled, 0), lambda x: x[0])


def cast(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """A type changes no value, but that a boolean is 1 for whatever is not 0."""
    return arith.opaque(TRUTH, xs[0]) if call.attributes["dtype"] is DType.BOOL else xs[0]


def read_only(arith: Arithmetic[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The meaning of leaves and boundaries, which evaluators read and never compute."""
    raise AssertionError(f"{call.op} is read by the evaluator, never computed")


def constant_value(call: Call) -> Scalar:
    """The exact number of a constant; raises ShapeMismatch where it has none."""
    value = call.attributes.get("value")
    if not isinstance(value, Scalar):
        raise ShapeMismatch(f"constant: attribute 'value' must be an exact scalar, not {value!r}")
    return value


# --- abstract expressions --------------------------------------------------------------------------------------------


def same(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The expression of what only moves its operand."""
    return xs[0]


def matmul_expression(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    """A sum of as many products as the inner dimension is long."""
    return algebra.sum(call.shapes[0][-1], algebra.mul(xs[0], xs[1]))


def concat_matmul_expression(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    """The sum of two such sums."""
    first = algebra.sum(call.shapes[0][-1], algebra.mul(xs[0], xs[2]))
    second = algebra.sum(call.shapes[1][-1], algebra.mul(xs[1], xs[3]))
    return algebra.add(first, second)


def accumulate_expression(algebra: Abstraction[Any], call: Call, xs: Sequence[Any]) -> Any:
    """A sum over the iterations; of other accumulators, the operand."""
    return algebra.sum(call.scope.loop, xs[0]) if call.attributes["combine"] == "sum" else xs[0]


# --- references of opaque functions ----------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    """The logistic function in NumPy."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x)))


def log(x: Array) -> Array:
    """The natural logarithm in NumPy: NaN below 0, -infinity at 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(x))


def infinity(x: Array) -> Array:
    """Infinity with the sign of the operand, NaN for 0 and NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(x / np.zeros_like(x))


def chosen(condition: Array, x: Array, y: Array) -> Array:
    """The second operand where the first is not 0, else the third."""
    return np.where(condition != 0, x, y)
