"""Kernels that are timed in a few configurations at their first launch, for files that are to tune themselves where they run."""

from __future__ import annotations

from mugraph.targets.triton.units import Units

STAGES = "stages"
"""The argument of a kernel that says how many stages its loop has."""
_MOST_THREADS = 1024
"""Of a block."""


def decorator(warps: int, stages: int | None, units: Units) -> list[str]:
    """The lines before the definition of a kernel that is timed with half and twice as many `warps`, and with a stage fewer.

    `stages` are those of its loop, None where it has none. The configuration that it would have otherwise is the first.
    """
    counts = [count for count in (warps, warps // 2, 2 * warps) if 1 <= count <= _MOST_THREADS // units.lanes]
    depths = [None] if stages is None else [stages, stages - 1] if stages > 1 else [stages]
    rows = [f"    triton.Config({_options(depth)}, num_warps={count})," for count in counts for depth in depths]
    return ["@tuned(", *rows, ")"]


def _options(stages: int | None) -> str:
    return "{}" if stages is None else f'{{"{STAGES}": {stages}}}'
