"""Rings as deep as memory wants them: short panels in more slots, so that as many bytes are on their way as keep memory busy.

Panels are as deep as k and the shape of a product allow, up to a size of which four slots hold enough (`streams.py`). Where they
are shorter, three of them on their way are fewer bytes than latency times bandwidth, and memory is idle between them. They get
more slots, when everything else has its place, from what shared memory is left: nothing gives way to them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.lower.memory import whole_bytes
from mugraph.lower.staging import panels_of_kernel, slots
from mugraph.lower.tile_form import Buffer, Kernel

_MOST_AHEAD = 16
"""Panels on their way at most: with more, they are so short that the barrier before each takes longer than memory does."""


def with_bytes_in_flight(kernel: Kernel, wanted: int, room: int) -> Kernel:
    """The kernel, whose buffers are placed, with `wanted` bytes of panels on their way, or as many as `room` bytes of shared
    memory allow; as it is where they are on their way already, or where it has no ring.

    Its ring and what is staged beside it grow, so shared memory is to be placed again. Nothing else changes.
    """
    ring = kernel.ring
    if ring is None:
        return kernel
    panel = ring.slot * kernel.buffer(ring.buffer).dtype.bytes
    ahead = min(math.ceil(wanted / panel), panels_of_kernel(kernel), _MOST_AHEAD)
    deeper = (with_panels_ahead(kernel, panels) for panels in range(ahead, ring.ahead, -1))
    return next((each for each in deeper if whole_bytes(kernel.shared_bytes) + _growth(kernel, each) <= room), kernel)


def with_panels_ahead(kernel: Kernel, panels: int) -> Kernel:
    """The kernel, which has a ring, with so many panels on their way, and a slot for each beside those that are in use."""
    assert kernel.ring is not None
    ring = replace(kernel.ring, stages=kernel.ring.stages + panels - kernel.ring.ahead)
    deeper = replace(kernel, ring=ring)
    staged = {each.buffer for each in kernel.staged}

    def resized(buffer: Buffer) -> Buffer:
        if buffer.name == ring.buffer:
            return replace(buffer, elements=ring.bytes(buffer.dtype) // buffer.dtype.bytes)
        if buffer.name in staged:
            return replace(buffer, elements=buffer.elements // slots(kernel) * slots(deeper))
        return buffer

    return replace(deeper, buffers=tuple(map(resized, kernel.buffers)))


def _growth(kernel: Kernel, deeper: Kernel) -> int:
    """Bytes of shared memory that a kernel with other sizes of the same buffers takes more."""
    sizes = zip(kernel.buffers, deeper.buffers, strict=True)
    return sum(whole_bytes(after.bytes) - whole_bytes(before.bytes) for before, after in sizes)
