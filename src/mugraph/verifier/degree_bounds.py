"""How large the formal expressions of a program can be: degrees, coefficients, exponentials, applications of functions.

Every element a program computes is N / (c D): N and D are sums of integer polynomials times exponentials of rational
functions, c is a positive integer. Evaluating the program over `Magnitudes` bounds them, by the same operator table that
computes floats. docs/theory.md ("What the tests prove") has the rules and the proof that they suffice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction as Rational

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.ops import LOWEST
from mugraph.ir.scalar import Scalar
from mugraph.verifier.constant_roots import Primes, primes_of, root_parts

_MANY = 1 << 256
"""Numbers of terms above it are all alike: no bound survives them."""


@dataclass(frozen=True, slots=True)
class PolynomialBound:
    """Bounds of a sum of at most `terms` integer polynomials times exponentials with different exponents.

    The polynomials have total degree at most `degree`; the absolute values of all coefficients sum to at most 2**`bits`; each
    exponential is the product of at most `exponentials` applications of exp.
    """

    degree: int = 0
    bits: int = 0
    terms: int = 1
    exponentials: int = 0

    def __mul__(self, other: PolynomialBound) -> PolynomialBound:
        terms = min(self.terms * other.terms, _MANY)
        return PolynomialBound(self.degree + other.degree, self.bits + other.bits, terms, self.exponentials + other.exponentials)

    def __pow__(self, exponent: int) -> PolynomialBound:
        many = exponent * self.terms.bit_length() > _MANY.bit_length()
        terms = 1 if self.terms == 1 else _MANY if many else self.terms**exponent
        return PolynomialBound(self.degree * exponent, self.bits * exponent, terms, self.exponentials * exponent)

    def __or__(self, other: PolynomialBound) -> PolynomialBound:
        """Bounds that hold for both."""
        return PolynomialBound(
            max(self.degree, other.degree),
            max(self.bits, other.bits),
            max(self.terms, other.terms),
            max(self.exponentials, other.exponentials),
        )

    def times(self, number: int) -> PolynomialBound:
        """A multiple by at most `number` >= 1."""
        return replace(self, bits=self.bits + (number - 1).bit_length())

    def summed(self, count: int) -> PolynomialBound:
        """A sum of at most `count` >= 1 such."""
        return replace(self.times(count), terms=min(self.terms * count, _MANY) if self.exponentials else 1)


@dataclass(frozen=True, slots=True)
class Fraction:
    """Elements N / (c D): `numerator` and `denominator` bound every element's N and D, `constant` is c for all of them.

    `ids` has the tensor's shape: of one `family` (None: all D are 1), elements with the same number have the same D. An element
    that is the variable of a maximum, or a root of one, stands for at most `elements`. A tensor with elements of its own is its
    `origin`; one that has elements of another elsewhere has that one's, by the `moves` that they took from a tensor of shape
    `unmoved`.
    """

    ids: Array
    numerator: PolynomialBound
    denominator: PolynomialBound = PolynomialBound()
    constant: int = 1
    family: object = None
    elements: int = 1
    origin: object = field(default_factory=object)
    moves: tuple[Callable[[Array], Array], ...] = ()
    unmoved: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.ids.shape)

    def moved(self, move: Callable[[Array], Array]) -> Fraction:
        """The same elements elsewhere."""
        return replace(self, ids=move(self.ids), moves=(*self.moves, move), unmoved=self.unmoved if self.moves else self.shape)

    def places(self) -> Array:
        """A number for each element, the same where one is the same element of the `origin`."""
        numbers = _numbered(self.unmoved if self.moves else self.shape)
        return functools.reduce(lambda array, move: move(array), self.moves, numbers)


@dataclass(slots=True)
class Applications:
    """All applications of one function: how many, to how many arguments each and in all, and bounds of the arguments."""

    count: int
    arguments: int
    total: int
    argument: Fraction


@dataclass(slots=True)
class Magnitudes:
    """`mugraph.ir.arithmetic.Arithmetic` on bounds of fractions, noting what is exponentiated and which functions are applied.

    Unless `exponentials`, exp is a function like others.
    `exponent` bounds every argument of exp (None before the first), `functions` what is applied as a random function, and
    `root_primes` are the primes in constants of which a square root is taken, but for those in `root_variables`, whose roots are
    variables.
    """

    exponentials: bool = True
    root_variables: Primes = frozenset()
    exponent: Fraction | None = None
    functions: dict[str, Applications] = field(default_factory=dict)
    root_primes: set[int] = field(default_factory=set)

    def input(self, shape: tuple[int, ...]) -> Fraction:
        """A tensor of independent variables."""
        return Fraction(_alike(shape), PolynomialBound(degree=1))

    def constant(self, value: Scalar) -> Fraction:
        """a / b as it is; the square root of a / b as sqrt(ab) / b, whose conjugates have the same size.

        The least number of maxima is a variable.
        """
        if value is LOWEST:
            return self.input(())
        if value.root:
            return self._root(abs(value.value))
        return Fraction(
            _alike(()), PolynomialBound(bits=abs(value.value.numerator).bit_length()), constant=value.value.denominator
        )

    def _root(self, value: Rational) -> Fraction:
        """The square root of a positive number."""
        parts = root_parts(value, self.root_variables)
        radicand = parts.exact.numerator * parts.exact.denominator
        self.root_primes |= primes_of(parts.exact)
        bits = (math.isqrt(radicand) + 1).bit_length()
        numerator = PolynomialBound(len(parts.variables), bits).times(parts.rational.numerator)
        return Fraction(_alike(()), numerator, constant=parts.rational.denominator * parts.exact.denominator)

    def add(self, x: Fraction, y: Fraction) -> Fraction:
        common = math.lcm(x.constant, y.constant)
        left, right = x.numerator.times(common // x.constant), y.numerator.times(common // y.constant)
        if x.family is not None and x.family is y.family and _equal(x.ids, y.ids):
            ids = np.broadcast_to(x.ids, np.broadcast_shapes(x.shape, y.shape))
            return Fraction(ids, _either(left, right), x.denominator, common, x.family, max(x.elements, y.elements))
        merged = _merged(x, y)
        return replace(merged, numerator=_either(left * y.denominator, right * x.denominator), constant=common)

    def sub(self, x: Fraction, y: Fraction) -> Fraction:
        return self.add(x, y)

    def mul(self, x: Fraction, y: Fraction) -> Fraction:
        return _merged(x, y)

    def div(self, x: Fraction, y: Fraction) -> Fraction:
        inverted = Fraction(y.places(), y.denominator.times(y.constant), y.numerator, 1, y.origin, y.elements)
        return _merged(x, inverted)

    def sum(self, x: Fraction, axis: int) -> Fraction:
        count = x.shape[axis]
        different = _most_different(x.ids, axis)
        numerator = (x.numerator * x.denominator ** (different - 1)).summed(count)
        if different == 1:
            ids = x.ids[(slice(None),) * axis + (slice(0, 1),)]
            return Fraction(ids, numerator, x.denominator, x.constant, x.family, x.elements)
        ids = _numbered(_without(x.shape, axis))
        return Fraction(ids, numerator, x.denominator**different, x.constant, object(), x.elements)

    def matmul(self, x: Fraction, y: Fraction) -> Fraction:
        products = _merged(replace(x, ids=x.ids[..., :, :, None]), replace(y, ids=y.ids[..., None, :, :]))
        total = self.sum(products, products.ids.ndim - 2)
        return replace(total, ids=np.squeeze(total.ids, -2))

    def view(self, x: Fraction, move: Callable[[Array], Array]) -> Fraction:
        return x.moved(move)

    def join(self, xs: Sequence[Fraction], combine: Callable[[Sequence[Array]], Array]) -> Fraction:
        common = math.lcm(*(x.constant for x in xs))
        numerator = functools.reduce(PolynomialBound.__or__, (x.numerator.times(common // x.constant) for x in xs))
        denominator = functools.reduce(PolynomialBound.__or__, (x.denominator for x in xs))
        families, elements = list(dict.fromkeys(x.family for x in xs)), max(x.elements for x in xs)
        if families == [None]:
            return Fraction(combine([x.ids for x in xs]), numerator, denominator, common, None, elements)
        stride = 1 + max(int(_core(x.ids).max(initial=0)) for x in xs)
        ids = combine([_shifted(x.ids, families.index(x.family) * stride) for x in xs])
        return Fraction(ids, numerator, denominator, common, object(), elements)

    def exp(self, x: Fraction) -> Fraction:
        if not self.exponentials or x.numerator.exponentials or x.denominator.exponentials:
            return self.opaque("exp", x)
        self.exponent = x if self.exponent is None else _larger(self.exponent, x)
        return Fraction(_alike(x.shape), PolynomialBound(exponentials=1))

    def sqrt(self, x: Fraction) -> Fraction:
        """A maximum, if it is one of a maximum and roots square back: it may be multiplied by itself."""
        return replace(self.opaque("sqrt", x), elements=x.elements)

    def max(self, x: Fraction, axis: int) -> Fraction:
        """An element, where all are equal, or else a variable. Elements are compared with each other and with such variables.

        Maxima of maxima are maxima of more elements.
        """
        if x.shape[axis] == 1:
            return x
        shape, elements = _without(x.shape, axis), x.shape[axis] * x.elements
        either = _larger(x, self.input(()))
        self._variables("max", either, shape, elements, total=math.prod(x.shape))
        if x.family is None:
            return replace(either, ids=_alike(shape), elements=elements)
        return replace(either, ids=_numbered(shape), family=object(), elements=elements)

    def opaque(self, name: str, *xs: Fraction) -> Fraction:
        """Two tuples of arguments that differ do so in one place: they coincide if two of what stands there do."""
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        argument = xs[0] if len(xs) == 1 else functools.reduce(_larger, xs)
        return self._variables(name, argument, shape, 1, total=math.prod(shape))

    def _variables(self, name: str, x: Fraction, shape: tuple[int, ...], arguments: int, *, total: int) -> Fraction:
        """Values of a random function: variables, like inputs, as long as different arguments do not coincide."""
        known = self.functions.get(name, Applications(0, 0, 0, x))
        count, arguments, total = known.count + math.prod(shape), max(known.arguments, arguments), known.total + total
        self.functions[name] = Applications(count, min(arguments, total), total, _larger(known.argument, x))
        return self.input(shape)


def _either(x: PolynomialBound, y: PolynomialBound) -> PolynomialBound:
    """The sum of two."""
    return replace((x | y).times(2), terms=min(x.terms + y.terms, _MANY) if x.exponentials or y.exponentials else 1)


def _larger(x: Fraction, y: Fraction) -> Fraction:
    """Bounds that hold for the elements of both, brought to one constant; they have no shape any more."""
    common = math.lcm(x.constant, y.constant)
    numerator = x.numerator.times(common // x.constant) | y.numerator.times(common // y.constant)
    return Fraction(_alike(()), numerator, x.denominator | y.denominator, common)


def _merged(x: Fraction, y: Fraction) -> Fraction:
    """The product: its denominators are those of x times those of y, told apart by both."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    if x.family is None or y.family is None:
        source = x if y.family is None else y
        ids, family = np.broadcast_to(source.ids, shape), source.family
    else:
        left, right = np.broadcast_arrays(_core(x.ids), _core(y.ids))
        ids, family = np.broadcast_to(_told_apart(left, right), shape), object()
    constant, elements = x.constant * y.constant, max(x.elements, y.elements)
    return Fraction(ids, x.numerator * y.numerator, x.denominator * y.denominator, constant, family, elements)


# --- arrays of numbers, most of whose dimensions are repetitions that occupy no memory ---------------------------------


def _alike(shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.int64(0), shape)


def _numbered(shape: tuple[int, ...]) -> Array:
    return np.arange(math.prod(shape)).reshape(shape)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(1 if dim == axis else size for dim, size in enumerate(shape))


def _core(ids: Array) -> Array:
    """The array with dimensions that only repeat cut to size 1."""
    return ids[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in ids.strides)]


def _told_apart(x: Array, y: Array) -> Array:
    """Numbers of the pairs of elements of two arrays of one shape; sorting the pairs themselves takes some ten times as long."""
    (_, first), (_, second) = (np.unique(each.reshape(-1), return_inverse=True) for each in (x, y))
    _, numbers = np.unique(first * (second.max(initial=0) + 1) + second, return_inverse=True)
    return numbers.reshape(x.shape)


def _shifted(ids: Array, by: int) -> Array:
    return np.broadcast_to(_core(ids) + by, ids.shape)


def _equal(x: Array, y: Array) -> bool:
    left, right = np.broadcast_arrays(_core(x), _core(y))
    return np.array_equal(left, right)


def _most_different(ids: Array, axis: int) -> int:
    """The largest number of different elements along an axis."""
    core = np.sort(_core(ids), axis=axis)
    return 1 + int(np.max(np.count_nonzero(np.diff(core, axis=axis), axis=axis), initial=0))
