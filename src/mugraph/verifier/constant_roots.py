"""Square roots of constants: exact where the fields have room for the primes in them, variables where they have not.

That 3 and 7 are squares modulo both primes of a draw leaves few classes of primes to draw from, with 73 and 89 none. The
root of a prime beyond those is a variable: what agrees whatever it is agrees for what it is (docs/theory.md, "The draw").
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from mugraph.algebra.families import FieldFamily

_TRIAL_DIVISION = 1 << 17

Primes = frozenset[int]


class RootParts(NamedTuple):
    """A square root as `rational` times the root of `exact` times the roots of the primes `variables`."""

    rational: Fraction
    exact: Fraction
    variables: tuple[int, ...]


@functools.lru_cache(maxsize=1 << 10)
def root_parts(value: Fraction, variables: Primes) -> RootParts:
    """The root of a positive number in which those of some primes are variables."""
    rational, exact, odd = Fraction(1), value, []
    for prime in sorted(primes_of(value) & variables):
        exponent = _multiplicity(value.numerator, prime) - _multiplicity(value.denominator, prime)
        exact /= Fraction(prime) ** exponent
        rational *= Fraction(prime) ** (exponent // 2)
        if exponent % 2:
            odd.append(prime)
    return RootParts(rational, exact, tuple(odd))


def families_for(primes: Iterable[int]) -> tuple[list[FieldFamily], Primes]:
    """The families in which as many of the primes are squares as there is room for, smallest first, and the other primes."""
    squares = sorted(primes)
    while not (families := FieldFamily.making_squares(squares)):
        squares.pop()
    return families, frozenset(primes) - frozenset(squares)


def primes_of(value: Fraction) -> Primes:
    """The primes in a positive number, of numerator and denominator apart: a factor that is left of either is one of its own."""
    return _prime_factors(value.numerator) | _prime_factors(value.denominator)


@functools.lru_cache(maxsize=1 << 10)
def _prime_factors(number: int) -> Primes:
    """The primes that divide a positive integer; numbers too large to be factored yield what is left as if it were prime."""
    found, factor = set(), 2
    while factor * factor <= number and factor < _TRIAL_DIVISION:
        while number % factor == 0:
            found.add(factor)
            number //= factor
        factor += 1
    return frozenset(found | ({number} if number > 1 else set()))


def _multiplicity(number: int, prime: int) -> int:
    """How often a prime divides a positive integer."""
    return next(power for power in range(number.bit_length() + 1) if number % prime ** (power + 1))
