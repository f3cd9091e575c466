"""Values that an output is computed of element by element, kept where the output will lie.

A block of a CPU is one thread, whose tiles compete for its caches. Exponentials of a row that are divided by their sum in the end
need no scratch beside the output: they are stored there, and divided in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mugraph.lower.inlining import is_local, seen_through, without_unused_buffers
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Elementwise, Kernel, Reduce, Statement, Tile
from mugraph.lower.tiles import same_elements
from mugraph.lower.touched_tiles import reads_target, with_tiles


def with_values_in_outputs(kernel: Kernel) -> Kernel:
    """The kernel with tiles of its last phase, from which outputs of their type are computed, in the places of these."""
    while (places := next(_places(kernel), None)) is not None:
        kernel = _moved(kernel, places)
    return without_unused_buffers(kernel)


def _places(kernel: Kernel) -> Iterator[dict[Tile, Tile]]:
    """For each buffer that can lie in an output: its tiles, as such of the output."""
    for last in kernel.after:
        if isinstance(last, Elementwise) and _has_its_own_place(kernel, last):
            moved = (_places_in_target(kernel, source, last) for source in last.sources)
            yield from (each for each in moved if each is not None)


def _has_its_own_place(kernel: Kernel, last: Elementwise) -> bool:
    """Whether nothing else touches an output that a statement writes, and every block writes a part of its own."""
    target = last.target
    steps = target.start.grid or (0,) * len(kernel.grid)
    apart = all(step for blocks, step in zip(kernel.grid, steps, strict=True) if blocks > 1)
    alone = sum(any(tile.buffer == target.buffer for tile in _tiles(each)) for each in kernel.statements) == 1
    return target.buffer in kernel.outputs and last.combine is None and apart and alone


def _places_in_target(kernel: Kernel, source: Tile, last: Elementwise) -> dict[Tile, Tile] | None:
    """The tiles of a source's buffer as such of the target of a statement, which reads it last; None where they cannot be."""
    touching = [each for each in kernel.after if any(tile.buffer == source.buffer for tile in _tiles(each))]
    first = touching[0]
    if first.target.buffer != source.buffer or reads_target(first) or not is_local(kernel, first, kernel.after):
        return None
    same_type = kernel.buffer(source.buffer).dtype is kernel.buffer(last.target.buffer).dtype
    if not same_type or touching[-1] is not last or not all(isinstance(each, Elementwise | Reduce) for each in touching):
        return None
    moved = {
        tile: seen_through(tile, source, last.target)
        for each in touching
        for tile in _tiles(each)
        if tile.buffer == source.buffer
    }
    own = (moved[tile] for tile in last.sources if tile.buffer == source.buffer)
    if not all(tile is not None and same_elements(tile, last.target) for tile in own):
        return None
    found = {tile: place for tile, place in moved.items() if place is not None}
    return found if len(found) == len(moved) else None


def _moved(kernel: Kernel, places: dict[Tile, Tile]) -> Kernel:
    """The kernel with other tiles in the place of some, which no statement copies to where they are."""
    after = (with_tiles(each, lambda tile: places.get(tile, tile)) for each in kernel.after)
    tensors = tuple((value, places.get(tile, tile)) for value, tile in kernel.tensors)
    return replace(kernel, after=tuple(each for each in after if not _copies_to_itself(each)), tensors=tensors)


def _copies_to_itself(statement: Statement) -> bool:
    copies = isinstance(statement, Elementwise) and statement.expression == Source(0) and not reads_target(statement)
    return copies and same_elements(statement.sources[0], statement.target)


def _tiles(statement: Statement) -> tuple[Tile, ...]:
    return (statement.target, *statement.sources)
