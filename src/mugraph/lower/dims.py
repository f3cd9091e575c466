"""The loops of an elementwise statement or a reduction: its dimensions, joined where they line up in every tile."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.lower.tile_form import Elementwise, Reduce


@dataclass(frozen=True, slots=True)
class LoopDim:
    """A loop: its size, and the stride of the target and of each source along it."""

    size: int
    strides: tuple[int, ...]
    reduced: bool = False


def loops_of(statement: Elementwise | Reduce) -> list[LoopDim]:
    """The loops from the target's slowest dimension to its fastest, then the reduced one; at least one loop."""
    target, sources = statement.target, statement.sources
    dims = [
        LoopDim(size, tuple(tile.strides[d] for tile in (target, *sources))) for d, size in enumerate(target.shape) if size > 1
    ]
    joined: list[LoopDim] = []
    for dim in sorted(dims, key=lambda dim: -dim.strides[0]):
        if joined and all(outer == dim.size * inner for outer, inner in zip(joined[-1].strides, dim.strides, strict=True)):
            joined[-1] = LoopDim(joined[-1].size * dim.size, dim.strides)
        else:
            joined.append(dim)
    if isinstance(statement, Reduce):
        size = statement.sources[0].shape[-1] if statement.sources else 1
        joined.append(LoopDim(size, (0, *(tile.strides[-1] for tile in sources)), reduced=True))
    return joined or [LoopDim(1, (1,) * (1 + len(sources)))]
