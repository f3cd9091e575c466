"""A context of the closure: which axis the for-loop cuts, and how axes read as bits, primes and tiny sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from mugraph.ir.axes import AxisProgram

_TILE = 2
_REDUCED_TILE = 3
_ITERATIONS = 2


def primes(count: int) -> list[int]:
    """The first `count` primes."""
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found


@dataclass(frozen=True)
class Context:
    """Axes 0..n-1 are tile parts (bit i); bit n is the part of `loop_axis` that the for-loop runs over.

    Every part has its own prime, so that a reduction names what it reduced, and its own tiny size, on which
    values are computed: sizes of the program play no role.
    """

    axes: int
    loop_axis: int | None
    reduced: frozenset[int]

    @classmethod
    def of(cls, program: AxisProgram, loop_axis: int | None) -> Context:
        """The context of a program whose for-loop cuts `loop_axis` (None: no loop)."""
        reduced = frozenset[int]().union(*program.reductions)
        return cls(len(program.sizes), loop_axis, reduced)

    @property
    def loop_bit(self) -> int:
        """The mask of the for-loop part; 0 without a loop."""
        return 0 if self.loop_axis is None else 1 << self.axes

    @cached_property
    def part_primes(self) -> list[int]:
        """The prime that names each part."""
        return primes(self.axes + 1)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The tiny size of every part, the for-loop part last."""
        tiles = [_REDUCED_TILE if axis in self.reduced else _TILE for axis in range(self.axes)]
        return (*tiles, _ITERATIONS)

    def mask(self, axes: Iterable[int]) -> int:
        """The parts of whole axes: their tiles, and the for-loop part if the loop axis is among them."""
        result = 0
        for axis in axes:
            result |= 1 << axis
            if axis == self.loop_axis:
                result |= self.loop_bit
        return result

    def reduction_factor(self, mask: int) -> int:
        """The number that names a reduction over the parts in `mask`."""
        return math.prod(self.part_primes[part] for part in bits(mask))


def bits(mask: int) -> list[int]:
    """Positions of the set bits, ascending."""
    return [position for position in range(mask.bit_length()) if mask >> position & 1]
