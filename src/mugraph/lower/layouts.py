"""Layouts of shared memory: dimension order, and padded or swizzled rows, of every buffer, chosen together (paper, section 6).

What a statement costs depends on the layouts of all buffers it touches (`access_costs.py`), so they are not chosen one by
one: the choice with the least cost in all is an integer program (`choices.py`). Where several cost the same, rows stay as they
are in device memory, and plain: then threads take the same elements in more statements, and meet at fewer barriers.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mugraph.lower.access_costs import Accesses, accesses_of
from mugraph.lower.choices import Relation, choose, narrowed
from mugraph.lower.places import Swizzle
from mugraph.lower.tile_form import Buffer, Kernel, Memory, Statement, Tile
from mugraph.lower.touched_tiles import with_tiles

_CHUNK = 16
"""Bytes that swizzles keep together, and that rows are padded by: the widest access of a lane, so that it stays whole."""
_PADDINGS = (1, 2)
"""Chunks that rows are padded by; with two, lanes that read pairs of fp32 numbers of several rows meet different banks."""
_LINE = 128
"""Bytes in which all banks give a word: rows are swizzled so that 8 of them spread over it."""
ELEMENT_COST = 1e-4
"""Wavefronts that one more element of shared memory is worth: the smaller of two equally fast layouts is taken."""
_SWIZZLE_COST = ELEMENT_COST
"""What computing swizzled places is worth: plain rows are taken where both take the same wavefronts and bytes."""


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """A stride for each dimension of a buffer, in elements, the elements it spans, and how places within it are swizzled."""

    strides: tuple[int, ...]
    elements: int
    swizzle: Swizzle | None = None

    @property
    def cost(self) -> float:
        """What the layout takes beside wavefronts, in their unit."""
        return ELEMENT_COST * self.elements + (0.0 if self.swizzle is None else _SWIZZLE_COST)


def swizzle_of(row_bytes: int, element_bytes: int) -> Swizzle | None:
    """The swizzle that puts the chunks of 8 rows at one column into different banks; None where rows do so themselves.

    Rows of 32, 64 and 128 bytes get the patterns of those names that bulk tensor copies know too.
    """
    chunks, rest = divmod(row_bytes, _CHUNK)
    period = chunks & -chunks  # the largest power of two in a row: rows meet the same banks again after 8 / period of them
    if rest or period < 2:
        return None
    bits = min(period, _LINE // _CHUNK).bit_length() - 1
    shift = max(period, _LINE // _CHUNK).bit_length() - 1
    return Swizzle(bits, (_CHUNK // element_bytes).bit_length() - 1, shift)


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The dimensions of a buffer, slowest first, as its tiles agree on them: extents, and strides as lowered.

    Where a tile is a window that starts elsewhere than the buffer, no row is swizzled: places would depend on the start.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    windows: bool = False

    def layouts(self, element_bytes: int) -> tuple[BufferLayout, ...]:
        """Every dimension as the fastest, the last one first, the others in their order, with plain, swizzled and padded rows."""
        layouts = (self.layouts_along(fastest, element_bytes) for fastest in reversed(range(len(self.extents))))
        return tuple(dict.fromkeys(itertools.chain.from_iterable(layouts)))

    def orders(self) -> tuple[BufferLayout, ...]:
        """Every dimension as the fastest, the last one first, the others in their order, with plain rows."""
        return tuple(next(self.layouts_along(fastest, 1)) for fastest in reversed(range(len(self.extents))))

    def layouts_along(self, fastest: int, element_bytes: int) -> Iterator[BufferLayout]:
        """Plain, swizzled and padded rows along one dimension."""
        order = [*(dim for dim in range(len(self.extents)) if dim != fastest), fastest]
        plain = self._layout(order, 0)
        yield plain
        swizzle = swizzle_of(self.extents[fastest] * element_bytes, element_bytes)
        if swizzle is not None and not self.windows:
            whole = -(-plain.elements // swizzle.block) * swizzle.block
            yield replace(plain, elements=whole, swizzle=swizzle)
        for chunks in _PADDINGS:
            yield self._layout(order, chunks * _CHUNK // element_bytes)

    def _layout(self, order: Sequence[int], padding: int) -> BufferLayout:
        strides = [0] * len(order)
        step = 1
        for place, dim in enumerate(reversed(order)):
            strides[dim] = step
            step = step * self.extents[dim] + (padding if place == 0 else 0)
        return BufferLayout(tuple(strides), step)

    def relaid(self, tile: Tile, layout: BufferLayout) -> Tile:
        """The same elements of a tile in a new layout."""
        new = dict(zip(self.strides, layout.strides, strict=True))
        strides = (new[old] if size > 1 and old else 0 for size, old in zip(tile.shape, tile.strides, strict=True))
        start = tile.start.mapped(lambda place: self._moved(place, layout))
        return replace(tile, strides=tuple(strides), start=start, swizzle=layout.swizzle)

    def _moved(self, place: int, layout: BufferLayout) -> int:
        return sum(digit * stride for digit, stride in zip(self._coordinates(place), layout.strides, strict=True))

    def _coordinates(self, place: int) -> tuple[int, ...]:
        digits: list[int] = []
        for stride in self.strides:
            digit, place = divmod(place, stride)
            digits.append(digit)
        return tuple(digits)

    def hold(self, kernel: Kernel, tile: Tile) -> bool:
        """Whether a tile is a window along these dimensions that stays inside each of them for all blocks and iterations."""
        last = [*self._coordinates(tile.start.constant)]
        for coefficient, count in (*zip(tile.start.grid, kernel.grid, strict=False), (tile.start.loop, kernel.loop)):
            last = [at + digit * (count - 1) for at, digit in zip(last, self._coordinates(coefficient), strict=True)]
        for size, stride in zip(tile.shape, tile.strides, strict=True):
            if size > 1 and stride:
                if stride not in self.strides:
                    return False
                last[self.strides.index(stride)] += size - 1
        return all(at < extent for at, extent in zip(last, self.extents, strict=True))


def with_layouts(kernel: Kernel) -> Kernel:
    """The kernel with the layouts of its shared buffers chosen for the fewest wavefronts.

    Buffers whose tiles do not agree on dimensions stay as they are.
    """
    dimensions = {b.name: found for b in kernel.buffers if (found := _dimensions(kernel, b)) is not None}
    every = {name: dims.layouts(kernel.buffer(name).dtype.bytes) for name, dims in dimensions.items()}
    options = narrowed(every, meeting_in(kernel, every))
    relations = [Relation((name,), {(o,): o.cost for o in offered}) for name, offered in options.items()]
    for statement, times in times_of(kernel):
        relations.extend(relations_of(kernel, statement, times, dimensions, options))
    return relaid(kernel, dimensions, choose(options, relations))


# which buffers have a choice ----------------------------------------------------------------------------------------------


def _dimensions(kernel: Kernel, buffer: Buffer) -> Dimensions | None:
    """The dimensions of a shared buffer, None where it has no choice; the ring's panels have layouts of their own."""
    if buffer.memory is not Memory.SHARED or (kernel.ring is not None and buffer.name == kernel.ring.buffer):
        return None
    return common_dimensions([(kernel, tile) for tile in tiles_of(kernel, buffer.name)], buffer.elements)


def tiles_of(kernel: Kernel, buffer: str) -> list[Tile]:
    """All tiles that are windows of a buffer."""
    return [tile for statement in kernel.statements for tile in (statement.target, *statement.sources) if tile.buffer == buffer]


def common_dimensions(uses: Sequence[tuple[Kernel, Tile]], elements: int) -> Dimensions | None:
    """The dimensions that all tiles of a buffer of `elements` elements are made of; None where there are not at least two."""
    tiles = [tile for _, tile in uses]
    steps = {stride for tile in tiles for size, stride in zip(tile.shape, tile.strides, strict=True) if size > 1 and stride}
    strides = tuple(sorted(steps, reverse=True))
    if len(strides) < 2 or strides[-1] != 1 or any(part < 0 for tile in tiles for part in tile.start.parts):
        return None
    outer = (elements, *strides)
    if any(above % stride for above, stride in zip(outer, strides, strict=False)):
        return None
    extents = tuple(above // stride for above, stride in zip(outer, strides, strict=False))
    dimensions = Dimensions(extents, strides, any(any(tile.start.parts) for tile in tiles))
    return dimensions if all(dimensions.hold(kernel, tile) for kernel, tile in uses) else None


def relaid(kernel: Kernel, dimensions: Mapping[str, Dimensions], chosen: Mapping[str, BufferLayout]) -> Kernel:
    """The kernel with the buffers that are named in the layouts chosen for them.

    A tensor that is no window along its buffer's dimensions, as a view may be, has no place of its own any more.
    """

    def moved(tile: Tile) -> Tile:
        return dimensions[tile.buffer].relaid(tile, chosen[tile.buffer]) if tile.buffer in chosen else tile

    def remains(tile: Tile) -> bool:
        return tile.buffer not in chosen or dimensions[tile.buffer].hold(kernel, tile)

    def part(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(with_tiles(statement, moved) for statement in statements)

    buffers = (replace(b, elements=chosen[b.name].elements) if b.name in chosen else b for b in kernel.buffers)
    return replace(
        kernel,
        buffers=tuple(buffers),
        before=part(kernel.before),
        body=part(kernel.body),
        after=part(kernel.after),
        loads=tuple(replace(load, tile=moved(load.tile)) for load in kernel.loads if remains(load.tile)),
        tensors=tuple((value, moved(tile)) for value, tile in kernel.tensors if remains(tile)),
    )


# what a choice costs ------------------------------------------------------------------------------------------------------


def times_of(kernel: Kernel) -> Iterator[tuple[Statement, int]]:
    """Every statement with the number of times that a block runs it."""
    for statements, times in ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1)):
        yield from ((statement, times) for statement in statements)


def meeting_in(kernel: Kernel, names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Of these buffers those whose layouts a statement's cost depends on together, as in `relations_of`."""
    for statement in kernel.statements:
        yield from (_touched(accesses, names) for accesses in accesses_of(kernel, statement))


def _touched(accesses: Accesses, names: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tile.buffer for tile in accesses.tiles if tile.buffer in names))


def relations_of(
    kernel: Kernel,
    statement: Statement,
    times: int,
    dimensions: Mapping[str, Dimensions],
    options: Mapping[str, Sequence[BufferLayout]],
) -> Iterator[Relation[BufferLayout]]:
    """Costs of a statement for the layouts of the buffers it touches together; the tiles of a product cost separately."""
    for accesses in accesses_of(kernel, statement):
        names = _touched(accesses, options)
        if not names:
            continue
        costs: dict[tuple[BufferLayout, ...], float] = {}
        for layouts in itertools.product(*(options[name] for name in names)):
            placed = dict(zip(names, layouts, strict=True))
            tiles = [dimensions[t.buffer].relaid(t, placed[t.buffer]) if t.buffer in placed else t for t in accesses.tiles]
            costs[layouts] = times * accesses.traffic(tiles).cost
        yield Relation(names, costs)
