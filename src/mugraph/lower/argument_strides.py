"""Strides that are arguments of a kernel, as numbers: argument k is written as `BASE ** (k + 1)`.

Views of tiles add, multiply and compare coefficients. With these numbers each coefficient is a numeral in base `BASE` whose
digits say how many times it has each argument, and 1 (Kronecker's substitution): what holds of numerals holds for all strides.
"""

from __future__ import annotations

_BITS = 40
BASE = 1 << _BITS
"""Larger than any number of elements that a tile spans."""


def stride_argument(number: int) -> int:
    """The numeral of an argument."""
    return 1 << _BITS * (number + 1)


def digits(coefficient: int) -> dict[int | None, int]:
    """How many times a coefficient has each argument, and 1 (None); those that it has not are left out."""
    found: dict[int | None, int] = {}
    number: int | None = None
    while coefficient:
        coefficient, digit = divmod(coefficient, BASE)
        if digit:
            found[number] = digit
        number = 0 if number is None else number + 1
    return found


def has_arguments(coefficient: int) -> bool:
    """Whether a coefficient is no number yet."""
    return coefficient >= BASE
