"""Fewer passes over tiles: sums of sums as one sum, and cheap values computed anew where they are read.

A block of a CPU is one thread, which works through a tile element by element for every statement. A tile that is written for
the next statement to read costs a pass of its own, be it in the first-level cache; what GPUs gain from it, results for many
threads to compute side by side, is nothing to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.ir.ops import operator
from mugraph.lower.scalar_expressions import Apply, Expression, Source, renumbered, subexpressions
from mugraph.lower.tile_form import Elementwise, Kernel, Matmul, Memory, Reduce, Statement, Tile
from mugraph.lower.tiles import merged, of_integers_too

_CHEAP = frozenset(operator(name).scalar for name in ("add", "sub", "mul", "square"))
"""Operators that take as long as reading their result would."""
_MOST = 2
"""Operators of a value that is computed anew wherever it is read."""
_Change = Callable[[Kernel, Sequence[Statement]], tuple[Statement, ...] | None]
"""A part of a kernel after one change; None where there is nothing to change."""


def with_joined_reductions(kernel: Kernel) -> Kernel:
    """Reductions whose results only another of the same sort reduces further, as one where strides can say so."""
    return _changed(kernel, _joined_once)


def with_cheap_values_inlined(kernel: Kernel) -> Kernel:
    """Values of a few additions and products over one large tile at most, computed by each statement that reads them."""
    return _changed(kernel, _inlined_once)


def with_copies_of_inputs_inlined(kernel: Kernel) -> Kernel:
    """Inputs read where they lie, by products too, in the place of copies of them."""
    return _changed(kernel, _read_in_place_once)


def _changed(kernel: Kernel, change: _Change) -> Kernel:
    """The kernel after as many changes as there are to make, without the buffers that nobody needs any more."""
    parts = []
    for part in (kernel.before, kernel.body, kernel.after):
        while (fewer := change(kernel, part)) is not None:
            part = fewer
        parts.append(part)
    before, body, after = parts
    return without_unused_buffers(replace(kernel, before=before, body=body, after=after))


def without_unused_buffers(kernel: Kernel) -> Kernel:
    """The kernel without shared buffers that no statement touches."""
    used = {tile.buffer for statement in kernel.statements for tile in (statement.target, *statement.sources)}
    buffers = tuple(buffer for buffer in kernel.buffers if buffer.memory is not Memory.SHARED or buffer.name in used)
    known = {buffer.name for buffer in buffers}
    tensors = tuple((value, tile) for value, tile in kernel.tensors if tile.buffer in known)
    return replace(kernel, buffers=buffers, tensors=tensors)


def _joined_once(kernel: Kernel, part: Sequence[Statement]) -> tuple[Statement, ...] | None:
    """The statements with one reduction fewer; None where no two can be joined."""
    for number, inner in enumerate(part):
        if not isinstance(inner, Reduce) or inner.accumulate or not is_local(kernel, inner, part):
            continue
        readers = _readers(part, inner.target)
        if len(readers) != 1 or not _is_still_there(inner, part[number + 1 : readers[0]]):
            continue
        joined = _joined(inner, part[readers[0]])
        if joined is not None:
            return (*part[:number], *part[number + 1 : readers[0]], joined, *part[readers[0] + 1 :])
    return None


def _joined(inner: Reduce, outer: Statement) -> Reduce | None:
    """One reduction over both dimensions, which line up in all sources, the one outside or the other."""
    if not isinstance(outer, Reduce) or outer.combine is not inner.combine or outer.expression != Source(0):
        return None
    (read,) = outer.sources
    seen = [seen_through(read, inner.target, source) for source in inner.sources]
    sources = [tile for tile in seen if tile is not None]
    if len(sources) < len(seen):
        return None
    for first in (-1, -2):
        second = -3 - first
        if all(_line_up(tile, first, second) for tile in sources):
            joined = (_with_last_joined(tile, second) for tile in sources)
            return replace(outer, sources=tuple(joined), expression=inner.expression)
    return None


def _line_up(tile: Tile, outside: int, inside: int) -> bool:
    """Whether a dimension goes on where another one ends."""
    own = tile.strides[outside] == tile.shape[inside] * tile.strides[inside]
    return own and (tile.lookup is None or _line_up(tile.lookup.index, outside, inside))


@of_integers_too
def _with_last_joined(tile: Tile, inside: int) -> Tile:
    """The last two dimensions as one, of which `inside` varies faster."""
    shape, strides = tile.shape, tile.strides
    return replace(tile, shape=(*shape[:-2], shape[-2] * shape[-1]), strides=(*strides[:-2], strides[inside]))


def _inlined_once(kernel: Kernel, part: Sequence[Statement]) -> tuple[Statement, ...] | None:
    """The statements without one whose value its readers compute; None where there is none."""
    for number, statement in enumerate(part):
        if not isinstance(statement, Elementwise) or not is_local(kernel, statement, part):
            continue
        readers = _readers(part, statement.target)
        if not readers or not _is_cheap(kernel, statement) or not _is_still_there(statement, part[number + 1 : readers[-1]]):
            continue
        changed = {reader: inlined(statement, part[reader]) for reader in readers}
        if all(each is not None for each in changed.values()):
            rest = ((place, changed.get(place) or other) for place, other in enumerate(part) if place != number)
            return tuple(each for _, each in rest)
    return None


def _read_in_place_once(kernel: Kernel, part: Sequence[Statement]) -> tuple[Statement, ...] | None:
    """The statements without one copy of an input; None where there is none, or readers cannot do without."""
    for number, statement in enumerate(part):
        if isinstance(statement, Elementwise) and _copies_input(kernel, statement) and is_local(kernel, statement, part):
            changed = {reader: _reading_in_place(kernel, statement, part[reader]) for reader in _readers(part, statement.target)}
            if all(reader > number and each is not None for reader, each in changed.items()):
                return tuple(changed.get(place) or other for place, other in enumerate(part) if place != number)
    return None


def _copies_input(kernel: Kernel, statement: Elementwise) -> bool:
    return (
        statement.combine is None
        and statement.expression == Source(0)
        and statement.sources[0].buffer in kernel.inputs
        and statement.sources[0].lookup is None
    )


def _reading_in_place(kernel: Kernel, copy: Elementwise, reader: Statement) -> Statement | None:
    """A statement that reads what was copied; None where strides cannot say what. Products are no less exact."""
    if not isinstance(reader, Matmul):
        return inlined(copy, reader)
    (source,) = copy.sources
    if reader.target.buffer == copy.target.buffer or reader.dequantized is not None:
        return None
    seen = [
        seen_through(tile, copy.target, source) if tile.buffer == copy.target.buffer else tile
        for tile in (reader.left, reader.right)
    ]
    left, right = seen
    if left is None or right is None:
        return None
    exact = kernel.buffer(source.buffer).dtype is kernel.buffer(copy.target.buffer).dtype
    return replace(reader, left=left, right=right, dtype=reader.dtype if exact else DType.FP32)


def _is_cheap(kernel: Kernel, statement: Elementwise) -> bool:
    """Whether computing a value takes about as long as reading it: a few operators, and one tile at most as large as it."""
    operators = [node for node in subexpressions(statement.expression) if isinstance(node, Apply)]
    if statement.combine is not None or len(operators) > _MOST or any(node.template not in _CHEAP for node in operators):
        return False
    wide = [tile for tile in statement.sources if _elements(tile) == _elements(statement.target)]
    if len(wide) > 1 or any(kernel.buffer(tile.buffer).dtype is not DType.FP32 for tile in statement.sources):
        return False
    return all(_fastest(tile) == _fastest(statement.target) for tile in wide)


def _elements(tile: Tile) -> int:
    """How many different elements a tile has."""
    integers = (0,) * tile.rank if tile.lookup is None else tile.lookup.index.strides
    return math.prod(size for size, *strides in zip(tile.shape, tile.strides, integers, strict=True) if any(strides))


def _fastest(tile: Tile) -> list[int]:
    """The dimensions along which neighbours in memory lie."""
    return [dim for dim, (size, stride) in enumerate(zip(tile.shape, tile.strides, strict=True)) if size > 1 and stride == 1]


def inlined(made: Elementwise, reader: Statement) -> Statement | None:
    """A statement that computes what it would read; None where strides cannot say what."""
    if not isinstance(reader, Elementwise | Reduce):
        return None
    sources: list[Tile] = []
    places: list[Expression] = []
    for tile in reader.sources:
        if tile.buffer != made.target.buffer:
            places.append(Source(_place(sources, tile)))
            continue
        seen = [seen_through(tile, made.target, source) for source in made.sources]
        if None in seen:
            return None
        own = [Source(_place(sources, each)) for each in seen if each is not None]
        places.append(renumbered(made.expression, own))
    return replace(reader, sources=tuple(sources), expression=renumbered(reader.expression, places))


def _place(sources: list[Tile], tile: Tile) -> int:
    """Where a tile stands among sources, at the end if it is new."""
    if tile not in sources:
        sources.append(tile)
    return sources.index(tile)


def seen_through(read: Tile, made: Tile, source: Tile) -> Tile | None:
    """What `source` is where `made`, whose element i it goes into, is read as `read`; its further dimensions come last.

    None where strides cannot say it.
    """
    if read.start != made.start or read.swizzle or made.swizzle or source.swizzle:
        return None
    same = replace(source, lookup=None, shape=source.shape[: made.rank], strides=source.strides[: made.rank])
    runs = merged(made, same)
    strides = [_stride_in(runs, size, stride) for size, stride in zip(read.shape, read.strides, strict=True)]
    if None in strides:
        return None
    more = slice(made.rank, source.rank)
    known = (stride for stride in strides if stride is not None)
    seen = replace(source, shape=(*read.shape, *source.shape[more]), strides=(*known, *source.strides[more]))
    if source.lookup is None:
        return seen
    index = seen_through(read, made, source.lookup.index)
    return None if index is None else replace(seen, lookup=replace(source.lookup, index=index))


def _stride_in(runs: Sequence[tuple[int, ...]], size: int, stride: int) -> int | None:
    """The stride in the other tile of a dimension with this stride in one; `runs` are (size, stride here, stride there)."""
    if size == 1 or stride == 0:
        return 0
    for length, here, there in runs:
        if here <= stride < length * here:
            steps, rest = divmod(stride, here)
            return None if rest or size * steps > length else steps * there
    return None


def is_local(kernel: Kernel, statement: Statement, part: Sequence[Statement]) -> bool:
    """Whether what a statement writes is written by it alone, and read in its own part of the kernel alone."""
    name = statement.target.buffer
    touching = [each for each in kernel.statements if name in (each.target.buffer, *(tile.buffer for tile in each.sources))]
    own = [each for each in part if name in (each.target.buffer, *(tile.buffer for tile in each.sources))]
    writers = [each for each in own if each.target.buffer == name]
    return kernel.buffer(name).memory is Memory.SHARED and len(writers) == 1 and len(touching) == len(own)


def _readers(part: Sequence[Statement], tile: Tile) -> list[int]:
    """The numbers of the statements that read a buffer."""
    return [number for number, each in enumerate(part) if any(source.buffer == tile.buffer for source in each.sources)]


def _is_still_there(statement: Statement, until: Sequence[Statement]) -> bool:
    """Whether what a statement reads is not written to before it is read later."""
    read = {tile.buffer for tile in statement.sources}
    return not any(each.target.buffer in read for each in until)
