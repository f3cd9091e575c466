"""The identities: for each function, rules in the order in which they are tried.

Every rule is an equation of real numbers that holds wherever its left side is defined; docs/theory.md ("Identities") has the list
with the reasons. The right side may be defined at more points, never at fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from mugraph.verifier.identities.algebra import IdentityAlgebra, Rule, exponential
from mugraph.verifier.identities.sign_facts import of_atom, of_power, sign, without_bars
from mugraph.verifier.identities.terms import (
    HALF,
    ONE,
    UNIT,
    ZERO,
    Axes,
    AxisAtom,
    AxisMonomial,
    Polynomial,
    Product,
    add,
    atom,
    constant,
    expanded,
    lone_atom,
    monomial,
    polynomial,
    power_of,
    scale,
    single,
    subtract,
    term,
    to_power,
)

_MOST_POWERS = 8
_FACTORED = 1 << 20
"""Integers are divided by numbers up to the root of this."""


# --- functions that are written by others ----------------------------------------------------------------------------


def _relu(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    return scale(add(x, algebra.apply("abs", x)), HALF)


def _sigmoid(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    raised = algebra.apply("exp", x)
    return algebra.divide(raised, add(ONE, raised))


def _silu(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    return algebra.multiply(x, algebra.apply("sigmoid", x))


def _tanh(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    return subtract(scale(algebra.apply("sigmoid", scale(x, 2)), 2), ONE)


def _log1p(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    return algebra.apply("log", add(ONE, x))


def _expm1(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    return subtract(algebra.apply("exp", x), ONE)


def _gelu(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    return add(x, algebra.apply("gelu", scale(x, -1))) if expanded(x).leading < 0 else None


# --- absolute values and roots ---------------------------------------------------------------------------------------


def _abs(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    """The product of the absolute values of the factors, without bars where the sign is known."""
    known = sign(x)
    if known.never_negative or not known.positive:
        return x if known.never_negative else scale(x, -1)
    coefficient, only = algebra.factored(x)
    result = term((abs(coefficient), monomial({}, only.exponent)))
    for factor, power in only.factors:
        if of_power(factor, power).never_negative:
            bare = power_of(factor, power)
        elif not of_atom(factor).positive:
            bare = scale(power_of(factor, power), -1)
        else:
            bare = algebra.power(power_of(atom("abs", power_of(factor))), power)
        result = algebra.multiply(result, bare)
    return result


def _sqrt(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    """Even powers and exponentials come out of a root; even powers of what may be 0 only if the rest cannot be negative."""
    coefficient, only = algebra.factored(x)
    odd = {factor: power for factor, power in only.factors if power.denominator == 2 or power % 2}
    settled = coefficient >= 0 and all(of_power(*factor).never_negative for factor in odd.items())
    if not odd and not settled:
        return power_of(atom("bracket", x), HALF)  # of a negative number: it has no value
    result = exponential(scale(only.exponent, HALF)) if only.exponent.terms else ONE
    for factor, power in only.factors:
        if factor in odd:
            continue
        if not settled and power > 0 and not of_power(factor, power).always_positive:
            odd[factor] = power
            continue
        result = algebra.multiply(result, algebra.power(algebra.apply("abs", power_of(factor)), power / 2))
    if not odd:
        return algebra.multiply(result, root_of_number(coefficient))
    return algebra.multiply(result, _root_of_rest(coefficient, monomial(odd)))


def _root_of_rest(coefficient: Fraction, only: AxisMonomial) -> Polynomial:
    if coefficient and all(power == -1 for _, power in only.factors):
        return power_of(atom("bracket", term(to_power((coefficient, only), Fraction(-1)))), -HALF)
    if coefficient == 1 and len(only.factors) == 1 and only.factors[0][1].denominator == 1 and abs(only.factors[0][1]) == 1:
        ((factor, power),) = only.factors
        return power_of(factor, power / 2)
    return power_of(atom("bracket", term((coefficient, only))), HALF)


def root_of_number(number: Fraction) -> Polynomial:
    """The root of a rational number that is not negative: a rational number times roots of integers without square factors."""
    whole = number.numerator * number.denominator
    if not whole:
        return ZERO
    outside = Fraction(1, number.denominator)
    powers: dict[AxisAtom, Fraction] = {}
    for prime, count in prime_powers(whole):
        outside *= prime ** (count // 2)
        if count % 2:
            powers[atom("number", number=prime)] = HALF
    return term((outside, monomial(powers)))


def prime_powers(number: int) -> list[tuple[int, int]]:
    """Primes with their exponents in a positive integer; what has only large factors counts as a prime or the square of one."""
    found, factor = [], 2
    while factor * factor <= min(number, _FACTORED):
        count = 0
        while number % factor == 0:
            number, count = number // factor, count + 1
        if count:
            found.append((factor, count))
        factor += 1
    root = math.isqrt(number)
    if number > 1:
        found.append((root, 2) if root * root == number else (number, 1))
    return found


# --- exponentials and logarithms -------------------------------------------------------------------------------------


def _exp_of_log(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    """exp(c log(x) + y) as x**c exp(y): arguments of logarithms are positive, so those with halves go under one root."""
    x, whole, halves = expanded(x), ONE, ONE
    logs = [(found[1].operand, found[0], each) for each in x.terms if (found := _logarithm(each)) is not None]
    if not logs:
        return None
    rooted = any(power.denominator == 2 for _, power, _ in logs)
    for argument, power, _ in logs:
        if rooted and (power.denominator == 2 or argument.number is not None):
            halves = algebra.multiply(halves, algebra.power(argument, 2 * power))
        else:
            whole = algebra.multiply(whole, algebra.power(argument, power))
    rest = subtract(x, polynomial(each for _, _, each in logs))
    return algebra.product(whole, algebra.apply("sqrt", halves), algebra.apply("exp", rest))


def _logarithm(each: tuple[AxisMonomial, Fraction]) -> tuple[Fraction, AxisAtom] | None:
    """Coefficient and atom of a term that is a small multiple of 1/2 times a logarithm."""
    found = lone_atom(polynomial([each]))
    # by name: an identity of logarithms
    if found is None or found[1].op != "log" or found[0].denominator > 2 or abs(found[0]) > _MOST_POWERS:
        return None
    return found


def _exp(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial:
    return exponential(expanded(x))


def _log(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    """The logarithms of the factors, as far as these must be positive where the whole is: at most one other is left whole."""
    coefficient, only = algebra.factored(x)
    if coefficient <= 0 and not only.factors:
        return None
    even = {f: p for f, p in only.factors if p.denominator == 1 and p % 2 == 0}
    doubtful = {f: p for f, p in only.factors if f not in even and p.denominator == 1 and of_atom(f).negative}
    parts = [only.exponent] if only.exponent.terms else []
    if coefficient < 0 or len(doubtful) > 1:
        rest = term((Fraction(1 if coefficient > 0 else -1), monomial(doubtful)))
        parts.append(power_of(atom("log", rest)))
    else:
        parts += [scale(_log_of_atom(algebra, factor), power) for factor, power in doubtful.items()]
    for factor, power in only.factors:
        if factor in even and of_atom(factor).negative:
            parts.append(scale(_log_of_atom(algebra, atom("abs", power_of(factor))), power))
        elif factor not in doubtful:
            parts.append(scale(_log_of_atom(algebra, factor), power))
    return add(*parts, log_of_number(abs(coefficient)))


def _log_of_atom(algebra: IdentityAlgebra, factor: AxisAtom) -> Polynomial:
    if factor.op == "bracket" and single(factor.operand) is not None:
        return algebra.apply("log", factor.operand)
    if factor.op == "number":
        return log_of_number(Fraction(factor.number))
    return power_of(atom("log", factor.operand if factor.op == "bracket" else power_of(factor)))


def log_of_number(number: Fraction) -> Polynomial:
    """The logarithm of a positive rational number, as a sum over primes."""
    powers = [(p, c) for p, c in prime_powers(number.numerator)] + [(p, -c) for p, c in prime_powers(number.denominator)]
    return add(*(scale(power_of(atom("log", constant(prime))), count) for prime, count in powers))


# --- reductions ------------------------------------------------------------------------------------------------------


def _other_axes(algebra: IdentityAlgebra, op: str, x: Polynomial, axes: Axes) -> Polynomial | None:
    kept = axes & x.free
    if kept == axes:
        return None
    return algebra.apply(op, x, kept) if kept else x


def _max_of_repeats(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    return _other_axes(algebra, "max", x, axes)


def _sum_of_repeats(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    found = _other_axes(algebra, "sum", x, axes)
    return None if found is None else scale(found, math.prod(axis.size for axis in axes - x.free))


def _merged(op: str, algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    found = lone_atom(x)
    # by name: a negative factor turns a maximum into a minimum
    if found is None or found[1].op != op or (op == "max" and found[0] <= 0):
        return None
    return scale(algebra.apply(op, found[1].operand, axes | found[1].axes), found[0])


def _nested_sum(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    return _merged("sum", algebra, x, axes)


def _nested_max(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    return _merged("max", algebra, x, axes)


def _sum_of_multiples(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    product = algebra.factored(x) if single(x) is None else single(x)
    assert product is not None
    outside, inside = _split(product, axes)
    if outside == (Fraction(1), UNIT):
        return None
    return algebra.multiply(term(outside), algebra.apply("sum", term(inside), axes))


def _sum_of_nothing(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    return None if x.terms else ZERO


def _max_of_sums(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    x = expanded(x)
    still = polynomial((only, c) for only, c in x.terms if only.free.isdisjoint(axes))
    return add(still, algebra.apply("max", subtract(x, still), axes)) if still.terms else None


def _max_of_multiples(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    product = algebra.factored(x)
    outside, inside = _split(product, axes, nonnegative=True)
    if outside == (Fraction(1), UNIT):
        return None
    return algebra.multiply(term(outside), algebra.apply("max", term(inside), axes))


def _split(product: Product, axes: Axes, nonnegative: bool = False) -> tuple[Product, Product]:
    """A product as what does not vary along the axes, and if asked for is not negative, times the rest."""
    coefficient, only = product
    still = {f: p for f, p in only.factors if f.free.isdisjoint(axes) and (not nonnegative or of_power(f, p).never_negative)}
    exponents = [(m, c) for m, c in only.exponent.terms if m.free.isdisjoint(axes)]
    outside = abs(coefficient) if nonnegative else coefficient, monomial(still, polynomial(exponents))
    moving = {f: p for f, p in only.factors if f not in still}
    return outside, (coefficient / outside[0], monomial(moving, subtract(only.exponent, polynomial(exponents))))


def _max_of_increasing(algebra: IdentityAlgebra, x: Polynomial, axes: Axes) -> Polynomial | None:
    """The maximum of an increasing function is the function of the maximum."""
    rectified = _rectified(x)
    if rectified is not None:
        return algebra.apply("relu", algebra.apply("max", rectified, axes))
    found = single(x)
    if found is None or abs(found[0]) != 1:
        return None
    coefficient, only = found
    if not only.factors:  # of exp, or of -exp
        inner = scale(algebra.apply("max", scale(only.exponent, coefficient), axes), coefficient)
        return scale(algebra.apply("exp", inner), coefficient)
    if only.exponent.terms:
        return _max_of_fraction(algebra, found, axes)
    if len(only.factors) > 1:
        return None
    ((factor, power),) = only.factors
    # by name: an identity of logarithms
    if factor.op == "log" and power == 1 and coefficient == 1:
        return algebra.apply("log", algebra.apply("max", factor.operand, axes))
    inside = factor.operand if factor.op == "bracket" else power_of(factor)
    if power % 2 == 0 and of_atom(factor).negative:
        inside = algebra.apply("abs", inside)
    elif power == 1 or (power.denominator == 1 and of_atom(factor).negative):
        return None
    return _max_of_power(algebra, inside, power, coefficient, axes)


def _max_of_power(algebra: IdentityAlgebra, x: Polynomial, power: Fraction, side: Fraction, axes: Axes) -> Polynomial | None:
    """max(side x**power) for x >= 0."""
    direction = side if power > 0 else -side
    inner = scale(algebra.apply("max", scale(x, direction), axes), direction)
    return scale(algebra.power(inner, power), side)


def _max_of_fraction(algebra: IdentityAlgebra, product: Product, axes: Axes) -> Polynomial | None:
    """max(exp(g) / x) as that of 1 / (exp(-g) x), for sums x that are positive."""
    coefficient, only = product
    if any(power > 0 or power.denominator > 1 or not of_atom(factor).always_positive for factor, power in only.factors):
        return None
    inverse = monomial({factor: -power for factor, power in only.factors}, scale(only.exponent, -1))
    denominator = expanded(term((Fraction(1), inverse)))
    if len(denominator.terms) < 2:
        return None
    return _max_of_power(algebra, denominator, Fraction(-1), coefficient, axes)


def _rectified(x: Polynomial) -> Polynomial | None:
    """The y for which x is relu(y)."""
    x = expanded(x)
    for only, coefficient in x.terms:
        inner = without_bars(only)
        if inner is None or coefficient <= 0:
            continue
        rest = subtract(x, polynomial([(only, coefficient)]))
        for side in (coefficient, -coefficient):
            if rest == scale(inner, side):
                return scale(inner, 2 * side)
    return None


RULES: Mapping[str, tuple[Rule, ...]] = {
    "relu": (Rule("relu(x) = (x + |x|)/2", _relu),),
    "sigmoid": (Rule("sigmoid(x) = exp(x)/(1 + exp(x))", _sigmoid),),
    "silu": (Rule("silu(x) = x sigmoid(x)", _silu),),
    "tanh": (Rule("tanh(x) = 2 sigmoid(2x) - 1", _tanh),),
    "log1p": (Rule("log1p(x) = log(1 + x)", _log1p),),
    "expm1": (Rule("expm1(x) = exp(x) - 1", _expm1),),
    "gelu": (Rule("gelu(-x) = gelu(x) - x", _gelu),),
    "abs": (Rule("|x y| = |x| |y|, |x| = x for x >= 0, |x| = -x for x <= 0", _abs),),
    "sqrt": (Rule("sqrt(x^2 y) = |x| sqrt(y) for y >= 0, sqrt(exp(x) y) = exp(x/2) sqrt(y)", _sqrt),),
    "exp": (Rule("exp(c log(x) + y) = x^c exp(y) for x > 0", _exp_of_log), Rule("", _exp)),
    "log": (Rule("log(x y) = log(x) + log(y) for x, y > 0, log(x^2) = 2 log(|x|), log(exp(x)) = x", _log),),
    "sum": (
        Rule("", _sum_of_nothing),
        Rule("sum(x) = n x over n repeats", _sum_of_repeats),
        Rule("sums of sums are sums", _nested_sum),
        Rule("sum(c x) = c sum(x) for c the same along the axes", _sum_of_multiples),
    ),
    "max": (
        Rule("max(x) = x over repeats", _max_of_repeats),
        Rule("maxima of maxima are maxima", _nested_max),
        Rule("max(x + c) = max(x) + c for c the same along the axes", _max_of_sums),
        Rule("max(c x) = c max(x) for c >= 0 the same along the axes", _max_of_multiples),
        Rule("max(f(x)) = f(max(x)) for increasing f", _max_of_increasing),
    ),
}
