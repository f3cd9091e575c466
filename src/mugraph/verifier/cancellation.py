"""What errors of a result are relative to where its terms cancel: how large the numbers were that it is the difference of.

A value that is 0 but for what float64 rounds has no digit that float64 could tell, and no kernel can be asked for one. What can
be asked is that it errs little beside what was added up. How much that is is tried: the program is evaluated again, each result
changed at random by much more than rounding does, wherever it is read by the same. What a value moves, divided by how large the
changes were, is about as large as its terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

TRIES = 4
"""How often a program is evaluated again: hardly one of millions of values moves by little each time."""
_CHANGE = 2.0**-40
"""Results are changed by up to this share, so many roundings that they hardly come out as they were."""
_HARDLY = 2.0**-44
"""Values that are no larger than this share of their terms have hardly a digit that float64 could tell, ..."""
_FAR = 2.0**10
"""... and no further try makes one of what is so many times as large."""


def shaken_outputs(graph: Graph, inputs: Sequence[Array], rng: np.random.Generator, pulse: Pulse) -> Sequence[Array]:
    """The outputs of a kernel graph in float64, each result changed a little."""
    with np.errstate(all="ignore"):
        return evaluate_batched(graph, [array.astype(np.float64) for array in inputs], _Shaken(rng), pulse)


def may_cancel(largest: float, moved: Array) -> bool:
    """Whether further tries may show that terms cancel in an output with this `largest` value, which so far `moved`."""
    return not largest > _FAR * _HARDLY * float(np.max(moved, initial=0.0)) / _CHANGE


def cancelled_terms(exact: Array, moved: Array) -> float | None:
    """What errors are relative to of an output of whose elements float64 tells hardly a digit; None where it tells some.

    `moved` is by how much elements of shaken outputs differ from the exact ones at most.
    """
    finite, terms = np.isfinite(exact), moved / _CHANGE
    if np.any(finite & ~(np.isfinite(terms) & (np.abs(exact) <= _HARDLY * terms))):
        return None
    return float(np.max(terms, initial=0.0, where=finite))


class _Shaken(FloatArithmetic):
    """float64 whose results err by more than they do, and so do the terms of sums; what chooses or moves numbers is exact."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.rng = rng

    def add(self, x: Array, y: Array) -> Array:
        return self._shaken(super().add(x, y))

    def sub(self, x: Array, y: Array) -> Array:
        return self._shaken(super().sub(x, y))

    def mul(self, x: Array, y: Array) -> Array:
        return self._shaken(super().mul(x, y))

    def div(self, x: Array, y: Array) -> Array:
        return self._shaken(super().div(x, y))

    def exp(self, x: Array) -> Array:
        return self._shaken(super().exp(x))

    def sqrt(self, x: Array) -> Array:
        return self._shaken(super().sqrt(x))

    def sum(self, x: Array, axis: int) -> Array:
        return self._shaken(super().sum(self._shaken(x), axis))

    def matmul(self, x: Array, y: Array) -> Array:
        return self._shaken(super().matmul(self._shaken(x), y))

    def _shaken(self, x: Array) -> Array:
        return np.asarray(x + x * self.rng.uniform(-_CHANGE, _CHANGE, x.shape))
