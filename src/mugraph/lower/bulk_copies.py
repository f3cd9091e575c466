"""Rings filled by bulk copies: an engine moves whole rows of panels, and barriers in shared memory count their bytes.

The threads of a block issue one instruction a row instead of one for every 16 bytes, hold no addresses for it, and wait
until the bytes of a panel have been counted instead of for copies of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mugraph.lower.tile_form import Kernel, Matmul, Panels, Tile

COPY_BYTES = 16
"""Both ends and the size of a bulk copy are multiples of it."""
MOST_BYTES = (1 << 20) - 1
"""What one phase of a barrier can count."""


def with_bulk_copies(kernel: Kernel, row_bytes: int) -> Kernel:
    """The kernel with a ring that bulk copies fill, if it has one and all its panels have whole rows of `row_bytes` or more.

    A copy takes the engine about as long whatever its size, and those of a warp are issued one after the other.
    """
    ring = kernel.ring
    if ring is None:
        return kernel
    buffer = kernel.buffer(ring.buffer)
    panels = [s.panels for s in kernel.statements if isinstance(s, Matmul) and s.panels is not None]
    every = [place for each in panels for place in places(each)]
    if any(place.swizzle is not None or row_elements(place) * buffer.dtype.bytes < row_bytes for place in every):
        return kernel
    return with_barriers_that_count(kernel)


def with_barriers_that_count(kernel: Kernel) -> Kernel:
    """The kernel with its ring filled by the engine, and a barrier behind the slots for each."""
    assert kernel.ring is not None
    ring, buffer = replace(kernel.ring, bulk=True), kernel.buffer(kernel.ring.buffer)
    longer = replace(buffer, elements=ring.bytes(buffer.dtype) // buffer.dtype.bytes)
    return replace(kernel, ring=ring, buffers=tuple(longer if each is buffer else each for each in kernel.buffers))


def places(panels: Panels) -> Iterator[Tile]:
    """Where the panels of a product's factors lie in a slot."""
    return (place for place in (panels.left, panels.right) if place is not None)


def row_elements(place: Tile) -> int:
    """Elements of one row of a panel: those that follow each other in device memory as in the slot."""
    return place.shape[-1] if place.strides[-1] == 1 else place.shape[-2]
