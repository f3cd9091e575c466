"""k of a panel shared out among warps: where a product has fewer tasks than a block has warps, sets of warps take parts of it.

Each set has fragments of the whole target in registers, to which it adds its own values of k throughout the loop. Behind the loop
they meet in the ring, which no copy writes any more, and the first set goes on with the total. Chains of instructions that add to
one sum are shorter by as much as there are sets, and no warp is idle.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.devices.products import DEPTH, WARP
from mugraph.ir.dtypes import DType
from mugraph.lower.fragments import WarpTiles, holds_rows, instruction_depth, on_matrix_units, warp_tiles
from mugraph.lower.tile_form import Kernel, Matmul, Statement
from mugraph.lower.warp_groups import adds_alone

_SHORTEST_CHAIN = 32
"""Instructions of a chain that is cut: less time is won of a shorter one than two barriers and the ring take."""
FRAGMENT = 4
"""Sums of a lane in one tile."""


def with_parts(kernel: Kernel) -> Kernel:
    """The kernel with the panels of its loop shared out among warps that had no task."""

    def parted(statement: Statement) -> Statement:
        if not isinstance(statement, Matmul) or statement.panels is None or _chain(kernel, statement) < _SHORTEST_CHAIN:
            return statement
        parts = next(parts for parts in _counts(kernel) if parts == 1 or can_take_parts(kernel, statement, parts))
        return replace(statement, panels=replace(statement.panels, parts=parts))

    return kernel if kernel.ring is None else replace(kernel, body=tuple(map(parted, kernel.body)))


def can_take_parts(kernel: Kernel, product: Matmul, parts: int) -> bool:
    """Whether so many sets of warps can share out the panels of a product, and their sums meet in the ring."""
    panels, ring = product.panels, kernel.ring
    if panels is None or ring is None or panels.grouped or not on_matrix_units(product) or holds_rows(kernel):
        return False
    split = warp_tiles(product.target.shape, kernel.threads // WARP)
    copied_later = any(isinstance(s, Matmul) and s.panels is not None for s in kernel.after)
    met = (parts - 1) * split.tasks * sums_of_lane(split) * WARP * DType.FP32.bytes
    room = ring.stages * ring.slot * kernel.buffer(ring.buffer).dtype.bytes
    if copied_later or met > room or not adds_alone(kernel, product):
        return False
    return split.tasks * parts * WARP <= kernel.threads and panels.depth % (DEPTH * parts) == 0


def sums_of_lane(split: WarpTiles) -> int:
    """Sums that a lane holds of a task."""
    return split.down * split.across * FRAGMENT


def parted_products(kernel: Kernel) -> tuple[Matmul, ...]:
    """The products of the loop whose panels are shared out."""
    return tuple(s for s in kernel.body if isinstance(s, Matmul) and s.panels is not None and s.panels.parts > 1)


def _counts(kernel: Kernel) -> list[int]:
    """Numbers of sets, powers of two, the largest first."""
    return [1 << power for power in reversed(range((kernel.threads // WARP).bit_length()))]


def _chain(kernel: Kernel, product: Matmul) -> int:
    """Instructions that add to one sum in the loop."""
    return kernel.loop * product.left.shape[-1] // instruction_depth(product)
