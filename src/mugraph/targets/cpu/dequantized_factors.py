"""Right factors that a kernel computes of constant whole numbers, packed as these numbers: products apply what is computed.

Of `(number - zero) * scale`, with a scale and a zero point for groups of k in each column, memory is to be read for the
number alone. Where a product is the only reader of such a factor, and everything is linear in one tile of whole numbers, the
factor is not stored: numbers are packed as the product reads them, and so are scales and zero points, in strips beside theirs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mugraph.ir.ops import operator
from mugraph.lower.inlining import inlined
from mugraph.lower.memory import with_places
from mugraph.lower.packing import Packing
from mugraph.lower.scalar_expressions import Apply, Expression, Source, renumbered, subexpressions
from mugraph.lower.tile_form import Dequantization, Elementwise, Kernel, Matmul, Memory, Statement, Strips, Tile
from mugraph.targets.cpu.dequantizing import ONE, ZERO, strips_of
from mugraph.targets.cpu.packed_factors import packed_tile, packing_of, with_products, with_right
from mugraph.targets.cpu.source import Vectors

_LEAST_GROUP = 16
"""Values of k that share scale and zero point: for fewer these take more memory than is worth it."""


def with_dequantized_factors(kernel: Kernel, constants: Collection[str], vectors: Vectors) -> tuple[Kernel, dict[str, Packing]]:
    """The kernel whose products dequantize those of its inputs `constants` that are theirs alone, and how these are packed."""
    found = {
        number: made
        for number, statement in enumerate(kernel.statements)
        if isinstance(statement, Matmul) and (made := _dequantizing(kernel, statement, constants, vectors)) is not None
    }
    while found:
        packings, clashing = _joined(found.values())
        products = {number: made.product_in(packings) for number, made in found.items()} if not clashing else {}
        changed = _without_unread(with_products(kernel, products, packings))
        clashing |= {tile.buffer for statement in changed.statements for tile in _read_in_place(statement)} & packings.keys()
        if not clashing:
            return with_places(changed), packings
        found = {number: made for number, made in found.items() if clashing.isdisjoint(made.buffers)}
    return kernel, {}


@dataclass(frozen=True, slots=True)
class _Dequantizing:
    """A product that makes its right factor of numbers, and how its tiles are packed: the factor's, and the sources'."""

    product: Matmul
    packings: tuple[Packing, ...]

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles that are packed."""
        assert self.product.dequantized is not None, "the factor is dequantized"
        return (self.product.right, *self.product.dequantized.sources)

    @property
    def buffers(self) -> frozenset[str]:
        """The inputs that are packed."""
        return frozenset(tile.buffer for tile in self.tiles)

    def product_in(self, packings: Mapping[str, Packing]) -> Matmul:
        """The product where several of its tiles, or of others', lie in one packed input."""
        assert self.product.dequantized is not None, "the factor is dequantized"
        right, *sources = (_behind(tile, own, packings[tile.buffer]) for tile, own in zip(self.tiles, self.packings, strict=True))
        return replace(self.product, right=right, dequantized=replace(self.product.dequantized, sources=tuple(sources)))


def _behind(tile: Tile, own: Packing, whole: Packing) -> Tile:
    """A packed tile in what is packed with others before it."""
    if own == whole:
        return tile
    before = (own.offset - whole.offset) // whole.windows[0][1]
    return replace(tile, start=replace(tile.start, constant=before * own.elements))


def _joined(found: Iterable[_Dequantizing]) -> tuple[dict[str, Packing], set[str]]:
    """How each input is packed: parts of it that lie alike one behind the other. And the inputs of which there are others."""
    by_buffer: dict[str, dict[Packing, None]] = {}
    for made in found:
        for tile, packing in zip(made.tiles, made.packings, strict=True):
            by_buffer.setdefault(tile.buffer, {})[packing] = None
    packings, clashing = dict[str, Packing](), set[str]()
    for name, parts in by_buffer.items():
        first, *others = sorted(parts, key=lambda packing: packing.offset)
        steps = {after.offset - before.offset for before, after in itertools.pairwise((first, *others))}
        if any(replace(other, offset=first.offset) != first for other in others) or len(steps) > 1:
            clashing.add(name)
        packings[name] = replace(first, windows=((len(parts), steps.pop()), *first.windows)) if others else first
    return packings, clashing


def _read_in_place(statement: Statement) -> Iterator[Tile]:
    """The tiles that a statement reads where their strides say."""
    packed = isinstance(statement, Matmul) and statement.dequantized is not None
    yield from (statement.left,) if isinstance(statement, Matmul) and packed else statement.sources


def _without_unread(kernel: Kernel) -> Kernel:
    """The kernel without tiles in shared memory that nothing reads."""
    while True:
        read = {tile.buffer for statement in kernel.statements for tile in statement.sources} | {*kernel.inputs, *kernel.outputs}
        if all(statement.target.buffer in read for statement in kernel.statements):
            break
        before, body, after = (
            tuple(statement for statement in part if statement.target.buffer in read)
            for part in (kernel.before, kernel.body, kernel.after)
        )
        kernel = replace(kernel, before=before, body=body, after=after)
    return replace(
        kernel,
        buffers=tuple(buffer for buffer in kernel.buffers if buffer.name in read),
        tensors=tuple((value, tile) for value, tile in kernel.tensors if tile.buffer in read),
    )


# --- what a factor is computed of ----------------------------------------------------------------------------------------


def _dequantizing(kernel: Kernel, statement: Matmul, constants: Collection[str], vectors: Vectors) -> _Dequantizing | None:
    """A product as one that makes one of its factors itself; None where neither is made of constant whole numbers."""
    for factor in (statement.right, statement.left):
        made = _maker(kernel, statement, factor)
        product = None if made is None else with_right(statement, factor.buffer)
        if made is None or product is None or any(size > 1 for size in product.right.shape[:-2]):
            continue
        if all(source.buffer in constants and source.lookup is None for source in made.sources):
            found = _packed(kernel, product, made, vectors)
            if found is not None:
                return found
    return None


def _maker(kernel: Kernel, reader: Statement, tile: Tile) -> Elementwise | None:
    """What alone computes a tile in shared memory, of inputs: other such tiles that it reads are computed in it."""
    if kernel.buffer(tile.buffer).memory is not Memory.SHARED:
        return None
    writers = [each for each in kernel.statements if each.target.buffer == tile.buffer]
    part = next(part for part in (kernel.before, kernel.body, kernel.after) if any(each is reader for each in part))
    if len(writers) != 1 or not any(each is writers[0] for each in (*kernel.before, *part)):
        return None
    made = writers[0]
    if not isinstance(made, Elementwise) or made.combine is not None or made.target.start != tile.start:
        return None
    for source in made.sources:
        if source.buffer not in kernel.inputs:
            inner = _maker(kernel, writers[0], source)
            outer = None if inner is None else inlined(inner, made)
            if not isinstance(outer, Elementwise):
                return None
            made = outer
    return made


def _packed(kernel: Kernel, product: Matmul, made: Elementwise, vectors: Vectors) -> _Dequantizing | None:
    """A product that makes its right factor as `made` does; None where that is not linear in a tile of whole numbers."""
    (depth, columns), seen = product.right.shape[-2:], [_seen(product.right, made.target, source) for source in made.sources]
    by_rows = [_Rows(*each, depth) if each is not None else None for each in seen]
    wide = [n for n, (rows, tile) in enumerate(zip(by_rows, made.sources, strict=True)) if rows is not None and rows.group == 1]
    if None in by_rows or len(wide) != 1 or not kernel.buffer(made.sources[wide[0]].buffer).dtype.is_whole:
        return None
    rows = [each for each in by_rows if each is not None]
    others = [number for number in range(len(rows)) if number != wide[0]]
    group = min((rows[number].group for number in others), default=depth)
    linear = _linear(made.expression, wide[0])
    if linear is None or group < _LEAST_GROUP or any(rows[n].group != group and rows[n].step for n in others):
        return None
    places: list[Expression] = [Source(others.index(n)) if n in others else Source(0) for n in range(len(rows))]
    number, slope, offset = (renumbered(each, places) for each in linear)
    narrow = [_window(made.sources[n], depth // group, columns, rows[n].step, rows[n].across) for n in others]
    right = _window(made.sources[wide[0]], depth, columns, rows[wide[0]].step, rows[wide[0]].across)
    applied = replace(product, right=right, dequantized=Dequantization(number, slope, offset, tuple(narrow), group))
    dtypes = {name: kernel.buffer(name).dtype for name in (product.left.buffer, product.target.buffer, right.buffer)}
    strips = strips_of(applied, dtypes, vectors)
    return None if strips is None else _with_packings(kernel, applied, strips)


def _with_packings(kernel: Kernel, product: Matmul, strips: Strips) -> _Dequantizing | None:
    made = product.dequantized
    assert made is not None, "the factor is dequantized"
    beside = Strips(max(1, strips.depth // made.group), strips.width)
    tiles = (product.right, *made.sources)
    found = [packing_of(kernel, tile, strips if number == 0 else beside) for number, tile in enumerate(tiles)]
    packings = tuple(packing for packing in found if packing is not None)
    if len(packings) < len(found) or packings[0].elements > kernel.buffer(product.right.buffer).elements:
        return None  # windows overlap
    right, *sources = (packed_tile(kernel, tile, packing) for tile, packing in zip(tiles, packings, strict=True))
    applied = replace(product, right=right, strips=strips, dequantized=replace(made, sources=tuple(sources)))
    return _Dequantizing(applied, packings)


def _window(tile: Tile, rows: int, columns: int, step: int, across: int) -> Tile:
    return replace(tile, shape=(rows, columns), strides=(step, across))


@dataclass(frozen=True)
class _Rows:
    """A source of a factor along k, as (count, stride) of digits, slowest first, and the stride `across` columns."""

    along: tuple[tuple[int, int], ...]
    across: int
    depth: int

    @property
    def group(self) -> int:
        """Neighbours along k for which it has one row; 0 where these are not equally far apart."""
        if len(self.along) > 2 or (len(self.along) == 2 and self.along[1][1]):
            return 0
        return self.along[-1][0] if self.along and self.along[-1][1] == 0 else 1

    @property
    def step(self) -> int:
        """Elements between rows."""
        return self.along[0][1] if self.along else 0


def _seen(factor: Tile, made: Tile, source: Tile) -> tuple[tuple[tuple[int, int], ...], int] | None:
    """How a source of what is made lies along the rows and the columns of a factor that is read of it; None where strides cannot
    say it."""
    *_, rows, columns = zip(factor.shape, factor.strides, strict=True)
    along, across = (_digits(made, source, *each) for each in (rows, columns))
    if along is None or across is None or len(across) > 1:
        return None
    return along, across[0][1] if across else 0


def _digits(made: Tile, source: Tile, size: int, stride: int) -> tuple[tuple[int, int], ...] | None:
    """(count, stride) in a source of the dimensions of what is made that `size` steps of a stride go through, slowest first."""
    found: list[tuple[int, int]] = []
    inside = [
        (count, step, other)
        for count, step, other in zip(made.shape, made.strides, source.strides, strict=True)
        if count > 1 and stride <= step < stride * size
    ]
    for count, _, other in sorted(inside, key=lambda each: -each[1]):
        if found and found[-1][1] == count * other:
            found[-1] = (found[-1][0] * count, other)
        else:
            found.append((count, other))
    return tuple(found) if math.prod(count for count, _, _ in inside) == size else None


# --- what is linear in a number ------------------------------------------------------------------------------------------

_SUM, _DIFFERENCE, _PRODUCT, _QUOTIENT = (operator(name).scalar or "" for name in ("add", "sub", "mul", "div"))
_Linear = tuple[Expression, Expression, Expression]
"""A number, and what it is multiplied by, and what is added."""


def _linear(expression: Expression, wide: int) -> _Linear | None:
    """An expression as (number, slope, offset), where the number depends on source `wide` alone and the others not on it."""
    read = {each.index for each in subexpressions(expression) if isinstance(each, Source)}
    if wide not in read:
        return None
    if read == {wide}:
        return expression, ONE, ZERO
    if not isinstance(expression, Apply) or len(expression.arguments) != 2:
        return None
    left, right = expression.arguments
    first = _reads(left, wide)
    inner = None if first is _reads(right, wide) else _linear(left if first else right, wide)
    if inner is None:
        return None
    (number, slope, offset), other = inner, right if first else left
    if expression.template == _SUM:
        return number, slope, _sum(offset, other)
    if expression.template == _DIFFERENCE:
        difference = (offset, other) if first else (other, offset)
        return number, slope if first else Apply(_DIFFERENCE, (ZERO, slope)), Apply(_DIFFERENCE, difference)
    if expression.template == _PRODUCT:
        return number, _product(slope, other), _product(offset, other)
    if expression.template == _QUOTIENT and first:
        return number, Apply(_QUOTIENT, (slope, other)), ZERO if offset == ZERO else Apply(_QUOTIENT, (offset, other))
    return None


def _reads(expression: Expression, source: int) -> bool:
    return any(each == Source(source) for each in subexpressions(expression))


def _sum(left: Expression, right: Expression) -> Expression:
    return right if left == ZERO else left if right == ZERO else Apply(_SUM, (left, right))


def _product(left: Expression, right: Expression) -> Expression:
    if ZERO in (left, right):
        return ZERO
    return right if left == ONE else left if right == ONE else Apply(_PRODUCT, (left, right))
