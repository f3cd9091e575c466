"""Shared-memory planning: buffers that are never alive together may share bytes, and as few as possible are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.lower.allocation import Request, allocate
from mugraph.lower.tile_form import Buffer, Kernel, Memory, Statement

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector."""
RESERVED_BYTES = 1 << 10
"""Of shared memory, which a multiprocessor keeps for each block beside what the block asks for (NVIDIA: sm_80 on)."""


def beside_another(shared_bytes: int) -> int:
    """The most that each of two blocks may take on a multiprocessor whose blocks may take `shared_bytes`."""
    return (shared_bytes - RESERVED_BYTES) // 2


def whole_bytes(size: int) -> int:
    """The size that a buffer takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


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
            lifetime = found.get(tile.buffer, Lifetime(position, position))
            found[tile.buffer] = Lifetime(min(lifetime.first, position), max(lifetime.last, position))
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
    shared = [buffer for buffer in buffers if buffer.memory is Memory.SHARED and buffer.name in alive]
    offsets = allocate(_requests(shared, alive)).offsets
    placed = {buffer.name: replace(buffer, offset=offset * ALIGNMENT) for buffer, offset in zip(shared, offsets, strict=True)}
    return tuple(placed.get(b.name, b) for b in buffers if b.memory is not Memory.SHARED or b.name in placed)


def with_places(kernel: Kernel) -> Kernel:
    """The kernel with an offset for each shared buffer."""
    return replace(kernel, buffers=place(kernel.buffers, kernel.before, kernel.body, kernel.after))


def least_shared_bytes(kernel: Kernel) -> int:
    """A proved bound of the shared memory that any placement of the kernel's buffers takes, in bytes, whatever their offsets are.

    Buffers take whole multiples of `ALIGNMENT`; those that copies arrive in are alive from the first statement to the last.
    """
    alive = lifetimes(kernel.before, kernel.body, kernel.after)
    alive |= {name: Lifetime(0, len(kernel.statements) - 1) for name in kernel.arriving}
    shared = [buffer for buffer in kernel.buffers if buffer.memory is Memory.SHARED]
    return allocate(_requests(shared, alive)).bound * ALIGNMENT


def _requests(shared: Sequence[Buffer], alive: Mapping[str, Lifetime]) -> list[Request]:
    return [Request(-(-buffer.bytes // ALIGNMENT), alive[buffer.name].first, alive[buffer.name].last) for buffer in shared]
