"""Looking for inputs at which two programs certainly differ.

Enclosures in float64 show nearly every difference that there is. What is smaller than their rounding, or stands where they
overflow, is looked for with many digits. Nothing is returned that rounding could have made, nor what the programs give where one
of them has no value: those are equal that are equal wherever both are defined, unless that is nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mugraph.errors import BudgetExceeded
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph
from mugraph.verifier.balls import NotEnclosed
from mugraph.verifier.certainty import Element, Look, Pair, Place, certainly
from mugraph.verifier.counterexamples import Counterexample, signature_mismatch, witness
from mugraph.verifier.points import Point, points
from mugraph.verifier.signs import conditions, signs_of

_PATIENCE = 5.0
"""Seconds that a search takes at most, unless it is given another deadline."""
_ROUNDS = (2, 12)
"""Points of each kind at which float64 looks, at least and at most: ..."""
_ELEMENTS = 512
"""... as many as have so many elements between them, since a slice may be a single number."""
_PRECISE = {256: 20, 1280: 4, 5120: 1}
"""Points at which so many digits look, at most."""

_AT_ONCE = 1 << 18
"""Elements of inputs that are looked at together in float64; with more digits, so many fewer."""
_TOGETHER = 40
"""Points at most: the first often suffice."""

Question = Callable[[Look, Place | None], Element | None]


def find_witness(
    left: Graph, right: Graph, *, seed: int, fixed: Mapping[int, Array] | None = None, deadline: float | None = None
) -> Counterexample | None:
    """Inputs at which two kernel graphs, flat or with kernels, certainly have different values; None where none was found.

    Where one of them has no value at any input, by the signs of what it takes roots and logarithms of or divides by, inputs at
    which the other has one. `fixed` inputs, by number, keep their values. The search ends at the `deadline` (of
    time.monotonic()), after 5 seconds by default. Constants that were read as other numbers than they were written as are taken
    both ways, and a witness holds in both. Different signatures are a witness without inputs.
    """
    mismatch = signature_mismatch(left, right)
    if mismatch is not None:
        return mismatch
    given = dict(fixed or {})
    end = time.monotonic() + _PATIENCE if deadline is None else deadline
    never = any(condition.impossible for graph in (left, right) for condition in conditions(graph, signs_of(given)))
    try:
        pair = Pair.of(left, right, given, end)
        return whole(first(pair, Look.one_sided if never else Look.difference, seed), left, given)
    except (BudgetExceeded, NotEnclosed):
        return None


def first(pair: Pair, question: Question, seed: int) -> Counterexample | None:
    """The first element of a slice at which the answer is certain, at points of many kinds, in float64 and then with more digits.

    Raises BudgetExceeded after the pair's deadline, and NotEnclosed where nothing can be certain.
    """
    for batch, looks in _looks(pair, points((pair.left, pair.right), seed, _rounds(pair))):
        found = certainly(looks, question, None)
        if found is not None:
            return at_point(found, looks[0], pair, batch)
    return None


def _rounds(pair: Pair) -> int:
    least, most = _ROUNDS
    return min(most, max(least, _ELEMENTS // max(1, sum(tensor.elements for tensor in pair.inputs))))


def at_point(found: Element, look: Look, pair: Pair, batch: Sequence[Point]) -> Counterexample:
    """The counterexample that an element is, seen in a look at a batch of points."""
    point = batch[found.place[1][0]]
    what = f"{look.arithmetic.name}, {point}"
    return witness(found, what, pair, point.inputs(pair.inputs, pair.fixed), point.to_json())


def batches(pair: Pair, drawn: Sequence[Point], elements: int) -> Iterator[tuple[Sequence[Point], list[Array]]]:
    """Points, as many at once as have so many elements, and their inputs, stacked."""
    size = min(_TOGETHER, max(1, elements // max(1, sum(tensor.elements for tensor in pair.inputs))))
    for start in range(0, len(drawn), size):
        batch = drawn[start : start + size]
        inputs = [point.inputs(pair.inputs, pair.fixed) for point in batch]
        yield batch, [np.stack(arrays) for arrays in zip(*inputs, strict=True)]


def whole(found: Counterexample | None, graph: Graph, fixed: Mapping[int, Array]) -> Counterexample | None:
    """What was found on a slice, at inputs of the full shapes."""
    if found is None or found.inputs is None:
        return found
    shapes = [node.output.shape for node in graph.inputs()]
    inputs = tuple(
        np.asarray(fixed[number], np.float64) if number in fixed else np.broadcast_to(array, shape)
        for number, (array, shape) in enumerate(zip(found.inputs, shapes, strict=True))
    )
    return replace(found, inputs=inputs)


def _looks(pair: Pair, drawn: Sequence[Point]) -> Iterator[tuple[Sequence[Point], list[Look]]]:
    for batch, inputs in batches(pair, drawn, _AT_ONCE):
        yield batch, pair.in_floats(inputs)
    settled: set[Point] = set()
    for digits in pair.affordable:
        open_points = [point for point in drawn[: _PRECISE[digits]] if point not in settled]
        for batch, inputs in batches(pair, open_points, _AT_ONCE // digits):
            looks = pair.precisely(inputs, digits)
            yield batch, looks
            exact = np.all([look.exact for look in looks], axis=0)
            settled.update(point for point, done in zip(batch, exact, strict=True) if done)
