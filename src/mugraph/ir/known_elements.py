"""What is known of the elements of tensors of which some are -inf, as masks hide them, or 0: an arithmetic of six states.

Under it the meanings of the operator table say what becomes of such elements: of scores that -inf is added to -inf, of their
exponentials 0. It takes for granted that operators make finite numbers of finite numbers, and gives up where that cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from mugraph.ir.arithmetic import Array
from mugraph.ir.ops import LOWEST, OPERATORS
from mugraph.ir.scalar import Scalar

States = NDArray[np.uint8]
"""What is known of each element of a tensor: members of `Known`."""


class Known(IntEnum):
    """What is known of one element."""

    NOTHING = 0
    HIDDEN = 1
    """It is -inf."""
    LOWEST = 2
    """It is the number that a running maximum starts with."""
    ZERO = 3
    POSITIVE = 4
    """It is a positive number that does not depend on the inputs."""
    NEGATIVE = 5
    """It is a negative number that does not depend on the inputs."""
    FINITE = 6
    """It is some number, neither infinite nor NaN."""


_VALUES = np.array([math.nan, -math.inf, math.nan, 0.0, math.nan, math.nan, math.nan])
"""The number that an element of each state is, where it is one that functions are applied to."""


def _first(*cases: tuple[Array, Array | Known]) -> States:
    """Element by element, what the first case that holds says; nothing where none does."""
    conditions, results = zip(*cases, strict=True)
    shape = np.broadcast_shapes(*(condition.shape for condition in conditions))
    spread = [np.broadcast_to(np.asarray(result, np.uint8), shape) for result in results]
    return np.select([np.broadcast_to(condition, shape) for condition in conditions], spread, Known.NOTHING).astype(np.uint8)


def _is(elements: States, *states: Known) -> Array:
    return np.isin(elements, states)


def leave_sum(elements: States) -> bool:
    """Whether a sum stays as it is when it meets these elements."""
    return bool((elements == Known.ZERO).all())


def leave_maximum(elements: States, from_lowest: bool = True) -> bool:
    """The same of a maximum, which starts from the lowest number or, unless `from_lowest`, from -inf."""
    return bool(np.isin(elements, (Known.HIDDEN, Known.LOWEST) if from_lowest else (Known.HIDDEN,)).all())


def leave_rescaled(term: States, shift: States) -> bool:
    """The same of a sum that is rescaled by a running maximum, for a term with this shift."""
    return leave_sum(term) and leave_maximum(shift)


class KnownArithmetic:
    """`mugraph.ir.arithmetic.Arithmetic` on what is known, where no operator makes infinity or NaN of finite numbers."""

    def constant(self, value: Scalar) -> States:
        with np.errstate(over="ignore"):
            number = np.float32(float(value))  # as kernels have it
        if not np.isfinite(number):
            return np.asarray(Known.HIDDEN if number < 0 else Known.NOTHING, np.uint8)
        state = Known.ZERO if number == 0 else Known.POSITIVE if number > 0 else Known.NEGATIVE
        return np.asarray(Known.LOWEST if value == LOWEST else state, np.uint8)

    def add(self, x: States, y: States) -> States:
        hidden = _is(x, Known.HIDDEN) & (y != Known.NOTHING) | _is(y, Known.HIDDEN) & (x != Known.NOTHING)
        return _first(
            (hidden, Known.HIDDEN), (_is(x, Known.ZERO), y), (_is(y, Known.ZERO), x), (_numbers(x) & _numbers(y), Known.FINITE)
        )

    def sub(self, x: States, y: States) -> States:
        hidden = _is(x, Known.HIDDEN) & (_numbers(y) | _is(y, Known.LOWEST))
        return _first((hidden, Known.HIDDEN), (_is(y, Known.ZERO), x), (_numbers(x) & _numbers(y), Known.FINITE))

    def mul(self, x: States, y: States) -> States:
        hidden = _is(x, Known.HIDDEN) & _is(y, Known.POSITIVE) | _is(y, Known.HIDDEN) & _is(x, Known.POSITIVE)
        both = _numbers(x) & _numbers(y)
        zero = both & (_is(x, Known.ZERO) | _is(y, Known.ZERO))
        return _first((hidden, Known.HIDDEN), (zero, Known.ZERO), (both, Known.FINITE))

    def div(self, x: States, y: States) -> States:
        hidden = _is(x, Known.HIDDEN) & _is(y, Known.POSITIVE)
        both = _numbers(x) & _is(y, Known.POSITIVE, Known.NEGATIVE, Known.FINITE)
        return _first((hidden, Known.HIDDEN), (both & _is(x, Known.ZERO), Known.ZERO), (both, Known.FINITE))

    def exp(self, x: States) -> States:
        return _first((_is(x, Known.HIDDEN), Known.ZERO), (_is(x, Known.ZERO), Known.POSITIVE), (_numbers(x), Known.FINITE))

    def sqrt(self, x: States) -> States:
        return _first((_is(x, Known.ZERO), Known.ZERO), (_numbers(x), Known.FINITE))

    def sum(self, x: States, axis: int) -> States:
        def every(*states: Known) -> Array:
            return np.asarray(np.all(_is(x, *states), axis=axis, keepdims=True))

        known = np.all(_numbers(x) | _is(x, Known.HIDDEN), axis=axis, keepdims=True)
        finite = np.all(_numbers(x), axis=axis, keepdims=True)
        return _first((every(Known.ZERO), Known.ZERO), (finite, Known.FINITE), (known, Known.HIDDEN))

    def max(self, x: States, axis: int) -> States:
        def every(*states: Known) -> Array:
            return np.asarray(np.all(_is(x, *states), axis=axis, keepdims=True))

        known = np.all(x != Known.NOTHING, axis=axis, keepdims=True)
        return _first(
            (every(Known.HIDDEN), Known.HIDDEN),
            (every(Known.HIDDEN, Known.LOWEST), Known.LOWEST),
            (every(Known.HIDDEN, Known.ZERO), Known.ZERO),
            (known, Known.FINITE),
        )

    def matmul(self, x: States, y: States) -> States:
        numbers = np.all(_numbers(x), axis=-1, keepdims=True) & np.all(_numbers(y), axis=-2, keepdims=True)
        terms = np.matmul((x != Known.ZERO).astype(np.float32), (y != Known.ZERO).astype(np.float32))
        return _first((numbers & (terms == 0), Known.ZERO), (numbers & (terms > 0), Known.FINITE))

    def opaque(self, name: str, *xs: States) -> States:
        """A function of numbers is one, infinite constants aside; of elements that are all known it is what it is of these. A
        choice is what it chooses, whatever the other one is."""
        reference = OPERATORS[name].reference
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        numbers = np.all([np.broadcast_to(_numbers(x), shape) for x in xs], axis=0)
        # by name: one makes no finite number, the other does not read all of its operands
        if name == "infinity":
            return _first((_is(xs[0], Known.NEGATIVE, Known.LOWEST, Known.HIDDEN), Known.HIDDEN))
        # by name: as above
        if name == "select":
            condition, x, y = xs
            true = _is(condition, Known.HIDDEN, Known.LOWEST, Known.POSITIVE, Known.NEGATIVE)
            return _first((_is(condition, Known.ZERO), y), (true | (x == y), x), (numbers, Known.FINITE))
        if reference is None:
            return np.zeros(shape, np.uint8)
        with np.errstate(all="ignore"):
            found = np.broadcast_to(np.asarray(reference(*(_VALUES[x] for x in xs)), np.float64), shape)
        known = np.all([np.broadcast_to(_is(x, Known.HIDDEN, Known.ZERO), shape) for x in xs], axis=0)
        finite = np.where(np.isfinite(found), np.uint8(Known.FINITE), np.uint8(Known.NOTHING))
        zero, hidden = known & (found == 0), known & np.isneginf(found)
        return _first((zero, Known.ZERO), (hidden, Known.HIDDEN), (known, finite), (numbers, Known.FINITE))

    def view(self, x: States, move: Callable[[Array], Array]) -> States:
        return move(x)

    def join(self, xs: Sequence[States], combine: Callable[[Sequence[Array]], Array]) -> States:
        return combine(xs)


def _numbers(elements: States) -> Array:
    """Where elements are finite, and not as large as the lowest number."""
    return _is(elements, Known.ZERO, Known.POSITIVE, Known.NEGATIVE, Known.FINITE)
