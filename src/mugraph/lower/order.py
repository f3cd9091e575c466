"""Operator order by depth, and the barriers that the threads of a block need (paper, section 6).

A statement's depth is the length of the longest chain of dependences that leads to it. Statements of one depth
do not depend on each other, so ordered by depth all of them run between the same two barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.lower.lowered import Buffer, Kernel, Matmul, Memory, Statement, reads_target


def by_depth(kernel: Kernel) -> Kernel:
    """The kernel with the statements of each part ordered by depth; equal depths keep their order."""
    return replace(kernel, before=_sorted(kernel.before), body=_sorted(kernel.body), after=_sorted(kernel.after))


def _sorted(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    depths: list[int] = []
    for number, statement in enumerate(statements):
        earlier = (depths[other] + 1 for other in range(number) if _depends(statements[other], statement))
        depths.append(max(earlier, default=0))
    return tuple(statements[number] for number in sorted(range(len(statements)), key=depths.__getitem__))


def _depends(first: Statement, second: Statement) -> bool:
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
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    pending: list[_Access] = []
    for number, statement in _execution(kernel):
        if number in kernel.barriers or (isinstance(statement, Matmul) and statement.panels is not None):
            pending.clear()
        accesses = list(_accesses(statement, buffers))
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
    """Bytes of shared memory, or a whole output, that a statement reads or writes; registers are every thread's own."""

    memory: str
    first: int
    end: int
    written: bool

    def conflicts(self, other: _Access) -> bool:
        """Whether the order of the two matters."""
        meet = self.memory == other.memory and self.first < other.end and other.first < self.end
        return meet and (self.written or other.written) and self.memory != Memory.REGISTERS


def _accesses(statement: Statement, buffers: Mapping[str, Buffer]) -> Iterator[_Access]:
    for tile in statement.sources:
        yield _access(buffers[tile.buffer], written=False)
    if reads_target(statement):
        yield _access(buffers[statement.target.buffer], written=False)
    yield _access(buffers[statement.target.buffer], written=True)


def _access(buffer: Buffer, written: bool) -> _Access:
    if buffer.memory is Memory.SHARED:
        return _Access(Memory.SHARED, buffer.offset, buffer.offset + buffer.bytes, written)
    return _Access(Memory.REGISTERS if buffer.memory is Memory.REGISTERS else buffer.name, 0, 1, written)
