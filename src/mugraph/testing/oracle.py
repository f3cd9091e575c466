"""Whether two muGraphs compute the same real function, by means that share nothing with the verifier's finite fields.

Rational programs are evaluated in exact fractions or, where powers make those too long, modulo a prime of 521 bits; others in the
widest floats NumPy has and, where those overflow, in mpmath's numbers of unlimited range, block by block and iteration by
iteration as `mugraph.ir.evaluate` defines them. Slow, and meant for graphs of a few dozen elements.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.ops import Kind, operator
from mugraph.ir.scalar import Scalar

_POINTS = 4
_VISIBLE = 1e-13
"""Relative to the largest element of an output: far above rounding, far below any mistake in a small program."""

_WIDE_BITS = 1 << 14

_EXPONENT_BITS = 1 << 10
"""Exponentials of larger numbers take mpmath minutes: nothing is said of points where they are met."""

_FRACTION_BITS = 1 << 16
"""Longer fractions are products of powers of powers; each operation on them takes milliseconds."""

_PRIME = 2**521 - 1


def agree(left: Graph, right: Graph, seed: int = 0) -> bool:
    """Whether two kernel graphs of one signature agree at random points: exactly, where both are rational.

    Points where a graph is undefined or leaves the number range say nothing; graphs that share no point do not agree.
    """
    if is_rational(left) and is_rational(right):
        try:
            answers = [_equal(left, right, inputs, _Fractions()) for inputs in _fractions(left, seed)]
        except OverflowError:
            answers = [_equal(left, right, inputs, _Residues()) for inputs in _residues(left, seed)]
    else:
        answers = [_closely(left, right, inputs) for inputs in _floats(left, seed)]
        if not {True, False} & set(answers):
            answers = [_widely(left, right, inputs) for inputs in itertools.islice(_floats(left, seed), 2)]
    return True in answers and False not in answers


def random_residues(shape: Sequence[int], draw: random.Random) -> Array:
    """A tensor of numbers modulo the prime of `modulo_prime`."""
    return np.asarray(np.vectorize(lambda _: draw.randrange(_PRIME), otypes=[object])(np.zeros(tuple(shape))))


def modulo_prime(graph: Graph, inputs: Sequence[Array]) -> list[Array] | None:
    """What a graph of sums, products and quotients computes modulo a prime of 521 bits, where rational functions that differ do
    so at nearly every point; None where a denominator is 0 that some output is computed with."""
    try:
        return list(evaluate(without_dead_nodes(graph), inputs, _Residues()))
    except ZeroDivisionError:
        return None


def is_rational(graph: Graph) -> bool:
    """Whether a graph is made of sums, products and quotients alone, of rational constants."""

    def exact(op: str) -> bool:
        return operator(op).kind in (Kind.DATA, Kind.MULTILINEAR, Kind.DIVISION)

    computed = all(node.body is not None or exact(node.op) for _, node in graph.walk())
    constants = [node.get("value") for _, node in graph.walk() if node.is_constant]
    return computed and not any(isinstance(value, Scalar) and value.root for value in constants)


class _Fractions(FloatArithmetic):
    """Fractions in arrays of objects; NumPy's operators do the rest. Raises OverflowError at a product that is too long."""

    def __init__(self) -> None:
        super().__init__(object)

    def constant(self, value: Scalar) -> Array:
        return np.asarray(value.value, object)

    def mul(self, x: Array, y: Array) -> Array:
        product = super().mul(x, y)
        if any(number.numerator.bit_length() + number.denominator.bit_length() > _FRACTION_BITS for number in product.flat):
            raise OverflowError("a fraction of too many digits")
        return product


class _Residues(FloatArithmetic):
    """Integers modulo a prime: rational functions that differ do so at nearly every point, whatever their powers.

    They stay Python's integers where an array has no dimensions, too, of which NumPy would make its own.
    """

    def __init__(self) -> None:
        super().__init__(object)

    def constant(self, value: Scalar) -> Array:
        return np.asarray(value.value.numerator * pow(value.value.denominator, -1, _PRIME) % _PRIME, object)

    def add(self, x: Array, y: Array) -> Array:
        return np.asarray((x + y) % _PRIME, object)

    def sub(self, x: Array, y: Array) -> Array:
        return np.asarray((x - y) % _PRIME, object)

    def mul(self, x: Array, y: Array) -> Array:
        return np.asarray((x * y) % _PRIME, object)

    def div(self, x: Array, y: Array) -> Array:
        if not np.all(y):
            raise ZeroDivisionError("a denominator is 0 modulo the prime")
        return self.mul(x, np.vectorize(lambda number: pow(number, -1, _PRIME), otypes=[object])(y))

    def sum(self, x: Array, axis: int) -> Array:
        return np.asarray(super().sum(x, axis) % _PRIME)

    def matmul(self, x: Array, y: Array) -> Array:
        return np.asarray(super().matmul(x, y) % _PRIME)


def _shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [node.output.shape for node in graph.inputs()]


def _fractions(graph: Graph, seed: int) -> Iterator[list[Array]]:
    rng = np.random.default_rng([seed, 1])
    for _ in range(_POINTS):
        yield [np.vectorize(Fraction, otypes=[object])(rng.integers(-999, 1000, shape)) for shape in _shapes(graph)]


def _residues(graph: Graph, seed: int) -> Iterator[list[Array]]:
    draw = random.Random(seed)
    for _ in range(_POINTS):
        yield [random_residues(shape, draw) for shape in _shapes(graph)]


def _equal(left: Graph, right: Graph, inputs: Sequence[Array], arith: FloatArithmetic) -> bool | None:
    """Whether the outputs are equal; None where a denominator vanishes."""
    try:
        ours, theirs = (evaluate(graph, inputs, arith) for graph in (left, right))
    except ZeroDivisionError:
        return None
    return all(np.array_equal(x, y) for x, y in zip(ours, theirs, strict=True))


def _floats(graph: Graph, seed: int) -> Iterator[list[Array]]:
    rng = np.random.default_rng([seed, 2])
    for _ in range(_POINTS):
        yield [rng.standard_normal(shape).astype(np.longdouble) for shape in _shapes(graph)]
        yield [rng.uniform(0.5, 1.5, shape).astype(np.longdouble) for shape in _shapes(graph)]
        yield [rng.uniform(-0.5, 0.5, shape).astype(np.longdouble) for shape in _shapes(graph)]


def _closely(left: Graph, right: Graph, inputs: Sequence[Array]) -> bool | None:
    """Whether the outputs agree; None where one of them is not finite, which may be an overflow on the way."""
    with np.errstate(all="ignore"):
        ours, theirs = (evaluate(graph, inputs, FloatArithmetic(np.longdouble)) for graph in (left, right))
    if not all(np.isfinite(x).all() for x in (*ours, *theirs)):
        return None
    return all(_near(x, y) for x, y in zip(ours, theirs, strict=True))


class _WideArithmetic(FloatArithmetic):
    """mpmath's numbers in arrays of objects: exponents of any size, and a precision that keeps 1 beside 2**12657."""

    def __init__(self) -> None:
        import mpmath

        super().__init__(object)
        self.context = mpmath.MPContext()
        self.context.prec = _WIDE_BITS

    def constant(self, value: Scalar) -> Array:
        number = self.context.mpf(abs(value.value.numerator)) / value.value.denominator
        magnitude = self.context.sqrt(number) if value.root else number
        return np.asarray(magnitude if value.value >= 0 else -magnitude, object)

    def exp(self, x: Array) -> Array:
        if any(self.context.mag(number) > _EXPONENT_BITS for number in x.flat):
            raise ValueError("an exponential too large to evaluate")
        return np.asarray(np.vectorize(self.context.exp, otypes=[object])(x))

    def sqrt(self, x: Array) -> Array:
        if np.any(x < 0):
            raise ValueError("square root of a negative number")
        return np.asarray(np.vectorize(self.context.sqrt, otypes=[object])(x))

    def opaque(self, name: str, *xs: Array) -> Array:
        raise ValueError(f"{name} is known to float precision only")


def _widely(left: Graph, right: Graph, inputs: Sequence[Array]) -> bool | None:
    """Whether the outputs agree in unlimited range; None where one of them is undefined."""
    arith = _WideArithmetic()
    wide = [np.vectorize(lambda x: arith.context.mpf(float(x)), otypes=[object])(array) for array in inputs]
    try:
        ours, theirs = (evaluate(graph, wide, arith) for graph in (left, right))
    except (ValueError, ZeroDivisionError):
        return None
    return all(_near(x, y) for x, y in zip(ours, theirs, strict=True))


def _near(x: Array, y: Array) -> bool:
    return bool(np.max(np.abs(x - y), initial=0) <= _VISIBLE * np.max(np.abs(x), initial=0))
