"""Copies of less than a line of the last cache, of which later copies of the same block take the rest.

A copy of 32 or 64 bytes of a row has their sectors brought from device memory, and no others. Where the next panel or iteration
takes the neighbours, a hint has the whole line, or the pair of lines, brought with the first of them.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.lower import tiles
from mugraph.lower.tile_form import Kernel, Tile

LINES = (128, 256)
"""Bytes that a copy may have the last cache fetch: a line, a pair of lines (PTX ISA, `cp.async`, `.level::prefetch_size`)."""


def prefetched_bytes(kernel: Kernel, source: Tile, along: int, run: int) -> int:
    """Of `LINES` the first that is longer than `run` elements, which are what copies for one panel take of a row of `source`, if
    that block's copies take all of it and of every other such line that they touch; 0 where they do not.

    `source` is what all copies of an iteration take of device memory, its rows along dimension `along`.
    """
    size = kernel.buffer(source.buffer).dtype.bytes
    line = next((line // size for line in LINES if run * size < line), 0)
    whole, start = source.shape[along], source.start
    if start.loop == whole:
        whole, start = whole * kernel.loop, replace(start, loop=0)
    if not line or whole % line or tiles.alignment(replace(source, start=start), line, along) != line:
        return 0
    return line * size
