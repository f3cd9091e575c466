"""What holds up the threads of a block, counted in a lowered kernel: banks of shared memory, each other, and copies."""

from __future__ import annotations

from typing import NamedTuple

from mugraph.lower.access_costs import block_traffic
from mugraph.lower.staging import panels_of_kernel
from mugraph.lower.tile_form import Kernel


class Waits(NamedTuple):
    """What one block of a kernel waits for."""

    turns: float
    """In which shared memory serves all accesses, bank conflicts included."""
    barriers: int
    """Beside those of a ring's panels, in all iterations."""
    latencies: float
    """Of memory, one after the other: as many panels as a ring brings ahead arrive in one, and results are stored in the last;
    0 without a ring."""
    beside: int
    """Blocks that wait side by side on a multiprocessor."""


def waits_of(kernel: Kernel) -> Waits:
    """What a block waits for."""
    latencies = 0.0 if kernel.ring is None else panels_of_kernel(kernel) / kernel.ring.ahead + 1
    return Waits(block_traffic(kernel).wavefronts, barriers_beside_ring(kernel), latencies, kernel.resident)


def barriers_beside_ring(kernel: Kernel) -> int:
    """Barriers before statements that one block meets at in all iterations."""
    body = range(len(kernel.before), len(kernel.before) + len(kernel.body))
    return sum(kernel.loop if number in body else 1 for number in kernel.barriers)
