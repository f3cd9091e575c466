"""Sizes that cannot be cut into useful parts: which they are, and what padding them is predicted to bring.

Tiles are equal parts of a dimension, so a prime dimension is cut into single elements or not at all. Such programs are
searched as they are; the report says what was lost, because only the caller knows whether rows of zeros are harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mugraph.ir.axes import AxisProgram
from mugraph.search.closure.tiers import Tier
from mugraph.search.partition.plans import PlanSearch

_MULTIPLES = (16, 64)
"""Sizes are padded to the next multiple of the larger one they exceed: elements of a vector, rows of a tile."""

_WORTH_SAYING = 0.9
"""Padding is mentioned if it is predicted to take less than this share of the time."""


@dataclass(frozen=True, slots=True)
class Padding:
    """A dimension that would better be larger: where it is, both sizes, and predicted seconds (infinity: no schedule fits)."""

    where: str
    size: int
    padded: int
    seconds: float
    padded_seconds: float

    def __str__(self) -> str:
        parts = " x ".join(map(str, factors(self.size)))
        size = f"{self.size} = {parts}" if parts != str(self.size) else f"{self.size}, a prime"
        what = "parts that fit a block" if math.isinf(self.seconds) else "useful parts"
        instead = "" if math.isinf(self.seconds) else f" instead of {self.seconds * 1e6:.3g} us"
        return (
            f"{self.where} has size {size}, which cannot be cut into {what}: padded to {self.padded}, the program is "
            f"predicted to take {self.padded_seconds * 1e6:.3g} us{instead}"
        )


def worthwhile_paddings(
    program: AxisProgram, names: Sequence[str], plans: PlanSearch, produces: Sequence[int], seconds: float
) -> Iterator[Padding]:
    """The dimensions whose padding would make the best plan of `program` faster; inputs are called `names`.

    `seconds` are predicted for the best plan; infinity says that none was found.
    """
    for axis, size in enumerate(program.sizes):
        multiple = next((each for each in reversed(_MULTIPLES) if size > each), None)
        if multiple is None or size % _MULTIPLES[0] == 0:
            continue
        padded = -(-size // multiple) * multiple
        larger = replace(program, sizes=(*program.sizes[:axis], padded, *program.sizes[axis + 1 :]))
        best = min((plan.seconds for plan in plans.single(larger, Tier.OPAQUE_SUMS, tuple(produces))), default=math.inf)
        if best < _WORTH_SAYING * seconds:
            yield Padding(_where(program, axis, names), size, padded, seconds, best)


def factors(n: int) -> list[int]:
    """The prime factors of n, ascending."""
    found: list[int] = []
    candidate = 2
    while candidate * candidate <= n:
        while n % candidate == 0:
            found.append(candidate)
            n //= candidate
        candidate += 1
    return [*found, n] if n > 1 else found


def _where(program: AxisProgram, axis: int, names: Sequence[str]) -> str:
    """The first input dimension that an axis is, or is part of."""
    places = ((term.source, dim) for _, term in program.loads() for dim, slot in enumerate(term.slots) if axis in slot)
    source, dim = min(places)
    return f"dimension {dim} of {names[source]}"
