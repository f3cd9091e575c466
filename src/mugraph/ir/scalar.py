"""Exact scalar constants: rationals and square roots of rationals, never floats.

A program's `1/d`, `1/sqrt(d)` and `eps` must mean the same number in floating point and in a finite field, so a
float literal is read back as the simplest exact number that rounds to it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from mugraph.errors import InvalidInput

_LARGEST_DENOMINATOR = 10**7
_ULPS = 4
_LARGEST_RADICAND = 10**9
"""Numerator times denominator under a root: above it, some square root lies within a few ulps of any float by chance."""
_TEXT = re.compile(
    r"(?P<sign>-)?(?P<root>sqrt\()?(?P<numerator>\d{1,999})(?:/(?P<denominator>[1-9]\d{0,998}))?(?(root)\))", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """`value`, or `sign(value) * sqrt(|value|)` when `root` is set."""

    value: Fraction
    root: bool = False

    def __post_init__(self) -> None:
        if self.root:
            exact = _exact_root(abs(self.value))
            if exact is not None:
                object.__setattr__(self, "value", exact if self.value >= 0 else -exact)
                object.__setattr__(self, "root", False)

    @classmethod
    def of(cls, number: int | float | Fraction | Scalar) -> Scalar:
        """The exact constant meant by a Python number; raises InvalidInput for infinities and NaN."""
        if isinstance(number, Scalar):
            return number
        if isinstance(number, (int, Fraction)):
            return cls(Fraction(number))
        if not math.isfinite(number):
            raise InvalidInput(f"the constant {number} is not finite; only finite constants can be verified")
        simple = Fraction(number).limit_denominator(_LARGEST_DENOMINATOR)
        if float(simple) == number:
            return cls(simple)
        square = Fraction(number * number).limit_denominator(_LARGEST_DENOMINATOR)
        simple_square = 0 < square.numerator * square.denominator <= _LARGEST_RADICAND
        if simple_square and abs(math.sqrt(square) - abs(number)) <= _ULPS * math.ulp(number):
            return cls(square if number > 0 else -square, root=True)
        return cls(Fraction(repr(number)))

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
        if not self.root:
            return float(self.value)
        return math.copysign(math.sqrt(abs(self.value)), self.value)

    def __mul__(self, other: Scalar) -> Scalar:
        if not self.root and not other.root:
            return Scalar(self.value * other.value)
        return Scalar(_signed_square(self) * _signed_square(other), root=True)

    def reciprocal(self) -> Scalar:
        """`1 / self`; raises InvalidInput for zero."""
        if self.value == 0:
            raise InvalidInput("division by the constant 0")
        return Scalar(1 / self.value, self.root)


def _signed_square(scalar: Scalar) -> Fraction:
    return scalar.value if scalar.root else scalar.value * abs(scalar.value)


def _exact_root(value: Fraction) -> Fraction | None:
    numerator, denominator = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if numerator * numerator == value.numerator and denominator * denominator == value.denominator:
        return Fraction(numerator, denominator)
    return None
