"""What a printed C function knows: the vector unit, the types of buffers, and the text written so far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from mugraph.ir.dtypes import DType
from mugraph.lower.argument_strides import digits
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Tile
from mugraph.targets.c_text import Text, index_terms, sum_of

HELD = "held"
"""The variable that says how many elements there are along a dimension that is bounded."""
Lanes = int | str
"""How many lanes of a vector are in use: a number, or a C expression."""
UNROLLED = 4
"""Partial results of a vectorised reduction, or vectors reduced side by side: enough to hide the latency of an addition."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The host's vector unit: floats per register, how many registers, whether it multiplies pairs of bf16 numbers, and whether
    the matrix unit beside it (AMX) multiplies these."""

    lanes: int
    registers: int
    bf16_pairs: bool = False
    tiles: bool = False


@dataclass(slots=True)
class Writer(Text):
    """The lines of a C function; knows the vector unit, the type of each buffer and which lie in device memory."""

    vectors: Vectors
    dtypes: Mapping[str, DType]
    device: frozenset[str]
    strides: Mapping[int, int] = field(default_factory=dict)
    """What strides that are arguments usually are, by number."""
    scratch: Mapping[str, range] = field(default_factory=dict)
    """Which bytes of its block's memory each shared buffer has."""
    ahead: Mapping[tuple[str, Index], int] = field(default_factory=dict)
    """Of tiles, by buffer and start, how many elements further that of the next block lies, where it is to be asked for."""

    left_copies: dict[Hashable, str] = field(default_factory=dict)
    """Memories of the copies of left factors that a thread has for all of its blocks, by what these products have in common."""

    def usual(self, coefficient: int) -> int:
        """What a coefficient usually is, which has strides that are arguments."""
        parts = digits(coefficient).items()
        return sum(times if number is None else times * self.strides[number] for number, times in parts)

    def dtype(self, tile: Tile) -> DType:
        """Element type of the tile's buffer."""
        return self.dtypes[tile.buffer]

    def is_device(self, tile: Tile) -> bool:
        """Whether the tile lies in device memory rather than in the block's cache-resident scratch."""
        return tile.buffer in self.device

    def share_bytes(self, first: Tile, second: Tile) -> bool:
        """Whether the buffers of two tiles have bytes in common."""
        taken, others = (self.scratch.get(tile.buffer, range(0)) for tile in (first, second))
        overlap = max(taken.start, others.start) < min(taken.stop, others.stop)
        return first.buffer == second.buffer or overlap

    def allocated(self, kind: str, name: str, size: int) -> None:
        """Declare memory from the heap, a multiple of 64 bytes; the function ends where there is none."""
        self.line(f"FREED {kind} *{name} = allocated(worker, {size});")
        self.line(f"if (!{name}) return;")

    def pointer(self, name: str, tile: Tile, written: bool = False) -> None:
        """Declare `name`, a pointer to the tile's first element in this block and iteration."""
        const = "" if written else "const "
        self.line(f"{const}{self.dtype(tile)}_t *{name} = {sum_of([tile.buffer, *index_terms(tile.start)])};")
