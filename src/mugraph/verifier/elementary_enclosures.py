"""Enclosures of elementary functions, by those of exponentials, logarithms, sines and inverse tangents.

Those that jump enclose both sides of a jump that lies within a ball. Angles and powers are known where their operands' signs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.verifier.enclosures import Ball, Balls, State

_BITS = 1 << 20
"""Of significands, more than any number has."""


class ElementaryBalls(Balls):
    """Balls that know the functions of `mugraph.ir.elementary`."""

    def opaque(self, name: str, *xs: Ball) -> Ball:
        return _ENCLOSURES[name](self, *xs) if name in _ENCLOSURES else super().opaque(name, *xs)

    def number(self, value: int, divisor: int = 1) -> Ball:
        """A quotient of integers, of rank 0."""
        return self.exact(Fraction(value, divisor))

    def half_turn(self) -> Ball:
        """The number pi."""
        return self.mul(self.arc_sine(self.number(1)), self.number(2))

    def wave(self, name: str, x: Ball) -> Ball:
        """A sine or cosine, which changes by no more than its operand."""
        middle = self.increasing(name, x.middle, x.middle, x.state)
        return self.rounded(middle.middle, middle.radius + x.radius, middle.state)

    def arc_sine(self, x: Ball) -> Ball:
        """Increasing between -1 and 1."""
        lower, upper = self.ends(x)
        one = self.number(1).middle
        outside, doubtful = (lower > one) | (upper < -one), (upper > one) | (lower < -one)
        return self._within_domain("asin", lower, upper, x.state, np.asarray(outside, bool), np.asarray(doubtful, bool))

    def arc_tangent(self, x: Ball) -> Ball:
        """Increasing everywhere."""
        return self._monotone("atan", x)

    def angle(self, y: Ball, x: Ball) -> Ball:
        """Of a point (x, y) that certainly lies right of the axis, or left of it and above or below."""
        (low, high), (least, most) = self.ends(x), self.ends(y)
        right, above, below = low > 0, (high < 0) & (least > 0), (high < 0) & (most < 0)
        settled = np.asarray(right | above | below, bool)
        slope = self.arc_tangent(self.div(y, self.known(x, settled)))
        turn = self.half_turn()
        turned = self.select(self.indicator(above), self.add(slope, turn), slope)
        turned = self.select(self.indicator(below), self.sub(slope, turn), turned)
        return Ball(turned.middle, turned.radius, np.where(settled, turned.state, np.maximum(turned.state, State.UNKNOWN)))

    def indicator(self, mask: Array) -> Ball:
        """1 where set, else 0."""
        one = self.number(1).middle
        where = np.asarray(np.where(np.asarray(mask, bool), one, 0 * one))
        return self.between(where, where, np.zeros(where.shape, np.uint8))

    def known(self, x: Ball, mask: Array) -> Ball:
        """The ball where set, and 1 elsewhere."""
        return self.select(self.indicator(mask), x, self.number(1))

    def power(self, x: Ball, y: Ball) -> Ball:
        """Of a positive base."""
        lower, upper = self.ends(x)
        nowhere = np.zeros(lower.shape, bool)
        logarithm = self._within_domain("log", lower, upper, x.state, nowhere, np.asarray(lower <= 0, bool))
        return self.exp(self.mul(y, logarithm))

    def with_sign(self, x: Ball, y: Ball) -> Ball:
        """The size of x with the sign of y, if y has one; else both."""
        size = self.abs(x)
        low, high = self.ends(y)
        signed = self.select(self.indicator(np.asarray(high < 0, bool)), Ball(-size.middle, size.radius, size.state), size)
        lower, upper = self.ends(signed)
        either = self.between(-np.maximum(np.abs(lower), np.abs(upper)), np.maximum(np.abs(lower), np.abs(upper)), signed.state)
        settled = self.indicator(np.asarray((low > 0) | (high < 0), bool))
        found = self.select(settled, signed, either)
        return Ball(found.middle, found.radius, np.maximum(found.state, y.state))

    def whole(self, rounding: Callable[[ElementaryBalls, Array], Array], x: Ball) -> Ball:
        """Whole numbers from that of the lower bound to that of the upper one."""
        lower, upper = (rounding(self, end) for end in self.ends(x))
        return self.between(lower, upper, x.state)

    def nearest(self, bounds: Array) -> Array:
        """The nearest whole numbers, ties to even."""
        return self.shortened(bounds, _BITS, 0)

    def below(self, bounds: Array) -> Array:
        """Bounds rounded down to whole numbers."""
        nearest, one = self.nearest(bounds), self.number(1).middle
        return np.asarray(np.where(np.asarray(nearest > bounds, bool), nearest - one, nearest))

    def above(self, bounds: Array) -> Array:
        """Bounds rounded up."""
        return np.asarray(-self.below(-bounds))

    def towards_zero(self, bounds: Array) -> Array:
        """Bounds without what lies behind the point."""
        return np.asarray(np.where(np.asarray(bounds < 0, bool), self.above(bounds), self.below(bounds)))


def _logarithm_of_two(arith: ElementaryBalls) -> Ball:
    return arith.log(arith.number(2))


def _sum_of_exponentials(arith: ElementaryBalls, x: Ball) -> Ball:
    both = arith.add(arith.exp(x), arith.exp(arith.sub(arith.number(0), x)))
    return arith.mul(both, arith.number(1, 2))


def _difference_of_exponentials(arith: ElementaryBalls, x: Ball) -> Ball:
    both = arith.sub(arith.exp(x), arith.exp(arith.sub(arith.number(0), x)))
    return arith.mul(both, arith.number(1, 2))


def _area_sine(arith: ElementaryBalls, x: Ball) -> Ball:
    """Of the size, whose sum with the root does not cancel."""
    size = arith.abs(x)
    found = arith.log(arith.add(size, arith.sqrt(arith.add(arith.mul(size, size), arith.number(1)))))
    low, high = arith.ends(x)
    lower, upper = arith.ends(found)
    negative, mixed = np.asarray(high < 0, bool), np.asarray((low < 0) & (high >= 0), bool)
    bottom = np.where(negative | mixed, -upper, lower)
    top = np.where(negative, -lower, upper)
    return arith.between(np.asarray(bottom), np.asarray(top), found.state)


def _area_cosine(arith: ElementaryBalls, x: Ball) -> Ball:
    root = arith.mul(arith.sqrt(arith.sub(x, arith.number(1))), arith.sqrt(arith.add(x, arith.number(1))))
    return arith.log(arith.add(x, root))


def _area_tangent(arith: ElementaryBalls, x: Ball) -> Ball:
    quotient = arith.div(arith.add(arith.number(1), x), arith.sub(arith.number(1), x))
    return arith.mul(arith.log(quotient), arith.number(1, 2))


def _remainder(arith: ElementaryBalls, x: Ball, y: Ball) -> Ball:
    times = arith.whole(ElementaryBalls.towards_zero, arith.div(x, y))
    return arith.sub(x, arith.mul(times, y))


_ENCLOSURES: Mapping[str, Callable[..., Ball]] = {
    "sin": lambda arith, x: arith.wave("sin", x),
    "cos": lambda arith, x: arith.wave("cos", x),
    "tan": lambda arith, x: arith.div(arith.wave("sin", x), arith.wave("cos", x)),
    "asin": ElementaryBalls.arc_sine,
    "acos": lambda arith, x: arith.sub(arith.arc_sine(arith.number(1)), arith.arc_sine(x)),
    "atan": ElementaryBalls.arc_tangent,
    "sinh": _difference_of_exponentials,
    "cosh": _sum_of_exponentials,
    "asinh": _area_sine,
    "acosh": _area_cosine,
    "atanh": _area_tangent,
    "exp2": lambda arith, x: arith.exp(arith.mul(x, _logarithm_of_two(arith))),
    "expm1": lambda arith, x: arith.sub(arith.exp(x), arith.number(1)),
    "log2": lambda arith, x: arith.div(arith.log(x), _logarithm_of_two(arith)),
    "log1p": lambda arith, x: arith.log(arith.add(x, arith.number(1))),
    "erfc": lambda arith, x: arith.sub(arith.number(1), arith._monotone("erf", x)),
    "floor": lambda arith, x: arith.whole(ElementaryBalls.below, x),
    "ceil": lambda arith, x: arith.whole(ElementaryBalls.above, x),
    "trunc": lambda arith, x: arith.whole(ElementaryBalls.towards_zero, x),
    "round": lambda arith, x: arith.whole(ElementaryBalls.nearest, x),
    "atan2": ElementaryBalls.angle,
    "fmod": _remainder,
    "pow": ElementaryBalls.power,
    "copysign": ElementaryBalls.with_sign,
}
