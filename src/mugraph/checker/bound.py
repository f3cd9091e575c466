"""How likely the checker's tests are to miss a difference: sizes of formal expressions, and the theorem applied to them.

`Sizes` is a domain of the interpreter. A tensor of it stands for elements N / (c D), where N and D are sums of integer
polynomials times exponentials; docs/theory.md ("What the tests prove") has the rules and the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from mugraph.checker import residue_fields
from mugraph.checker.constant_roots import Primes, parts_of, primes_of, variable_ones
from mugraph.checker.function_properties import outputs
from mugraph.checker.saved_files import Json
from mugraph.checker.tensors import Array

REDRAWS = 4
"""Draws that may be thrown away because something was divided by zero."""
_HUGE = 1 << 300


class Sum(NamedTuple):
    """Bounds: total degree, log2 of the sum of absolute coefficients, number of exponentials, applications of exp in each."""

    degree: int = 0
    bits: int = 0
    terms: int = 1
    exps: int = 0

    def by(self, other: Sum) -> Sum:
        """The product."""
        terms = min(self.terms * other.terms, _HUGE)
        return Sum(self.degree + other.degree, self.bits + other.bits, terms, self.exps + other.exps)

    def power(self, exponent: int) -> Sum:
        log = exponent * (self.terms.bit_length() if self.terms > 1 else 0)
        terms = self.terms**exponent if log < 300 else _HUGE
        return Sum(self.degree * exponent, self.bits * exponent, terms, self.exps * exponent)

    def plus(self, other: Sum) -> Sum:
        """The sum."""
        largest = self.either(other)
        terms = min(self.terms + other.terms, _HUGE) if largest.exps else 1
        return largest._replace(bits=largest.bits + 1, terms=terms)

    def either(self, other: Sum) -> Sum:
        """Bounds of both."""
        return Sum(*map(max, self, other))

    def multiple(self, number: int) -> Sum:
        return self._replace(bits=self.bits + (number - 1).bit_length())


_ONE = Sum()


@dataclass(frozen=True, slots=True)
class SizeBound:
    """Bounds of a tensor's elements. Elements with equal `marks` of one `owner` (None: D is 1) have the same D.

    What only moves elements around has the `name` of the tensor that they are of, and the `path` from its shape on.
    """

    marks: Array
    numerator: Sum
    denominator: Sum = _ONE
    constant: int = 1
    owner: object = None
    elements: int = 1
    """Elements that are maxima, or roots of maxima, are of at most so many."""
    name: object = field(default_factory=object)
    path: tuple[Callable[[list[Array]], Array], ...] = ()
    start: tuple[int, ...] = ()

    def numbered(self) -> Array:
        """Numbers of the elements: where two are the same number, they are one element of one tensor."""
        numbers = _numbers(self.start if self.path else self.marks.shape)
        for move in self.path:
            numbers = move([numbers])
        return numbers


class Use(NamedTuple):
    """Applications of a function: how many, the elements each takes, how many all take, and bounds of those."""

    times: int
    width: int
    total: int
    numerator: Sum
    denominator: Sum
    constant: int


@dataclass(slots=True)
class Sizes:
    """The domain of sizes; it notes exponents, uses of functions, and the primes in constants under roots."""

    roots_factor: bool = True
    free_roots: Primes = frozenset()
    """Primes whose square roots are variables."""
    exponent: Use | None = None
    functions: dict[str, Use] = field(default_factory=dict)
    primes: set[int] = field(default_factory=set)

    def variables(self, shape: Sequence[int]) -> SizeBound:
        """Inputs, or values of a function."""
        return SizeBound(_zeros(shape), Sum(degree=1))

    def number(self, value: Fraction) -> SizeBound:
        return SizeBound(_zeros(()), Sum(bits=abs(value.numerator).bit_length()), constant=value.denominator)

    def least(self, value: Fraction) -> SizeBound:
        """A variable."""
        return self.variables(())

    def root(self, value: Fraction) -> SizeBound:
        """sqrt(a / b) is sqrt(a b) / b; no root is taken of a square."""
        rational, exact, free = parts_of(value, self.free_roots)
        if exact == 1 and not free:
            return self.number(rational)
        radicand = exact.numerator * exact.denominator
        self.primes |= primes_of(exact)
        bits = (math.isqrt(radicand) + 1).bit_length()
        numerator = Sum(degree=len(free), bits=bits).multiple(rational.numerator)
        return SizeBound(_zeros(()), numerator, constant=rational.denominator * exact.denominator)

    def add(self, x: SizeBound, y: SizeBound) -> SizeBound:
        common = math.lcm(x.constant, y.constant)
        left, right = x.numerator.multiple(common // x.constant), y.numerator.multiple(common // y.constant)
        product = self.multiply(x, y)
        shape = product.marks.shape
        marks, theirs = np.broadcast_to(x.marks, shape), np.broadcast_to(y.marks, shape)
        if x.owner is not None and x.owner is y.owner and np.array_equal(marks, theirs):
            return SizeBound(marks, left.plus(right), x.denominator, common, x.owner, product.elements)
        numerator = left.by(y.denominator).plus(right.by(x.denominator))
        return SizeBound(product.marks, numerator, product.denominator, common, product.owner, product.elements)

    def subtract(self, x: SizeBound, y: SizeBound) -> SizeBound:
        return self.add(x, y)

    def multiply(self, x: SizeBound, y: SizeBound) -> SizeBound:
        numerator, denominator = x.numerator.by(y.numerator), x.denominator.by(y.denominator)
        constant, elements = x.constant * y.constant, max(x.elements, y.elements)
        shape = np.broadcast_shapes(x.marks.shape, y.marks.shape)
        if x.owner is None or y.owner is None:
            owned = y if x.owner is None else x
            return SizeBound(np.broadcast_to(owned.marks, shape), numerator, denominator, constant, owned.owner, elements)
        marks = np.broadcast_to(x.marks, shape) * (1 + int(y.marks.max())) + y.marks
        _, small = np.unique(marks, return_inverse=True)
        return SizeBound(small.reshape(shape), numerator, denominator, constant, object(), elements)

    def divide(self, x: SizeBound, y: SizeBound) -> SizeBound:
        inverse = SizeBound(y.numbered(), y.denominator.multiple(y.constant), y.numerator, 1, y.name, y.elements)
        return self.multiply(x, inverse)

    def exp(self, x: SizeBound) -> SizeBound:
        if not self.roots_factor or x.numerator.exps or x.denominator.exps:
            return self.function("exp", x)
        self.exponent = _noted(self.exponent, x, 0)
        return SizeBound(_zeros(x.marks.shape), Sum(exps=1))

    def sum(self, x: SizeBound, axis: int) -> SizeBound:
        count = x.marks.shape[axis]
        ordered = np.sort(x.marks, axis=axis)
        different = 1 + int(np.max(np.count_nonzero(np.diff(ordered, axis=axis), axis=axis), initial=0))
        term = x.numerator.by(x.denominator.power(different - 1))
        terms = min(term.terms * count, _HUGE) if term.exps else 1
        numerator = term.multiple(count)._replace(terms=terms)
        kept = np.take(x.marks, [0], axis=axis)
        if different == 1:
            return SizeBound(kept, numerator, x.denominator, x.constant, x.owner, x.elements)
        return SizeBound(_numbers(kept.shape), numerator, x.denominator.power(different), x.constant, object(), x.elements)

    def function(self, name: str, *xs: SizeBound) -> SizeBound:
        """Tuples of arguments coincide only if in a place where they differ two operands do, which `xs` bound together."""
        shape = np.broadcast_shapes(*(x.marks.shape for x in xs))
        self.functions[name] = _noted(self.functions.get(name), xs[0], math.prod(shape))
        for x in xs[1:]:
            self.functions[name] = _noted(self.functions[name], x, 0)
        elements = xs[0].elements if name == "sqrt" else 1  # a root may be multiplied by itself, where roots square back
        return replace(self.variables(shape), elements=elements)

    def row_function(self, name: str, x: SizeBound, axis: int) -> SizeBound:
        """An element or a variable. Elements are compared with variables, too, and may stand for as many elements as those."""
        if x.marks.shape[axis] == 1:
            return x
        shape = tuple(1 if dim == axis else size for dim, size in enumerate(x.marks.shape))
        elements = x.marks.shape[axis] * x.elements
        self.functions[name] = _noted(self.functions.get(name), x, math.prod(shape), elements)
        self.functions[name] = _noted(self.functions[name], self.variables(()), 0)
        numerator = x.numerator.either(Sum(degree=1).multiple(x.constant))
        marks, owner = (_zeros(shape), None) if x.owner is None else (_numbers(shape), object())
        return SizeBound(marks, numerator, x.denominator, x.constant, owner, elements)

    def move(self, xs: Sequence[SizeBound], move: Callable[[list[Array]], Array]) -> SizeBound:
        if len(xs) == 1:
            (x,) = xs
            start = x.start if x.path else x.marks.shape
            return replace(x, marks=move([x.marks]), path=(*x.path, move), start=start)
        common = math.lcm(*(x.constant for x in xs))
        numerator, denominator = Sum(), Sum()
        for x in xs:
            numerator = numerator.either(x.numerator.multiple(common // x.constant))
            denominator = denominator.either(x.denominator)
        owners, elements = list(dict.fromkeys(x.owner for x in xs)), max(x.elements for x in xs)
        if owners == [None]:
            return SizeBound(move([x.marks for x in xs]), numerator, denominator, common, None, elements)
        step = 1 + max(int(x.marks.max()) for x in xs)
        marks = move([x.marks + owners.index(x.owner) * step for x in xs])
        return SizeBound(marks, numerator, denominator, common, object(), elements)

    def norm(self, numerator: Sum) -> Sum:
        """The norm of an expression in so many roots as there may be, where roots square back."""
        use = self.functions.get("sqrt")
        if self.roots_factor or use is None:
            return numerator
        radicand = use.numerator.either(use.denominator.multiple(use.constant))
        norm = numerator.multiple(2)
        for _ in range(residue_fields.MOST):
            norm = Sum(norm.degree * (2 + radicand.degree), 2 * norm.bits + norm.degree * radicand.bits)
        return norm

    def shape(self, x: SizeBound) -> tuple[int, ...]:
        return x.marks.shape


@dataclass(frozen=True, slots=True)
class Bound:
    """The probability that tests miss a difference, and what a draw must heed.

    `misses` are, of the outputs and of each function, how many pairs there are, and how likely one is missed in a draw. If all
    tests are `alike`, telling the same arguments of functions apart, two that are taken for equal are so in each of them;
    otherwise each test may be misled by others. Both primes are to be -1 modulo `modulus`, and with `count` enough p must go
    with each q. `redraws` may be thrown away. The square roots of the primes `free_roots` are variables.
    """

    misses: tuple[tuple[int, float], ...]
    modulus: int
    count: bool
    alike: bool
    redraws: int = REDRAWS
    free_roots: Primes = frozenset()

    def after(self, rounds: int) -> float:
        """The probability that a difference survives so many tests among `redraws` more draws."""
        ways = math.comb(rounds + self.redraws, rounds)
        if self.alike:
            return float(min(1.0, ways * sum(pairs * miss**rounds for pairs, miss in self.misses)))
        return float(min(1.0, ways * min(1.0, sum(pairs * miss for pairs, miss in self.misses)) ** rounds))

    def rounds_for(self, max_error: float) -> int | None:
        """The fewest tests that reach `max_error`, if a reasonable number does."""
        return next((rounds for rounds in range(1, 257) if self.after(rounds) <= max_error), None)


def bound_of(
    left: Json, right: Json, shapes: Sequence[Sequence[int]], *, roots_factor: bool = True, properties: bool = False
) -> Bound:
    """The bound for two graphs whose inputs have these shapes; unless `roots_factor`, under the semantics of `roots`.

    With `properties`, functions have those that they have.
    """
    sizes = Sizes(roots_factor)
    results = _sizes_of(left, right, shapes, sizes, properties)
    free = variable_ones(sizes.primes)
    if free:
        sizes = Sizes(roots_factor, free)
        results = _sizes_of(left, right, shapes, sizes, properties)
    modulus = 8 * math.prod(sizes.primes - {2})
    conjugates = 1 << len(sizes.primes)
    numerators = [sizes.subtract(x, y).numerator for x, y in zip(*results, strict=True)]
    misses = [(1, max(_miss(sizes.norm(numerator), sizes.exponent, modulus, conjugates) for numerator in numerators))]
    for name, use in sizes.functions.items():
        difference = use.numerator.by(use.denominator)
        difference = sizes.norm(difference.plus(difference))
        misses.append((_pairs(name, use, roots_factor), _miss(difference, sizes.exponent, modulus, conjugates)))
    if not roots_factor:
        paths = 2**residue_fields.MOST if "sqrt" in sizes.functions else 1
        paths_missed = tuple((paths * pairs, miss) for pairs, miss in misses)
        return Bound(paths_missed, modulus, False, False, residue_fields.REDRAWS, free)
    return Bound(tuple(misses), modulus, sizes.exponent is not None, alike=True, free_roots=free)


def _sizes_of(left: Json, right: Json, shapes: Sequence[Sequence[int]], sizes: Sizes, properties: bool) -> list[list[SizeBound]]:
    """The outputs of two graphs in the domain of sizes."""
    inputs = [sizes.variables(shape) for shape in shapes]
    return [outputs(graph, inputs, sizes, properties) for graph in (left, right)]


def _pairs(name: str, use: Use, alike: bool) -> int:
    """How many pairs of what a function is applied to must not coincide.

    For maxima of tests that are `alike`, all elements and maxima. Otherwise two different sets have coinciding elements when they
    agree; so has a set that seems to have one element, and an element that seems to be a maximum coincides with that.
    """
    if name != "max":
        return math.comb(use.times, 2)
    if alike:
        return math.comb(use.total + use.times, 2)
    return (math.comb(use.times, 2) + use.times**2) * min(use.width, use.total) + use.times


def _miss(numerator: Sum, exponent: Use | None, modulus: int, conjugates: int) -> float:
    """The theorem: how likely a numerator vanishes in a draw though it is not zero."""
    if numerator.bits >= _HUGE.bit_length() * 2**20 or numerator.degree >= 2**64 or numerator.terms >= 1 << residue_fields.Q_BITS:
        return 1.0
    error = float(numerator.degree / 2**residue_fields.P_BITS)
    q_count = residue_fields.q_count(modulus)
    p_count = 1 if exponent is None else residue_fields.p_count(modulus)
    if not numerator.exps or exponent is None:
        return error + residue_fields.Q_TRIES * (conjugates * numerator.bits // residue_fields.P_BITS) / (q_count * p_count)
    applications = 2 * numerator.exps
    difference = exponent.numerator.by(exponent.denominator.power(applications - 1))
    difference = difference.multiple(applications)
    meeting = float(max(1, difference.degree) / 2**residue_fields.Q_BITS)
    meeting += residue_fields.Q_TRIES * (conjugates * difference.bits // residue_fields.Q_BITS) / q_count
    size = numerator.bits + residue_fields.P_BITS * numerator.degree
    return error + numerator.terms * meeting + conjugates * size / (residue_fields.P_BITS * p_count)


def _noted(known: Use | None, x: SizeBound, count: int, width: int = 1) -> Use:
    """With `count` more applications to so many elements each, which are among those of x."""
    if known is None:
        return Use(count, width, x.marks.size, x.numerator, x.denominator, x.constant)
    common = math.lcm(known.constant, x.constant)
    ours, theirs = known.numerator.multiple(common // known.constant), x.numerator.multiple(common // x.constant)
    total, width = known.total + x.marks.size, max(known.width, width)
    return Use(known.times + count, width, total, ours.either(theirs), known.denominator.either(x.denominator), common)


def _zeros(shape: Sequence[int]) -> Array:
    return np.broadcast_to(np.int64(0), tuple(shape))


def _numbers(shape: Sequence[int]) -> Array:
    return np.arange(math.prod(shape)).reshape(shape)
