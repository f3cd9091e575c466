"""Which expressions can meet in a binary operator: what the subexpression test needs of both operands, as bits.

Nearly all pairs of expressions are refused. A sum lies in a level of a target only under a multiplier that both summands have, a
product only at a monomial of a level that both factors divide, a quotient at one with a denominator that is a multiple of the
divisor, a function only where an atom has these arguments. Each expression gets two numbers with a bit for every such place;
where the first of one and the second of the other have no bit in common, nothing can come of the pair. That they have one is
necessary for a result to be admitted, not sufficient (docs/theory.md, "The decision procedure").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from mugraph.algebra.expressions import COMMUTATIVE
from mugraph.algebra.indexed import IndexedAlgebra, IndexedOracle
from mugraph.algebra.normal_form import ABSENT, Expr, Term

_Side = tuple[str, Hashable]
"""An operator, and a place where it may have an operand on this side."""


class MeetingBits(NamedTuple):
    """An expression's bits: `mine` when it is looked at beside others, `theirs` when it is one of these."""

    mine: int
    theirs: int


class Meeting:
    """The places of expressions in the targets of an oracle, for arithmetic and functions of two arguments."""

    def __init__(self, algebra: IndexedAlgebra, oracle: IndexedOracle) -> None:
        self._algebra, self._forms, self._oracle = algebra, algebra.forms, oracle
        ((self._minus, _),) = self._forms.terms[algebra.minus_one]
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Expr, MeetingBits] = {}
        self._of_operator: defaultdict[tuple[str, bool], int] = defaultdict(int)
        places = [(level, term) for level in oracle.levels for term, _ in self._forms.terms[level]]
        monomials = self._forms.monomials
        self._quotients = [((level, term), d) for level, term in places if (d := monomials[term].denominator) != ABSENT]
        atoms = {atom for _, term in places for atom in self._forms.factor_atoms(monomials[term].atoms)}
        self._functions = [atom for atom in atoms if len(atom.args) == 2]

    def places(self, e: Expr) -> MeetingBits:
        """The places of an admitted expression."""
        known = self._known.get(e)
        if known is None:
            left, right = set(self._left(e)), set(self._right(e))
            mine = self._bits(left, swapped=False) | self._bits(right, swapped=True)
            theirs = self._bits(right, swapped=False) | self._bits(left, swapped=True)
            known = self._known[e] = MeetingBits(mine, theirs)
        return known

    def possible(self, x: Expr, y: Expr, op: str, *, swapped: bool) -> bool:
        """Whether an operator of x and y, or if they are swapped of y and x, may be admitted."""
        return bool(self.places(x).mine & self.places(y).theirs & self._of_operator[op, swapped])

    def _bits(self, sides: set[_Side], *, swapped: bool) -> int:
        bits = 0
        for op, place in sides:
            bit = 1 << self._numbers.setdefault((op, swapped, place), len(self._numbers))
            self._of_operator[op, swapped] |= bit
            bits |= bit
        return bits

    def _left(self, e: Expr) -> Iterator[_Side]:
        """Where an expression may be a left operand."""
        for level, term, multiplier in self._embedded(e):
            yield "mul", (level, term)
            yield "div", (level, term)
            yield "add", (level, self._beside(multiplier))
            yield "sub", (level, self._beside(multiplier))
        yield from self._arguments(e, first=0)

    def _right(self, e: Expr) -> Iterator[_Side]:
        """Where an expression may be a right operand."""
        for level, term, multiplier in self._embedded(e):
            yield "mul", (level, term)
            yield "add", (level, self._beside(multiplier))
            positive = self._algebra.division.quotient(multiplier, self._minus)
            if positive is not None:
                yield "sub", (level, self._beside(positive))
        for divisor in self._nested(e):
            for place, denominator in self._quotients:
                if self._algebra.division.ratio(denominator, divisor) is not None:
                    yield "div", place
        yield from self._arguments(e, first=1)

    def _embedded(self, e: Expr) -> Iterator[tuple[Expr, Term, Term]]:
        """For each embedding its level, the monomial there that is a multiple of the leading one of `e`, and the multiplier."""
        for placement in self._oracle.placements(e):
            image, embeddings = self._oracle.embedded(e, placement)
            leading = self._forms.terms[image][0][0]
            for multiplier, level in embeddings:
                yield level, self._forms.product(multiplier, leading), multiplier

    def _beside(self, multiplier: Term) -> Hashable:
        """What two summands have in common: a multiplier, but for sums over axes that only one of them has."""
        return self._forms.monomials[multiplier]._replace(factor=1)

    def _nested(self, e: Expr) -> set[Expr]:
        """The expression as what it is nested in binds its axes."""
        outside = {placement.outside for placement in self._oracle.placements(e) if not placement.inside}
        return {self._algebra.bind(e, 0, axes) for axes in outside}

    def _arguments(self, e: Expr, first: int) -> Iterator[_Side]:
        """Where an expression may be an argument of a function of two: of additions and multiplications a tier does not open."""
        nested = self._nested(e)
        for atom in self._functions:
            for position, argument in enumerate(atom.args):
                if argument in nested and (position == first or atom.name in COMMUTATIVE):
                    yield atom.name, (atom, position == first)
