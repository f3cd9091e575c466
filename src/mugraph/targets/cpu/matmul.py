"""Matrix products as register tiles.

Two forms. *Outer*: the right factor's rows are contiguous; a tile of R rows times V vectors of the target stays in
registers while k runs, each step one vector load per column vector and one broadcast per row. *Inner*: both factors are
contiguous along k; R x S dot products run side by side, vectors along k, summed across lanes at the end. A product
whose rows, not columns, are contiguous is computed transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.lowered import Matmul, Tile
from mugraph.targets.cpu.folds import fold_all
from mugraph.targets.cpu.source import Vectors, Writer, scaled, sum_of

_FORESEEN = 2048
"""Bytes between rows from which the hardware no longer prefetches the next row by itself."""
_PANEL_ROWS = 16
"""Rows of a streamed panel: rows a power of two apart compete for the same few ways of the first-level cache."""
_CACHE_LINE = 64
_DOTS_AHEAD = 16
"""Columns of a product that dot products prefetch ahead."""
_LATENCY = 8
"""Independent multiply-adds that keep the pipeline full."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Equal consecutive register tiles along one dimension: `count` of them, `size` elements each, from `start`."""

    start: int
    count: int
    size: int


def _blocks(total: int, size: int) -> Iterator[_Block]:
    """The dimension in tiles of `size`, and one smaller tile for the rest."""
    whole = total // size
    if whole:
        yield _Block(0, whole, size)
    if total % size:
        yield _Block(whole * size, 1, total % size)


def print_matmul(writer: Writer, statement: Matmul) -> None:
    """Write a (batched) product."""
    batch = statement.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in statement.sources)
    statement = oriented(Matmul(statement.target, left, right, statement.accumulate))
    with writer.block():
        writer.pointer("c", statement.target, written=True)
        writer.pointer("a", statement.left)
        writer.pointer("b", statement.right)
        _batched(writer, statement, 0)


def oriented(product: Matmul) -> Matmul:
    """The product, or the transposed product of the transposed factors where that makes rows contiguous."""
    if product.right.strides[-1] != 1 and product.left.strides[-2] == 1 and product.left.strides[-1] != 1:
        left, right = tiles.transposed(product.right), tiles.transposed(product.left)
        return Matmul(tiles.transposed(product.target), left, right, product.accumulate)
    return product


def _batched(writer: Writer, product: Matmul, dim: int) -> None:
    if dim == product.target.rank - 2:
        _Product(writer, product).write()
        return
    with writer.block(f"for (long n{dim} = 0; n{dim} < {product.target.shape[dim]}; ++n{dim})"):
        _batched(writer, product, dim + 1)


class _Product:
    def __init__(self, writer: Writer, product: Matmul) -> None:
        self.writer, self.product = writer, product
        self.lanes = writer.vectors.lanes
        self.rows, self.columns = product.target.shape[-2:]
        self.depth = product.left.shape[-1]
        self.panel = _Block(0, 1, self.depth)

    def write(self) -> None:
        inner = self.product.left.strides[-1] == 1 and self.product.right.strides[-2] == 1 and self.depth > 1
        if inner and self.product.right.strides[-1] != 1:
            self.tiles(*inner_tile(self.rows, self.columns, self.writer.vectors), self.inner)
        else:
            rows, vectors = outer_tile(self.rows, -(-self.columns // self.lanes), self.writer.vectors)
            for part in _blocks(self.depth, self.panel_rows()):
                with self.loop("k0", part):
                    self.panel = part
                    self.tiles(rows, vectors * self.lanes, self.outer)

    def panel_rows(self) -> int:
        """How many rows of the right factor are used before moving on: few where it is streamed through the cache."""
        exact = self.writer.dtype(self.product.target) is DType.FP32
        return _PANEL_ROWS if self.streams and exact else self.depth

    def tiles(self, rows: int, columns: int, tile: Callable[[int, int], None]) -> None:
        """All register tiles; columns outside, so that a panel of the right factor is read from cache for further rows."""
        for across in _blocks(self.columns, columns):
            with self.loop("j", across):
                for down in _blocks(self.rows, rows):
                    with self.loop("i", down):
                        tile(down.size, across.size)

    def loop(self, name: str, block: _Block) -> AbstractContextManager[None]:
        end = block.start + block.count * block.size
        return self.writer.block(f"for (long {name} = {block.start}; {name} < {end}; {name} += {block.size})")

    def address(self, pointer: str, tile: Tile, row: str, column: str) -> str:
        batch = [scaled(stride, f"n{dim}") for dim, stride in enumerate(tile.strides[:-2])]
        place = [f"{stride} * ({index})" for stride, index in zip(tile.strides[-2:], (row, column), strict=True)]
        return sum_of([pointer, *batch, *place])

    # forms -----------------------------------------------------------------------------------------------------------

    def outer(self, rows: int, columns: int) -> None:
        """`rows` x `columns` of the target: columns in vectors, the last one possibly partial."""
        write, lanes = self.writer, self.lanes
        widths = [min(lanes, columns - start) for start in range(0, columns, lanes)]
        cells = [(r, v) for r in range(rows) for v in range(len(widths))]
        for r, v in cells:
            write.line(f"vec c{r}_{v} = {self.initial(r, v * lanes, widths[v])};")
        self.print_ahead(columns)
        with write.block(f"for (long k = k0; k < k0 + {self.panel.size}; ++k)"):
            for line in self.cache_lines(columns):
                write.line(f"__builtin_prefetch(ahead + {self.product.right.strides[-2]} * k + {line});")
            for v, width in enumerate(widths):
                write.line(f"const vec b{v} = {self.load('b', self.product.right, 'k', f'j + {v * lanes}', width)};")
            for r in range(rows):
                left = self.product.left
                write.line(f"const vec a{r} = spread_{write.dtype(left)}({self.address('a', left, f'i + {r}', 'k')});")
                for v in range(len(widths)):
                    write.line(f"c{r}_{v} += a{r} * b{v};")
        for r, v in cells:
            self.store(r, v * lanes, widths[v], f"c{r}_{v}")

    def cache_lines(self, columns: int) -> range:
        """Elements of one row of a panel at which a cache line starts; none when the right factor is not streamed."""
        right = self.product.right
        if not self.streams:
            return range(0)
        return range(0, columns, _CACHE_LINE // self.writer.dtype(right).bytes)

    @property
    def streams(self) -> bool:
        """Whether the right factor comes from device memory, row by row in steps too long for the hardware to foresee."""
        right = self.product.right
        distance = right.strides[-2] * self.writer.dtype(right).bytes
        return self.writer.is_device(right) and right.strides[-1] == 1 and distance >= _FORESEEN

    def print_ahead(self, columns: int) -> None:
        """What is read next: further columns of these rows, then the first columns of the rows below."""
        if self.streams:
            right = self.product.right
            following = self.address("b", right, "0", f"j + {columns}")
            wrapped = self.address("b", right, str(self.panel.size), "0")
            self.writer.line(
                f"const {self.writer.dtype(right)}_t *ahead = j + {columns} < {self.columns} ? {following} : {wrapped};"
            )

    def inner(self, rows: int, columns: int) -> None:
        """`rows` x `columns` dot products along k."""
        write, lanes = self.writer, self.lanes
        cells = [(r, s) for r in range(rows) for s in range(columns)]
        for r, s in cells:
            write.line(f"vec c{r}_{s} = {{0}};")
        whole = self.depth // lanes * lanes
        if whole:
            with write.block(f"for (long k = 0; k < {whole}; k += {lanes})"):
                self.inner_step(rows, columns, "k", lanes)
        if self.depth > whole:
            with write.block():
                self.inner_step(rows, columns, str(whole), self.depth - whole)
        write.line(f"const vec sums = {fold_all([f'c{r}_{s}' for r, s in cells], lanes)};")
        for r in range(rows):
            self.store_sums(r, columns)

    def store_sums(self, row: int, columns: int) -> None:
        """Write the dot products of one row, lanes row * columns and on of `sums`."""
        target = self.product.target
        dtype = self.writer.dtype(target)
        for s in range(columns):
            address = self.address("c", target, f"i + {row}", f"j + {s}")
            old = f" + one_{dtype}({address})" if self.product.accumulate else ""
            self.writer.line(f"store_one_{dtype}({address}, sums[{row * columns + s}]{old});")

    def inner_step(self, rows: int, columns: int, k: str, width: int) -> None:
        for s in range(columns):
            if self.writer.is_device(self.product.right):
                following = self.address("b", tiles.transposed(self.product.right), f"j + {s + _DOTS_AHEAD}", k)
                self.writer.line(f"__builtin_prefetch({following});")
            self.writer.line(f"const vec b{s} = {self.load('b', tiles.transposed(self.product.right), f'j + {s}', k, width)};")
        for r in range(rows):
            self.writer.line(f"const vec a{r} = {self.load('a', self.product.left, f'i + {r}', k, width)};")
            for s in range(columns):
                self.writer.line(f"c{r}_{s} += a{r} * b{s};")

    # memory ----------------------------------------------------------------------------------------------------------

    def load(self, pointer: str, tile: Tile, row: str, column: str, width: int) -> str:
        address, dtype, stride = self.address(pointer, tile, row, column), self.writer.dtype(tile), tile.strides[-1]
        if stride not in (0, 1):
            return f"gather_{dtype}({address}, {stride}, {width})"
        if stride == 0:
            return f"spread_{dtype}({address})"
        return f"load_{dtype}({address})" if width == self.lanes else f"load_first_{dtype}({address}, {width})"

    def initial(self, row: int, column: int, width: int) -> str:
        old = self.load("c", self.product.target, f"i + {row}", f"j + {column}", width)
        if self.product.accumulate:
            return old
        return f"k0 ? {old} : (vec){{0}}" if self.depth > self.panel.size else "{0}"

    def store(self, row: int, column: int, width: int, value: str) -> None:
        target = self.product.target
        address, dtype = self.address("c", target, f"i + {row}", f"j + {column}"), self.writer.dtype(target)
        if target.strides[-1] != 1 and width > 1:
            self.writer.line(f"scatter_{dtype}({address}, {target.strides[-1]}, {value}, {width});")
        elif width == self.lanes:
            self.writer.line(f"store_{dtype}({address}, {value});")
        else:
            self.writer.line(f"store_first_{dtype}({address}, {value}, {width});")


def outer_tile(rows: int, vectors: int, unit: Vectors) -> tuple[int, int]:
    """Rows and column vectors of a register tile: the pair with the least work per element of the product."""
    best = (float("inf"), 1, 1)
    for wide in range(1, min(vectors, 8) + 1):
        tallest = min(rows, (unit.registers - 1 - wide) // wide)
        if tallest < 1:
            continue
        tall = -(-rows // -(-rows // tallest))
        passes, panels = -(-rows // tall), -(-vectors // wide)
        step = max(tall * wide, _LATENCY) + 0.5 * tall + wide
        best = min(best, (passes * panels * step, tall, wide))
    return best[1], best[2]


def inner_tile(rows: int, columns: int, unit: Vectors) -> tuple[int, int]:
    """Rows and columns of a tile of dot products: at most one per lane, so that one folding sums them all."""
    best = (float("inf"), 1, 1)
    for tall in range(1, min(rows, unit.lanes) + 1):
        wide = min(columns, unit.lanes // tall)
        if tall * wide + tall + 1 < unit.registers:
            passes = -(-rows // tall) * -(-columns // wide)
            best = min(best, (passes * (max(tall * wide, _LATENCY) + tall + wide), tall, wide))
    return best[1], best[2]
