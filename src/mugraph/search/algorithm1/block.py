"""GenerateNextBlockOperator of Algorithm 1: every block graph over given operands under a given schedule.

Prefixes from which no graph can come are left out by a bound of ours (docs/theory.md, "Bounds of Algorithm 1"): a tensor that
nothing reads yet lies on a path of operators to a tensor that is saved. The path runs through types that can be computed from the
operands at all, so the length of the shortest one bounds the operators still to come. In planning this is the cost of one fact
when all others are free.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from mugraph.algebra import Expr
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.search.algorithm1.construct import Application, Constructor, TensorPhase, TensorType, TypeId
from mugraph.search.algorithm1.options import BlockSchedule

LARGEST_ARITY = 2
"""Of the operators whose operands are looked for."""

_NEVER = 1 << 30
"""Operators to anything worth saving where no number of them leads there."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """An output of a block graph: the position of its tensor, its omap, and the shape of the device tensor."""

    position: int
    omap: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A finished block graph. Positions count its iterators, then the program's constants, then `applications`."""

    schedule: BlockSchedule
    applications: tuple[Application, ...]
    saved: tuple[SavedTensor, ...]


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Bounds of one block graph, and of what is looked at of it; `memory_bytes` is the shared memory of a block."""

    operators: int
    outputs: int
    memory_bytes: int
    dead_tensor_bound: bool
    completion_bound: bool

    @property
    def prunes(self) -> bool:
        """Whether prefixes without a completion are pruned."""
        return self.dead_tensor_bound or self.completion_bound


class BlockGenerator:
    """Extends one prefix of a block graph at a time, depth first.

    `pulse` is called for every prefix and may raise, `useful(type of tile, device shape)` says whether a tensor is worth saving,
    and `found` takes finished graphs. `states` counts the prefixes.
    """

    def __init__(
        self,
        constructor: Constructor,
        schedule: BlockSchedule,
        leaves: Sequence[TypeId],
        limits: BlockLimits,
        pulse: Callable[[], None],
        useful: Callable[[TensorType, Shape], bool],
        found: Callable[[BlockPlan, Sequence[TensorType]], None],
    ) -> None:
        self.constructor, self.schedule, self.limits = constructor, schedule, limits
        self.pulse, self.useful, self.found = pulse, useful, found
        self.states = 0
        self.types = list(leaves)
        self.readers = [0] * len(self.types)
        self.applications: list[Application] = []
        self.known = constructor.types.known
        self._most_joined = constructor.largest_arity - 1
        self._distance: dict[TypeId, int] | None = None

    def run(self, iterator_bytes: int) -> None:
        """Generate all block graphs; `iterator_bytes` of shared memory hold the tiles of the operands."""
        remaining = self.limits.operators - len(self.schedule.imaps)
        free_bytes = self.limits.memory_bytes - iterator_bytes
        if remaining <= 0 or free_bytes < 0:
            return
        if self.limits.completion_bound and self.constructor.largest_arity <= LARGEST_ARITY:
            self._distance = self._distances(free_bytes, remaining)
            if any(self._away(self.types[position]) > remaining for position in self._unread()):
                self._visit()
                return
        self._generate_next(list(self._first(remaining)), free_bytes, remaining)

    def _generate_next(self, pending: list[Application], free_bytes: int, remaining: int) -> None:
        """Extend the prefix, by `remaining` operators at most, in all ways; `pending` are those that rank above all it has."""
        self._visit()
        unread = self._unread()
        if self.applications:
            self._finish(unread)
        if not remaining:
            return
        in_loop = {position for position in unread if self._type(self.types[position]).phase is not TensorPhase.AFTER}
        for number, application in enumerate(pending, start=1):
            result = self._type(application.result)
            size = _bytes(result)
            if size <= free_bytes and not self._dead(unread, in_loop, application, result.phase, remaining - 1):
                self._push(application)
                self._generate_next([*pending[number:], *self._reading(remaining - 1)], free_bytes - size, remaining - 1)
                self._pop(application)

    # the prefix ------------------------------------------------------------------------------------------------------

    def _visit(self) -> None:
        self.states += 1
        self.pulse()

    def _type(self, tensor: TypeId) -> TensorType:
        return self.known[tensor]

    def _first(self, remaining: int) -> Iterator[Application]:
        """The operators on the operands of the graph, in order of rank."""
        for count in range(1, len(self.types) + 1):
            yield from self._worth_adding(self.constructor.reading(self.types[:count]), remaining)

    def _reading(self, remaining: int) -> Iterator[Application]:
        """The operators that read the newest tensor: they rank above all that do not."""
        return self._worth_adding(self.constructor.reading(self.types), remaining) if remaining else iter(())

    def _worth_adding(self, applications: Iterator[Application], remaining: int) -> Iterator[Application]:
        return (application for application in applications if self._away(application.result) < remaining)

    def _push(self, application: Application) -> None:
        self.applications.append(application)
        self.types.append(application.result)
        self.readers.append(0)
        for operand in application.inputs:
            self.readers[operand] += 1

    def _pop(self, application: Application) -> None:
        self.applications.pop()
        self.types.pop()
        self.readers.pop()
        for operand in application.inputs:
            self.readers[operand] -= 1

    def _unread(self) -> set[int]:
        """Tensors, other than constants, that no operator reads yet."""
        known, constant = self.known, TensorPhase.CONSTANT
        pairs = enumerate(zip(self.types, self.readers, strict=True))
        return {position for position, (tensor, readers) in pairs if not readers and known[tensor].phase is not constant}

    # bounds ----------------------------------------------------------------------------------------------------------

    def _dead(self, unread: set[int], in_loop: set[int], added: Application, phase: TensorPhase, remaining: int) -> bool:
        """Whether `remaining` operators after `added` cannot read all that is unread, or lead it to anything worth saving."""
        left = unread.difference(added.inputs)
        if self._distance is not None:
            furthest = max(self._away(tensor) for tensor in (added.result, *(self.types[position] for position in left)))
            if furthest > remaining:
                return True
        return self.limits.dead_tensor_bound and self._too_many(left, in_loop, added, phase, remaining)

    def _too_many(self, left: set[int], in_loop: set[int], added: Application, phase: TensorPhase, remaining: int) -> bool:
        """Whether `remaining` operators cannot read the result of `added` and all that is `left` besides.

        Each reads a few tensors and makes one, and what is still in the loop leaves it through one more.
        """
        surplus = len(left) + 1 - self.limits.outputs
        joins = -(-surplus // self._most_joined) if surplus > 0 else 0
        if joins >= remaining and (phase is not TensorPhase.AFTER or not in_loop.issubset(added.inputs)):
            return True
        return joins > remaining

    def _distances(self, free_bytes: int, remaining: int) -> dict[TypeId, int]:
        """Lower bound on the operators from a tensor of each type to one that is worth saving."""

        def saved(tensor: TypeId) -> bool:
            return self._type(tensor).phase is TensorPhase.AFTER and any(self._omaps(tensor))

        def fits(tensor: TypeId) -> bool:
            return _bytes(self._type(tensor)) <= free_bytes

        return distances(self.constructor, self.types, remaining, fits, saved, self.pulse)

    def _away(self, tensor: TypeId) -> int:
        """Lower bound on the operators from a tensor to one that is saved; 0 where no bound was computed."""
        return 0 if self._distance is None else self._distance.get(tensor, _NEVER)

    # finished graphs -------------------------------------------------------------------------------------------------

    def _finish(self, unread: set[int]) -> None:
        """Save every unread tensor, and any further tensors after the loop up to the limit of outputs."""
        if len(unread) > self.limits.outputs or not all(map(self._savable, unread)):
            return
        others = [position for position in range(len(self.types)) if position not in unread and self._savable(position)]
        for extra in range(self.limits.outputs - len(unread) + 1):
            for chosen in itertools.combinations(others, extra):
                for saved in itertools.product(*(self._savers(position) for position in sorted((*unread, *chosen)))):
                    plan = BlockPlan(self.schedule, tuple(self.applications), saved)
                    self.found(plan, [self._type(self.types[output.position]) for output in saved])

    def _savable(self, position: int) -> bool:
        computed = position >= len(self.types) - len(self.applications)
        return computed and self._type(self.types[position]).phase is TensorPhase.AFTER

    def _savers(self, position: int) -> Iterator[SavedTensor]:
        """A saver for every omap that gives a useful device tensor."""
        return (SavedTensor(position, omap, shape) for omap, shape in self._omaps(self.types[position]))

    def _omaps(self, tensor: TypeId) -> Iterator[tuple[tuple[int, ...], Shape]]:
        """The omaps under which tiles of a type are a useful device tensor, and its shape."""
        tile = self._type(tensor)
        for omap in itertools.product(range(len(tile.shape)), repeat=len(self.schedule.grid)):
            sizes = list(tile.shape)
            for count, dim in zip(self.schedule.grid, omap, strict=True):
                sizes[dim] *= count
            if self.useful(tile, tuple(sizes)):
                yield omap, tuple(sizes)


def _bytes(tensor: TensorType) -> int:
    """Bytes of shared memory of a tile: kernels compute in fp32."""
    return math.prod(tensor.shape) * DType.FP32.bytes


# distances to what is worth saving ------------------------------------------------------------------------------


def distances(
    constructor: Constructor,
    leaves: Sequence[TypeId],
    operators: int,
    fits: Callable[[TypeId], bool],
    saved: Callable[[TypeId], bool],
    pulse: Callable[[], None],
) -> dict[TypeId, int]:
    """Shortest distance, in operators, to a type that is `saved`, from each type within `operators` operators of `leaves`.

    Types from which none is reached are left out, and so are tensors that do not fit. `pulse` is called now and then; it may
    raise.
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


def _side(phase: TensorPhase) -> _Side:
    return None if phase is TensorPhase.CONSTANT else phase is TensorPhase.AFTER
