"""Square roots of constants, as the checker takes them: exact for a few small primes, variables for the others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

Primes = frozenset[int]

_MOST_CLASSES = 1 << 10
"""Draws are of one residue class among so many at most: of more there are few primes that go together."""


class Parts(NamedTuple):
    """The root of a number: a rational number times the root of `radicand` times those of the primes `free`."""

    rational: Fraction
    radicand: Fraction
    free: tuple[int, ...]


def parts_of(value: Fraction, free: Primes) -> Parts:
    """The parts of the root of a number, where the roots of some primes are variables; none is taken of a square."""
    a, b = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if (a * a, b * b) == value.as_integer_ratio():
        return Parts(Fraction(a, b), Fraction(1), ())
    rational, radicand, odd = Fraction(1), value, []
    for prime in sorted(primes_of(value) & free):
        power = _power(value.numerator, prime) - _power(value.denominator, prime)
        rational *= Fraction(prime) ** (power // 2)
        radicand /= Fraction(prime) ** power
        odd += [prime] * (power % 2)
    return Parts(rational, radicand, tuple(odd))


def variable_ones(primes: Iterable[int]) -> Primes:
    """Of the primes the largest, as many as must have variables for roots for the others to have exact ones."""
    exact = sorted(primes)
    while 4 * math.prod(prime - 1 for prime in exact if prime > 2) > _MOST_CLASSES:
        exact.pop()
    return frozenset(primes) - frozenset(exact)


def primes_of(value: Fraction) -> set[int]:
    """The primes that divide numerator or denominator; what is too large to be factored of either counts as one."""
    return _prime_factors(value.numerator) | _prime_factors(value.denominator)


def _prime_factors(number: int) -> set[int]:
    found, factor = set(), 2
    while factor * factor <= number and factor < 10**5:
        if number % factor:
            factor += 1
        else:
            found.add(factor)
            number //= factor
    return found | {number} - {1}


def _power(number: int, prime: int) -> int:
    """How often a prime divides a positive integer."""
    power = 0
    while number % prime == 0:
        number, power = number // prime, power + 1
    return power
