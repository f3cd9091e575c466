"""Tensors over a pair of finite fields Z_p x Z_q: the arithmetic of equivalence tests (paper, section 5.2 and Table 3).

A real number is represented by two residues. Sums, products and quotients act on both; `exp(x)` is `omega ** x_q` in
Z_p for an omega of order q, which makes `exp(x + y) = exp(x) exp(y)` hold exactly, and has no residue modulo q. With p
and q both 3 modulo 4, `x ** ((p + 1) / 4)` is a square root of every square and multiplicative on all of Z_p, so that
every equality of the paper's A_eq holds for every input: a test never separates graphs that A_eq makes equal.

Outside that theory, opaque functions are random functions of the residues, and `max` is the maximum under a random
total order, which is associative, commutative and idempotent as the real one is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mugraph.errors import InvalidInput, UndefinedInField
from mugraph.ir.arithmetic import Array
from mugraph.ir.scalar import Scalar

Residues = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]

_MAX_BITS = 31
_LIMB = 16
_LIMB_MASK = (1 << _LIMB) - 1
_EXACT_INNER = 1 << (53 - 2 * (_LIMB + 1))
_STRIP_ELEMENTS = 1 << 16
_SMALL_MATMUL = 4096
_SMALL_ARRAY = 4096


def is_prime(n: int) -> bool:
    """Whether `n` is prime; deterministic Miller-Rabin, valid below 3.3e24."""
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
    """Primes p = 2cq + 1 and q, both 3 modulo 4 and p below 2**31; raises InvalidInput for anything else."""

    p: int
    q: int

    def __post_init__(self) -> None:
        if self.p.bit_length() > _MAX_BITS:
            raise InvalidInput(f"p = {self.p} is too large: products of residues must fit 63 bits, so take p below 2**31")
        if not (is_prime(self.p) and is_prime(self.q)):
            raise InvalidInput(f"({self.p}, {self.q}) are not both prime")
        if (self.p - 1) % (2 * self.q):
            raise InvalidInput(
                f"q = {self.q} does not divide (p - 1) / 2 for p = {self.p}, so exponentials have no root of unity"
            )
        if self.p % 4 != 3 or self.q % 4 != 3:
            raise InvalidInput(f"p = {self.p} and q = {self.q} must both be 3 modulo 4, so that square roots are multiplicative")

    @classmethod
    def draw(cls, rng: np.random.Generator) -> FieldPair:
        """A uniformly random one of the DRAWN_PAIRS pairs with p = 2q + 1, 2**30 < p < 2**31 and q = -1 modulo 840.

        The congruence makes 2, 3, 5 and 7 squares in both fields, so that square roots of the usual constants square back.
        """
        first, last = (1 << (DRAWN_P_BITS - 1)) // 840 + 1, (1 << DRAWN_P_BITS) // 840
        while True:
            q = 840 * int(rng.integers(first, last, endpoint=True)) - 1
            if is_prime(q) and is_prime(2 * q + 1):
                return cls(2 * q + 1, q)

    def root(self, rng: np.random.Generator) -> int:
        """A uniformly random element of Z_p of order q."""
        while True:
            root = pow(int(rng.integers(2, self.p)), (self.p - 1) // self.q, self.p)
            if root != 1:
                return root


LARGE = FieldPair(2147024879, 1073512439)
"""The default fields; q is -1 modulo 120120, which makes even 2, 3, 5, 7, 11 and 13 squares in both."""

DRAWN_P_BITS = 30
"""`FieldPair.draw` gives p between 2**30 and 2**31."""

DRAWN_PAIRS = 27225
"""How many pairs `FieldPair.draw` chooses from, by exhaustive count."""


class FieldValue(NamedTuple):
    """A tensor of residues: `p` modulo p and `q` modulo q (int64, equal shapes); `q` is None where it is unknown,
    as after an exponentiation."""

    p: Residues
    q: Residues | None


class FieldArithmetic:
    """`mugraph.ir.arithmetic.Arithmetic` over the fields of `pair`.

    `omega`, of order q modulo p, is the base of exponentials; by default it and the random functions that stand for
    opaque operators are drawn from `seed`. Raises UndefinedInField where an operation has no meaning: division by a
    tensor with a zero, and the exponential of a tensor without residues modulo q.
    """

    def __init__(self, pair: FieldPair = LARGE, *, omega: int | None = None, seed: int = 0) -> None:
        if omega is None:
            omega = pair.root(np.random.default_rng([seed, pair.p, pair.q]))
        if omega % pair.p == 1 or pow(omega, pair.q, pair.p) != 1:
            raise InvalidInput(f"omega = {omega} does not have order {pair.q} modulo {pair.p}")
        self.pair = pair
        self.omega = omega
        self.seed = seed
        self._p = np.array(pair.p)
        self._q = np.array(pair.q)
        self._powers = _PowerTable(omega, pair)
        self._constants: dict[Scalar, FieldValue] = {}

    def random(self, shape: tuple[int, ...], rng: np.random.Generator, *, exponents: bool = True) -> FieldValue:
        """Independent uniform residues; without `exponents` none modulo q, which halves the work of programs without exp."""
        p = rng.integers(0, self.pair.p, shape, np.uint32).astype(np.int64)
        q = rng.integers(0, self.pair.q, shape, np.uint32).astype(np.int64) if exponents else None
        return FieldValue(p, q)

    def constant(self, value: Scalar) -> FieldValue:
        known = self._constants.get(value)
        if known is None:
            known = FieldValue(np.array(_scalar_residue(value, self.pair.p)), np.array(_scalar_residue(value, self.pair.q)))
            self._constants[value] = known
        return known

    def add(self, x: FieldValue, y: FieldValue) -> FieldValue:
        q = None if x.q is None or y.q is None else _reduce(x.q + y.q, self._q)
        return FieldValue(_reduce(x.p + y.p, self._p), q)

    def sub(self, x: FieldValue, y: FieldValue) -> FieldValue:
        q = None if x.q is None or y.q is None else _reduce(x.q - y.q, self._q)
        return FieldValue(_reduce(x.p - y.p, self._p), q)

    def mul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        q = None if x.q is None or y.q is None else _reduce(x.q * y.q, self._q)
        return FieldValue(_reduce(x.p * y.p, self._p), q)

    def div(self, x: FieldValue, y: FieldValue) -> FieldValue:
        q = None if x.q is None or y.q is None else _reduce(x.q * _inverse(y.q, self._q), self._q)
        return FieldValue(_reduce(x.p * _inverse(y.p, self._p), self._p), q)

    def exp(self, x: FieldValue) -> FieldValue:
        if x.q is None:
            raise UndefinedInField("exp of a value that already passed through exp: it has no residue modulo q")
        return FieldValue(self._powers(x.q), None)

    def sqrt(self, x: FieldValue) -> FieldValue:
        return FieldValue(_square_root(x.p, self._p), None if x.q is None else _square_root(x.q, self._q))

    def sum(self, x: FieldValue, axis: int) -> FieldValue:
        q = None if x.q is None else _reduce(np.add.reduce(x.q, axis=axis, keepdims=True), self._q)
        return FieldValue(_reduce(np.add.reduce(x.p, axis=axis, keepdims=True), self._p), q)

    def max(self, x: FieldValue, axis: int) -> FieldValue:
        ranks = _hash(x, _key("max", self.seed))
        first = np.expand_dims(np.argmax(ranks, axis=axis), axis)
        return self.view(x, lambda residues: np.take_along_axis(residues, first, axis))

    def matmul(self, x: FieldValue, y: FieldValue) -> FieldValue:
        q = None if x.q is None or y.q is None else _matmul(x.q, y.q, self._q)
        return FieldValue(_matmul(x.p, y.p, self._p), q)

    def opaque(self, name: str, x: FieldValue) -> FieldValue:
        p, q = (_hash(x, _key(f"{name} modulo {field}", self.seed)) for field in "pq")
        return FieldValue((p % np.uint64(self.pair.p)).astype(np.int64), (q % np.uint64(self.pair.q)).astype(np.int64))

    def view(self, x: FieldValue, move: Callable[[Array], Array]) -> FieldValue:
        return FieldValue(move(x.p), None if x.q is None else move(x.q))

    def join(self, xs: Sequence[FieldValue], combine: Callable[[Sequence[Array]], Array]) -> FieldValue:
        exponents = [x.q for x in xs if x.q is not None]
        return FieldValue(combine([x.p for x in xs]), combine(exponents) if len(exponents) == len(xs) else None)


# --- arithmetic modulo one prime -------------------------------------------------------------------------------------


def _reduce(x: Residues, modulus: Residues) -> Residues:
    """`x` modulo `modulus`, in [0, modulus); NumPy vectorises division by a scalar but not the remainder."""
    if x.size < _SMALL_ARRAY:
        return np.remainder(x, modulus)
    quotient = np.floor_divide(x, modulus)
    quotient *= modulus
    return np.subtract(x, quotient, out=quotient)


def _power(x: Residues, exponent: int, modulus: Residues) -> Residues:
    result = x
    for bit in bin(exponent)[3:]:
        result = _reduce(result * result, modulus)
        if bit == "1":
            result = _reduce(result * x, modulus)
    return result


def _square_root(x: Residues, modulus: Residues) -> Residues:
    return _power(x, (int(modulus) + 1) // 4, modulus)


def _inverse(x: Residues, modulus: Residues) -> Residues:
    """Inverses by one inversion of the product of all elements: pairwise products upwards, inverses of the parts downwards."""
    levels = [np.ascontiguousarray(x).reshape(-1)]
    while len(levels[-1]) > 1:
        level = levels[-1]
        if len(level) % 2:
            levels[-1] = level = np.concatenate([level, [1]])
        levels.append(_reduce(level[0::2] * level[1::2], modulus))
    if not x.size:
        return x
    product = int(levels.pop()[0])
    if product == 0:
        raise UndefinedInField("division by zero in the finite field; draw other inputs")
    inverses = np.array([pow(product, -1, int(modulus))])
    for level in reversed(levels):
        swapped = level.reshape(-1, 2)[:, ::-1]
        inverses = _reduce(swapped * inverses[: len(swapped), None], modulus).reshape(-1)
    return inverses[: x.size].reshape(x.shape)


def _scalar_residue(value: Scalar, modulus: int) -> int:
    def residue(number: Fraction) -> int:
        if number.denominator % modulus == 0:
            raise UndefinedInField(f"the constant {value} has a denominator divisible by {modulus}; use other primes")
        return number.numerator * pow(number.denominator, -1, modulus) % modulus

    if not value.root:
        return residue(value.value)
    root = pow(residue(abs(value.value)), (modulus + 1) // 4, modulus)
    return root if value.value > 0 else -root % modulus


class _PowerTable:
    """omega ** x modulo p for x in [0, q), from tables over the three digits of x."""

    def __init__(self, omega: int, pair: FieldPair) -> None:
        self.bits = math.ceil(pair.q.bit_length() / 3)
        self.modulus = np.array(pair.p)
        self.tables = [self._table(pow(omega, 1 << (digit * self.bits), pair.p)) for digit in range(3)]

    def _table(self, base: int) -> Residues:
        table = np.ones(1, np.int64)
        for _ in range(self.bits):
            table = np.concatenate([table, _reduce(table * base, self.modulus)])
            base = base * base % int(self.modulus)
        return table

    def __call__(self, exponents: Residues) -> Residues:
        low, middle, high = self.tables
        mask = (1 << self.bits) - 1
        result = _reduce(low[exponents & mask] * middle[exponents >> self.bits & mask], self.modulus)
        return _reduce(result * high[exponents >> 2 * self.bits], self.modulus)


# --- matrix product --------------------------------------------------------------------------------------------------


def _matmul(x: Residues, y: Residues, modulus: Residues) -> Residues:
    """The exact product of the last two dimensions; the others broadcast."""
    if max(x.size * y.shape[-1], y.size * x.shape[-2]) <= _SMALL_MATMUL:
        products = _reduce(x[..., :, :, None] * y[..., None, :, :], modulus)
        return _reduce(np.add.reduce(products, axis=-2), modulus)
    inner = x.shape[-1]
    total = _limb_matmul(x[..., :_EXACT_INNER], y[..., :_EXACT_INNER, :], modulus)
    for start in range(_EXACT_INNER, inner, _EXACT_INNER):
        part = slice(start, start + _EXACT_INNER)
        total = _reduce(total + _limb_matmul(x[..., part], y[..., part, :], modulus), modulus)
    return total


def _limb_matmul(x: Residues, y: Residues, modulus: Residues) -> Residues:
    """Karatsuba on 16-bit halves: three float64 products, exact for inner sizes up to _EXACT_INNER.

    The inner dimension is taken in strips whose halves stay in the cache: converting costs more than multiplying.
    """
    strip = max(1, _STRIP_ELEMENTS * x.shape[-1] // max(x.size, y.size))
    low: Reals | float = 0.0
    middle: Reals | float = 0.0
    high: Reals | float = 0.0
    for start in range(0, x.shape[-1], strip):
        x_low, x_high = _halves(x[..., start : start + strip])
        y_low, y_high = _halves(y[..., start : start + strip, :])
        low = low + np.matmul(x_low, y_low)
        high = high + np.matmul(x_high, y_high)
        middle = middle + np.matmul(np.add(x_low, x_high, out=x_low), np.add(y_low, y_high, out=y_low))
    exact_low, exact_high = np.asarray(low).astype(np.int64), np.asarray(high).astype(np.int64)
    exact_middle = np.asarray(middle).astype(np.int64) - exact_low - exact_high
    upper = _reduce((_reduce(exact_high, modulus) << _LIMB) + exact_middle, modulus)
    return _reduce((upper << _LIMB) + exact_low, modulus)


def _halves(x: Residues) -> tuple[Reals, Reals]:
    return (x & _LIMB_MASK).astype(np.float64), (x >> _LIMB).astype(np.float64)


# --- random functions ------------------------------------------------------------------------------------------------


def _key(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{name} {seed}".encode(), digest_size=8).digest(), "little")


def _hash(x: FieldValue, key: int) -> Hashes:
    """A keyed 64-bit mixture of the residues: a different random-looking function for every key."""
    hashes = _mix(np.atleast_1d(x.p).astype(np.uint64) ^ np.uint64(key))
    if x.q is not None:
        hashes = _mix(hashes ^ np.atleast_1d(x.q).astype(np.uint64))
    return hashes.reshape(np.shape(x.p))


def _mix(x: Hashes) -> Hashes:
    """A bijection of 64-bit words in which every input bit reaches every output bit (multiply, xor-shift, three times)."""
    for shift, factor in ((32, 0xD6E8FEB86659FD93), (29, 0xA0761D6478BD642F), (32, 0xE7037ED1A0B428DB)):
        x = x ^ (x >> np.uint64(shift))
        x = x * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
