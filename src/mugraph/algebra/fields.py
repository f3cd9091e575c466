"""Tensors over a pair of finite fields Z_p x Z_q: the arithmetic of equivalence tests (paper, section 5.2 and Table 3).

A real number is represented by two residues. Sums, products and quotients act on both; `exp(x)` is `omega ** x_q` in
Z_p for an omega of order q, which makes `exp(x + y) = exp(x) exp(y)` hold exactly, and has no residue modulo q. With p
and q both 3 modulo 4, `x ** ((p + 1) / 4)` is a square root of every square and multiplicative on all of Z_p. So every
equality of the paper's A_eq between programs that take no exponential of an exponential holds for every input at which
nothing is divided by zero: they are never separated. There is a second such map, with the other sign where x is no square;
sqrt(x) and sqrt(-x) agree under one of the two only.

Outside that theory, opaque functions are keyed mixtures of the residues, and `max` is the maximum by such a mixture of 64
bits: a total order as long as no two elements share one, under which it is associative, commutative and idempotent as the
real one is. Both serve the search, which compares values and has what it finds verified: the maximum of n elements
is that of all but one of them with probability 1 - 1/n. Tests that are to prove something draw values for arguments instead
(`mugraph.verifier.semantics`).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mugraph.algebra.modular import (
    NARROW,
    WIDE,
    Residues,
    combine,
    inverse,
    matmul,
    multiply,
    root_exponent,
    square_root,
    total,
    uniform,
)
from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir.arithmetic import Array, broadcast_shape
from mugraph.ir.scalar import Scalar

Hashes = npt.NDArray[np.uint64]


def is_prime(n: int) -> bool:
    """Whether `n` is prime; deterministic Miller-Rabin, valid below 3.1e23."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % base == 0 for base in bases):
        return n in bases
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        power = pow(base, odd, n)
        if power in (1, n - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % n
            if power == n - 1:
                break
        else:
            return False
    return True


@dataclass(frozen=True, slots=True)
class FieldPair:
    """Primes p = 2cq + 1 and q, both 3 modulo 4 and p below 2**51; raises InvalidInput for anything else."""

    p: int
    q: int

    def __post_init__(self) -> None:
        if self.p >= WIDE:
            raise InvalidInput(f"p = {self.p} is too large: quotients of products must fit a float64, so take p below 2**51")
        if not (is_prime(self.p) and is_prime(self.q)):
            raise InvalidInput(f"({self.p}, {self.q}) are not both prime")
        if (self.p - 1) % (2 * self.q):
            raise InvalidInput(
                f"q = {self.q} does not divide (p - 1) / 2 for p = {self.p}, so exponentials have no root of unity"
            )
        if self.p % 4 != 3 or self.q % 4 != 3:
            raise InvalidInput(f"p = {self.p} and q = {self.q} must both be 3 modulo 4, so that square roots are multiplicative")

    def root(self, rng: np.random.Generator) -> int:
        """A uniformly random element of Z_p of order q."""
        while True:
            root = pow(int(rng.integers(2, self.p)), (self.p - 1) // self.q, self.p)
            if root != 1:
                return root


LARGE = FieldPair(2147024879, 1073512439)
"""The fields the search compares tiny instances in; q is -1 modulo 120120, so that 2, 3, 5, 7, 11 and 13 are squares in both."""


P_BITS = 49
"""Inputs and values of functions are integers below 2**P_BITS modulo p; `mugraph.algebra.families` draws larger p."""
_SPARE_BITS = np.uint64(64 - P_BITS)


class FieldValue(NamedTuple):
    """A tensor of residues, int64: `known_p` modulo p and `q` modulo q, of equal shapes.

    Either is None where it is not known: `q` after an exponentiation, either where an input was drawn without it.
    """

    known_p: Residues | None
    q: Residues | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape; raises UndefinedInField where there are no residues at all."""
        return self.p.shape if self.q is None else self.q.shape

    @property
    def p(self) -> Residues:
        """The residues modulo p; raises UndefinedInField where they are not known."""
        if self.known_p is None:
            raise UndefinedInField("a value has no residues modulo p: an input was drawn without them")
        return self.known_p

    def agrees_with(self, other: FieldValue) -> bool:
        """Whether residues are the same: modulo p, and modulo q where both are known."""
        same_q = self.q is None or other.q is None or np.array_equal(self.q, other.q)
        return same_q and np.array_equal(self.p, other.p)


class FieldArithmetic:
    """`mugraph.ir.arithmetic.Arithmetic` over the fields of `pair`.

    `omega`, of order q modulo p, is the base of exponentials; by default it and the functions that stand for
    opaque operators are chosen by `seed`. `mirrored` chooses the second of the two multiplicative square roots.
    Raises UndefinedInField where an operation has no meaning: division by a tensor with a zero, and the exponential of
    a tensor without residues modulo q.
    """

    def __init__(self, pair: FieldPair = LARGE, *, omega: int | None = None, seed: int = 0, mirrored: bool = False) -> None:
        if omega is None:
            omega = pair.root(np.random.default_rng([seed, pair.p, pair.q]))
        if omega % pair.p == 1 or pow(omega, pair.q, pair.p) != 1:
            raise InvalidInput(f"omega = {omega} does not have order {pair.q} modulo {pair.p}")
        self.pair = pair
        self.omega = omega
        self.seed = seed
        self.mirrored = mirrored
        self._p = np.array(pair.p)
        self._q = np.array(pair.q)
        self._powers = _PowerTable(omega, pair)
        self._constants: dict[Scalar, FieldValue] = {}

    def random(self, shape: tuple[int, ...], rng: np.random.Generator, *, p: bool = True, q: bool = True) -> FieldValue:
        """Independent uniform residues; without `p` or `q`, none modulo that prime, which halves the work that follows."""
        below = min(self.pair.p, 1 << P_BITS)
        return FieldValue(uniform(below, shape, rng) if p else None, uniform(self.pair.q, shape, rng) if q else None)

    def constant(self, value: Scalar) -> FieldValue:
        known = self._constants.get(value)
        if known is None:
            p, q = (_scalar_residue(value, modulus, self.mirrored) for modulus in (self.pair.p, self.pair.q))
            known = FieldValue(np.array(p), np.array(q))
            self._constants[value] = known
        return known

    def add(self, x: FieldValue, y: FieldValue) -> FieldValue:
        return self._both(np.add, x, y)

    def sub(self, x: FieldValue, y: FieldValue) -> FieldValue:
        return self._both(np.subtract, x, y)

    def mul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        return self._both(np.multiply, x, y)

    def div(self, x: FieldValue, y: FieldValue) -> FieldValue:
        return self.mul(x, self._each(inverse, y))

    def exp(self, x: FieldValue) -> FieldValue:
        if x.q is None:
            raise UndefinedInField("exp of a value that already passed through exp: it has no residue modulo q")
        return FieldValue(self._powers(x.q), None)

    def sqrt(self, x: FieldValue) -> FieldValue:
        return self._each(lambda residues, modulus: square_root(residues, modulus, self.mirrored), x)

    def sum(self, x: FieldValue, axis: int) -> FieldValue:
        return self._each(lambda residues, modulus: total(residues, axis, modulus), x)

    def max(self, x: FieldValue, axis: int) -> FieldValue:
        if x.known_p is None and x.q is None:
            return x
        ranks = self.hashes("max", x)
        first = np.expand_dims(np.argmax(ranks, axis=axis), axis)
        return self.view(x, lambda residues: np.take_along_axis(residues, first, axis))

    def matmul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        p = None if x.known_p is None or y.known_p is None else matmul(x.known_p, y.known_p, self._p)
        q = None if x.q is None or y.q is None else matmul(x.q, y.q, self._q)
        return FieldValue(p, q)

    def opaque(self, name: str, *xs: FieldValue) -> FieldValue:
        return self.random_values(self.hashes(name, *xs))

    def hashes(self, name: str, *xs: FieldValue) -> Hashes:
        """A word for each element that looks random, equal for equal elements; another for each name and seed.

        The words of several tensors, which broadcast, are mixed one after the other: their order makes a difference.
        """
        key = _key(name, self.seed)
        words = _hash(xs[0], key).reshape(xs[0].shape)
        for x in xs[1:]:
            words = _mix(np.atleast_1d(words) * _ODD + _hash(x, key).reshape(x.shape)).reshape(
                broadcast_shape(words.shape, x.shape)
            )
        return words

    def random_values(self, words: Hashes) -> FieldValue:
        """Values that follow from such words: modulo p integers below 2**P_BITS, whatever p is."""
        mixed = _mix(np.atleast_1d(words))
        p, q = (mixed >> _SPARE_BITS) % np.uint64(self.pair.p), _mix(mixed) % np.uint64(self.pair.q)
        return FieldValue(p.astype(np.int64).reshape(words.shape), q.astype(np.int64).reshape(words.shape))

    def view(self, x: FieldValue, move: Callable[[Array], Array]) -> FieldValue:
        return FieldValue(None if x.known_p is None else move(x.known_p), None if x.q is None else move(x.q))

    def join(self, xs: Sequence[FieldValue], combine: Callable[[Sequence[Array]], Array]) -> FieldValue:
        p = [x.known_p for x in xs if x.known_p is not None]
        q = [x.q for x in xs if x.q is not None]
        return FieldValue(combine(p) if len(p) == len(xs) else None, combine(q) if len(q) == len(xs) else None)

    def _both(self, operation: np.ufunc, x: FieldValue, y: FieldValue) -> FieldValue:
        p = None if x.known_p is None or y.known_p is None else combine(operation, x.known_p, y.known_p, self._p)
        q = None if x.q is None or y.q is None else combine(operation, x.q, y.q, self._q)
        return FieldValue(p, q)

    def _each(self, function: Callable[[Residues, Residues], Residues], x: FieldValue) -> FieldValue:
        p = None if x.known_p is None else function(x.known_p, self._p)
        return FieldValue(p, None if x.q is None else function(x.q, self._q))


# --- constants, powers of omega --------------------------------------------------------------------------------------


def _scalar_residue(value: Scalar, modulus: int, mirrored: bool) -> int:
    def residue(number: Fraction) -> int:
        if number.denominator % modulus == 0:
            raise UndefinedInField(f"the constant {value} has a denominator divisible by {modulus}; use other primes")
        return number.numerator * pow(number.denominator, -1, modulus) % modulus

    if not value.root:
        return residue(value.value)
    root = pow(residue(abs(value.value)), root_exponent(modulus, mirrored), modulus)
    return root if value.value > 0 else -root % modulus


class _PowerTable:
    """omega ** x modulo p for x in [0, q), from tables over the digits of x."""

    def __init__(self, omega: int, pair: FieldPair) -> None:
        digits = 3 if pair.p < NARROW else 4
        self.bits = math.ceil(pair.q.bit_length() / digits)
        self.modulus = np.array(pair.p)
        self.tables = [self._table(pow(omega, 1 << (digit * self.bits), pair.p)) for digit in range(digits)]

    def _table(self, base: int) -> Residues:
        table = np.ones(1, np.int64)
        for _ in range(self.bits):
            table = np.concatenate([table, multiply(table, np.array(base), self.modulus)])
            base = base * base % int(self.modulus)
        return table

    def __call__(self, exponents: Residues) -> Residues:
        mask = (1 << self.bits) - 1
        result: Residues = self.tables[0][exponents & mask]
        for digit, table in enumerate(self.tables[1:], start=1):
            result = multiply(result, table[exponents >> digit * self.bits & mask], self.modulus)
        return result


# --- functions that look random ----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _key(name: str, seed: int) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(f"{name} {seed}".encode(), digest_size=8).digest(), "little"))


_NO_RESIDUE = np.int64(-1)
_ODD = np.uint64(0x9E3779B97F4A7C15)


def _hash(x: FieldValue, key: np.uint64) -> Hashes:
    """A keyed 64-bit mixture of the residues (of rank 1 at least): a different random-looking function for every key."""
    low, high = (np.atleast_1d(_NO_RESIDUE if part is None else part).astype(np.uint64) for part in (x.known_p, x.q))
    return _mix(_mix(_mix(low ^ key) + high * _ODD) + key)


_ROUNDS = tuple((np.uint64(shift), np.uint64(factor)) for shift, factor in ((32, 0xD6E8FEB86659FD93), (29, 0xA0761D6478BD642F)))


def _mix(x: Hashes) -> Hashes:
    """A bijection of 64-bit words (xor-shift and multiply, twice) under which any two words lose their resemblance."""
    for shift, factor in _ROUNDS:
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> _ROUNDS[0][0])


class NestingArithmetic(FieldArithmetic):
    """The same fields, with exponentials of exponentials: an opaque function of what passed through an exponential before."""

    def exp(self, x: FieldValue) -> FieldValue:
        return self.opaque("exp", x) if x.q is None else super().exp(x)
