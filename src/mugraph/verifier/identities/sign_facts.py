"""What is known of the sign of an expression, wherever it is defined and whatever the inputs are."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mugraph.verifier.identities.terms import (
    ONE,
    ZERO,
    AxisAtom,
    AxisMonomial,
    Polynomial,
    expanded,
    monomial,
    scale,
    subtract,
    term,
)


@dataclass(frozen=True, slots=True)
class ExpressionSign:
    """Whether an expression may be negative, zero, positive."""

    negative: bool = False
    zero: bool = False
    positive: bool = False

    @property
    def never_negative(self) -> bool:
        """At least 0."""
        return not self.negative

    @property
    def always_positive(self) -> bool:
        """More than 0."""
        return not self.negative and not self.zero

    def __neg__(self) -> ExpressionSign:
        return ExpressionSign(self.positive, self.zero, self.negative)

    def __mul__(self, other: ExpressionSign) -> ExpressionSign:
        return ExpressionSign(
            (self.negative and other.positive) or (self.positive and other.negative),
            self.zero or other.zero,
            (self.positive and other.positive) or (self.negative and other.negative),
        )

    def __add__(self, other: ExpressionSign) -> ExpressionSign:
        negative, positive = self.negative or other.negative, self.positive or other.positive
        return ExpressionSign(negative, (negative and positive) or (self.zero and other.zero), positive)


UNKNOWN, NULL = ExpressionSign(True, True, True), ExpressionSign(zero=True)
POSITIVE, NONNEGATIVE = ExpressionSign(positive=True), ExpressionSign(zero=True, positive=True)


def of_number(number: Fraction) -> ExpressionSign:
    """The sign of a rational number."""
    return ExpressionSign(number < 0, number == 0, number > 0)


def sign(x: Polynomial) -> ExpressionSign:
    """The sign of a sum: that of its terms if they have one, or if absolute values outweigh what may be negative."""
    found = NULL
    for only, coefficient in x.terms:
        found = found + of_number(coefficient) * of_monomial(only)
    if found.never_negative or not found.positive:
        return found
    least = next((rest + NONNEGATIVE for rest in _besides(x) if rest.never_negative), None)
    most = next((rest + NONNEGATIVE for rest in _besides(scale(x, -1)) if rest.never_negative), None)
    return found if least is most is None else least or -(most or UNKNOWN)


def _besides(x: Polynomial) -> list[ExpressionSign]:
    """The signs of what is left of a sum without c (|y| + y), for each of these in it."""
    found = []
    for only, coefficient in x.terms:
        inner = without_bars(only)
        for side in () if inner is None or coefficient < 0 else (coefficient, -coefficient):
            part = expanded(subtract(x, term((coefficient, only))))
            rest = subtract(part, scale(inner or ZERO, side))
            if len(rest.terms) < len(part.terms):
                found.append(sign(rest))
    return found


def without_bars(only: AxisMonomial) -> Polynomial | None:
    """The y for which a monomial is |y|; None where it has no absolute value as a factor, or one of unknown sign."""
    powers: dict[AxisAtom, Fraction] = {}
    bars = False
    for factor, power in only.factors:
        # by name: what is known of absolute values
        if factor.op == "abs" and power == 1:
            ((factor, _),) = factor.operand.terms[0][0].factors
            bars = True
        elif not of_power(factor, power).never_negative:
            return None
        powers[factor] = powers.get(factor, Fraction(0)) + power
    return expanded(term((Fraction(1), monomial(powers, only.exponent)))) if bars else None


def of_monomial(only: AxisMonomial) -> ExpressionSign:
    """The sign of a product; exponentials are positive."""
    found = POSITIVE
    for factor, power in only.factors:
        found = found * of_power(factor, power)
    return found


def of_power(base: AxisAtom, power: Fraction) -> ExpressionSign:
    """The sign of an atom's power, where it is defined: roots are of numbers >= 0, and denominators are not 0."""
    inside = of_atom(base)
    even = power.denominator == 1 and power % 2 == 0
    found = ExpressionSign(False, inside.zero, True) if even or power.denominator == 2 else inside
    return ExpressionSign(found.negative, found.zero and power > 0, found.positive)


def of_atom(base: AxisAtom) -> ExpressionSign:
    """The sign of an atom."""
    # by name: what is known of the signs of these, of others nothing
    match base.op:
        case "number":
            return POSITIVE
        case "abs":
            inside = sign(base.operand)
            return ExpressionSign(False, inside.zero, inside.negative or inside.positive)
        case "bracket" | "max":
            return sign(base.operand)
        case "sum":
            return sign(base.operand) + sign(base.operand)
        case "log":
            return NONNEGATIVE if sign(subtract(base.operand, ONE)).never_negative else UNKNOWN
    return UNKNOWN
