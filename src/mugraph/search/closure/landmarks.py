"""Landmarks: operators that every graph of a program still needs, given one of its tensors.

What a tensor's abstract expression does not show did not happen while it was computed. If the program loads an input, nests a
square root or divides, and the expression does not, then such an operator stands elsewhere in every graph that uses the tensor.
Their number bounds from below what must come, so it never forbids a graph within an operator limit.

Additions, products and sums are counted by *stages*. Roots and divisions nest expressions, and what a root is taken of was
computed before. Where a program takes the length of a vector and then, with another input, that of a second one, every graph
computes both squares, and the sums and products in which the other input takes part are none of the first. A stage is such an
expression with an input that tells its operators from those of the stages before; the first one needs none (docs/theory.md,
"Closures bounded by operators").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import starmap

from mugraph.algebra import Expr, IndexedAlgebra
from mugraph.algebra.normal_form import ABSENT, Monomial
from mugraph.ir.axes import AxisProgram
from mugraph.search.closure.context import Context, bits
from mugraph.search.closure.saturation import Closure


@dataclass(frozen=True, slots=True)
class OperatorCounts:
    """Operators of one stage: additions and subtractions, products, sums over axes."""

    additions: int = 0
    products: int = 0
    sums: int = 0

    def joined(self, other: OperatorCounts) -> OperatorCounts:
        """What two tensors show together."""
        return OperatorCounts(
            max(self.additions, other.additions), max(self.products, other.products), max(self.sums, other.sums)
        )


NOTHING = OperatorCounts()


@dataclass(frozen=True, slots=True)
class Factors:
    """The inputs that are factors of a monomial, how often each; the axes each is bound along by the monomial's own sums,
    and the axes of these sums, with those summed over more than once."""

    degrees: Counter[int]
    bound: dict[int, int]
    summed: int
    again: int


class Inputs:
    """What a program's expressions say of its inputs."""

    def __init__(self, program: AxisProgram, context: Context, algebra: IndexedAlgebra) -> None:
        self._algebra, self._forms = algebra, algebra.forms
        self._masks: defaultdict[int, set[int]] = defaultdict(set)
        for _, load in program.loads():
            self._masks[load.source].add(context.mask(load.axes))
        self._reductions = [context.mask(axes) for axes in program.reductions]
        self.variables = cache(self._variables)

    def factors(self, monomial: Monomial) -> Factors:
        """The inputs that are factors of a monomial; those nested in it are not."""
        degrees: Counter[int] = Counter()
        bound: dict[int, int] = defaultdict(int)
        for atom in self._forms.factor_atoms(monomial.atoms):
            if atom.kind == "variable":
                occurrence = self._algebra.occurrence(atom)
                source = int(occurrence.name.removeprefix("x"))
                degrees[source] += 1
                bound[source] |= occurrence.inside
        summed = self._algebra.axes_of(monomial.factor)
        again = self._algebra.axes_of(monomial.factor // self._algebra.factor_of(summed))
        return Factors(degrees, bound, summed, again)

    def of_level(self, level: Expr) -> list[Factors]:
        """The inputs in each monomial of an expression."""
        return [self.factors(self._forms.monomials[term]) for term, _ in self._forms.terms[level]]

    def _variables(self, expr: Expr) -> int:
        """The inputs in an expression and all that is nested in it, as bits."""
        found = 0
        for term, _ in self._forms.terms[expr]:
            found |= sum(1 << source for source in self.factors(self._forms.monomials[term]).degrees)
            for part in self._forms.children(term):
                found |= self.variables(part)
        return found

    def contract(self, variables: int) -> bool:
        """Whether tensors made of some inputs may be contracted: both have the reduced axes, and they differ in others."""
        masks = set().union(*(self._masks[source] for source in bits(variables)))
        return len(masks) > 1 or sum(mask & reduced == reduced for mask in masks for reduced in self._reductions) > 1


@dataclass(frozen=True, slots=True)
class ExpressionStage:
    """An expression of which every graph computes a tensor with the same inputs as factors of its monomials.

    `variables` are the inputs in it; its own operators are those whose results have the input `own` (None: any) among them.
    """

    variables: int
    own: int | None
    contracts: bool
    wanted: OperatorCounts = field(default=NOTHING)

    def shown(self, level: Sequence[Factors]) -> OperatorCounts:
        """What an expression of these monomials shows of the stage, apart from what is nested in it."""
        return OperatorCounts(self._added(level), self._multiplied(level), self._summed(level))

    def lacking(self, shown: OperatorCounts) -> OperatorCounts:
        """The operators of the stage that are still to come."""
        wanted = self.wanted
        return OperatorCounts(
            max(0, wanted.additions - shown.additions),
            max(0, wanted.products - shown.products),
            max(0, wanted.sums - shown.sums),
        )

    def operators(self, shown: OperatorCounts) -> int:
        """Their number at least: a contraction is a product and a sum."""
        lacking = self.lacking(shown)
        products_and_sums = max(lacking.products, lacking.sums) if self.contracts else lacking.products + lacking.sums
        return lacking.additions + products_and_sums

    def _added(self, level: Sequence[Factors]) -> int:
        """Whether monomials differ in how often they have the stage's own input, or where there is none any of its inputs."""
        if self.own is not None:
            return int(len({factors.degrees[self.own] for factors in level}) > 1)
        inside: defaultdict[frozenset[tuple[int, int]], set[frozenset[tuple[int, int]]]] = defaultdict(set)
        for factors in level:
            parts = self._parted(factors.degrees)
            inside[parts[1]].add(parts[0])
        return int(any(len(different) > 1 for different in inside.values()))

    def _parted(self, degrees: Counter[int]) -> tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
        """How often the stage's inputs occur, and how often others."""
        mine = frozenset(item for item in degrees.items() if self.variables >> item[0] & 1)
        return mine, frozenset(degrees.items()) - mine

    def _multiplied(self, level: Sequence[Factors]) -> int:
        """Products that lead from inputs to the monomials.

        Each at most doubles how many inputs of the stage a monomial has; of its own input, one gives it company, and it takes
        another for a second power in company.
        """
        if self.own is None:
            return max((self._inputs_in(factors) - 1).bit_length() for factors in level)
        return max(self._company(factors.degrees) for factors in level)

    def _inputs_in(self, factors: Factors) -> int:
        return max(1, sum(count for source, count in factors.degrees.items() if self.variables >> source & 1))

    def _company(self, degrees: Counter[int]) -> int:
        assert self.own is not None
        own, total = degrees[self.own], degrees.total()
        return (own > 0 and total > 1) + (own > 1 and total > 2)

    def _summed(self, level: Sequence[Factors]) -> int:
        """Whether the stage's own input was summed over; where there is none, whether anything without those of others was."""
        if self.own is not None:
            return int(any(factors.bound.get(self.own) for factors in level))
        return int(any(self._summed_alone(factors) for factors in level))

    def _summed_alone(self, factors: Factors) -> bool:
        """Whether some sum may have been over inputs of the stage alone: not one that a factor of another stage is bound by."""
        others = 0
        for source, axes in factors.bound.items():
            others |= 0 if self.variables >> source & 1 else axes
        return bool(factors.summed & ~(others & ~factors.again))


def longest_chain(inputs: Inputs, levels: Sequence[Expr], outputs: Sequence[Expr]) -> list[ExpressionStage]:
    """The stages, each with an input that those before it have not, of the most operators altogether."""
    factors_of = {level: inputs.of_level(level) for level in levels}
    anchors = {level: inputs.variables(level) for level in levels if level in outputs or _in_one_factor(factors_of[level])}

    @cache
    def stage(level: Expr, own: int | None) -> ExpressionStage:
        plain = ExpressionStage(anchors[level], own, inputs.contract(anchors[level]))
        return replace(plain, wanted=plain.shown(factors_of[level]))

    @cache
    def longest_after(before: int) -> tuple[ExpressionStage, ...]:
        """What may follow a stage depends on the inputs up to it alone."""
        chains: list[tuple[ExpressionStage, ...]] = [()]
        for level, variables in anchors.items():
            if before & variables == before != variables:
                own = {source for factors in factors_of[level] for source in factors.degrees if not before >> source & 1}
                rest = longest_after(variables)
                chains += [(stage(level, source), *rest) for source in sorted(own)]
        return max(chains, key=_operators)

    whole: list[tuple[ExpressionStage, ...]] = [
        (stage(level, None), *longest_after(variables)) for level, variables in anchors.items()
    ]
    best = max(whole, key=_operators)
    return list(best)


def _operators(chain: Sequence[ExpressionStage]) -> int:
    return sum(stage.operators(NOTHING) for stage in chain)


def _in_one_factor(level: Sequence[Factors]) -> bool:
    """Whether, if the expression is a product, all inputs of its monomials are in one of the factors.

    So it is if every monomial is summed once over an axis that all its inputs are bound along: only one factor can have that sum.
    """
    once = level[0].summed
    for factors in level:
        once &= factors.summed & ~factors.again
        for axes in factors.bound.values():
            once &= axes
    return bool(once)


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
    shown: tuple[OperatorCounts, ...] = ()

    def joined(self, other: Features) -> Features:
        """What two tensors show together."""
        deepest = tuple(map(max, self.nestings, other.nestings))
        shown = tuple(starmap(OperatorCounts.joined, zip(self.shown, other.shown, strict=True)))
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
        self.stages: list[ExpressionStage] = []
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
        # by name: stages count additions and products, and both are multilinear rows of two operands
        if op == "mul" and not self.stages:
            return self._missing(replace(both, reduced=True))
        lacking = [stage.lacking(shown) for stage, shown in zip(self.stages, both.shown, strict=True)]
        # by name: as above
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
