"""The two forms of a product, as register tiles, and how a product is cut into these.

Outer: a tile of rows times column vectors of the target stays in registers while k runs; each step loads one vector per
column vector and spreads one number per row. Inner: a tile of dot products runs side by side, vectors along k, and is
summed across lanes at the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul, Tile
from mugraph.targets.c_text import number_text, scaled, sum_of
from mugraph.targets.cpu.folds import fold_all
from mugraph.targets.cpu.source import HELD, Vectors, Writer

_LATENCY = 8
"""Independent multiply-adds that keep the pipeline full."""


@dataclass(frozen=True, slots=True)
class Run:
    """Equal consecutive pieces of a dimension: `count` of them, `size` elements each, from `start`."""

    start: int
    count: int
    size: int


def runs(total: int, size: int) -> Iterator[Run]:
    """A dimension in pieces of `size`, and one smaller piece for the rest."""
    whole = total // size
    if whole:
        yield Run(0, whole, size)
    if total % size:
        yield Run(whole * size, 1, total % size)


def outer_tile(rows: int, vectors: int, unit: Vectors, widths: Sequence[int], sums: int = 1) -> tuple[int, int]:
    """Rows and column vectors (one of `widths`) of a register tile: those with the least work per element of the product, each of
    which has so many `sums`."""
    best = (float("inf"), 1, 1)
    for wide in widths:
        tallest = min(rows, (unit.registers - 1 - wide) // (sums * wide))
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


_FORESEEN = 2048
"""Bytes between rows from which the hardware no longer prefetches the next row by itself."""
_PANEL_ROWS = 16
"""Rows of a streamed panel: rows a power of two apart compete for the same few ways of the first-level cache."""
_READ_AGAIN_BYTES = 1 << 15
"""What a panel of rows that are no further apart may take of the first-level cache, while all rows of the left factor meet it."""
CACHE_LINE = 64
STRIP_WIDTHS = (1, 2, 3, 4, 6, 8)
"""Vectors that a strip of a packed factor may be wide."""
STREAM_AHEAD = 8192
"""Bytes that products ask for ahead of where they read packed factors: beyond the page that the hardware prefetches in."""
WIDE_STEP, WIDE_AHEAD = 512, 768
"""Steps of k that read so many bytes, as those of one and two rows do where vectors have 64, ask for what is so far ahead: the
hardware keeps up with them, and what is asked for long before comes in the place of what is read next."""
_DOTS_AHEAD = 16
"""Columns of a product that dot products prefetch ahead."""
_STREAMS = 6
"""Columns that tiles of few rows read at a time: each is a place in memory of its own, and those a power of two apart compete for
the same few ways of the first-level cache. Of [1024, 1024], eight took one row 1.3 times as long as four."""


_POWERS = (8, 4, 2, 1)
"""Rows and columns of register tiles for what is left of a dimension that is bounded, if that may be much."""


def pieces_of_rest(size: int) -> Sequence[int]:
    """Into which pieces less than `size` rows or columns are cut, from the largest on: of few there is a tile for each number."""
    return range(size - 1, 0, -1) if size <= _POWERS[0] else [power for power in _POWERS if power < size]


class Bound(Enum):
    """The dimension of a product that is computed up to `held` elements only."""

    ROWS = -2
    COLUMNS = -1
    DEPTH = 0
    """The one that is summed over."""


class Product(ABC):
    """Writes one product over pointers a, b and c; n0, n1, ... are the indices of batch dimensions."""

    def __init__(self, writer: Writer, product: Matmul, bound: Bound | None = None) -> None:
        self.writer, self.product, self.bound = writer, product, bound
        self.lanes = writer.vectors.lanes
        self.rows, self.columns = product.target.shape[-2:]
        self.depth = product.left.shape[-1]

    @abstractmethod
    def write(self) -> None:
        """Write the whole product."""

    def tiles(self, rows: int, columns: int, tile: Callable[[int, int], None]) -> None:
        """All register tiles; columns outside, so that a panel of the right factor is read from cache for further rows."""
        for across in self.parts(Bound.COLUMNS, "j", self.columns, columns):
            for down in self.parts(Bound.ROWS, "i", self.rows, rows):
                tile(down, across)

    def parts(self, dimension: Bound, name: str, total: int, size: int) -> Iterator[int]:
        """A loop over pieces of a dimension, and further ones over smaller pieces for the rest: inside each, their size."""
        if self.bound is not dimension:
            for run in runs(total, size):
                with self.loop(name, run):
                    yield run.size
            return
        with self.writer.block():
            self.writer.line(f"long {name} = 0;")
            for piece in (size, *pieces_of_rest(size)):
                with self.writer.block(f"for (; {name} + {piece} <= {HELD}; {name} += {piece})"):
                    yield piece

    def along_depth(self, total: int, size: int) -> Iterator[int | str]:
        """A loop over pieces of `total` values of k, or of those that are held, and one smaller piece for the rest: inside each,
        its size."""
        if self.bound is not Bound.DEPTH:
            for run in runs(total, size):
                with self.loop("k", run):
                    yield run.size
            return
        with self.writer.block(f"for (long k = 0; k + {size} <= {HELD}; k += {size})"):
            yield size
        with self.writer.block(f"if ({HELD} % {size})"):
            self.writer.line(f"const long k = {HELD} / {size} * {size};")
            yield f"{HELD} % {size}"

    @property
    def end(self) -> str:
        """How many rows there are."""
        return HELD if self.bound is Bound.ROWS else str(self.rows)

    def loop(self, name: str, run: Run) -> AbstractContextManager[None]:
        """A loop over the starts of a run's pieces."""
        end = run.start + run.count * run.size
        return self.writer.block(f"for (long {name} = {run.start}; {name} < {end}; {name} += {run.size})")

    def address(self, pointer: str, tile: Tile, row: str, column: str) -> str:
        """Address of an element of the last two dimensions."""
        batch = [scaled(stride, f"n{dim}") for dim, stride in enumerate(tile.strides[:-2])]
        place = [f"{number_text(stride)} * ({index})" for stride, index in zip(tile.strides[-2:], (row, column), strict=True)]
        return sum_of([pointer, *batch, *place])

    def load(self, pointer: str, tile: Tile, row: str, column: str, width: int | str) -> str:
        """The first `width` lanes of a vector along the last dimension."""
        address, dtype, stride = self.address(pointer, tile, row, column), self.writer.dtype(tile), tile.strides[-1]
        if stride not in (0, 1):
            return f"gather_{dtype}({address}, {number_text(stride)}, {width})"
        if stride == 0:
            return f"spread_{dtype}({address})"
        return f"load_{dtype}({address})" if width == self.lanes else f"load_first_{dtype}({address}, {width})"


def print_right_vectors(writer: Writer, kind: str, values: Sequence[str], rows: int) -> None:
    """Declare vectors b0, b1, ... of the right factor, which so many rows share: one alone may read them as it multiplies.

    Where they, the sums and a number of the left factor fill the unit, products read them from memory: else sums would go there.
    """
    stay = rows > 1 and (rows + 1) * len(values) + 1 < writer.vectors.registers
    for v, value in enumerate(values):
        writer.line(f"{kind} b{v} = {value};")
        if stay:
            writer.line(f"STAYS(b{v});")


class Outer(Product):
    """Column vectors of the target in registers while k runs."""

    steps = 1
    """Values of k that one step of the innermost loop multiplies."""
    widths: Sequence[int] = (1, 2, 3, 4, 6, 8)
    """Column vectors that a register tile may have: wide ones read whole short rows at once."""
    streamed_widths: Sequence[int] = (1, 2, 3, 4)
    """The same where rows are far apart, so that a wide tile would touch too many of them at a time."""

    def __init__(self, writer: Writer, product: Matmul, bound: Bound | None = None) -> None:
        super().__init__(writer, product, bound)
        right = product.right
        distance = writer.usual(right.strides[-2]) * writer.dtype(right).bytes
        self.streams = writer.is_device(right) and right.strides[-1] == 1 and distance >= _FORESEEN
        exact = writer.dtype(product.target) is DType.FP32
        self.panel_rows = self.depth if not exact else _PANEL_ROWS if self.streams else self._rows_read_again()

    def _rows_read_again(self) -> int:
        """Rows of the right factor that stay in the cache until all rows of the left one have met them, in whole steps; all of a
        right factor that the block computed, or that fits."""
        right, step = self.product.right, 2 * _PANEL_ROWS
        row = self.columns * self.writer.dtype(right).bytes
        if not self.writer.is_device(right) or right.strides[-1] != 1 or row * self.depth <= _READ_AGAIN_BYTES:
            return self.depth
        return max(_READ_AGAIN_BYTES // row // step * step, step)

    def write(self) -> None:
        widths = self.streamed_widths if self.streams else self.widths
        rows, vectors = outer_tile(self.rows, -(-self.columns // self.lanes), self.writer.vectors, widths)
        tile = partial(self.tiles, rows, vectors * self.lanes)
        if self.bound is Bound.DEPTH:
            with self.writer.block(f"for (long k0 = 0; k0 == 0 || k0 < {HELD}; k0 += {self.panel_rows})"):
                tile(partial(self.tile, self.panel_rows))
            return
        for panel in runs(self.depth, self.panel_rows):
            with self.loop("k0", panel):
                tile(partial(self.tile, panel.size))

    def tile(self, depth: int, rows: int, columns: int) -> None:
        """`rows` x `columns` of the target, over `depth` values of k from k0; the last vector may be partial."""
        write, lanes = self.writer, self.lanes
        widths = [min(lanes, columns - start) for start in range(0, columns, lanes)]
        cells = [(r, v) for r in range(rows) for v in range(len(widths))]
        for r, v in cells:
            write.line(f"vec c{r}_{v} = {self.initial(r, v * lanes, widths[v], depth)};")
        self.print_ahead(columns, depth)
        self.print_steps(depth, rows, widths)
        for r, v in cells:
            self.store(r, v * lanes, widths[v], f"c{r}_{v}")

    def print_steps(self, depth: int, rows: int, widths: Sequence[int]) -> None:
        """Multiply-adds of `depth` values of k from k0, or what is held of them."""
        end = f"k0 + {depth}" if self.bound is not Bound.DEPTH else f"smaller(k0 + {depth}, {HELD})"
        with self.writer.block(f"for (long k = k0; k + {self.steps - 1} < {end}; k += {self.steps})"):
            self.prefetch(sum(widths))
            self.step(rows, widths)

    def step(self, rows: int, widths: Sequence[int]) -> None:
        """Multiply-adds of one step of k."""
        print_right_vectors(self.writer, "vec", [self.row_vector(v, widths) for v in range(len(widths))], rows)
        for r in range(rows):
            self.writer.line(f"const vec a{r} = {self.left_number(r)};")
            for v in range(len(widths)):
                self.writer.line(f"c{r}_{v} += a{r} * b{v};")

    def left_number(self, r: int) -> str:
        """The left factor's number at k of row r of the tile, in every lane."""
        left = self.product.left
        return f"spread_{self.writer.dtype(left)}({self.address('a', left, f'i + {r}', 'k')})"

    def row_vector(self, v: int, widths: Sequence[int]) -> str:
        """Column vector v of the right factor's row at k; `widths` are those of all."""
        return self.load("b", self.product.right, "k", f"j + {v * self.lanes}", widths[v])

    def print_ahead(self, columns: int, depth: int) -> None:
        """Where reading goes on after this tile: further columns of its rows, then the first columns of the rows below."""
        if self.streams:
            right = self.product.right
            further = self.address("b", right, "0", f"j + {columns}")
            below = self.address("b", right, str(depth), "0")
            dtype = self.writer.dtype(right)
            self.writer.line(f"const {dtype}_t *ahead = j + {columns} < {self.columns} ? {further} : {below};")

    def prefetch(self, columns: int) -> None:
        """Ask for the cache lines that the tile after this one reads at this step."""
        right = self.product.right
        if self.streams:
            step = number_text(right.strides[-2])
            for row in range(self.steps):
                for line in range(0, columns, CACHE_LINE // self.writer.dtype(right).bytes):
                    self.writer.line(f"__builtin_prefetch(ahead + {step} * (k + {row}) + {line});")

    def initial(self, row: int, column: int, width: int, depth: int) -> str:
        """What a register of the tile starts from: the target's content from the second panel on."""
        old = self.load("c", self.product.target, f"i + {row}", f"j + {column}", width)
        if self.product.accumulate:
            return old
        return f"k0 ? {old} : (vec){{0}}" if self.depth > depth else "{0}"

    def store(self, row: int, column: int, width: int, value: str) -> None:
        """Write a register of the tile to the target."""
        target = self.product.target
        address, dtype = self.address("c", target, f"i + {row}", f"j + {column}"), self.writer.dtype(target)
        if target.strides[-1] != 1 and width > 1:
            self.writer.line(f"scatter_{dtype}({address}, {target.strides[-1]}, {value}, {width});")
        elif width == self.lanes:
            self.writer.line(f"store_{dtype}({address}, {value});")
        else:
            self.writer.line(f"store_first_{dtype}({address}, {value}, {width});")


class Packed(Outer):
    """The right factor in strips (`mugraph.lower.tile_form.Strips`), each of which is read from its start to its end.

    A panel is summed by itself: errors of long sums grow with its terms and the number of panels, not with their product.
    """

    def __init__(self, writer: Writer, product: Matmul, bound: Bound | None = None) -> None:
        super().__init__(writer, product, bound)
        assert product.strips is not None, "the right factor lies in strips"
        self.strips, self.streams, self.panel_rows = product.strips, True, product.strips.depth

    def write(self) -> None:
        rows, _ = outer_tile(self.rows, 0, self.writer.vectors, (self.strips.width // self.lanes,))
        for panel in runs(self.depth, self.panel_rows):
            with self.loop("k0", panel):
                self.tiles(rows, self.strips.width, partial(self.tile, panel.size))

    @property
    def right(self) -> DType:
        """The type that strips have."""
        return self.writer.dtype(self.product.right)

    def initial(self, row: int, column: int, width: int, depth: int) -> str:
        return "{0}"

    def store(self, row: int, column: int, width: int, value: str) -> None:
        if self.product.accumulate or self.depth > self.panel_rows:
            old = self.load("c", self.product.target, f"i + {row}", f"j + {column}", width)
            value = f"{value} + {old if self.product.accumulate else f'(k0 ? {old} : (vec){{0}})'}"
        super().store(row, column, width, value)

    def print_ahead(self, columns: int, depth: int) -> None:
        """The start of the strip."""
        place = sum_of([*self.strips_at(), f"{self.columns} * k0", f"{depth} * j"])
        self.writer.line(f"const {self.right}_t *const strip = {place};")

    def strips_at(self) -> list[str]:
        """The terms of the address of all strips."""
        return ["b", *(scaled(stride, f"n{dim}") for dim, stride in enumerate(self.product.right.strides[:-2]))]

    def prefetch(self, columns: int) -> None:
        """Ask for what the strip has further on, or the strips behind it."""
        size = self.right.bytes
        ahead = (WIDE_AHEAD if self.steps * columns * size >= WIDE_STEP else STREAM_AHEAD) // size
        for line in range(0, self.steps * columns, CACHE_LINE // size):
            self.writer.line(f"__builtin_prefetch(strip + {columns} * (k - k0) + {line + ahead}, 0, 2);")

    def row_vector(self, v: int, widths: Sequence[int]) -> str:
        dtype = self.right
        address = f"strip + {sum(widths)} * (k - k0) + {v * self.lanes}"
        return f"load_{dtype}({address})" if widths[v] == self.lanes else f"load_first_{dtype}({address}, {widths[v]})"


class Inner(Product):
    """Dot products side by side, vectors along k."""

    numbers_per_lane = 1
    """Values of k that one lane multiplies in one step."""

    def write(self) -> None:
        tall, wide = inner_tile(self.rows, self.columns, self.writer.vectors)
        if self.bound is not Bound.ROWS:
            self.tiles(tall, wide, self.tile)
            return
        widths = {few: min(self.columns, self.lanes // few, _STREAMS) for few in range(1, tall)}
        wider = {few: width for few, width in widths.items() if width > wide}
        for few, width in wider.items():
            with self.writer.block(f"if ({HELD} == {few})"):
                self.few_rows(few, width)
        with self.writer.block(f"if ({HELD} > {max(wider, default=0)})"):
            self.tiles(tall, wide, self.tile)

    def few_rows(self, rows: int, columns: int) -> None:
        """All tiles of the rows that there are, if those are less than a tile of all has: these have more columns."""
        for across in self.parts(Bound.COLUMNS, "j", self.columns, columns):
            self.writer.line("const long i = 0;")
            self.tile(rows, across)

    def tile(self, rows: int, columns: int) -> None:
        """`rows` x `columns` dot products."""
        cells = [(r, s) for r in range(rows) for s in range(columns)]
        for r, s in cells:
            self.writer.line(f"vec c{r}_{s} = {{0}};")
        step = self.lanes * self.numbers_per_lane
        for width in self.along_depth(self.depth, step):
            self.step(rows, columns, width)
        self.writer.line(f"const vec sums = {fold_all([f'c{r}_{s}' for r, s in cells], self.lanes)};")
        for number, (r, s) in enumerate(cells):
            self.store(r, s, f"sums[{number}]")

    def step(self, rows: int, columns: int, width: int | str) -> None:
        """Multiply-adds of the `width` values of k from k on."""
        right = tiles.transposed(self.product.right)
        self.prefetch_factors(rows, columns)
        values = [self.load("b", right, f"j + {s}", "k", width) for s in range(columns)]
        print_right_vectors(self.writer, "vec", values, rows)
        for r in range(rows):
            self.writer.line(f"const vec a{r} = {self.load('a', self.product.left, f'i + {r}', 'k', width)};")
            for s in range(columns):
                self.writer.line(f"c{r}_{s} += a{r} * b{s};")

    def prefetch_factors(self, rows: int, columns: int) -> None:
        """Ask for columns of the right factor that later tiles read, or for rows of the left one where no more columns are."""
        left = self.product.left
        if self.columns > columns or self.rows <= rows or not self.writer.is_device(left):
            for s in range(columns):
                self.prefetch(s)
            return
        size = max(self.writer.usual(left.strides[-2]), 1) * self.writer.dtype(left).bytes
        for r in range(rows):
            later = self.address("a", left, f"i + {r + -(-STREAM_AHEAD // size)}", "k")
            self.writer.line(f"__builtin_prefetch({later});")

    def prefetch(self, column: int) -> None:
        """Ask for a column of the right factor that a later tile reads."""
        if self.writer.is_device(self.product.right):
            later = self.address("b", tiles.transposed(self.product.right), f"j + {column + _DOTS_AHEAD}", "k")
            self.writer.line(f"__builtin_prefetch({later});")

    def store(self, row: int, column: int, value: str) -> None:
        """Write one dot product."""
        target = self.product.target
        address, dtype = self.address("c", target, f"i + {row}", f"j + {column}"), self.writer.dtype(target)
        old = f" + one_{dtype}({address})" if self.product.accumulate else ""
        self.writer.line(f"store_one_{dtype}({address}, {value}{old});")
