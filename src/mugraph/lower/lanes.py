"""How the lanes of a warp share a reduction."""

from __future__ import annotations

from mugraph.lower.fragments import WARP


def lanes_per_result(threads: int, results: int, reduced: int) -> int:
    """Lanes, a power of two, that reduce one result of `reduced` values together: one where results alone keep a block of
    `threads` threads busy."""
    wanted = max(1, threads // (1 << (results - 1).bit_length()))
    return min(WARP, wanted, 1 << (reduced - 1).bit_length())
