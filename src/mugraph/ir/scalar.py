"""Exact scalar constants: rationals and square roots of rationals, never floats.

A float is a rational with a power of two below, and that is what it means, unless it is the float nearest to a number so much
shorter that chance is ruled out: 1/10, sqrt(1/128), 1e-12. A number that was read so remembers from which float.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from mugraph.errors import InvalidInput

_SHORT_SIGNIFICAND = 24
"""Bits: a float of fp64 with no more is a number of fp32 or a narrower type, and stands for itself."""
_SHORT_FRACTION = 32
"""Bits of numerator and denominator together: of n bits there are 2^n, so one in 2^(53 - n) floats has one nearest to it."""
_SHORT_DECIMAL = 9
"""Digits of a decimal, by the same count: one in nine million floats has such a decimal nearest to it."""
_TEXT = re.compile(
    r"(?P<sign>-)?(?P<root>sqrt\()?(?P<numerator>\d{1,999})(?:/(?P<denominator>[1-9]\d{0,998}))?(?(root)\))", re.ASCII
)

Reading = tuple[str, float]
"""An exact number, as text, and the float that was read as it though it differs."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """`value`, or `sign(value) * sqrt(|value|)` when `root` is set.

    `readings` are the floats that went into it as other numbers than they are. They make no scalars different, and are not saved.
    """

    value: Fraction
    root: bool = False
    readings: frozenset[Reading] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.root:
            exact = _exact_root(abs(self.value))
            if exact is not None:
                object.__setattr__(self, "value", exact if self.value >= 0 else -exact)
                object.__setattr__(self, "root", False)

    @classmethod
    def of(cls, number: int | float | Fraction | Scalar) -> Scalar:
        """The exact constant meant by a Python number; raises InvalidInput for infinities and NaN.

        A float is read as a short fraction, a root of one, or a short decimal, where exactly that number, rounded to the nearest
        float, gives it; every other float is the number that it is.
        """
        if isinstance(number, Scalar):
            return number
        if isinstance(number, (int, Fraction)):
            return cls(Fraction(number))
        if not math.isfinite(number):
            raise InvalidInput(f"the constant {number} is not finite; only finite constants can be verified")
        read = _read(abs(number))
        exact = read if number >= 0 else cls(-read.value, read.root)
        if not exact.root and exact.value == Fraction(number):
            return exact
        return cls(exact.value, exact.root, frozenset({(str(exact), float(number))}))

    @classmethod
    def parse(cls, text: str) -> Scalar:
        """Read back what `str` printed: `3`, `1/4096`, `sqrt(1/128)`, `-sqrt(2)`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text!r} is not an exact scalar such as 1/4096 or sqrt(1/128)")
        value = Fraction(int(match["numerator"]), int(match["denominator"] or 1))
        return cls(-value if match["sign"] else value, root=match["root"] is not None)

    def __str__(self) -> str:
        if not self.root:
            return str(self.value)
        return f"{'-' if self.value < 0 else ''}sqrt({abs(self.value)})"

    def __float__(self) -> float:
        """The nearest float."""
        if not self.root:
            return float(self.value)
        return math.copysign(_nearest_root(abs(self.value)), self.value)

    def __add__(self, other: Scalar) -> Scalar:
        """The sum of two rational numbers; raises InvalidInput for a root, whose sums are no scalars."""
        if self.root or other.root:
            raise InvalidInput(f"{self} + {other} is neither a rational number nor a root of one")
        return Scalar(self.value + other.value, readings=self.readings | other.readings)

    def __mul__(self, other: Scalar) -> Scalar:
        readings = self.readings | other.readings
        if not self.root and not other.root:
            return Scalar(self.value * other.value, readings=readings)
        return Scalar(_signed_square(self) * _signed_square(other), True, readings)

    def reciprocal(self) -> Scalar:
        """`1 / self`; raises InvalidInput for zero."""
        if self.value == 0:
            raise InvalidInput("division by the constant 0")
        return Scalar(1 / self.value, self.root, self.readings)

    def sqrt(self) -> Scalar:
        """The square root of a rational number that is not negative; raises InvalidInput for others."""
        if self.root or self.value < 0:
            raise InvalidInput(f"the square root of {self} is neither a rational number nor a root of one")
        return Scalar(self.value, True, self.readings)


def _signed_square(scalar: Scalar) -> Fraction:
    return scalar.value if scalar.root else scalar.value * abs(scalar.value)


def _exact_root(value: Fraction) -> Fraction | None:
    numerator, denominator = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if numerator * numerator == value.numerator and denominator * denominator == value.denominator:
        return Fraction(numerator, denominator)
    return None


# --- what a float stands for -----------------------------------------------------------------------------------------


def _read(number: float) -> Scalar:
    """The number that a float which is not negative stands for."""
    dyadic = Fraction(number)
    if number < sys.float_info.min or _significand(dyadic).bit_length() <= _SHORT_SIGNIFICAND:
        return Scalar(dyadic)
    for fraction in _short_fractions(dyadic):
        if float(fraction) == number:
            return Scalar(fraction)
    for square in _short_fractions(dyadic * dyadic):
        if _nearest_root(square) == number:
            return Scalar(square, root=True)
    decimal = Decimal(repr(number))
    return Scalar(Fraction(decimal) if len(decimal.normalize().as_tuple().digits) <= _SHORT_DECIMAL else dyadic)


def _significand(dyadic: Fraction) -> int:
    """The odd part of the numerator of a number that is a fraction of a power of two."""
    return dyadic.numerator // (dyadic.numerator & -dyadic.numerator) if dyadic else 0


def _short_fractions(number: Fraction) -> Iterator[Fraction]:
    """The best approximations of a positive number, coarsest first, while they are short: its continued fraction's convergents.

    Among them is every short fraction that is off by no more than rounding to fp64: twice its denominator squared is less than
    the reciprocal of that distance (Legendre).
    """
    numerators, denominators = (0, 1), (1, 0)
    rest = number
    while True:
        whole = math.floor(rest)
        numerators = numerators[1], whole * numerators[1] + numerators[0]
        denominators = denominators[1], whole * denominators[1] + denominators[0]
        if numerators[1].bit_length() + denominators[1].bit_length() > _SHORT_FRACTION:
            return
        if numerators[1]:
            yield Fraction(numerators[1], denominators[1])
        if rest == whole:
            return
        rest = 1 / (rest - whole)


def _nearest_root(square: Fraction) -> float:
    """The float nearest to the square root of a positive number: by integers, since sqrt(float(x)) rounds twice."""
    shift = 2 * (64 + abs(square.numerator.bit_length() - square.denominator.bit_length()))
    scaled, rest = divmod(square.numerator << shift, square.denominator)
    root = math.isqrt(scaled)
    inexact = bool(rest) or root * root != scaled
    return float(Fraction(2 * root + inexact, 1 << (shift // 2 + 1)))
