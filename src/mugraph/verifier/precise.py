"""Balls in fixed point of as many binary digits as are asked for, of unlimited range (`mugraph.verifier.enclosures`).

A number is an integer times 2**-digits. Sums and products of integers are exact, whatever their order, and NumPy's on arrays of
Python's integers are fast; so one rounding per element and operation is left, of less than two units. Elementary functions are
mpmath's, with guard digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from mpmath import libmp

from mugraph.ir.arithmetic import Array
from mugraph.verifier.elementary_enclosures import ElementaryBalls
from mugraph.verifier.enclosures import Ball, State, matrix_spread, matrix_state, spread
from mugraph.verifier.vectorized_eval import Pulse

_LARGEST = 1 << 14
"""Binary digits before the point: what needs more is unknown, since computing with it takes long."""
_GUARD_DIGITS = 32
_UNITS = 4
"""Units that an elementary function is widened by: its guard digits make its own error less than one, truncation another."""
_AT_ONCE = 64
"""Elementary functions that are computed between two looks at the clock."""

Number = Any
"""A raw number of mpmath's."""


class PreciseBalls(ElementaryBalls):
    """Middles and radii are arrays of Python's integers, in units of 2**-digits."""

    def __init__(self, digits: int, as_written: bool = False, pulse: Pulse = lambda: None) -> None:
        super().__init__(as_written)
        self.digits, self.pulse = digits, pulse
        self.one = 1 << digits

    @property
    def name(self) -> str:
        return f"intervals of {self.digits} binary digits after the point"

    def tensor(self, array: Array) -> Ball:
        mantissas, exponents = np.frexp(np.asarray(array, np.float64))
        whole, shifts = np.asarray(mantissas * 2.0**53).astype(np.int64), exponents.astype(np.int64) - 53 + self.digits
        shifted = np.left_shift(whole.astype(object), np.maximum(shifts, 0).astype(object))
        middle = np.asarray(np.right_shift(shifted, np.maximum(-shifts, 0).astype(object)), object)
        lost = np.asarray(shifts < -53) | np.asarray(whole & ((1 << np.clip(-shifts, 0, 62)) - 1)).astype(bool)
        return Ball(middle, _integers(lost & (whole != 0)), np.zeros(middle.shape, np.uint8))

    def around(self, number: Fraction, radius: Fraction) -> Ball:
        middle, rest = divmod(number.numerator << self.digits, number.denominator)
        reach = int(rest != 0) + math.ceil(radius * self.one)
        return Ball(_single(middle), _single(reach), np.zeros((), np.uint8))

    def fractions(self, ball: Ball, index: tuple[int, ...]) -> tuple[Fraction, Fraction]:
        return Fraction(ball.middle[index], self.one), Fraction(ball.radius[index], self.one)

    def rounded(self, middle: Array, radius: Array, state: Array) -> Ball:
        return Ball(np.asarray(middle, object), np.asarray(radius, object), state)

    def mul(self, x: Ball, y: Ball) -> Ball:
        return self._rescaled(x.middle * y.middle, spread(x, y), np.maximum(x.state, y.state))

    def matmul(self, x: Ball, y: Ball) -> Ball:
        middle = np.matmul(x.middle, y.middle)
        if not (x.radius.any() or y.radius.any()):
            return self._rescaled(middle, _integers(np.zeros(middle.shape, bool)), matrix_state(x, y))
        return self._rescaled(middle, matrix_spread(x, y), matrix_state(x, y))

    def sum(self, x: Ball, axis: int) -> Ball:
        middle, radius = (np.asarray(np.sum(part, axis, keepdims=True), object) for part in (x.middle, x.radius))
        return Ball(middle, radius, x.state.max(axis=axis, keepdims=True))

    def quotient(self, x: Ball, y: Ball, state: Array) -> Ball:
        numerator = x.middle * self.one
        middle = np.asarray(numerator // y.middle, object)
        wide = x.radius * self.one + (np.abs(middle) + 1) * y.radius
        radius = -((-wide) // (np.abs(y.middle) - y.radius))
        return self._bounded(middle, radius + _integers(middle * y.middle != numerator), state)

    def ends(self, x: Ball) -> tuple[Array, Array]:
        return np.asarray(x.middle - x.radius, object), np.asarray(x.middle + x.radius, object)

    def between(self, lower: Array, upper: Array, state: Array) -> Ball:
        middle = np.asarray((lower + upper) >> 1, object)
        return Ball(middle, np.asarray(upper - middle, object), state)

    def increasing(self, name: str, lower: Array, upper: Array, state: Array) -> Ball:
        # by name: exponentials leave the range of fixed point
        if name == "exp":
            state = np.where(upper > _LARGEST * self.one * 2 // 3, np.maximum(state, State.UNKNOWN), state).astype(np.uint8)
        known: dict[int, tuple[int, int]] = {}

        def value(number: int) -> tuple[int, int]:
            if number not in known:
                if len(known) % _AT_ONCE == 0:
                    self.pulse()
                known[number] = _BOUNDS[name](number, self.digits)
            return known[number]

        least, most = (
            np.array([value(n)[side] if s == State.KNOWN else 0 for n, s in zip(end.flat, state.flat, strict=True)], object)
            for side, end in enumerate((lower, upper))
        )
        return self.between(least.reshape(state.shape), most.reshape(state.shape), state)

    def shortened(self, bounds: Array, significand: int, least: int) -> Array:
        numbers = [_shortened(number, significand, least + self.digits) for number in bounds.flat]
        return np.array(numbers, object).reshape(bounds.shape)

    def beyond(self, bounds: Array, largest: float) -> Array:
        return np.asarray(np.abs(bounds) > int(largest) * self.one, bool)

    def apart(self, x: Ball, y: Ball) -> Array:
        known = np.maximum(x.state, y.state) == State.KNOWN
        return np.asarray(known & np.asarray(np.abs(x.middle - y.middle) > x.radius + y.radius, bool))

    def _rescaled(self, middle: Array, radius: Array, state: Array) -> Ball:
        """A ball of numbers that are given in units of 2**(-2 digits)."""
        middle, radius = np.asarray(middle, object), np.asarray(radius, object)
        inexact = _integers((middle & (self.one - 1)) != 0)
        return self._bounded(middle >> self.digits, -((-radius) >> self.digits) + inexact, state)

    def _bounded(self, middle: Array, radius: Array, state: Array) -> Ball:
        """The ball, of which nothing is known where its numbers are too long."""
        middle, radius = np.asarray(middle, object), np.asarray(radius, object)
        long = np.asarray(np.abs(middle) + radius > self.one << _LARGEST).astype(bool)
        state = np.where(long, np.maximum(state, State.UNKNOWN), state).astype(np.uint8)
        zero = _single(0)
        return Ball(np.where(long, zero, middle), np.where(long, zero, radius), state)


def _single(number: int) -> Array:
    array = np.empty((), object)
    array[()] = number
    return array


def _integers(mask: Any) -> Array:
    """1 where set and 0 elsewhere, as Python's integers."""
    return np.asarray(np.asarray(mask).astype(bool).astype(np.int64).astype(object))


Bounds = Callable[[int, int], tuple[int, int]]
"""Of a fixed-point number of so many digits: fixed-point numbers below and above a function's value."""


def _shortened(number: int, significand: int, least: int) -> int:
    """An integer rounded to so many bits, and to a multiple of 2**least, ties to even."""
    cut = max(abs(number).bit_length() - significand, least)
    if cut <= 0:
        return number
    half, low = 1 << (cut - 1), number & ((1 << cut) - 1)
    up = low > half or (low == half and number >> cut & 1)
    return (number >> cut) + up << cut


def _by_mpmath(function: Callable[[Number, int], Number], *, growing: bool = False, positive: bool = False) -> Bounds:
    """Bounds from one of mpmath's functions of a number and a precision.

    Large values of a `growing` function take as many digits more as they have before the point.
    """

    def bounds(number: int, digits: int) -> tuple[int, int]:
        precision = digits + _GUARD_DIGITS + (max(0, 3 * number >> (digits + 1)) if growing else 0)
        value = int(libmp.to_fixed(function(libmp.from_man_exp(number, -digits), precision), digits))
        return (max(0, value - _UNITS) if positive else value - _UNITS), value + _UNITS

    return bounds


def _sqrt(number: int, digits: int) -> tuple[int, int]:
    """Exact for squares."""
    root = math.isqrt(number << digits)
    return root, root + (root * root != number << digits)


def _sigmoid(x: Number, precision: int) -> Number:
    power = libmp.mpf_exp(libmp.mpf_neg(x), precision, "n")
    return libmp.mpf_div(libmp.fone, libmp.mpf_add(libmp.fone, power, precision, "n"), precision, "n")


_BOUNDS: dict[str, Bounds] = {
    "exp": _by_mpmath(lambda x, precision: libmp.mpf_exp(x, precision, "n"), growing=True, positive=True),
    "log": _by_mpmath(lambda x, precision: libmp.mpf_log(x, precision, "n")),
    "sqrt": _sqrt,
    "tanh": _by_mpmath(lambda x, precision: libmp.mpf_tanh(x, precision, "n")),
    "sigmoid": _by_mpmath(_sigmoid, positive=True),
    "erf": _by_mpmath(lambda x, precision: libmp.mpf_erf(x, precision, "n")),
    "sin": _by_mpmath(lambda x, precision: libmp.mpf_sin(x, precision, "n")),
    "cos": _by_mpmath(lambda x, precision: libmp.mpf_cos(x, precision, "n")),
    "asin": _by_mpmath(lambda x, precision: libmp.mpf_asin(x, precision, "n")),
    "atan": _by_mpmath(lambda x, precision: libmp.mpf_atan(x, precision, "n")),
}
