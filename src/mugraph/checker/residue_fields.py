"""Tensors of residues modulo two primes, in Python integers of any size, the draw of the primes, and true roots.

p is c q + 1, with q a random prime of 63 bits and c up to 2**18. That both are prime is proved: q is small enough for a
deterministic test, and a power to q proves p, whose root is below q. Values outside exponentials live modulo p, those inside
modulo q, as in the paper's section 5.

Under `RootedFields`, sqrt(x)**2 is x: roots of squares modulo p, with both signs of every root (docs/theory.md). Roots of
products are not products of roots there, and exponentials are functions like others: these laws would make sqrt(x**2) equal
to x.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from mugraph.checker.constant_roots import parts_of
from mugraph.checker.saved_files import Rejected
from mugraph.checker.tensors import Array

Q_BITS = 62
"""q has one bit more."""
P_BITS = 75
"""Inputs and values of functions are random integers below 2**P_BITS; p is larger."""
Q_TRIES = 4
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
_SIEVED = 1000
"""Most numbers that are not prime have a factor below it."""


Argument = int | tuple[int, ...]
"""What a function is applied to: a residue, or one for each operand."""


class Undefined(Exception):
    """A draw in which something is divided by zero."""


def is_prime(n: int) -> bool:
    """Whether n < 3.1e23 is prime, by Miller and Rabin's test to the first twelve prime bases (Sorenson and Webster, 2017)."""
    if n < 2 or any(n % prime == 0 for prime in _PRIMES):
        return n in _PRIMES
    twos = ((n - 1) & (1 - n)).bit_length() - 1
    return all(_is_witness(base, n, twos) for base in _PRIMES)


def _is_witness(base: int, n: int, twos: int) -> bool:
    power = pow(base, (n - 1) >> twos, n)
    return power == 1 or any(pow(power, 1 << square, n) == n - 1 for square in range(twos))


def is_prime_above(q: int, p: int) -> bool:
    """Whether p = c q + 1 is proved prime, for a prime q above the root of p: some power to c is of order q (Pocklington, 1914).

    Then q divides the order of the group modulo p, so that p has a prime factor 1 modulo q; the other factor is also 1 modulo q,
    and below q: it is 1.
    """
    for base in _PRIMES:
        power = pow(base, (p - 1) // q, p)
        if power != 1:
            return pow(power, q, p) == 1
    return False


def sieved(candidates: range) -> list[int]:
    """Those of the candidates, all above `_SIEVED`, that no smaller prime divides."""
    left = np.ones(len(candidates), bool)
    for prime in _SMALL_PRIMES:
        if candidates.step % prime:
            left[-candidates.start * pow(candidates.step, -1, prime) % prime :: prime] = False
        elif candidates.start % prime == 0:
            return []
    return [candidates[place] for place in np.flatnonzero(left).tolist()]


_SMALL_PRIMES = tuple(filter(is_prime, range(_SIEVED)))


def totient(modulus: int) -> int:
    """How many residues are prime to the modulus."""
    return sum(1 for residue in range(modulus) if math.gcd(residue, modulus) == 1)


def q_count(modulus: int) -> int:
    """At least so many primes q are -1 modulo `modulus` (Bennett, Martin, O'Bryant and Rechnitzer, 2018)."""
    x = 2.0**Q_BITS
    error = (2 * x / math.log(2 * x) + x / math.log(x)) / 160
    return int(0.999 * (x / totient(modulus) - error) / math.log(2 * x))


def p_count(modulus: int) -> int:
    """At least so many p a draw finds for its q when it counts them."""
    multiples = 2 ** factor_bits(modulus) - 2 ** (P_BITS - Q_BITS)
    return max(1, int(0.6 * multiples / (totient(modulus) * math.log(2.0 ** (Q_BITS + factor_bits(modulus) + 1)))))


def factor_bits(modulus: int) -> int:
    """The size of c: large enough that there are p for nearly every q."""
    return 16 if totient(modulus) <= 64 else 18


class Primes(NamedTuple):
    """The fields of one test, and a base of exponentials: an element of order q modulo p."""

    p: int
    q: int
    omega: int


def draw(rng: random.Random, modulus: int, count: bool) -> Primes:
    """Random primes, both -1 modulo `modulus`.

    With `count`, p is one of at least `p_count` that go with q, and more are not looked for: the first in a random order is as
    random whether others follow or not. Raises Undefined when the q drawn have too few.
    """
    least = p_count(modulus) if count else 1
    for _ in range(Q_TRIES):
        q = 0
        while not is_prime(q):
            q = modulus * rng.randrange(2**Q_BITS // modulus + 1, 2 ** (Q_BITS + 1) // modulus) - 1
        candidates = sieved(range(_smallest(q, modulus), q << factor_bits(modulus), modulus * q))
        rng.shuffle(candidates)
        primes = (p for p in candidates if is_prime_above(q, p))
        found = list(itertools.islice(primes, least))
        if len(found) >= least:
            p = found[0]
            omega = 1
            while omega == 1:
                omega = pow(rng.randrange(2, p), (p - 1) // q, p)
            return Primes(p, q, omega)
    raise Undefined("too few primes p go with the q drawn")


def _smallest(q: int, modulus: int) -> int:
    """The smallest c q + 1 above 2**P_BITS that is -1 modulo `modulus`: q is -1, so c is 2."""
    factor = (1 << P_BITS) // q + 1
    return (factor + (2 - factor) % modulus) * q + 1


@dataclass(frozen=True, slots=True)
class Residues:
    """A tensor: Python integers modulo p and, unless it passed through exp, modulo q."""

    p: Array
    q: Array | None


@dataclass(frozen=True, slots=True)
class Fields:
    """The domain of residues. What is neither linear nor a division nor exp is a random function of the residue modulo p.

    Keyed BLAKE2b stands for random functions: with a `key` drawn for each test, its values at different arguments are taken
    as independent and uniform.
    """

    primes: Primes
    key: bytes
    free_roots: frozenset[int] = frozenset()
    """Primes whose square roots are variables."""
    maxima: dict[int, frozenset[int]] = field(default_factory=dict)
    """The elements of each maximum so far, by its residue modulo p."""
    met: dict[str, list[Argument]] = field(default_factory=dict)
    """Arguments of each function so far, and elements and values of maxima."""
    roots_factor: ClassVar[bool] = True

    def random(self, shape: Sequence[int], rng: random.Random) -> Residues:
        """Random elements."""
        count = math.prod(shape)
        return Residues(
            _integers([rng.getrandbits(P_BITS) for _ in range(count)], shape),
            _integers([rng.randrange(self.primes.q) for _ in range(count)], shape),
        )

    def number(self, value: Fraction) -> Residues:
        return Residues(*(_scalar(_quotient(value, prime)) for prime in self.primes[:2]))

    def least(self, value: Fraction) -> Residues:
        """A variable, the same in all maxima."""
        return self.values([f"least {value}"], ())

    def root(self, value: Fraction) -> Residues:
        """Exact, but for the variables that the roots of some primes are."""
        rational, radicand, free = parts_of(value, self.free_roots)
        roots = (pow(_quotient(radicand, prime), (prime + 1) // 4, prime) for prime in self.primes[:2])
        root = self.multiply(self.number(rational), Residues(*map(_scalar, roots)))
        for prime in free:
            root = self.multiply(root, self.values([f"root of {prime}"], ()))
        return root

    def add(self, x: Residues, y: Residues) -> Residues:
        return self.both(lambda a, b, prime: (a + b) % prime, x, y)

    def subtract(self, x: Residues, y: Residues) -> Residues:
        return self.both(lambda a, b, prime: (a - b) % prime, x, y)

    def multiply(self, x: Residues, y: Residues) -> Residues:
        return self.both(lambda a, b, prime: a * b % prime, x, y)

    def divide(self, x: Residues, y: Residues) -> Residues:
        return self.both(lambda a, b, prime: a * _inverses(b, prime) % prime, x, y)

    def both(self, operation: Callable[[Array, Array, int], Array], x: Residues, y: Residues) -> Residues:
        q = None if x.q is None or y.q is None else np.asarray(operation(x.q, y.q, self.primes.q), object)
        return Residues(np.asarray(operation(x.p, y.p, self.primes.p), object), q)

    def exp(self, x: Residues) -> Residues:
        if x.q is None:
            return self.function("exp", x)
        p, _, omega = self.primes
        return Residues(_integers([pow(omega, exponent, p) for exponent in x.q.flat], x.q.shape), None)

    def sum(self, x: Residues, axis: int) -> Residues:
        q = None if x.q is None else np.add.reduce(x.q, axis=axis, keepdims=True) % self.primes.q
        return Residues(np.add.reduce(x.p, axis=axis, keepdims=True) % self.primes.p, q)

    @property
    def pattern(self) -> dict[str, list[int]]:
        """Of each function, where what it was applied to came first: which of its arguments are the same."""
        return {name: _first_places(met) for name, met in self.met.items()}

    def function(self, name: str, *xs: Residues) -> Residues:
        """Values at tuples of residues, in the order of the operands; of one operand, at residues."""
        arrays = np.broadcast_arrays(*(x.p for x in xs)) if len(xs) > 1 else [xs[0].p]
        tuples = list(zip(*(array.flat for array in arrays), strict=True))
        self.met.setdefault(name, []).extend(tuples if len(xs) > 1 else arrays[0].flat)
        return self.values([f"{name} {' '.join(map(str, residues))}" for residues in tuples], arrays[0].shape)

    def row_function(self, name: str, x: Residues, axis: int) -> Residues:
        """A function of the set of a row's elements, in which maxima stand for their own; of equal elements it is the element."""
        if x.p.shape[axis] == 1:
            return x
        rows, exponents = np.moveaxis(x.p, axis, -1), None if x.q is None else np.moveaxis(x.q, axis, -1)
        met = self.met.setdefault(name, [])
        met.extend(rows.flat)
        sets = [self.elements(rows[index]) for index in np.ndindex(rows.shape[:-1])]
        found = self.values([f"{name} {sorted(elements)}" for elements in sets], rows.shape[:-1])
        for place, elements in zip(np.ndindex(rows.shape[:-1]), sets, strict=True):
            if len(elements) == 1:
                found.p[place] = rows[place][0]
                if found.q is not None and exponents is not None:
                    found.q[place] = exponents[place][0]
            elif (value := int(found.p[place])) not in self.maxima or self.maxima[value] != elements:
                met.append(value)
                self.maxima[value] = elements
        q = None if x.q is None or found.q is None else np.expand_dims(found.q, axis)
        return Residues(np.expand_dims(found.p, axis), q)

    def elements(self, row: Array) -> frozenset[int]:
        """What a maximum over a row is taken over."""
        return frozenset().union(*(self.maxima.get(residue, {residue}) for residue in row.tolist()))

    def values(self, arguments: list[str], shape: tuple[int, ...]) -> Residues:
        """Values of a random function at arguments written out in full."""
        digests = [hashlib.blake2b(text.encode(), key=self.key, digest_size=32).digest() for text in arguments]
        p = [int.from_bytes(digest[:16]) >> (128 - P_BITS) for digest in digests]
        q = [int.from_bytes(digest[16:]) % self.primes.q for digest in digests]
        return Residues(_integers(p, shape), _integers(q, shape))

    def move(self, xs: Sequence[Residues], move: Callable[[list[Array]], Array]) -> Residues:
        exponents = [x.q for x in xs if x.q is not None]
        q = move(exponents) if len(exponents) == len(xs) else None
        return Residues(move([x.p for x in xs]), q)

    def shape(self, x: Residues) -> tuple[int, ...]:
        return x.p.shape


def _first_places(residues: Sequence[Argument]) -> list[int]:
    """For each residue, or tuple of residues, the place at which it came first."""
    first: dict[Argument, int] = {}
    return [first.setdefault(residue, place) for place, residue in enumerate(residues)]


def _integers(values: Sequence[int], shape: Sequence[int]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _scalar(value: int) -> Array:
    return np.array(value, object)


def _quotient(value: Fraction, prime: int) -> int:
    if value.denominator % prime == 0:
        raise Undefined(f"{value} has no residue modulo {prime}")
    return value.numerator * pow(value.denominator, -1, prime) % prime


def _inverses(x: Array, prime: int) -> Array:
    if any(value == 0 for value in x.flat):
        raise Undefined("division by zero")
    return _integers([pow(value, -1, prime) for value in x.flat], x.shape)


MOST = 4
"""Different radicands in one evaluation."""
REDRAWS = 160
"""Draws that may be thrown away, since radicands must be squares."""


@dataclass(slots=True)
class RootSigns:
    """One choice of a sign for each radicand, in the order in which they were met."""

    chosen: dict[int, int] = field(default_factory=dict)

    def of(self, radicand: int) -> int:
        if radicand not in self.chosen and len(self.chosen) == MOST:
            raise Rejected(f"graph.json: roots of more than {MOST} different numbers: their squares cannot be checked")
        return self.chosen.setdefault(radicand, 1)

    def all(self) -> Iterator[None]:
        """Go through all choices; what is met after a sign that changed is met anew."""
        yield
        while self.chosen:
            radicand, sign = self.chosen.popitem()
            if sign == 1:
                self.chosen[radicand] = -1
                yield


@dataclass(frozen=True, slots=True)
class RootedFields(Fields):
    """Residues modulo p alone."""

    signs: RootSigns = field(default_factory=RootSigns)
    roots_factor: ClassVar[bool] = False

    def number(self, value: Fraction) -> Residues:
        return Residues(Fields.number(self, value).p, None)

    def root(self, value: Fraction) -> Residues:
        return Residues(Fields.root(self, value).p, None)

    def exp(self, x: Residues) -> Residues:
        return self.function("exp", x)

    def function(self, name: str, *xs: Residues) -> Residues:
        if name != "sqrt":
            return Fields.function(self, name, *xs)
        (x,) = xs
        roots = np.empty(x.p.size, object)
        roots[:] = [self.square_root(radicand) for radicand in x.p.flat]
        return Residues(roots.reshape(x.p.shape), None)

    def square_root(self, radicand: int) -> int:
        p = self.primes.p
        sign = self.signs.of(radicand)
        root = pow(radicand, (p + 1) // 4, p)
        if radicand == 0 or root * root % p != radicand:
            raise Undefined(f"{radicand} is no square modulo {p}")
        return sign * root % p

    def values(self, arguments: list[str], shape: Sequence[int]) -> Residues:
        return Residues(Fields.values(self, arguments, tuple(shape)).p, None)
