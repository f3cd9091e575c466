"""What two functions are to each other, found at points: the check of what a family of pairs claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from mugraph.frontend.calls.calling import arguments_of
from mugraph.ir.program import Program
from mugraph.testing.exact import Recorded, recorded
from mugraph.testing.exact_numbers import Fractions, NotRational, Numbers, Reals, Unsaid
from mugraph.testing.oracle import agree
from mugraph.testing.pairs.pair import Pair, Truth

_SAME = 1e-40
"""Relative to the largest element of an output: differences that BITS bits make."""
_READING = 1e-12
"""Relative differences that reading a float as a fraction or root may make, after a few operations on it."""


def contradicted(pair: Pair, seed: int = 0) -> Truth | None:
    """What points show where it is not what the pair claims, None where it is or where values have no say.

    Functions that differ by the rounding of their constants alone are different; that they are equal as read, their author knows.
    """
    if not pair.by_values:
        return None
    found = judged(pair, seed)
    return None if found is pair.truth or (found, pair.truth) == (Truth.READING, Truth.DIFFERENT) else found


def judged(pair: Pair, seed: int = 0) -> Truth:
    """What points show of two functions: exact fractions where both are rational, 200 bits otherwise.

    Points are normal, positive, negative, large, small, and integers with zeros. A difference at a single point decides; what
    is undefined on one side is told apart by whether it is so at a point without zeros and repeated numbers.
    """
    if isinstance(pair.left, Program) and isinstance(pair.right, Program):
        return Truth.EQUAL if agree(pair.left.graph, pair.right.graph, seed) else Truth.DIFFERENT
    args, kwargs = arguments_of(pair.inputs)
    left, right = (recorded(fn, args, kwargs) for fn in (pair.left, pair.right))  # type: ignore[arg-type]
    if (left.structure, left.constants) != (right.structure, right.constants):
        return Truth.DIFFERENT
    tensors = [leaf for leaf in tree_flatten((tuple(args), dict(kwargs)))[0] if isinstance(leaf, torch.Tensor)]
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors):
        raise ValueError("rounding of inputs is judged by construction only")
    generic = _in_reals(left, right, _points(shapes, seed))
    comparisons = generic + _in_reals(left, right, _special_points(shapes, seed)) + _in_fractions(left, right, shapes, seed)
    apart = max((found.difference for found in comparisons), default=0.0)
    if any(not sum(of_output) for of_output in zip(*(found.common for found in comparisons), strict=True)):
        return Truth.EMPTY
    if apart > _SAME:
        return Truth.READING if apart < _READING else Truth.DIFFERENT
    if any(found.one_sided for found in generic):
        return Truth.PART
    return Truth.NEARLY if any(found.one_sided for found in comparisons) else Truth.EQUAL


class _Comparison:
    """Outputs at one point: of each how many elements both define; how many one only; the largest relative difference."""

    def __init__(self) -> None:
        self.common: list[int] = []
        self.one_sided = 0
        self.difference = 0.0

    def add(self, left: Numbers, right: Numbers, arith: Fractions | Reals) -> None:
        self.common.append(0)
        if left.shape != right.shape:
            self.common[-1], self.difference = 1, np.inf
            return
        scale = max((abs(x) for x in (*left.flat, *right.flat) if not arith.is_nan(x)), default=0)
        for x, y in zip(left.flat, right.flat, strict=True):
            undefined = arith.is_nan(x), arith.is_nan(y)
            self.one_sided += undefined[0] != undefined[1]
            if not any(undefined):
                self.common[-1] += 1
                if x != y:
                    self.difference = max(self.difference, float(abs(x - y) / scale))


def _compared(left: Recorded, right: Recorded, inputs: Sequence[Numbers], arith: Fractions | Reals) -> _Comparison:
    found = _Comparison()
    numbers = [np.vectorize(arith.number, otypes=[object])(array) if array.size else array for array in inputs]
    for ours, theirs in zip(left.outputs(numbers, arith), right.outputs(numbers, arith), strict=True):
        found.add(ours, theirs, arith)
    return found


def _in_reals(left: Recorded, right: Recorded, points: Iterable[list[Any]]) -> list[_Comparison]:
    """Comparisons at points, but for those of which nothing can be said."""
    found = []
    for point in points:
        try:
            found.append(_compared(left, right, point, Reals()))
        except Unsaid:
            continue
    return found


def _points(shapes: Sequence[tuple[int, ...]], seed: int) -> Iterator[list[Any]]:
    rng = np.random.default_rng([seed, 3])
    yield [rng.normal(size=shape) for shape in shapes]
    yield [rng.uniform(0.5, 1.5, shape) for shape in shapes]
    yield [-rng.uniform(0.5, 1.5, shape) for shape in shapes]
    yield [rng.uniform(2, 9, shape) for shape in shapes]
    yield [-rng.uniform(2, 9, shape) for shape in shapes]
    yield [rng.normal(0, 20, shape) for shape in shapes]
    yield [rng.normal(0, 1e-3, shape) for shape in shapes]


def _special_points(shapes: Sequence[tuple[int, ...]], seed: int) -> Iterator[list[Any]]:
    """Points of zeros and repeated numbers."""
    rng = np.random.default_rng([seed, 5])
    yield [rng.integers(-2, 3, shape).astype(float) for shape in shapes]
    yield [rng.integers(0, 2, shape).astype(float) for shape in shapes]


def _in_fractions(left: Recorded, right: Recorded, shapes: Sequence[tuple[int, ...]], seed: int) -> list[_Comparison]:
    """Comparisons in exact fractions at two points, nothing where a function is not rational or has a pole there."""
    rng = np.random.default_rng([seed, 4])
    found = []
    for _ in range(2):
        point = [np.asarray(rng.integers(-99, 100, shape), object) for shape in shapes]
        fractions = [np.vectorize(Fraction, otypes=[object])(array) for array in point]
        try:
            found.append(_compared(left, right, fractions, Fractions()))
        except (NotRational, ZeroDivisionError):
            return []
    return found
