"""What the copies of a ring take of a multiprocessor's issue slots: the instructions that warps issue for them."""

from __future__ import annotations

import math

from mugraph.devices.copies import THREAD_COPY, WARP_COPY_BYTES
from mugraph.devices.products import WARP
from mugraph.lower.bulk_copies import places, row_elements
from mugraph.lower.tensor_maps import box_copies
from mugraph.lower.tile_form import Kernel, Matmul, Panels

ROW_COPY = 8
"""Of the one thread that issues bulk copies, for a row: the copy, and its operands in uniform registers."""
BOX_COPY = 7
"""Of the same thread for a box."""
PANEL_OF_ONE = 13
"""Of the same thread for a panel: to be elected, to find the panel's place, to announce its bytes."""
THREAD_WAIT = 4
"""Of every warp for a panel: closing the group, waiting for it, the barrier."""
COUNTED_WAIT = 8
"""The same where a barrier in shared memory counts bytes: its address and phase, the wait and its loop, the barrier."""

PANEL_LEFT = 8
"""Of every warp for a panel where a warp beside them copies: telling it that a slot has been left."""
GROUP_WAIT = 2
"""Of every warp for a panel whose bytes are counted where threads stage inputs: closing the group and waiting for it."""


def copy_slots(kernel: Kernel) -> int:
    """Issue slots that a block spends on the copies of its ring and on waiting for them, in all; 0 without a ring.

    The numbers of instructions were counted in what NVIDIA's assembler makes of generated kernels for sm_90.
    """
    ring, warps = kernel.ring, kernel.threads // WARP
    if ring is None:
        return 0
    slots = 0
    for part, times in ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1)):
        for product in part:
            if isinstance(product, Matmul) and product.panels is not None:
                panels = times * (product.left.shape[-1] // product.panels.depth)
                waits = COUNTED_WAIT + (GROUP_WAIT if kernel.staged else 0) + (PANEL_LEFT if ring.producer else 0)
                own_waits = COUNTED_WAIT if ring.producer else 0
                by_engine = warps * waits + own_waits + PANEL_OF_ONE + _issued(kernel, product, product.panels)
                by_threads = warps * THREAD_WAIT + THREAD_COPY * _warp_copies(product, product.panels)
                slots += panels * (by_engine if ring.bulk else by_threads)
    return slots


def _issued(kernel: Kernel, product: Matmul, panels: Panels) -> int:
    """What one thread issues for the copies of a panel, by boxes or by rows."""
    if panels.boxed:
        return BOX_COPY * sum(copies.blocks * copies.pieces for copies in box_copies(kernel, product) if copies is not None)
    return ROW_COPY * sum(math.prod(place.shape) // row_elements(place) for place in places(panels))


def _warp_copies(product: Matmul, panels: Panels) -> int:
    """Instructions that copy a panel, each 16 bytes for every lane of a warp."""
    copied = sum(math.prod(place.shape) for place in places(panels)) * product.dtype.bytes
    return -(-copied // WARP_COPY_BYTES)
