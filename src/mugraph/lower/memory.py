"""Shared-memory planning: buffers that are never alive together may share bytes.

A best-fit over lifetimes: largest buffers first, each at the lowest offset where it collides with no placed buffer
that is alive at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mugraph.lower.lowered import Buffer, Memory, Statement

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """First and last statement, in program order, between which a buffer's content matters."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are alive at some statement."""
        return self.first <= other.last and other.first <= self.last


def lifetimes(before: Sequence[Statement], body: Sequence[Statement], after: Sequence[Statement]) -> dict[str, Lifetime]:
    """The lifetime of each buffer; one that carries data into, out of or around the loop lives through all of it."""
    loop = Lifetime(len(before), len(before) + len(body) - 1)
    found: dict[str, Lifetime] = {}
    for position, statement in enumerate((*before, *body, *after)):
        for tile in (statement.target, *statement.sources):
            known = found.get(tile.buffer, Lifetime(position, position))
            found[tile.buffer] = Lifetime(min(known.first, position), max(known.last, position))
    for name, life in found.items():
        crosses = life.first < loop.first <= life.last or life.first <= loop.last < life.last
        if body and crosses and life.overlaps(loop):
            found[name] = Lifetime(min(life.first, loop.first), max(life.last, loop.last))
    return found


def place(
    buffers: Sequence[Buffer], before: Sequence[Statement], body: Sequence[Statement], after: Sequence[Statement]
) -> tuple[Buffer, ...]:
    """The buffers that statements use, with an offset for each one in shared memory."""
    alive = lifetimes(before, body, after)
    placed: list[Buffer] = []
    shared = [buffer for buffer in buffers if buffer.memory is Memory.SHARED and buffer.name in alive]
    for buffer in sorted(shared, key=lambda buffer: -buffer.bytes):
        rivals = [other for other in placed if alive[other.name].overlaps(alive[buffer.name])]
        placed.append(replace(buffer, offset=_lowest_gap(buffer.bytes, rivals)))
    offsets = {buffer.name: buffer for buffer in placed}
    return tuple(offsets.get(b.name, b) for b in buffers if b.memory is not Memory.SHARED or b.name in offsets)


def _lowest_gap(size: int, rivals: Sequence[Buffer]) -> int:
    offset = 0
    for rival in sorted(rivals, key=lambda rival: rival.offset):
        if offset + size <= rival.offset:
            break
        offset = max(offset, _aligned(rival.offset + rival.bytes))
    return offset


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
