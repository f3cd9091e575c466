"""Words for what every view of a result shows: times, and what a kernel is."""

from __future__ import annotations

from mugraph.ir.graph import Graph


def extent(body: Graph) -> str:
    """How many blocks and iterations: `grid 8 × 2 · loop 16`."""
    grid = f"grid {' × '.join(map(str, body.grid))}" if body.grid else "one block"
    return f"{grid} · loop {body.loop}" if body.loop > 1 else grid


def seconds_text(seconds: float) -> str:
    """A time with the unit that fits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError("unreachable: microseconds take every rest")
