"""Families of field pairs, and how many there are: what the error bound of equivalence tests rests on (docs/theory.md)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mugraph.algebra.fields import P_BITS, FieldPair, is_prime
from mugraph.algebra.modular import WIDE, Residues, power_each
from mugraph.errors import InvalidInput, UndefinedInField

Q_BITS = range(33, 45)
"""Sizes of q: below them the count of primes in progressions is not known to hold, above them few p are left for each q."""
Q_TRIES = 4
"""How many q a draw may try until enough p go with it."""

_LARGEST_MODULUS = 10**5
_LEAST_P = 3
"""Where fewer p are to be expected for a q, many have none."""
_SURELY = 0.6
"""Of the number of p that are to be expected for a q, the part that a draw insists on."""
_SIEVED = 1000
_SMALL_PRIMES = tuple(filter(is_prime, range(_SIEVED)))


@functools.cache
def _totient(modulus: int) -> int:
    return sum(1 for residue in range(modulus) if math.gcd(residue, modulus) == 1)


@dataclass(frozen=True, slots=True)
class FieldFamily:
    """Pairs (p, q) of primes with q | p - 1, 2**q_bits <= q < 2**(q_bits + 1), 2**P_BITS < p < 2**51, both -1 modulo `modulus`.

    `modulus` is 8 times distinct odd primes: then -1 is no square, while 2 and those primes are squares in both fields,
    so that square roots of the constants they divide square back. Raises InvalidInput for sizes out of range.
    """

    q_bits: int
    modulus: int = 8

    def __post_init__(self) -> None:
        if self.q_bits not in Q_BITS or self.modulus % 8 or not 8 <= self.modulus <= _LARGEST_MODULUS:
            raise InvalidInput(f"no fields are known with q of {self.q_bits} bits and both primes -1 modulo {self.modulus}")

    @classmethod
    def making_squares(cls, primes: Iterable[int]) -> list[FieldFamily]:
        """The families in which these primes are squares and which have fields enough, by size of q; often none."""
        modulus = 8 * math.prod({*primes} - {2})
        if modulus > _LARGEST_MODULUS:
            return []
        return [family for bits in Q_BITS if (family := cls(bits, modulus)).p_count >= _LEAST_P]

    @property
    def totient(self) -> int:
        """How many residue classes modulo `modulus` have primes."""
        return _totient(self.modulus)

    @property
    def q_count(self) -> int:
        """A lower bound on the number of q.

        For 3 <= k <= 10**5 and x >= 8e9 the logarithms of the primes up to x in a class modulo k sum to x / phi(k), but for
        less than x / (160 log x) (Bennett, Martin, O'Bryant and Rechnitzer, Illinois J. Math. 62, 2018).
        """
        x = float(1 << self.q_bits)
        surely = x / self.totient - (2 * x / math.log(2 * x) + x / math.log(x)) / 160
        return max(0, int(0.999 * surely / math.log(2 * x)))

    @property
    def p_count(self) -> int:
        """The least number of p that go with a q which is drawn."""
        multiples = (WIDE - (1 << P_BITS)) / (2 << self.q_bits)
        return int(_SURELY * multiples / (self.totient * math.log(WIDE)))

    @property
    def candidates(self) -> int:
        """How many numbers are to be tested, at most, to find all p that go with a q."""
        return (WIDE - (1 << P_BITS)) // (self.modulus << self.q_bits)

    def draw(self, rng: np.random.Generator, *, count: bool = True) -> FieldPair:
        """A random pair: q uniform, then p uniform among those that go with it, at least `p_count` when they are to be counted.

        Raises UndefinedInField, as an invalid draw, when Q_TRIES numbers q have too few.
        """
        for _ in range(Q_TRIES):
            q = self._draw_q(rng)
            p = self._draw_counted(q, rng) if count else self._draw_p(q, rng)
            if p is not None:
                return FieldPair(p, q)
        raise UndefinedInField("too few primes p go with the q drawn; draw again")

    def _draw_q(self, rng: np.random.Generator) -> int:
        first, last = (1 << self.q_bits) // self.modulus + 1, (2 << self.q_bits) // self.modulus
        while True:
            q = self.modulus * int(rng.integers(first, last, endpoint=True)) - 1
            if is_prime(q):
                return q

    def _candidates(self, q: int) -> range:
        """All p = cq + 1 in range: c is 2 modulo `modulus`, since p and q are -1."""
        first = (1 << P_BITS) // q // self.modulus * self.modulus + 2 + self.modulus
        return range(first * q + 1, WIDE, self.modulus * q)

    def _draw_counted(self, q: int, rng: np.random.Generator) -> int | None:
        primes = _primes_for(self, q)
        return primes[int(rng.integers(len(primes)))] if len(primes) >= self.p_count else None

    def _draw_p(self, q: int, rng: np.random.Generator) -> int | None:
        candidates = self._candidates(q)
        tries = (candidates[int(rng.integers(len(candidates)))] for _ in range(20 * len(candidates)))
        return next((p for p in tries if is_prime(p)), None)


@functools.lru_cache(maxsize=512)
def _primes_for(family: FieldFamily, q: int) -> tuple[int, ...]:
    """All p of the family that go with q; verifications of one seed draw the same q again and again."""
    return tuple(_primes_above(q, _sieved(family._candidates(q))))


def _sieved(candidates: range) -> Residues:
    """Those of the candidates, -1 modulo what divides their step and above `_SIEVED`, that no smaller prime divides."""
    left = np.ones(len(candidates), bool)
    for prime in _SMALL_PRIMES:
        if candidates.step % prime:
            left[-candidates.start * pow(candidates.step, -1, prime) % prime :: prime] = False
    return np.arange(candidates.start, candidates.stop, candidates.step)[left]


def _primes_above(q: int, candidates: Residues) -> list[int]:
    """The primes among candidates cq + 1, for a prime q above their square roots, by Pocklington's theorem with powers of 2.

    Where 2**(p - 1) is not 1 modulo p, p is not prime. Where it is, and 2**c is not 1, the latter's order is q: some prime factor
    of p is 1 modulo q, what is left of p is so too and less than q, so it is 1. Where both are 1, p is tested by itself.
    """
    powers = power_each(np.full_like(candidates, 2), candidates // q, candidates)
    possible = power_each(powers, q, candidates) == 1
    return [
        p for p, power in zip(candidates[possible].tolist(), powers[possible].tolist(), strict=True) if power != 1 or is_prime(p)
    ]
