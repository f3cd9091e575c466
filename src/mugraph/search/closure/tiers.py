"""Tiers of abstraction: how much algebra the expression check is allowed to see.

Expanding products of sums makes the set of abstract subexpressions explode. A coarser tier treats the program's own
sums (and its scalings by constants) as uninterpreted functions: fewer prefixes survive, nothing unsound is
accepted (equality is decided by values, never by expressions), and whatever such a tier finds it finds fast. Tiers are
tried coarsest first; the report says which were exhausted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache

from mugraph.algebra import Expr, IndexedAlgebra, IndexedOracle, Meeting
from mugraph.ir.axes import AxisProgram, Term
from mugraph.ir.ops import OPERATORS, Call, Operator, operator
from mugraph.search.closure.context import Context


class Tier(StrEnum):
    """Which of the program's operators the abstraction keeps uninterpreted."""

    OPAQUE_SUMS = "sums and scalings opaque"
    OPAQUE_SCALINGS = "scalings opaque"
    FULL = "full axioms"


def distinct_tiers(program: AxisProgram) -> list[Tier]:
    """The tiers in which a program looks different, coarsest first; of those in which it looks the same, the finest."""
    return list({seen_in(program, tier): tier for tier in Tier}.values())


def tiers_to(program: AxisProgram, finest: Tier) -> list[Tier]:
    """The tiers in which a program looks different, coarsest first, up to `finest`; each as `seen_in` names it."""
    order = list(Tier)
    return list(dict.fromkeys(seen_in(program, tier) for tier in order[: order.index(finest) + 1]))


def seen_in(program: AxisProgram, tier: Tier) -> Tier:
    """One tier for all in which a program looks as it does in `tier`.

    Without constants there are no scalings. No part of what has no sums is a sum, so that it is all the same how they are read.
    """
    constants = any(term.is_constant for term in program.terms)
    sums = any(_adds(OPERATORS[term.op]) for term in program.terms if term.op in OPERATORS)
    if tier is Tier.OPAQUE_SCALINGS:
        tier = tier if constants and sums else Tier.FULL if sums else Tier.OPAQUE_SUMS
    return tier if constants or sums else Tier.OPAQUE_SUMS


Make = Callable[[str, tuple[Expr, ...], int], Expr | None]


class TierAlgebra:
    """Abstract-expression constructors as one tier sees them, over any way to make expressions.

    `make(op, args, n)` either builds an expression or returns None when it is pruned; None is contagious.
    """

    def __init__(self, tier: Tier, constants: frozenset[Expr], make: Make) -> None:
        self._opaque_sums = tier is Tier.OPAQUE_SUMS
        self._opaque_scalings = tier is not Tier.FULL
        self._constants = constants
        self._make = make

    def _of(self, op: str, *args: Expr | None, n: int = 1) -> Expr | None:
        present = tuple(arg for arg in args if arg is not None)
        return self._make(op, present, n) if len(present) == len(args) else None

    def _scales(self, x: Expr | None, y: Expr | None) -> bool:
        return self._opaque_scalings and (x in self._constants or y in self._constants)

    def constant(self, text: str) -> Expr | None:
        raise AssertionError("constants enter a closure as leaves")

    def add(self, x: Expr | None, y: Expr | None) -> Expr | None:
        if self._opaque_sums or self._scales(x, y):
            first, second = sorted((x, y), key=lambda e: -1 if e is None else e)
            return self._of("opaque:add", first, second)
        return self._of("add", x, y)

    def sub(self, x: Expr | None, y: Expr | None) -> Expr | None:
        return self._of("opaque:sub" if self._opaque_sums or self._scales(x, y) else "sub", x, y)

    def mul(self, x: Expr | None, y: Expr | None) -> Expr | None:
        if self._scales(x, y):
            first, second = sorted((x, y), key=lambda e: -1 if e is None else e)
            return self._of("opaque:mul", first, second)
        return self._of("mul", x, y)

    def div(self, x: Expr | None, y: Expr | None) -> Expr | None:
        return self._of("div", x, y)

    def exp(self, x: Expr | None) -> Expr | None:
        return self._of("exp", x)

    def sqrt(self, x: Expr | None) -> Expr | None:
        return self._of("sqrt", x)

    def sum(self, n: int, x: Expr | None) -> Expr | None:
        return self._of("sum", x, n=n)

    def max(self, n: int, x: Expr | None) -> Expr | None:
        return self._of("opaque:max", x, n=n)

    def opaque(self, name: str, *args: Expr | None) -> Expr | None:
        return self._of(f"opaque:{name}", *args)


@lru_cache(maxsize=1 << 10)
def _adds(row: Operator) -> bool:
    """Whether the abstract expression of an elementwise row is, or has as a part, a sum of its operands."""
    made: set[str] = set()

    def make(op: str, args: tuple[Expr, ...], n: int) -> Expr:
        made.add(op)
        return Expr(0)

    if row.elementwise:
        row.express(TierAlgebra(Tier.FULL, frozenset(), make), Call(row.name, (), {}), [0] * row.arity)
    return not made.isdisjoint(("add", "sub"))


@lru_cache(maxsize=1 << 10)
def is_its_expression(row: Operator) -> bool:
    """Whether the abstract expression of a binary row is one operator of the same name on its operands."""
    made: list[tuple[str, tuple[Expr, ...]]] = []

    def make(op: str, args: tuple[Expr, ...], n: int) -> Expr:
        made.append((op.removeprefix("opaque:"), args))
        return Expr(0)

    operands = (Expr(1), Expr(2))
    row.express(TierAlgebra(Tier.FULL, frozenset(), make), Call(row.name, (), {}), operands)
    return made == [(row.name, operands)]


class Expressions:
    """The abstract expressions of one program in one tier and context: its targets, and the pruned constructors.

    Raises ExpressionTooLarge where the program's own are too large, or not known by `deadline` (of `time.perf_counter`).
    """

    def __init__(self, program: AxisProgram, tier: Tier, context: Context, deadline: float = math.inf) -> None:
        self.algebra = IndexedAlgebra(context.part_primes)
        self.algebra.forms.deadline = deadline
        self.context = context
        reducible = context.mask(axis for axes in program.reductions for axis in axes)
        self._calls: dict[str, Call] = {}
        self.admitted: dict[tuple[Expr, Expr], tuple[tuple[str, bool, Expr], ...]] = {}
        """What binary operators make of two expressions, as far as anybody asked: (operator, operands swapped, result)."""
        self.refused: defaultdict[Expr, set[Expr]] = defaultdict(set)
        """Pairs of which no binary operator makes anything, the smaller expression first: by far most of them."""
        self.leaves: dict[int, Expr] = {}
        for index, term in enumerate(program.terms):
            if term.op == "load":
                self.leaves[index] = self.algebra.variable(f"x{term.source}", context.mask(term.axes) & reducible)
            elif term.is_constant:
                self.leaves[index] = self.algebra.constant(str(term.scalar))
        self.constants = frozenset(self.leaves[i] for i, term in enumerate(program.terms) if term.is_constant)
        self.build = TierAlgebra(tier, self.constants, self.algebra.apply)
        self.of_terms: list[Expr] = []
        for index, term in enumerate(program.terms):
            self.of_terms.append(self._target(index, term))
        self.oracle = IndexedOracle(self.algebra, [self.of_terms[term] for term, _ in program.outputs])
        self.prune = TierAlgebra(tier, self.constants, self.oracle.compose)
        self.meeting = Meeting(self.algebra, self.oracle)
        self.algebra.forms.deadline = math.inf

    def _target(self, index: int, term: Term) -> Expr:
        if index in self.leaves:
            return self.leaves[index]
        args = [self.of_terms[i] for i in term.inputs]
        expression = self.elementwise_or_reduction(self.build, term, args)
        if expression is None:
            raise AssertionError(f"the expression of {term.op} was not built")
        return expression

    # by name: terms reduce sets of axes at once, which the rows of sum, max and matmul cannot say
    def elementwise_or_reduction(self, algebra: TierAlgebra, term: Term, args: list[Expr]) -> Expr | None:
        """The expression of one term of the program."""
        count = self.context.reduction_factor(self.context.mask(term.reduced))
        if term.op == "contract":
            return algebra.sum(count, algebra.mul(args[0], args[1]))
        if term.op == "sum":
            return algebra.sum(count, args[0])
        if term.op == "max":
            return algebra.max(count, args[0])
        return self.express(algebra, term.op, tuple(args))

    def express(self, algebra: TierAlgebra, op: str, args: tuple[Expr, ...]) -> Expr | None:
        """The expression of an elementwise row of the operator table."""
        call = self._calls.get(op)
        if call is None:
            call = self._calls[op] = Call(op, (), {})
        result: Expr | None = operator(op).express(algebra, call, args)
        return result
