"""Arithmetic of expressions in normal form, and the functions that rules rewrite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from mugraph.errors import UnsupportedOperator
from mugraph.verifier.identities.sign_facts import without_bars
from mugraph.verifier.identities.terms import (
    MOST_TERMS,
    ONE,
    UNIT,
    ZERO,
    Axes,
    Axis,
    AxisAtom,
    AxisMonomial,
    Polynomial,
    Product,
    add,
    atom,
    expanded,
    lone_atom,
    monomial,
    opened_at,
    polynomial,
    power_of,
    scale,
    single,
    subtract,
    term,
    times,
    to_power,
)

_MOST_STEPS = 20_000
_MOST_TURNS = 8
"""Rounds in which common factors are taken out of a sum: few are needed, since what is left has none."""
_RECTIFIED = "x relu(x) = |x| relu(x) = relu(x)^2"
_EVEN = "1 + exp(|x|) = exp((|x| - x)/2) (1 + exp(x))"


@dataclass(frozen=True, slots=True)
class Rule:
    """An identity by which applications of one function are rewritten: `rewrite` gives the other side where it applies.

    `name` is the identity in words, with its condition. It is exact wherever the application is defined.
    """

    name: str
    rewrite: Callable[[IdentityAlgebra, Polynomial, Axes], Polynomial | None]


@dataclass(slots=True)
class IdentityAlgebra:
    """Expressions under a table of rules, tried in order for each function; `used` are the names of those that were applied."""

    rules: Mapping[str, tuple[Rule, ...]]
    used: dict[str, None] = field(default_factory=dict)
    steps: int = 0

    def step(self) -> None:
        """Count a step. Raises UnsupportedOperator where there were too many."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise UnsupportedOperator("a program that takes too long to be brought into normal form")

    def note(self, name: str) -> None:
        """Remember that a rule was used."""
        self.used[name] = None

    # --- arithmetic ---

    def multiply(self, x: Polynomial, y: Polynomial) -> Polynomial:
        """The product; factors that are sums stay in brackets."""
        self.step()
        for number, other in ((x.number, y), (y.number, x)):
            if number is not None:
                return scale(other, number)
        return self.settled(times(single(x) or self.factored(x), single(y) or self.factored(y), self.note))

    def divide(self, x: Polynomial, y: Polynomial) -> Polynomial:
        """The quotient. Raises ZeroDivisionError for a denominator that is 0."""
        denominator = self.factored(y)
        if not denominator[0]:
            raise ZeroDivisionError("a denominator is 0")
        inverse = to_power(denominator, Fraction(-1), self.note)
        return self.settled(times(single(x) or self.factored(x), inverse, self.note)) if x.terms else ZERO

    def product(self, *factors: Polynomial) -> Polynomial:
        """The product of several."""
        result = ONE
        for factor in factors:
            result = self.multiply(result, factor)
        return result

    def power(self, x: Polynomial, exponent: Fraction) -> Polynomial:
        """A multiple of 1/2 as a power, as sqrt(x)**(2 exponent)."""
        if exponent.denominator == 2:
            return self.power(self.apply("sqrt", x), 2 * exponent)
        if exponent < 0:
            return self.divide(ONE, self.power(x, -exponent))
        return self.settled(to_power(single(x) or self.factored(x), exponent, self.note)) if exponent else ONE

    def settled(self, product: Product) -> Polynomial:
        """A product as a polynomial, after what its factors say of each other."""
        for factor, power in product[1].factors:
            if factor.op == "bracket" and power == 1 and any(_shares_exponential(factor, *other) for other in product[1].factors):
                parts = opened_at(product, factor, self.note)
                return add(*(self.settled((coefficient, only)) for only, coefficient in parts.terms))
        return term(self.rectified(product))

    def rectified(self, product: Product) -> Product:
        """A product in which no x or |x| stands beside relu(x)."""
        coefficient, only = product
        powers = dict(only.factors)
        for factor, _ in only.factors:
            found = rectifier(factor)
            if found is None:
                continue
            inner, side, bars_side = found
            bars = atom("abs", power_of(inner))
            for neighbour, number in ((inner, side), (bars, bars_side)):
                count = powers.get(neighbour, Fraction(0))
                if count >= 1 and count.denominator == 1 and powers[factor].denominator == 1 and powers[factor] > 0:
                    coefficient *= (Fraction(number) / 2) ** int(count)
                    powers[factor] += count
                    del powers[neighbour]
                    self.note(_RECTIFIED)
        return coefficient, monomial(powers, only.exponent)

    # --- factors ---

    def factored(self, x: Polynomial) -> Product:
        """A polynomial as one product: common factors are taken out of its terms, and the rest is a bracket if it is a sum.

        The bracket has coefficients without a common divisor, the first of them positive, and of its exponentials one is 1.
        """
        self.step()
        outside: Product = (Fraction(1), UNIT)
        for _ in range(_MOST_TURNS):
            x = expanded(x, self.note)
            only = single(x)
            if only is not None or not x.terms:
                return (Fraction(0), UNIT) if only is None else times(outside, only, self.note)
            common = _common(x)
            if common[1] == UNIT:
                break
            outside = times(outside, common, self.note)
            inverse = to_power(common, Fraction(-1), self.note)
            x = polynomial_of(times((c, m), inverse, self.note) for m, c in x.terms)
        content = _content(x)
        x, outside = scale(x, 1 / content), (outside[0] * content, outside[1])
        mirrored = self.mirrored(x)
        return times(outside, mirrored or (Fraction(1), monomial({atom("bracket", x): Fraction(1)})), self.note)

    def mirrored(self, x: Polynomial) -> Product | None:
        """1 + exp(|y|) as a product without bars; None for anything else."""
        exponent = _beside_one(x)
        only = None if exponent is None else single(exponent)
        if only is None or only[0] < 0:
            return None
        inner = without_bars(only[1])
        if inner is None:
            return None
        self.note(_EVEN)
        inner = scale(inner, only[0])
        outside = monomial({}, scale(subtract(term(only), inner), Fraction(1, 2)))
        return times((Fraction(1), outside), self.factored(add(ONE, term((Fraction(1), monomial({}, inner))))), self.note)

    # --- functions and reductions ---

    def apply(self, op: str, x: Polynomial, axes: Axes = frozenset()) -> Polynomial:
        """A function of x, or its reduction over axes: rewritten by the first rule that applies, otherwise as it is."""
        self.step()
        for rule in self.rules.get(op, ()):
            result = rule.rewrite(self, x, axes)
            if result is not None:
                if rule.name and lone_atom(result) != (Fraction(1), atom(op, x)):
                    self.note(rule.name)
                return result
        return power_of(self.bound(op, x, axes) if axes else atom(op, expanded(x)))

    def bound(self, op: str, x: Polynomial, axes: Axes) -> AxisAtom:
        """A reduction whose axes are named by what it reduces, so that equal ones are equal."""
        order = sorted(axes, key=lambda axis: (axis.size, _places(x, axis), axis))
        names = {axis: Axis(1, x.height + 1, number, axis.size) for number, axis in enumerate(order)}
        body = self.renamed(x, names)
        if body.height > x.height:  # its own axes could then have the names of those around them
            raise UnsupportedOperator("reductions that nest deeper under other names")
        return atom(op, body, frozenset(names.values()))

    def renamed(self, x: Polynomial, names: Mapping[Axis, Axis]) -> Polynomial:
        """The same expression of other axes."""
        if x.free.isdisjoint(names) or all(old == new for old, new in names.items()):
            return x
        return add(*(scale(self._renamed_monomial(only, names), coefficient) for only, coefficient in x.terms))

    def _renamed_monomial(self, only: AxisMonomial, names: Mapping[Axis, Axis]) -> Polynomial:
        result = term((Fraction(1), monomial({}, self.renamed(only.exponent, names))))
        for factor, power in only.factors:
            moved = self._renamed_atom(factor, names)
            result = self.multiply(result, self.power(moved, power))
        return result

    def _renamed_atom(self, x: AxisAtom, names: Mapping[Axis, Axis]) -> Polynomial:
        if x.free.isdisjoint(names):
            return power_of(x)
        if x.op == "load":
            slots = tuple(tuple(names.get(axis, axis) for axis in slot) for slot in x.slots)
            return power_of(atom("load", number=x.number, slots=slots))
        inside = self.renamed(x.operand, names)
        if x.op == "bracket":
            return inside
        return self.apply(x.op, inside, x.axes)


def polynomial_of(products: Iterable[Product]) -> Polynomial:
    """The sum of products."""
    return add(*(term(product) for product in products))


def exponential(x: Polynomial) -> Polynomial:
    """exp(x), as it is."""
    return polynomial([(monomial({}, x), Fraction(1))])


def rectifier(bracket: AxisAtom) -> tuple[AxisAtom, Fraction, Fraction] | None:
    """(x, s, t) for a bracket s x + t |x|, where x is an atom and s and t are 1 or -1."""
    if bracket.op != "bracket":
        return None
    for only, coefficient in bracket.operand.terms:
        bars = polynomial([(only, coefficient)])
        found = lone_atom(bars)
        # by name: an identity of absolute values
        if found is None or found[1].op != "abs" or abs(coefficient) != 1:
            continue
        inner = found[1].operand.terms[0][0].factors[0][0]
        rest = subtract(bracket.operand, bars)
        for side in (Fraction(1), Fraction(-1)):
            if rest == term((side, monomial({inner: Fraction(1)}))):
                return inner, side, coefficient
    return None


def logistic(denominator: AxisAtom) -> Polynomial | None:
    """The g for which a bracket is 1 + exp(g)."""
    return _beside_one(denominator.operand) if denominator.op == "bracket" else None


def _beside_one(x: Polynomial) -> Polynomial | None:
    """The g for which x is 1 + exp(g)."""
    if len(x.terms) != 2 or any(only.factors or coefficient != 1 for only, coefficient in x.terms):
        return None
    exponents = [only.exponent for only, _ in x.terms if only != UNIT]
    return exponents[0] if len(exponents) == 1 else None


def _shares_exponential(bracket: AxisAtom, factor: AxisAtom, power: Fraction) -> bool:
    """Whether a factor 1 / (1 + exp(g)) stands beside a sum that has exponentials, too."""
    return power < 0 and logistic(factor) is not None and any(only.exponent.terms for only, _ in bracket.operand.terms)


def _content(x: Polynomial) -> Fraction:
    """The number that makes the coefficients whole and without a common divisor, with the sign of the first."""
    numerators = [coefficient.numerator for _, coefficient in x.terms]
    denominators = [coefficient.denominator for _, coefficient in x.terms]
    content = Fraction(math.gcd(*numerators), math.lcm(*denominators))
    return content if x.leading > 0 else -content


def _common(x: Polynomial) -> Product:
    """The product of the least powers that the atoms have in the terms, and one of the exponentials."""
    least: dict[AxisAtom, Fraction] = {}
    for factor in {factor for only, _ in x.terms for factor, _ in only.factors}:
        least[factor] = min(dict(only.factors).get(factor, Fraction(0)) for only, _ in x.terms)
    whole = {factor: power for factor, power in least.items() if factor.op != "number"}
    return Fraction(1), monomial(whole, _common_exponent([only.exponent for only, _ in x.terms]))


def _common_exponent(exponents: list[Polynomial]) -> Polynomial:
    """The exponent to be taken out: by it, others are more than it as far as the order of keys can say so."""
    if len(exponents) > MOST_TERMS:
        return ZERO

    def rank(base: Polynomial) -> tuple[int, list[str]]:
        shifted = [subtract(exponent, base) for exponent in exponents]
        return sum(shift.leading < 0 for shift in shifted), sorted(shift.key for shift in shifted)

    return min(dict.fromkeys(exponents), key=rank)


def _places(x: Polynomial, axis: Axis) -> list[tuple[int, int, int]]:
    """Where an axis occurs: inputs, dimensions and places in them, sorted."""
    found: set[tuple[int, int, int]] = set()
    stack = [x]
    while stack:
        for only, _ in stack.pop().terms:
            stack.append(only.exponent)
            for factor, _ in only.factors:
                found.update((factor.number, d, s.index(axis)) for d, s in enumerate(factor.slots) if axis in s)
                stack.extend([factor.operand] if factor.argument is not None and axis in factor.free else [])
    return sorted(found)
