"""Balls in float64 (`mugraph.verifier.enclosures`): every operation widens them by more than its rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.elementary import erf
from mugraph.verifier.elementary_enclosures import ElementaryBalls
from mugraph.verifier.enclosures import Ball, State, matrix_spread, matrix_state, spread

_UNIT = 2.0**-52
"""More than the relative error of an operation that rounds to nearest."""
_GUARD = 2.0**-46
"""More than the relative error of a radius, which a few operations make."""
_LEAST = 2.0**-1000
"""More than the absolute error of an operation whose result underflows, even where subnormal numbers are taken for zeros."""
_FUNCTIONS = 2.0**-46
"""More than the relative error of an elementary function: 128 units in the last place, where libraries promise 4."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_VALUES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": erf,
    "sin": np.sin,
    "cos": np.cos,
    "asin": np.arcsin,
    "atan": np.arctan,
}
_NEVER_NEGATIVE = frozenset({"exp", "sqrt", "sigmoid"})


class FloatBalls(ElementaryBalls):
    """Middles and radii in float64. What leaves its range is unknown."""

    @property
    def name(self) -> str:
        return "intervals in float64"

    def tensor(self, array: Array) -> Ball:
        middle = np.asarray(array, np.float64)
        return Ball(middle, np.zeros_like(middle), np.zeros(middle.shape, np.uint8))

    def around(self, number: Fraction, radius: Fraction) -> Ball:
        try:
            nearest, reach = float(number), float(radius)
        except OverflowError:
            return Ball(np.zeros(()), np.zeros(()), np.asarray(State.UNKNOWN, np.uint8))
        exact = Fraction(nearest) == number and not radius
        reach = 0.0 if exact else math.ulp(nearest) + math.nextafter(reach, math.inf)
        return _finite(np.asarray(nearest), np.asarray(reach), np.zeros((), np.uint8))

    def fractions(self, ball: Ball, index: tuple[int, ...]) -> tuple[Fraction, Fraction]:
        return Fraction(ball.middle[index].item()), Fraction(ball.radius[index].item())

    def rounded(self, middle: Array, radius: Array, state: Array) -> Ball:
        return _finite(middle, radius + np.abs(middle) * _UNIT, state)

    def mul(self, x: Ball, y: Ball) -> Ball:
        middle = x.middle * y.middle
        return _finite(middle, spread(x, y) + np.abs(middle) * _UNIT + _LEAST, np.maximum(x.state, y.state))

    def matmul(self, x: Ball, y: Ball) -> Ball:
        terms = x.middle.shape[-1]
        rounding = np.matmul(np.abs(x.middle), np.abs(y.middle)) * (terms * _UNIT)
        return _finite(np.matmul(x.middle, y.middle), matrix_spread(x, y) + rounding + terms * _LEAST, matrix_state(x, y), terms)

    def sum(self, x: Ball, axis: int) -> Ball:
        terms = x.middle.shape[axis]
        middle, radius, size = (np.sum(part, axis, keepdims=True) for part in (x.middle, x.radius, np.abs(x.middle)))
        return _finite(middle, radius + size * (terms * _UNIT), x.state.max(axis=axis, keepdims=True), terms)

    def quotient(self, x: Ball, y: Ball, state: Array) -> Ball:
        middle = x.middle / y.middle
        size = np.abs(middle)
        return _finite(middle, (x.radius + size * y.radius) / (np.abs(y.middle) - y.radius) + size * _UNIT + _LEAST, state)

    def ends(self, x: Ball) -> tuple[Array, Array]:
        exact = x.radius == 0
        lower, upper = np.nextafter(x.middle - x.radius, -np.inf), np.nextafter(x.middle + x.radius, np.inf)
        return np.where(exact, x.middle, lower), np.where(exact, x.middle, upper)

    def between(self, lower: Array, upper: Array, state: Array) -> Ball:
        middle = np.where(lower == upper, lower, lower / 2 + upper / 2)
        return _finite(middle, np.maximum(upper - middle, middle - lower), state)

    def increasing(self, name: str, lower: Array, upper: Array, state: Array) -> Ball:
        least, most = _VALUES[name](lower), _VALUES[name](upper)
        at_zero = 0.0 if name == "sqrt" else _LEAST  # by name: the root of 0 is exact
        least = least - np.abs(least) * _FUNCTIONS - np.where(least == 0, at_zero, 0.0)
        most = most + np.abs(most) * _FUNCTIONS + np.where(most == 0, at_zero, 0.0)
        return self.between(np.maximum(least, 0.0) if name in _NEVER_NEGATIVE else least, most, state)

    def shortened(self, bounds: Array, significand: int, least: int) -> Array:
        unit = np.maximum(np.frexp(bounds)[1] - significand, least)
        return np.asarray(np.ldexp(np.rint(np.ldexp(bounds, -unit)), unit))

    def beyond(self, bounds: Array, largest: float) -> Array:
        return np.asarray(np.abs(bounds) > largest)

    def apart(self, x: Ball, y: Ball) -> Array:
        distance, reach = np.abs(x.middle - y.middle), (x.radius + y.radius) * (1 + _GUARD)
        return np.asarray((np.maximum(x.state, y.state) == State.KNOWN) & np.isfinite(distance) & (distance > reach))


def _finite(middle: Array, radius: Array, state: Array, terms: int = 1) -> Ball:
    """A ball whose radius is rounded up; what is not finite is unknown, and what is not known is 0."""
    radius = radius * (1 + _GUARD + terms * _UNIT)
    infinite = ~(np.isfinite(middle) & np.isfinite(radius))
    state = np.where(infinite, np.maximum(state, State.UNKNOWN), state).astype(np.uint8)
    known = state == State.KNOWN
    return Ball(np.where(known, middle, 0.0), np.where(known, radius, 0.0), state)
