"""What infinite constants make of two programs, seen in float64: proofs hold for every real number in their place, no more.

A share of exponentials that are all hidden is not a number, where the algebra of numbers says that shares add up to 1.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.verifier.certainty import SlicedPair
from mugraph.verifier.domain import positive_inputs
from mugraph.verifier.vectorized_eval import evaluate_batched

_SCALES = (0.3, 1.0, 3.0)
_POINTS = 8
"""For each standard deviation of normal inputs."""


def infinities_apart(
    left: Graph, right: Graph, *, seed: int, fixed: Mapping[int, Array] | None = None, deadline: float | None = None
) -> str:
    """Of two kernel graphs of one signature: where only one is a number, or infinite, in words. Empty if nowhere.

    Also where neither has infinite constants. `fixed` inputs, by number, have these values; looking ends at the `deadline` (of
    time.monotonic()).
    """
    # by name: the row that hides elements by an infinity
    if not any(node.op == "infinity" for graph in (left, right) for _, node in graph.walk()):
        return ""
    with contextlib.suppress(BudgetExceeded):
        pair = SlicedPair.of(left, right, fixed or {}, math.inf if deadline is None else deadline)
        for scale, inputs in _inputs(pair, seed):
            with np.errstate(all="ignore"):
                sides = [evaluate_batched(graph, inputs, FloatArithmetic(), pair.pulse) for graph in (pair.left, pair.right)]
            for number, (ours, theirs) in enumerate(zip(*sides, strict=True)):
                apart = np.argwhere(~_alike(ours, theirs))
                if len(apart):
                    here, there = (float(side[tuple(apart[0])]) for side in (ours, theirs))
                    return (
                        f"infinite constants make output {number} {here:g} in the left program and {there:g} in the right one "
                        f"at normal inputs of scale {scale:g}"
                    )
    return ""


def _held(array: Array, dtype: DType) -> Array:
    """Numbers of a type without fractions or signs, made of others."""
    if dtype is DType.BOOL:
        return np.asarray(array > 0)
    return round_to(dtype, array) if dtype.is_stored else array


def _alike(x: Array, y: Array) -> Array:
    """Where two tensors are both no numbers, the same infinity, or both finite."""
    return np.asarray((np.isnan(x) & np.isnan(y)) | (np.isfinite(x) & np.isfinite(y)) | (x == y))


def _inputs(pair: SlicedPair, seed: int) -> Iterator[tuple[float, list[Array]]]:
    """Normal numbers, positive where roots and logarithms need them so, booleans, and values that are given."""
    rng = np.random.default_rng([seed, 0x1F])
    positive = positive_inputs(pair.left) | positive_inputs(pair.right)
    for scale in (scale for scale in _SCALES for _ in range(_POINTS)):
        drawn = [scale * rng.standard_normal(tensor.shape) for tensor in pair.inputs]
        made = [np.abs(array) if number in positive else array for number, array in enumerate(drawn)]
        made = [_held(array, tensor.dtype) for array, tensor in zip(made, pair.inputs, strict=True)]
        yield scale, [pair.fixed.get(number, np.asarray(array, np.float64)) for number, array in enumerate(made)]
