"""Units of a multiprocessor that work beside its threads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engines:
    """The units that generated kernels may use: those a machine has, or fewer, for results do not depend on them."""

    bulk_row_bytes: int = 0
    """From how many bytes on a row goes to shared memory as one bulk copy, whose bytes barriers there count (NVIDIA: sm_90 on);
    0: never."""
    warp_group_rows: int = 0
    """From how many rows on four warps multiply together, 64 rows at once, and read one factor from shared memory as they go on
    (NVIDIA: `wgmma`, sm_90 alone); 0: never."""


NO_ENGINES = Engines()
