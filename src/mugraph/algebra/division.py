"""Exact division of monomials and of normal forms: the arithmetic behind the subexpression test.

Cancellation is no axiom, yet it holds: monomials form a cancellative, torsion-free monoid, so a quotient is
unique where it exists (theory.md, lemma 4), and long division by the leading monomial finds it without
backtracking.
"""

from __future__ import annotations

from collections.abc import Callable

from mugraph.algebra.normal_form import ABSENT, UNIT, Expr, ExpressionTooLarge, Monomial, NormalForms, Term


class Quotients:
    """Quotients in one interning context, memoised on numbers; `in_values` says which monomials expressions may have."""

    def __init__(self, forms: NormalForms, in_values: Callable[[Monomial], bool]) -> None:
        self._forms, self._in_values = forms, in_values
        self._quotients: dict[tuple[Term, Term], Term | None] = {}
        self._ratios: dict[tuple[Expr, Expr], Expr | None] = {}

    def quotient(self, term: Term, divisor: Term) -> Term | None:
        """The monomial m, proper or not, with `m * divisor == term`; None if there is none."""
        if divisor == UNIT:
            return term
        key = (term, divisor)
        try:
            return self._quotients[key]
        except KeyError:
            result = self._quotients[key] = self._divide_parts(term, divisor)
            return result

    def ratio(self, x: Expr, divisor: Expr) -> Expr | None:
        """The expression z with `z * divisor == x`, where ABSENT is one; None if there is none.

        A `z` is the value of some term: sqrt(x) does not divide sqrt(sum(n, x)).
        """
        if divisor == ABSENT:
            return x
        if x == divisor:
            return ABSENT
        key = (x, divisor)
        try:
            return self._ratios[key]
        except KeyError:
            result = self._ratios[key] = self._long_division(x, divisor)
            return result

    def difference(self, x: Expr, subtrahend: Expr) -> Expr | None:
        """The expression z with `z + subtrahend == x`, where ABSENT is zero; None if there is none."""
        if subtrahend == ABSENT:
            return x
        if x == subtrahend:
            return ABSENT
        taken = dict(self._forms.terms[subtrahend])
        rest = []
        for term, count in self._forms.terms[x]:
            left = count - taken.pop(term, 0)
            if left < 0:
                return None
            if left:
                rest.append((term, left))
        return None if taken else self._forms.intern_sum(tuple(rest))

    def _divide_parts(self, term: Term, divisor: Term) -> Term | None:
        a, b = self._forms.monomials[term], self._forms.monomials[divisor]
        if a.factor % b.factor or a.atoms % b.atoms:
            return None
        exponent = self.difference(a.exponent, b.exponent)
        if exponent is None:
            return None
        radicand = self.ratio(a.radicand, b.radicand)
        if radicand is None:
            return None
        denominator = self.ratio(a.denominator, b.denominator)
        if denominator is None:
            return None
        quotient = Monomial(a.factor // b.factor, a.atoms // b.atoms, exponent, radicand, denominator)
        return self._forms.intern_monomial(quotient)

    def _long_division(self, x: Expr, divisor: Expr) -> Expr | None:
        """Divide the greatest monomial left by the greatest of the divisor until nothing is left."""
        forms = self._forms
        if forms.totals[x] % forms.totals[divisor]:
            return None
        leading, leading_count = forms.terms[divisor][0]
        remainder = dict(forms.terms[x])
        result: list[tuple[Term, int]] = []
        for term, _ in forms.terms[x]:
            count = remainder[term]
            if not count:
                continue
            quotient = self.quotient(term, leading)
            if quotient is None or count % leading_count or not self._in_values(forms.monomials[quotient]):
                return None
            times = count // leading_count
            if not self._subtract(remainder, quotient, times, divisor):
                return None
            result.append((quotient, times))
        return forms.intern_sum(tuple(result)) if result else None

    def _subtract(self, remainder: dict[Term, int], quotient: Term, times: int, divisor: Expr) -> bool:
        """Take `times * quotient * divisor` out of `remainder`; False if it is not contained."""
        for term, count in self._forms.terms[divisor]:
            try:
                product = self._forms.product(quotient, term)
            except ExpressionTooLarge:
                return False  # larger than anything interned, so not contained
            left = remainder.get(product, 0) - times * count
            if left < 0:
                return False
            remainder[product] = left
        return True
