"""Operator order by depth, and the barriers that the threads of a block need (paper, section 6).

A statement's depth is the length of the longest chain of dependences that leads to it. Statements of one depth
do not depend on each other, so ordered by depth all of them run between the same two barriers. Where every element
that two statements share belongs to the same thread in both, that thread's own order is enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mugraph.lower.register_reductions import reduces_fragments
from mugraph.lower.thread_mapping import addresses, elementwise_share, reduction_share
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.touched_tiles import reads_target, touches_registers


def by_depth(kernel: Kernel) -> Kernel:
    """The kernel with the statements of each part ordered by depth; equal depths keep their order."""
    return replace(kernel, before=_sorted(kernel.before), body=_sorted(kernel.body), after=_sorted(kernel.after))


def _sorted(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    depths: list[int] = []
    for number, statement in enumerate(statements):
        earlier = (depths[other] + 1 for other in range(number) if depends(statements[other], statement))
        depths.append(max(earlier, default=0))
    return tuple(statements[number] for number in sorted(range(len(statements)), key=depths.__getitem__))


def depends(first: Statement, second: Statement) -> bool:
    """Whether the order of two statements matters: one writes a buffer that the other reads or writes."""
    touched = {tile.buffer for tile in (second.target, *second.sources)}
    return first.target.buffer in touched or second.target.buffer in {tile.buffer for tile in first.sources}


def with_barriers(kernel: Kernel) -> Kernel:
    """The kernel with a barrier before every statement that conflicts with one since the last barrier."""
    barriers: frozenset[int] = frozenset()
    while (missing := first_conflict(replace(kernel, barriers=barriers))) is not None:
        barriers |= {missing}
    return replace(kernel, barriers=barriers)


def first_conflict(kernel: Kernel) -> int | None:
    """The number of the first statement that touches what another thread may write or read since the last barrier."""
    pending: list[_Access] = []
    for number, statement in _execution(kernel):
        if number in kernel.barriers or (isinstance(statement, Matmul) and statement.panels is not None):
            pending.clear()
        accesses = list(_accesses(statement, kernel))
        if any(access.conflicts(other) for access in accesses for other in pending):
            return number
        pending.extend(accesses)
    return None


def _execution(kernel: Kernel) -> Iterator[tuple[int, Statement]]:
    """Statements with their numbers as they run; two iterations show everything that the loop carries around."""
    numbered = list(enumerate(kernel.statements))
    start, end = len(kernel.before), len(kernel.before) + len(kernel.body)
    repeated = numbered[start:end] if kernel.loop > 1 else []
    return iter((*numbered[:end], *repeated, *numbered[end:]))


@dataclass(frozen=True, slots=True)
class _Access:
    """Bytes of shared memory, or a whole output, that a statement reads or writes; registers are every thread's own.

    `owners` tells which elements, and which thread touches which.
    """

    memory: str
    first: int
    end: int
    written: bool
    owners: tuple[object, ...] | None

    def conflicts(self, other: _Access) -> bool:
        """Whether threads must meet between the two."""
        if self.memory == Memory.REGISTERS or not (self.written or other.written):
            return False
        meet = self.memory == other.memory and self.first < other.end and other.first < self.end
        return meet and (self.owners is None or self.owners != other.owners)


def _accesses(statement: Statement, kernel: Kernel) -> Iterator[_Access]:
    for tile in statement.sources:
        yield _access(kernel, statement, tile, written=False)
    if reads_target(statement):
        yield _access(kernel, statement, statement.target, written=False)
    yield _access(kernel, statement, statement.target, written=True)


def _access(kernel: Kernel, statement: Statement, tile: Tile, written: bool) -> _Access:
    buffer = kernel.buffer(tile.buffer)
    owners = _owners(kernel, statement, tile)
    if buffer.memory is Memory.SHARED:
        return _Access(Memory.SHARED, buffer.offset, buffer.offset + buffer.bytes, written, owners)
    return _Access(Memory.REGISTERS if buffer.memory.in_registers else buffer.name, 0, 1, written, owners)


def _owners(kernel: Kernel, statement: Statement, tile: Tile) -> tuple[object, ...] | None:
    """Which elements of a tile which thread touches; None where several threads touch one, or it is not said."""
    match statement:
        case Elementwise() if not touches_registers(kernel, statement):
            return addresses(elementwise_share(kernel, statement), tile, (statement.target, *statement.sources).index(tile))
        case Reduce() if reduces_fragments(kernel, statement):
            return None
        case Reduce() if tile is statement.target and math.prod(tile.shape) == 1:
            return (tile.buffer, tile.start, (), 1)
        case Reduce() if tile is not statement.target:
            share = reduction_share(kernel, statement)
            if share.in_one_turn(kernel.threads):
                return addresses(share, tile, (statement.target, *statement.sources).index(tile))
    return None
