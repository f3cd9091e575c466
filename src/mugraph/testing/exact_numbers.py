"""Numbers that do not round: fractions, or mpmath's numbers of 200 bits, of which what is undefined is NaN."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

Numbers = np.ndarray[Any, Any]
"""An array of objects: all Fraction, or all mpf."""

BITS = 200

_EXPONENT_BITS = 32


class NotRational(ArithmeticError):
    """A value that is no fraction was asked for in fractions."""


class Unknown(NotImplementedError):
    """An operator that is not interpreted here."""


class Unsaid(OverflowError):
    """An exponential too large for numbers of BITS bits to say anything of it."""


class Fractions:
    """Exact arithmetic. A vanishing denominator raises ZeroDivisionError, anything but rational functions NotRational."""

    def number(self, value: float | int) -> Any:
        if not math.isfinite(value):
            raise NotRational(value)
        return Fraction(value)

    def div(self, x: Any, y: Any) -> Any:
        return x / y

    def function(self, name: str, x: Any) -> Any:
        raise NotRational(name)

    def is_nan(self, x: Any) -> bool:
        return False


class Reals:
    """Real numbers of BITS bits; what is undefined is NaN. Raises Unsaid for exponentials of huge numbers."""

    def __init__(self) -> None:
        self.context = mpmath.MPContext()
        self.context.prec = BITS

    def number(self, value: Any) -> Any:
        if isinstance(value, Fraction):
            return self.context.mpf(value.numerator) / value.denominator
        return self.context.mpf(value)

    def div(self, x: Any, y: Any) -> Any:
        return self.context.nan if y == 0 else x / y

    def function(self, name: str, x: Any) -> Any:
        if self.is_nan(x) or (name == "sqrt" and x < 0) or (name == "log" and x <= 0):
            return self.context.nan
        if name == "exp" and self.context.mag(x) > _EXPONENT_BITS:
            raise Unsaid(name)
        value = getattr(self.context, name)(x)
        return value if isinstance(value, self.context.mpf) else self.context.nan

    def is_nan(self, x: Any) -> bool:
        return bool(self.context.isnan(x))


Arithmetic = Fractions | Reals
