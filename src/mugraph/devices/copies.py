"""How generated kernels for GPUs copy: what lowering goes by, and what the cost model expects before anything is lowered.

Factors of products pass through a ring of slots in shared memory, a panel each (`mugraph.lower.streams`), copied asynchronously.
"""

from __future__ import annotations

COPY_BYTES = 16
"""Bytes of one asynchronous copy: rows of what is copied are whole ones."""
PANEL_BYTES = 1 << 14
"""Size that panels are cut to: large enough to keep memory busy, small enough for several in flight."""
WHOLE_BYTES = 3 << 14
"""Largest panel that a whole factor may be, where other statements read it too."""
MOST_STAGES = 4
"""Slots of a ring that panels of this size share: three are on their way then, 48 KB. Shorter ones get more slots where a device
wants that (`mugraph.lower.bytes_in_flight`)."""

THREAD_COPY = 19
"""Instructions of a warp for 16 bytes of each lane: one is the copy, the others find out where both ends are."""
WARP_COPY_BYTES = 32 * COPY_BYTES
"""What these copy."""
SCHEDULERS = 4
"""Of a multiprocessor, each of which issues one instruction a turn (CUDA C++ Programming Guide, compute capability 9.0)."""

WAITED_BYTES = 256 * 16
"""What a block has on its way while its threads wait for what they load: 16 bytes for each of as many threads as blocks have."""
