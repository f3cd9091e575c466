"""A warp beside a block's threads that does nothing but copy: those that multiply meet no more, and issue no copies.

Where units read all panels in the ring, and nothing else in a kernel makes its threads meet, they met before each panel alone so
that one of them could tell the engine to fill a slot again. With a warp for that, each group of warps goes on by itself: it waits
for the bytes of a panel, multiplies, and tells by a barrier in shared memory which slot it has left. All slots are filled ahead.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower.tile_form import Kernel


def with_producer(kernel: Kernel) -> Kernel:
    """The kernel, whose barriers are known, with a warp that copies for its ring; as it is where its threads meet otherwise.

    The ring's buffer grows by a barrier for each slot, so shared memory is to be placed again.
    """
    if not can_have_producer(kernel):
        return kernel
    assert kernel.ring is not None
    ring, buffer = replace(kernel.ring, producer=True), kernel.buffer(kernel.ring.buffer)
    longer = replace(buffer, elements=ring.bytes(buffer.dtype) // buffer.dtype.bytes)
    return replace(kernel, ring=ring, buffers=tuple(longer if each is buffer else each for each in kernel.buffers))


def can_have_producer(kernel: Kernel) -> bool:
    """Whether the threads of a kernel need not meet: its ring lags, so units alone read it, and no barrier stands elsewhere."""
    return kernel.ring is not None and kernel.ring.lag > 0 and not kernel.staged and not kernel.barriers
