"""What is within reach of a block graph's operands: the types of tensors that operators can make of them, and how far these are
from anything worth saving.

A tensor that nothing reads yet lies on a path of operators to a tensor that is saved. That path runs through types that can be
made of the operands at all, so the least number of operators on any such path is a lower bound on those still to come
(docs/theory.md). In planning it is the cost of one fact when all others are free.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from mugraph.algebra import Expr
from mugraph.search.algorithm1.construct import Constructor, Phase, TypeId

LARGEST_ARITY = 2
"""Of the operators whose operands are looked for."""


def distances(
    constructor: Constructor,
    leaves: Sequence[TypeId],
    operators: int,
    fits: Callable[[TypeId], bool],
    saved: Callable[[TypeId], bool],
    pulse: Callable[[], None],
) -> dict[TypeId, int]:
    """For each type that at most `operators` operators can make of `leaves`, how many it takes at least from it to a type that is
    `saved`; types from which none is reached are left out.

    No tensor that does not fit is made. `pulse` is called now and then, and may raise.
    """
    read_by = _steps_back(constructor, leaves, operators, fits, pulse)
    distance = {made: 0 for made in read_by if saved(made)}
    frontier: Collection[TypeId] = list(distance)
    for away in itertools.count(1):
        further = {operand for made in frontier for operand in read_by[made]} - distance.keys()
        if not further:
            return distance
        distance.update(dict.fromkeys(further, away))
        frontier = further
    raise AssertionError("types are finitely many")


def _steps_back(
    constructor: Constructor,
    leaves: Sequence[TypeId],
    operators: int,
    fits: Callable[[TypeId], bool],
    pulse: Callable[[], None],
) -> dict[TypeId, set[TypeId]]:
    """For each type that at most `operators` operators can make of the leaves, the types that an operator makes it of."""
    made_of: defaultdict[TypeId, set[TypeId]] = defaultdict(set)
    reached = _Reached(constructor)
    frontier: Collection[TypeId] = dict.fromkeys(leaves)
    unfit: set[TypeId] = set()
    for _ in range(operators):
        reached.add(frontier)
        further: dict[TypeId, None] = {}
        for newest in frontier:
            pulse()
            for operands in reached.operands_with(newest):
                for made in constructor.made(operands):
                    result = made.result
                    if result in unfit:
                        continue
                    if result not in made_of and result not in reached.types:
                        if not fits(result):
                            unfit.add(result)
                            continue
                        further[result] = None
                    made_of[result].update(operands)
        frontier = further
        if not frontier:
            break
    return made_of


class _Reached:
    """The types known so far, by what decides whether any operator may read two of them."""

    def __init__(self, constructor: Constructor) -> None:
        self.types: dict[TypeId, None] = {}
        self._rules, self._known = constructor.rules, constructor.types.known
        self._alike: defaultdict[_Side, defaultdict[Expr, list[TypeId]]] = defaultdict(lambda: defaultdict(list))
        self._meeting: dict[tuple[_Side, Expr], list[list[TypeId]]] = {}

    def add(self, types: Collection[TypeId]) -> None:
        """Types that have become known."""
        for tensor in types:
            if tensor not in self.types:
                self.types[tensor] = None
                self._alike[_side(self._known[tensor].phase)][self._known[tensor].expr].append(tensor)
        self._meeting.clear()

    def operands_with(self, tensor: TypeId) -> Iterator[tuple[TypeId, ...]]:
        """The tensor alone, and with every other in both orders, where phases, expressions and shapes allow that."""
        yield (tensor,)
        shape, expr, phase = self._known[tensor]
        key = _side(phase), expr
        meeting = self._meeting.get(key)
        if meeting is None:
            meeting = self._meeting[key] = [*self._meeting_on(*key)]
        takes, known = self._rules.plain, self._known
        for others in meeting:
            for other in others:
                if takes((shape, known[other][0])):
                    yield tensor, other
                if takes((known[other][0], shape)):
                    yield other, tensor

    def _meeting_on(self, side: _Side, expr: Expr) -> Iterator[list[TypeId]]:
        for other_side, alike in self._alike.items():
            if (side is None) != (other_side is None) or (side == other_side and side is not None):
                yield from (alike[other] for other in self._rules.expressions.meeting(expr, alike.keys()))


_Side = bool | None
"""Whether a tensor stands after the for-loop or in it; None for constants, which do both."""


def _side(phase: Phase) -> _Side:
    return None if phase is Phase.CONSTANT else phase is Phase.AFTER
