"""GenerateNextBlockOperator of Algorithm 1: every block graph over given operands under a given schedule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.search.algorithm1.construct import LOWEST, Application, Constructor, Phase, Rank, TensorType, TypeId
from mugraph.search.algorithm1.schedules import BlockSchedule


@dataclass(frozen=True, slots=True)
class Saved:
    """An output of a block graph: the position of its tensor, its omap, and the shape of the device tensor."""

    position: int
    omap: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A finished block graph. Positions count its iterators, then the program's constants, then `applications`."""

    schedule: BlockSchedule
    applications: tuple[Application, ...]
    saved: tuple[Saved, ...]


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """Bounds of one block graph; `memory_bytes` is the shared memory of a block."""

    operators: int
    outputs: int
    memory_bytes: int
    dead_tensor_bound: bool


class BlockGenerator:
    """Extends one prefix of a block graph at a time, depth first.

    `visit` is called for every prefix, `useful(position type, device shape)` says whether a tensor is worth saving,
    and `found` takes finished graphs.
    """

    def __init__(
        self,
        constructor: Constructor,
        schedule: BlockSchedule,
        leaves: Sequence[TypeId],
        limits: BlockLimits,
        visit: Callable[[], None],
        useful: Callable[[TypeId, Shape], bool],
        found: Callable[[BlockPlan, list[TypeId]], None],
    ) -> None:
        self.constructor, self.schedule, self.limits = constructor, schedule, limits
        self.visit, self.useful, self.found = visit, useful, found
        self.types = list(leaves)
        self.readers = [0] * len(self.types)
        self.applications: list[Application] = []
        self.known = constructor.types.known
        self._most_joined = constructor.largest_arity - 1

    def run(self, iterator_bytes: int) -> None:
        """Generate all block graphs; `iterator_bytes` of shared memory hold the tiles of the operands."""
        remaining = self.limits.operators - len(self.schedule.imaps)
        if remaining > 0 and iterator_bytes <= self.limits.memory_bytes:
            self._generate_next(LOWEST, self.limits.memory_bytes - iterator_bytes, remaining)

    def _generate_next(self, last: Rank, free_bytes: int, remaining: int) -> None:
        self.visit()
        unread = self._unread()
        if self.applications:
            self._finish(unread)
        if not remaining:
            return
        in_loop = {position for position in unread if self._type(self.types[position]).phase is not Phase.AFTER}
        for application in self.constructor.extensions(self.types, last):
            result = self._type(application.result)
            size = math.prod(result.shape) * DType.FP32.bytes
            if size <= free_bytes and not self._dead(unread, in_loop, application, result.phase, remaining - 1):
                self._push(application)
                self._generate_next(application.rank, free_bytes - size, remaining - 1)
                self._pop(application)

    # the prefix ------------------------------------------------------------------------------------------------------

    def _type(self, tensor: TypeId) -> TensorType:
        return self.known[tensor]

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
        known, constant = self.known, Phase.CONSTANT
        pairs = enumerate(zip(self.types, self.readers, strict=True))
        return {position for position, (tensor, readers) in pairs if not readers and known[tensor].phase is not constant}

    def _dead(self, unread: set[int], in_loop: set[int], added: Application, phase: Phase, remaining: int) -> bool:
        """Whether `remaining` operators after `added` cannot read all that is left unread.

        Each reads a few tensors and makes one, and what is still in the loop leaves it through one more.
        """
        if not self.limits.dead_tensor_bound:
            return False
        left = len(unread.difference(added.inputs)) + 1 - self.limits.outputs
        joins = -(-left // self._most_joined) if left > 0 else 0
        if joins >= remaining and (phase is not Phase.AFTER or not in_loop.issubset(added.inputs)):
            return True
        return joins > remaining

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
                    self.found(plan, [self.types[output.position] for output in saved])

    def _savable(self, position: int) -> bool:
        computed = position >= len(self.types) - len(self.applications)
        return computed and self._type(self.types[position]).phase is Phase.AFTER

    def _savers(self, position: int) -> Iterator[Saved]:
        """A saver for every omap that gives a useful device tensor."""
        tile = self._type(self.types[position]).shape
        for omap in itertools.product(range(len(tile)), repeat=len(self.schedule.grid)):
            sizes = list(tile)
            for count, dim in zip(self.schedule.grid, omap, strict=True):
                sizes[dim] *= count
            if self.useful(self.types[position], tuple(sizes)):
                yield Saved(position, omap, tuple(sizes))
