"""Landmarks: operators that every graph of a program still needs, given one of its tensors.

What a tensor's abstract expression does not show did not happen while it was computed. If the program loads an input,
nests a square root or divides, and the expression does not, then such an operator stands elsewhere in every graph
that uses the tensor. Their number bounds from below what must come, so it never forbids a graph within an operator limit
(docs/theory.md, "Closures bounded by operators").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from mugraph.algebra import Expr
from mugraph.algebra.normal_form import ABSENT, Monomial
from mugraph.search.closure.saturation import Closure

DIVISION, EXPONENTIATION = "div", "exp"


@dataclass(frozen=True, slots=True)
class Features:
    """What an expression shows of the operators that made it.

    `variables` are the inputs in it, as bits; `nestings` how deep each kind of non-linear operator is nested, in the order
    of `Landmarks.kinds`; `reduced` whether anything was summed over; `spread` the inputs that occur more often in one monomial
    than in another that it was added to.
    """

    variables: int
    nestings: tuple[int, ...]
    reduced: bool = False
    spread: int = 0

    def joined(self, other: Features) -> Features:
        """What a product of two tensors shows."""
        deepest = tuple(map(max, self.nestings, other.nestings))
        variables, spread = self.variables | other.variables, self.spread | other.spread
        return Features(variables, deepest, self.reduced or other.reduced, spread)


class Landmarks:
    """Lower bounds on the operators that graphs of a closure's program have outside the derivation of a tensor.

    A concat-matmul counts as the two products and the sum it stands for.
    """

    def __init__(self, closure: Closure) -> None:
        expressions = closure.expressions
        self._algebra = expressions.algebra
        self._forms = self._algebra.forms
        self._scalars = expressions.constants
        levels = expressions.oracle.levels
        monomials = [self._forms.monomials[term] for level in levels for term, _ in self._forms.terms[level]]
        kinds = {kind for monomial in monomials for kind, _ in self._nested(monomial)}
        self._sums_count = not self._scalars and EXPONENTIATION not in kinds
        if any(self._scaled_quotient(monomial) for monomial in monomials):
            kinds.discard(DIVISION)
        self.kinds = tuple(sorted(kinds))
        self.features = cache(self._features)
        self._missing = cache(self._count_missing)
        self.after = cache(self._after)
        self.goal = self._nothing()
        for term, _ in closure.program.outputs:
            self.goal = self.goal.joined(self.features(expressions.of_terms[term]))
        self._two_sums = any(self._own_spread(level) and self.goal.spread & ~self.features(level).variables for level in levels)

    def outside(self, expr: Expr) -> int:
        """How many operators of any graph with this tensor take no part in computing it, at least."""
        return self._missing(self.features(expr))

    def _after(self, op: str, left: Features, right: Features) -> int:
        """How many operators of any graph that joins two tensors by `op` neither make them nor join them, at least."""
        both = left.joined(right)
        result = both.joined(self._deeper(op, right if op == DIVISION else both))
        missing = self._missing(replace(result, reduced=result.reduced or op == "mul"))
        return missing - (op in ("add", "sub") and self._missing_sums(both) > 0)

    def _count_missing(self, features: Features) -> int:
        loads = (self.goal.variables & ~features.variables).bit_count()
        nested = sum(max(0, wanted - found) for wanted, found in zip(self.goal.nestings, features.nestings, strict=True))
        return loads + nested + (self.goal.reduced and not features.reduced) + self._missing_sums(features)

    def _missing_sums(self, features: Features) -> int:
        """Additions to come: one for an input that is nowhere spread, and one among operands without that input."""
        if not self._sums_count or not self.goal.spread & ~features.spread:
            return 0
        return 2 if self._two_sums and not features.spread else 1

    def _nothing(self) -> Features:
        return Features(0, (0,) * len(self.kinds))

    def _features(self, expr: Expr) -> Features:
        result = replace(self._nothing(), spread=self._own_spread(expr))
        for term, _ in self._forms.terms[expr]:
            monomial = self._forms.monomials[term]
            variables = sum(1 << source for source in self._degrees(monomial))
            own = replace(self._nothing(), variables=variables, reduced=monomial.factor > 1)
            result = result.joined(own)
            for kind, parts in self._nested(monomial):
                for inner in map(self.features, parts):
                    result = result.joined(inner)
                    if inner.variables and self._scalars.isdisjoint(parts):
                        result = result.joined(self._deeper(kind, inner))
        return result

    def _own_spread(self, expr: Expr) -> int:
        """The inputs that not all monomials of an expression have equally often."""
        degrees = [self._degrees(self._forms.monomials[term]) for term, _ in self._forms.terms[expr]]
        sources = set().union(*degrees)
        return sum(1 << source for source in sources if len({degree[source] for degree in degrees}) > 1)

    def _degrees(self, monomial: Monomial) -> Counter[int]:
        """How often each input is a factor of a monomial."""
        atoms = self._forms.factor_atoms(monomial.atoms)
        return Counter(int(self._algebra.input_of(atom).removeprefix("x")) for atom in atoms if atom.kind == "variable")

    def _deeper(self, kind: str, inner: Features) -> Features:
        """What an operator of this kind shows when applied to a tensor that shows `inner`."""
        nestings = tuple(depth + (kind == name) for name, depth in zip(self.kinds, inner.nestings, strict=True))
        return replace(inner, nestings=nestings)

    def _nested(self, monomial: Monomial) -> Iterator[tuple[str, tuple[Expr, ...]]]:
        """The non-linear operators on top of a monomial, and the expressions they apply to."""
        for kind, part in ((EXPONENTIATION, monomial.exponent), ("sqrt", monomial.radicand), (DIVISION, monomial.denominator)):
            if part != ABSENT:
                yield kind, (part,)
        for atom in self._forms.factor_atoms(monomial.atoms):
            if atom.kind == "opaque":
                yield atom.name, atom.args

    def _scaled_quotient(self, monomial: Monomial) -> bool:
        """Whether a constant is divided by something: where it may be, a division can be a scaling, which is free."""
        scalars = {self._forms.terms[scalar][0][0] for scalar in self._scalars}
        atoms = [self._forms.monomials[term].atoms for term in scalars]
        return monomial.denominator != ABSENT and any(monomial.atoms % prime == 0 for prime in atoms)
