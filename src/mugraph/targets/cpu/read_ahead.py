"""What the next block reads, asked for while this one computes functions of numbers that lie in the caches: memory is idle then.

Blocks follow each other in a thread, so that the tile of the next one lies as far behind that of this one as a grid dimension
moves it. Softmax of long rows reads a row for its maximum, as fast as it comes, and once more for the exponentials, which take
longer.
"""

from __future__ import annotations

from functools import cache

from mugraph.ir.ops import OPERATORS
from mugraph.lower.places import Index
from mugraph.lower.scalar_expressions import Apply, Expression, subexpressions
from mugraph.lower.tile_form import Kernel, Tile
from mugraph.lower.tiles import merged

LINE_BYTES = 64
"""Of a cache."""

_SECOND_LEVEL = 1 << 20
"""Bytes of a second-level cache: of an input that is not larger all is there already."""

_HELD = 3
"""Tiles that are to be there at once: what is read, what is written, and what comes next."""

_LONG = 10
"""Operations for each element from which on a loop takes longer than the next elements take to come."""

Place = tuple[str, Index]
"""Where a tile begins."""


def place_of(tile: Tile) -> Place:
    """Its buffer and its start there."""
    return tile.buffer, tile.start


def steps_ahead(kernel: Kernel) -> dict[Place, int]:
    """Of tiles of inputs that a block reads more than once, by their places, how many elements further the next block's lies."""
    if (
        kernel.loop > 1
        or kernel.skips
        or kernel.growing is not None
        or (kernel.slices is not None and len(kernel.grid) > 1)
        or kernel.grid[-1:] in ((), (1,))
    ):
        return {}
    reads = [tile for statement in kernel.statements for tile in statement.sources]
    again = {place_of(tile) for tile in reads if [place_of(other) for other in reads].count(place_of(tile)) > 1}
    return {place_of(tile): tile.start.grid[-1] for tile in reads if place_of(tile) in again and _pays(kernel, tile)}


def _pays(kernel: Kernel, tile: Tile) -> bool:
    """Whether the next block's tile is not in the second-level cache yet, and would fit there beside this one's."""
    if tile.buffer not in kernel.inputs or tile.lookup is not None or not tile.start.grid or tile.start.grid[-1] <= 0:
        return False
    whole, runs = kernel.buffer(tile.buffer), merged(tile)
    size = whole.dtype.bytes
    one_run = [stride for count, stride in runs if count > 1] == [1]
    return one_run and whole.elements * size > _SECOND_LEVEL >= _HELD * size * max(count for count, _ in runs)


def takes_long(expression: Expression) -> bool:
    """Whether a loop that computes this waits for no memory."""
    operators = (node.template for node in subexpressions(expression) if isinstance(node, Apply))
    return sum(_operations().get(template, 0.0) for template in operators) >= _LONG


@cache
def _operations() -> dict[str, float]:
    """How many operations operators have for an element, by their text."""
    rows = (row for row in OPERATORS.values() if row.scalar is not None)
    return {str(row.scalar): float(row.cost) for row in rows}
