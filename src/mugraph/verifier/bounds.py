"""How likely one random test is to miss a difference: degrees and coefficient sizes, derived from the graphs.

Every element a rational program computes is N / (c D) with integer polynomials N and D and an integer c. Evaluating the
program over `_Fractions` bounds their total degrees and the sums of their coefficients' absolute values, by the same
operator table that computes floats. docs/verification.md has the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.algebra.fields import DRAWN_P_BITS, DRAWN_PAIRS
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph
from mugraph.ir.ops import Kind, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.batched import evaluate_batched, is_selection

REDRAWS = 4
"""How many draws of a test may be thrown away because a denominator vanished."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Bounds for the difference of two rational programs, brought to one fraction with an integer polynomial above.

    `degree` is its total degree; the sum of its coefficients' absolute values is at most 2**`coefficient_bits`. Both hold
    for every element of every output.
    """

    degree: int
    coefficient_bits: int

    @property
    def error_per_draw(self) -> float:
        """The probability that random primes and random inputs hide a difference (1 where the bound says nothing)."""
        smallest = 1 << DRAWN_P_BITS
        divisors = min(self.coefficient_bits // DRAWN_P_BITS, DRAWN_PAIRS)
        return min(1.0, divisors / DRAWN_PAIRS + min(self.degree, smallest) / smallest)

    def error_bound(self, rounds: int) -> float:
        """The probability that a difference survives `rounds` tests among up to REDRAWS more draws."""
        return min(1.0, math.comb(rounds + REDRAWS, rounds) * self.error_per_draw**rounds)

    def rounds_for(self, max_error: float) -> int | None:
        """The fewest tests whose bound is at most `max_error`; None when no reasonable number suffices."""
        return next((rounds for rounds in range(1, 65) if self.error_bound(rounds) <= max_error), None)


def outside_theory(graph: Graph) -> frozenset[str]:
    """The operators of a graph that are not rational functions; the bound holds only where there are none."""
    rational = (Kind.DATA, Kind.MULTILINEAR, Kind.DIVISION)
    names = {node.op for _, node in graph.walk() if node.body is None and operator(node.op).kind not in rational}
    for around, node in graph.walk():
        if node.op == "accumulate" and node["combine"] == "max" and not is_selection(around, node):
            names.add("max")
        if node.op == "constant" and isinstance(value := node["value"], Scalar) and value.root:
            names.add("sqrt")
    return frozenset(names)


def difference_of(left: Graph, right: Graph) -> Difference:
    """Bounds for the difference of two kernel graphs of rational operators, with outputs of equal shapes."""
    ours, theirs = (evaluate_batched(graph, _inputs(graph), _FRACTIONS) for graph in (left, right))
    differences = [_FRACTIONS.sub(x, y).numerator for x, y in zip(ours, theirs, strict=True)]
    return Difference(max(d.degree for d in differences), max(d.bits for d in differences))


@dataclass(frozen=True, slots=True)
class _Polynomial:
    """An integer polynomial of total degree at most `degree` and coefficient sum (of absolute values) at most 2**`bits`."""

    degree: int = 0
    bits: int = 0

    def __mul__(self, other: _Polynomial) -> _Polynomial:
        return _Polynomial(self.degree + other.degree, self.bits + other.bits)

    def __pow__(self, exponent: int) -> _Polynomial:
        return _Polynomial(self.degree * exponent, self.bits * exponent)

    def __or__(self, other: _Polynomial) -> _Polynomial:
        """Bounds that hold for both."""
        return _Polynomial(max(self.degree, other.degree), max(self.bits, other.bits))

    def times(self, number: int) -> _Polynomial:
        """A multiple by at most `number` >= 1, or a sum of at most that many such polynomials."""
        return _Polynomial(self.degree, self.bits + (number - 1).bit_length())


@dataclass(frozen=True, slots=True)
class _Fraction:
    """Elements N / (c D): `numerator` and `denominator` bound every element's N and D, `constant` is c for all of them.

    `shape` is an array of the tensor's shape that occupies no memory; data movements act on it.
    """

    shape: Array
    numerator: _Polynomial
    denominator: _Polynomial = _Polynomial()
    constant: int = 1


def _inputs(graph: Graph) -> list[_Fraction]:
    return [_Fraction(_shaped(node.output.shape), _Polynomial(1, 0)) for node in graph.nodes if node.op == "input"]


def _shaped(shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.int8(0), shape)


def _broadcast(x: _Fraction, y: _Fraction) -> Array:
    return _shaped(np.broadcast_shapes(x.shape.shape, y.shape.shape))


class _Fractions:
    """`mugraph.ir.arithmetic.Arithmetic` on bounds of fractions, for rational operators."""

    def constant(self, value: Scalar) -> _Fraction:
        numerator, denominator = abs(value.value.numerator), value.value.denominator
        return _Fraction(_shaped(()), _Polynomial(0, numerator.bit_length()), constant=denominator)

    def add(self, x: _Fraction, y: _Fraction) -> _Fraction:
        common = math.lcm(x.constant, y.constant)
        left = (x.numerator * y.denominator).times(common // x.constant)
        right = (y.numerator * x.denominator).times(common // y.constant)
        return _Fraction(_broadcast(x, y), (left | right).times(2), x.denominator * y.denominator, common)

    def sub(self, x: _Fraction, y: _Fraction) -> _Fraction:
        return self.add(x, y)

    def mul(self, x: _Fraction, y: _Fraction) -> _Fraction:
        numerator, denominator = x.numerator * y.numerator, x.denominator * y.denominator
        return _Fraction(_broadcast(x, y), numerator, denominator, x.constant * y.constant)

    def div(self, x: _Fraction, y: _Fraction) -> _Fraction:
        numerator = (x.numerator * y.denominator).times(y.constant)
        return _Fraction(_broadcast(x, y), numerator, x.denominator * y.numerator, x.constant)

    def sum(self, x: _Fraction, axis: int) -> _Fraction:
        shape = list(x.shape.shape)
        count, shape[axis] = shape[axis], 1
        return self._summed(x, count, _shaped(tuple(shape)))

    def matmul(self, x: _Fraction, y: _Fraction) -> _Fraction:
        batch = np.broadcast_shapes(x.shape.shape[:-2], y.shape.shape[:-2])
        shape = (*batch, x.shape.shape[-2], y.shape.shape[-1])
        product = _Fraction(_shaped(shape), x.numerator * y.numerator, x.denominator * y.denominator, x.constant * y.constant)
        return self._summed(product, x.shape.shape[-1], product.shape)

    def _summed(self, x: _Fraction, count: int, shape: Array) -> _Fraction:
        numerator = (x.numerator * x.denominator ** (count - 1)).times(count)
        return _Fraction(shape, numerator, x.denominator**count, x.constant)

    def view(self, x: _Fraction, move: Callable[[Array], Array]) -> _Fraction:
        return _Fraction(_shaped(move(x.shape).shape), x.numerator, x.denominator, x.constant)

    def join(self, xs: Sequence[_Fraction], combine: Callable[[Sequence[Array]], Array]) -> _Fraction:
        common = math.lcm(*(x.constant for x in xs))
        numerator, denominator = xs[0].numerator, xs[0].denominator
        for x in xs:
            numerator, denominator = numerator | x.numerator.times(common // x.constant), denominator | x.denominator
        return _Fraction(_shaped(combine([x.shape for x in xs]).shape), numerator, denominator, common)

    def exp(self, x: _Fraction) -> _Fraction:
        raise self._irrational("exp")

    def sqrt(self, x: _Fraction) -> _Fraction:
        raise self._irrational("sqrt")

    def max(self, x: _Fraction, axis: int) -> _Fraction:
        raise self._irrational("max")

    def opaque(self, name: str, x: _Fraction) -> _Fraction:
        raise self._irrational(name)

    def _irrational(self, name: str) -> AssertionError:
        return AssertionError(f"{name} is no rational function: outside_theory() must be asked first")


_FRACTIONS = _Fractions()
