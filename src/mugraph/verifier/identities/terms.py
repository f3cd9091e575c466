"""Real expressions with named axes: sums of monomials, where a monomial is a product of powers of atoms and one exponential.

    polynomial = sum of coefficient * monomial        monomial = product of atom**exponent * exp(polynomial)

Coefficients are rational. Exponents are multiples of 1/2: x**(1/2) is the root, and x**(3/2) is x * sqrt(x). An atom is a load of
an input, an integer (under a root), a polynomial in brackets, a sum or maximum over axes, or a function that stays as it is.
Equal expressions of this form have equal keys (SHA-256), by which they are compared and put in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

HALF = Fraction(1, 2)


class Axis(NamedTuple):
    """An axis of `size` elements: of an output (`kind` 0), bound by a reduction (1), or not named yet (2).

    `major` is the dimension of the output, or the height of the reduction over what it binds; `minor` tells apart the axes that
    one dimension or reduction has.
    """

    kind: int
    major: int
    minor: int
    size: int


Axes = frozenset[Axis]
Slots = tuple[tuple[Axis, ...], ...]
"""For each dimension of an input the axes it is the product of, slowest first (none for size 1)."""


@dataclass(frozen=True, slots=True, order=True)
class AxisAtom:
    """What is no product and no sum: 'load' (of input `number`), 'number', 'bracket', 'sum' or 'max' (over `axes`), or a row.

    `free` are the axes it depends on; `height` is how deeply reductions nest in it.
    """

    key: str
    op: str = field(compare=False)
    argument: Polynomial | None = field(compare=False, default=None)
    axes: Axes = field(compare=False, default=frozenset())
    number: int = field(compare=False, default=0)
    slots: Slots = field(compare=False, default=())
    free: Axes = field(compare=False, default=frozenset())
    height: int = field(compare=False, default=0)

    @property
    def operand(self) -> Polynomial:
        """The argument of a bracket, reduction or function."""
        assert self.argument is not None
        return self.argument


@dataclass(frozen=True, slots=True, order=True)
class AxisMonomial:
    """The product of `factors`, atoms with exponents other than 0 in the order of their keys, and exp(`exponent`)."""

    key: str
    factors: tuple[tuple[AxisAtom, Fraction], ...] = field(compare=False)
    exponent: Polynomial = field(compare=False)

    @property
    def free(self) -> Axes:
        return self.exponent.free.union(*(atom.free for atom, _ in self.factors))

    @property
    def height(self) -> int:
        return max((self.exponent.height, *(atom.height for atom, _ in self.factors)))


@dataclass(frozen=True, slots=True, order=True)
class Polynomial:
    """Monomials in the order of their keys, with coefficients other than 0."""

    key: str
    terms: tuple[tuple[AxisMonomial, Fraction], ...] = field(compare=False)
    free: Axes = field(compare=False)
    height: int = field(compare=False)

    @property
    def number(self) -> Fraction | None:
        """The value of a rational constant; None for anything else."""
        if not self.terms:
            return Fraction(0)
        (monomial, coefficient), *others = self.terms
        return coefficient if not others and monomial is UNIT else None

    @property
    def leading(self) -> Fraction:
        """The coefficient of the first monomial, 0 if there is none: of x and -x, one has it positive."""
        return self.terms[0][1] if self.terms else Fraction(0)


Product = tuple[Fraction, AxisMonomial]
"""A coefficient and a monomial."""


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def atom(op: str, argument: Polynomial | None = None, axes: Axes = frozenset(), number: int = 0, slots: Slots = ()) -> AxisAtom:
    """The atom, as it is: no rule is applied."""
    key = _key("atom", op, argument and argument.key, sorted(axes), number, tuple(tuple(map(tuple, slot)) for slot in slots))
    inside = frozenset(axis for slot in slots for axis in slot) if argument is None else argument.free - axes
    height = 0 if argument is None else argument.height + (1 if axes else 0)
    return AxisAtom(key, op, argument, axes, number, slots, inside, height)


def polynomial(terms: Iterable[tuple[AxisMonomial, Fraction]]) -> Polynomial:
    """The sum of these terms; terms of one monomial are put together."""
    total: dict[AxisMonomial, Fraction] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    kept = tuple(sorted((monomial, coefficient) for monomial, coefficient in total.items() if coefficient))
    free: Axes = frozenset[Axis]().union(*(monomial.free for monomial, _ in kept))
    height = max((monomial.height for monomial, _ in kept), default=0)
    return Polynomial(_key("sum", *((monomial.key, str(coefficient)) for monomial, coefficient in kept)), kept, free, height)


ZERO = Polynomial(_key("sum"), (), frozenset(), 0)
UNIT = AxisMonomial(_key("unit"), (), ZERO)
ONE = polynomial([(UNIT, Fraction(1))])


def monomial(factors: Mapping[AxisAtom, Fraction], exponent: Polynomial = ZERO) -> AxisMonomial:
    """The product of powers of atoms and an exponential."""
    kept = tuple(sorted((atom, power) for atom, power in factors.items() if power))
    if not kept and not exponent.terms:
        return UNIT
    return AxisMonomial(_key("product", [(atom.key, str(power)) for atom, power in kept], exponent.key), kept, exponent)


def constant(number: Fraction | int) -> Polynomial:
    """A rational number."""
    return polynomial([(UNIT, Fraction(number))]) if number else ZERO


def power_of(base: AxisAtom, power: Fraction = Fraction(1)) -> Polynomial:
    """An atom to a power."""
    return polynomial([(monomial({base: power}), Fraction(1))])


def single(x: Polynomial) -> Product | None:
    """The only term of a polynomial; None where there are none or several."""
    return (x.terms[0][1], x.terms[0][0]) if len(x.terms) == 1 else None


def lone_atom(x: Polynomial) -> tuple[Fraction, AxisAtom] | None:
    """Coefficient and atom where a polynomial is a multiple of an atom."""
    found = single(x)
    if found is None or found[1].exponent.terms or len(found[1].factors) != 1 or found[1].factors[0][1] != 1:
        return None
    return found[0], found[1].factors[0][0]


def add(*summands: Polynomial) -> Polynomial:
    """The sum."""
    return polynomial(term for summand in summands for term in summand.terms)


def scale(x: Polynomial, number: Fraction | int) -> Polynomial:
    """A rational multiple."""
    return x if number == 1 else polynomial((monomial, coefficient * number) for monomial, coefficient in x.terms)


def subtract(x: Polynomial, y: Polynomial) -> Polynomial:
    """The difference."""
    return add(x, scale(y, -1))


# --- products --------------------------------------------------------------------------------------------------------

Note = Callable[[str], None]
ROOT_SQUARED = "sqrt(x)^2 = x for x >= 0"
ABSOLUTE_SQUARED = "|x|^2 = x^2"


def silent(name: str) -> None:
    """Take no note of a rule."""


def times(x: Product, y: Product, note: Note = silent) -> Product:
    """The product of two terms: exponents of equal atoms and of exponentials are added."""
    powers: dict[AxisAtom, Fraction] = dict(x[1].factors)
    for factor, power in y[1].factors:
        before = powers.get(factor, Fraction(0))
        powers[factor] = before + power
        if before.denominator == power.denominator == 2 and factor.op != "number":
            note(ROOT_SQUARED)
    return _folded(x[0] * y[0], powers, add(x[1].exponent, y[1].exponent), note)


def to_power(x: Product, power: Fraction, note: Note = silent) -> Product:
    """A term to a whole power; the coefficient must not be 0."""
    assert power.denominator == 1
    powers = {factor: before * power for factor, before in x[1].factors}
    return _folded(x[0] ** int(power), powers, scale(x[1].exponent, power), note)


def _folded(coefficient: Fraction, powers: dict[AxisAtom, Fraction], exponent: Polynomial, note: Note) -> Product:
    """Whole powers of numbers go to the coefficient, even powers of |x| are those of x, and brackets of one term are opened."""
    for factor, power in list(powers.items()):
        inside = single(factor.operand) if factor.op == "bracket" and power.denominator == 1 and power else None
        if inside is not None:
            del powers[factor]
            return times((coefficient, monomial(powers, exponent)), to_power(inside, power, note), note)
        if factor.op == "number":
            whole = power.numerator // power.denominator
            coefficient *= Fraction(factor.number) ** whole
            powers[factor] = power - whole
        # by name: even powers need no bars
        elif factor.op == "abs" and power.denominator == 1 and power not in (0, 1):
            even = power - power % 2
            powers[factor] = power % 2
            ((inner, _),) = factor.operand.terms[0][0].factors
            powers[inner] = powers.get(inner, Fraction(0)) + even
            note(ABSOLUTE_SQUARED)
    return coefficient, monomial(powers, exponent)


def term(product: Product) -> Polynomial:
    """The polynomial of one term; a multiple of a bracket is opened."""
    coefficient, only = product
    if not coefficient:
        return ZERO
    if not only.exponent.terms and len(only.factors) == 1:
        ((factor, power),) = only.factors
        if factor.op == "bracket" and power == 1:
            return scale(factor.operand, coefficient)
    return polynomial([(only, coefficient)])


def distribute(x: Polynomial, y: Polynomial, note: Note = silent) -> Polynomial:
    """The product of two sums, term by term."""
    return add(*(term(times((c, m), (d, n), note)) for m, c in x.terms for n, d in y.terms))


def opened(product: Product, note: Note = silent) -> Polynomial:
    """A term, distributed over its first bracket that stands there once."""
    found = next((factor for factor, power in product[1].factors if factor.op == "bracket" and power == 1), None)
    return term(product) if found is None else opened_at(product, found, note)


def opened_at(product: Product, bracket: AxisAtom, note: Note = silent) -> Polynomial:
    """A term, distributed over one of its brackets, which stands there once."""
    rest = monomial({other: power for other, power in product[1].factors if other != bracket}, product[1].exponent)
    return distribute(term((product[0], rest)), bracket.operand, note)


MOST_TERMS = 16


def expanded(x: Polynomial, note: Note = silent) -> Polynomial:
    """The sum with products distributed over brackets that stand there once, as long as it stays short."""
    while True:
        wider = add(*(opened((coefficient, only), note) for only, coefficient in x.terms))
        if wider == x or len(wider.terms) > max(MOST_TERMS, len(x.terms)):
            return x
        x = wider
