"""Units of a multiprocessor that work beside its threads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engines:
    """The units that generated kernels may use: those a machine has, or fewer, for results do not depend on them."""

    bulk_copies: bool = False
    """Copies of whole rows into shared memory, whose bytes barriers there count (NVIDIA: sm_90 on)."""


NO_ENGINES = Engines()
