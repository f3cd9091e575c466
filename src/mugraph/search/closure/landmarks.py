"""Landmarks: operators that every graph of a program still needs, given one of its tensors.

What a tensor's abstract expression does not show did not happen while it was computed. If the program loads an input,
nests a square root or divides, and the expression does not, then such an operator stands elsewhere in every graph
that uses the tensor. Their number bounds from below what must come, so it never forbids a graph within an operator limit
(docs/theory.md, "Closures bounded by operators").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import starmap

from mugraph.algebra import Expr
from mugraph.algebra.normal_form import ABSENT, Monomial
from mugraph.search.closure.saturation import Closure
from mugraph.search.closure.stages import NOTHING, Arithmetic, Inputs, Stage, longest_chain

DIVISION, EXPONENTIATION = "div", "exp"


@dataclass(frozen=True, slots=True)
class Features:
    """What an expression shows of the operators that made it.

    `variables` are the inputs in it, as bits; `nestings` how deep each kind of non-linear operator is nested, in the order
    of `Landmarks.kinds`; `reduced` whether anything was summed over; `shown` what was done in each of `Landmarks.stages`.
    """

    variables: int
    nestings: tuple[int, ...]
    reduced: bool = False
    shown: tuple[Arithmetic, ...] = ()

    def joined(self, other: Features) -> Features:
        """What two tensors show together."""
        deepest = tuple(map(max, self.nestings, other.nestings))
        shown = tuple(starmap(Arithmetic.joined, zip(self.shown, other.shown, strict=True)))
        return Features(self.variables | other.variables, deepest, self.reduced or other.reduced, shown)


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
        outputs = [expressions.of_terms[term] for term, _ in closure.program.outputs]
        self._inputs = Inputs(closure.program, closure.context, self._algebra)
        self.stages: list[Stage] = []
        """Operators of one stage are none of another's."""
        if not self._scalars and EXPONENTIATION not in kinds:
            self.stages = longest_chain(self._inputs, levels, outputs)
        if any(self._scaled_quotient(monomial) for monomial in monomials):
            kinds.discard(DIVISION)
        self.kinds = tuple(sorted(kinds))
        self.features = cache(self._features)
        self._missing = cache(self._count_missing)
        self.after = cache(self._after)
        self.after_any = cache(self._after_any)
        self.goal = self._nothing()
        for output in outputs:
            self.goal = self.goal.joined(self.features(output))

    def outside(self, expr: Expr) -> int:
        """How many operators of any graph with this tensor take no part in computing it, at least."""
        return self._missing(self.features(expr))

    def _after(self, op: str, left: Features, right: Features) -> int:
        """How many operators of any graph that joins two tensors by `op` neither make them nor join them, at least."""
        both = left.joined(right)
        if op == DIVISION:
            return self._missing(both.joined(self._deeper(op, right)))
        if op == "mul" and not self.stages:
            return self._missing(replace(both, reduced=True))
        lacking = [stage.lacking(shown) for stage, shown in zip(self.stages, both.shown, strict=True)]
        counts = any(each.additions if op in ("add", "sub") else each.products or each.sums for each in lacking)
        return self._missing(both) - counts

    def _after_any(self, left: Features, right: Features) -> int:
        """The same for the operator of which the fewest are known, whichever operand is the first."""
        pairs = [(op, x, y) for op in ("add", "mul", DIVISION) for x, y in ((left, right), (right, left))]
        return min(starmap(self.after, pairs))

    def _count_missing(self, features: Features) -> int:
        loads = (self.goal.variables & ~features.variables).bit_count()
        nested = sum(max(0, wanted - found) for wanted, found in zip(self.goal.nestings, features.nestings, strict=True))
        if not self.stages:
            return loads + nested + (self.goal.reduced and not features.reduced)
        return loads + nested + sum(stage.operators(shown) for stage, shown in zip(self.stages, features.shown, strict=True))

    def _nothing(self) -> Features:
        return Features(0, (0,) * len(self.kinds), shown=(NOTHING,) * len(self.stages))

    def _features(self, expr: Expr) -> Features:
        monomials = [self._forms.monomials[term] for term, _ in self._forms.terms[expr]]
        factors = [self._inputs.factors(monomial) for monomial in monomials]
        result = replace(self._nothing(), shown=tuple(stage.shown(factors) for stage in self.stages))
        for monomial, inputs in zip(monomials, factors, strict=True):
            variables = sum(1 << source for source in inputs.degrees)
            result = result.joined(replace(self._nothing(), variables=variables, reduced=monomial.factor > 1))
            for kind, parts in self._nested(monomial):
                for inner in map(self.features, parts):
                    result = result.joined(inner)
                    if inner.variables and self._scalars.isdisjoint(parts):
                        result = result.joined(self._deeper(kind, inner))
        return result

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
