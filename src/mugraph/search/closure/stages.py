"""Stages of a program: additions, products and sums that every graph of it has, counted apart.

Roots and divisions nest expressions, and what a root is taken of was computed before. Where a program takes the length of a
vector and then, with another input, that of a second one, every graph computes both squares, and the sums and products in which
the other input takes part are none of the first. A *stage* is such an expression with an input that tells its operators from
those of the stages before; the first one needs none (docs/theory.md, "Closures bounded by operators").
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from mugraph.algebra import Expr, IndexedAlgebra
from mugraph.algebra.normal_form import Monomial
from mugraph.ir.axes import AxisProgram
from mugraph.search.closure.semantic import Context, bits


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operators of one stage: additions and subtractions, products, sums over axes."""

    additions: int = 0
    products: int = 0
    sums: int = 0

    def joined(self, other: Arithmetic) -> Arithmetic:
        """What two tensors show together."""
        return Arithmetic(max(self.additions, other.additions), max(self.products, other.products), max(self.sums, other.sums))


NOTHING = Arithmetic()


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
class Stage:
    """An expression of which every graph computes a tensor with the same inputs as factors of its monomials.

    `variables` are the inputs in it; its own operators are those whose results have the input `own` (None: any) among them.
    """

    variables: int
    own: int | None
    contracts: bool
    wanted: Arithmetic = field(default=NOTHING)

    def shown(self, level: Sequence[Factors]) -> Arithmetic:
        """What an expression of these monomials shows of the stage, apart from what is nested in it."""
        return Arithmetic(self._added(level), self._multiplied(level), self._summed(level))

    def lacking(self, shown: Arithmetic) -> Arithmetic:
        """The operators of the stage that are still to come."""
        wanted = self.wanted
        return Arithmetic(
            max(0, wanted.additions - shown.additions),
            max(0, wanted.products - shown.products),
            max(0, wanted.sums - shown.sums),
        )

    def operators(self, shown: Arithmetic) -> int:
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


def longest_chain(inputs: Inputs, levels: Sequence[Expr], outputs: Sequence[Expr]) -> list[Stage]:
    """The stages, each with an input that those before it have not, of the most operators altogether."""
    factors_of = {level: inputs.of_level(level) for level in levels}
    anchors = {level: inputs.variables(level) for level in levels if level in outputs or _in_one_factor(factors_of[level])}

    @cache
    def stage(level: Expr, own: int | None) -> Stage:
        plain = Stage(anchors[level], own, inputs.contract(anchors[level]))
        return replace(plain, wanted=plain.shown(factors_of[level]))

    @cache
    def longest_after(before: int) -> tuple[Stage, ...]:
        """What may follow a stage depends on the inputs up to it alone."""
        chains: list[tuple[Stage, ...]] = [()]
        for level, variables in anchors.items():
            if before & variables == before != variables:
                own = {source for factors in factors_of[level] for source in factors.degrees if not before >> source & 1}
                rest = longest_after(variables)
                chains += [(stage(level, source), *rest) for source in sorted(own)]
        return max(chains, key=_operators)

    whole: list[tuple[Stage, ...]] = [(stage(level, None), *longest_after(variables)) for level, variables in anchors.items()]
    best = max(whole, key=_operators)
    return list(best)


def _operators(chain: Sequence[Stage]) -> int:
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
