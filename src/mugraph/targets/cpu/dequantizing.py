"""Products that make their right factor of packed whole numbers: `slope * number + offset`, both for a group of k in each column.

For few rows of the left factor, slopes and offsets are applied to what is summed up for a group, slope * sum(a * number) +
offset * sum(a): each number is then widened and multiplied, and nothing else. Where the left factor is in fp32 and there are
offsets, to which such sums may nearly cancel, they are applied to each number instead. The matrix unit multiplies numbers that
bf16 holds in either way: of many rows, slopes and offsets are applied before, and what is made is rounded to bf16, if the
muGraph gives the factor that type.

Functions of four bits, as half a byte less 8, are read from a table in a register, in fp32 or as pairs of bf16 numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import OPERATORS, Call
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source
from mugraph.lower.tile_form import Dequantization, Matmul, Strips
from mugraph.targets.c_text import literal, scaled, sum_of
from mugraph.targets.cpu.matrix_tiles import SIDE, STEP, PackedTiles, panel_rows, suits_tiles
from mugraph.targets.cpu.pairs import PACKED_BYTES, left_stride, print_left_pairs
from mugraph.targets.cpu.products import CACHE_LINE, STREAM_AHEAD, Packed, outer_tile, runs
from mugraph.targets.cpu.source import Vectors, Writer

ZERO, ONE = Constant(0.0), Constant(1.0)
_WIDTHS = (1, 2, 3, 4, 6)
"""Vectors that a strip may be wide."""
_LONGEST = 512
"""Rows of a panel, which is summed by itself."""
_SUMS = 8
"""Sums side by side that hide the latency of an addition."""
_SUMMED_BYTES = 1 << 16
"""Largest sums of groups of the left factor, which are on the stack."""


@dataclass(frozen=True, slots=True)
class Nibble:
    """A function of four bits of a byte, those from `shift` on, as the numbers that it gives."""

    shift: int
    table: tuple[float, ...]


def numbers_of(number: Expression, dtype: DType) -> NDArray[np.float64] | None:
    """What a number is of every element of a type, in the order of their bytes; None where that is not known."""
    given = np.arange(256.0)
    values = _value(number, np.where(given > dtype.largest, given - 256, given))
    return None if values is None or values.shape != given.shape else values


def nibble_of(number: Expression, dtype: DType) -> Nibble | None:
    """The function of four bits that a number is of an element of a type; None for others."""
    values = numbers_of(number, dtype)
    if values is None:
        return None
    by_bits = values.reshape(16, 16)
    if (by_bits == by_bits[0]).all():
        return Nibble(0, tuple(by_bits[0].tolist()))
    if (by_bits == by_bits[:, :1]).all():
        return Nibble(4, tuple(by_bits[:, 0].tolist()))
    return None


def _are_bf16(number: Expression, dtype: DType) -> bool:
    """Whether numbers of every element of a type are numbers of bf16."""
    values = numbers_of(number, dtype)
    return values is not None and bool((round_to(DType.BF16, values) == values).all())


def _value(expression: Expression, source: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """What an expression is of a source; None where a template is no row's."""
    match expression:
        case Source():
            return source
        case Constant(value):
            return np.asarray(value)
        case Apply(template, arguments):
            row = next((row for row in OPERATORS.values() if row.scalar == template), None)
            values = [_value(argument, source) for argument in arguments]
            known = [value for value in values if value is not None]
            if row is None or len(known) < len(values):
                return None
            return np.asarray(row.compute(FloatArithmetic(), Call(row.name, (), {}), known))


def _lines(made: Dequantization) -> tuple[tuple[str, Expression], ...]:
    """The slope and the offset, by name, where they change numbers."""
    return tuple((name, line) for name, line in (("slope", made.slope), ("offset", made.offset)) if line not in (ZERO, ONE))


class _Unit(StrEnum):
    """What multiplies numbers, and where slopes and offsets are applied: behind the sums of a group, or to each number."""

    VECTORS = "vectors"
    TILES_BEHIND = "tiles, sums scaled"
    TILES = "tiles, numbers scaled"


def _unit(product: Matmul, left: DType, right: DType, vectors: Vectors) -> _Unit:
    """What multiplies the numbers of a product whose factors lie as these types."""
    made = product.dequantized
    assert made is not None, "the right factor is made of numbers"
    if not suits_tiles(product, vectors) or made.group % STEP:
        return _Unit.VECTORS
    rounded = product.dtype is DType.BF16
    if rounded and product.left.shape[-2] > SIDE:
        return _Unit.TILES
    exact = (rounded or left is DType.BF16) and _are_bf16(made.number, right)
    return _Unit.TILES_BEHIND if exact else _Unit.TILES if rounded else _Unit.VECTORS


def strips_of(product: Matmul, dtypes: Mapping[str, DType], vectors: Vectors) -> Strips | None:
    """How the numbers lie for a product; None where it had better not make its right factor itself."""
    made = product.dequantized
    assert made is not None, "the right factor is made of numbers"
    (rows, depth), columns = product.left.shape[-2:], product.right.shape[-1]
    left, right, target = (dtypes[tile.buffer] for tile in (product.left, product.right, product.target))
    summed = rows * (depth // made.group) * DType.FP32.bytes
    unit = _unit(product, left, right, vectors)
    behind = unit is _Unit.TILES_BEHIND or (unit is _Unit.VECTORS and applied_behind(product, left))
    if columns < vectors.lanes or (behind and made.offset != ZERO and summed > _SUMMED_BYTES):
        return None
    if unit is not _Unit.VECTORS:
        panel = _panel(panel_rows(product), made.group)
        looks_up = nibble_of(made.number, right) is not None and (unit is _Unit.TILES_BEHIND or not _lines(made))
        return None if panel is None else Strips(panel, SIDE * (4 if rows <= SIDE else 2), pairs=not looks_up, fours=looks_up)
    exact = DType.BF16 in (product.dtype, left) and nibble_of(made.number, right) is not None and _are_bf16(made.number, right)
    small = rows * depth * DType.BF16.bytes <= PACKED_BYTES
    fours = vectors.bf16_pairs and exact and behind and small and made.group % 4 == 0
    panel = _panel(depth if target is not DType.FP32 else min(depth, _LONGEST), made.group)
    _, wide = outer_tile(rows, -(-columns // vectors.lanes), vectors, _WIDTHS, 2 if behind else 1)
    return None if panel is None else Strips(panel, wide * vectors.lanes, fours=fours)


def _panel(rows: int, group: int) -> int | None:
    """At most so many rows: whole groups, or a part of one with as many others; None where there is no such part."""
    if rows >= group:
        return rows // group * group
    return next((panel for panel in range(rows // STEP * STEP, 0, -STEP) if group % panel == 0), None)


def applied_behind(product: Matmul, left: DType) -> bool:
    """Whether vectors have slopes and offsets of a group applied to what was summed up for it, of a left factor of a type."""
    assert product.dequantized is not None, "the right factor is made of numbers"
    return product.dequantized.offset == ZERO or product.dtype is not DType.FP32 or left is not DType.FP32


def dequantizing_form(writer: Writer, product: Matmul) -> type[Dequantizing | DequantizingTiles]:
    """The form of a product whose right factor is made of numbers."""
    unit = _unit(product, writer.dtype(product.left), writer.dtype(product.right), writer.vectors)
    if unit is _Unit.VECTORS:
        return Dequantizing
    return DequantizingTiles if unit is _Unit.TILES else ScaledTiles


class _Made:
    """What both forms write of numbers, slopes and offsets."""

    def __init__(self, writer: Writer, product: Matmul) -> None:
        assert product.dequantized is not None, "the right factor is made of numbers"
        self.writer, self.made, self.product = writer, product.dequantized, product
        self.dtype = writer.dtype(product.right)
        self.columns = product.right.shape[-1]
        self.strip_columns = 0
        """Columns of the strip that is read."""
        self.nibble = nibble_of(self.made.number, self.dtype) if writer.vectors.lanes == SIDE else None

    def print_sources(self) -> None:
        """Declare pointers to the sources of slopes and offsets."""
        for number, tile in enumerate(self.made.sources):
            self.writer.pointer(f"source{number}", tile)

    def print_table(self, pairs: bool) -> None:
        """Declare the table of a function of four bits."""
        if self.nibble is None:
            return
        numbers = self.nibble.table
        if pairs:
            halves = [int(np.float32(number).view(np.uint32)) >> 16 for number in numbers]
            words = ", ".join(map(str, [*halves, *halves]))
            self.writer.line(f"static const bf16_t numbers[32] = {{{words}}};")
            self.writer.line("const pairs table = load_pairs(numbers);")
        else:
            self.writer.line(f"static const float numbers[16] = {{{', '.join(map(literal, numbers))}}};")
            self.writer.line("const vec table = load_fp32(numbers);")

    def fours_at(self, place: str, columns: int) -> str:
        """What lies in four rows of a vector's columns."""
        whole = columns == self.writer.vectors.lanes
        return f"load_fours({_bytes(place)})" if whole else f"load_first_fours({_bytes(place)}, {4 * columns})"

    def pairs_of(self, fours: str, turn: int) -> str:
        """The pairs of bf16 numbers of the first and the third row of four, or in the second turn of the others."""
        assert self.nibble is not None, "pairs are looked up"
        shift = self.nibble.shift + 8 * turn
        return f"look_up_pairs(table, {fours} >> {shift})" if shift else f"look_up_pairs(table, {fours})"

    def numbers_at(self, place: str, count: int) -> str:
        """A vector of the numbers of `count` elements."""
        whole = count == self.writer.vectors.lanes
        if self.nibble is not None:
            read = f"bytes_as_ints({_bytes(place)})" if whole else f"first_bytes_as_ints({_bytes(place)}, {count})"
            return f"look_up(table, {read}{self.shift})"
        read = f"load_{self.dtype}({place})" if whole else f"load_first_{self.dtype}({place}, {count})"
        return _text(self.made.number, [read])

    @property
    def shift(self) -> str:
        """What brings the four bits that count to the end."""
        return f" >> {self.nibble.shift}" if self.nibble is not None and self.nibble.shift else ""

    def print_lines(self, number: str, k: str, depth: int, v: int, width: int) -> None:
        """Declare `slope` and `offset` of column vector v, `number` behind their names, at k in a strip of a panel."""
        lanes, group = self.writer.vectors.lanes, self.made.group
        reads: list[str] = []
        for source, tile in enumerate(self.made.sources):
            dtype = self.writer.dtype(tile)
            row = sum_of([f"source{source}", f"{self.columns} * (k0 / {group})", f"{max(1, depth // group)} * j"])
            place = sum_of([row, f"{self.strip_columns} * (({k} - k0) / {group})", scaled(1, str(v * lanes))])
            reads.append(f"load_{dtype}({place})" if width == lanes else f"load_first_{dtype}({place}, {width})")
        for name, line in _lines(self.made):
            self.writer.line(f"const vec {name}{number} = WIDE({_text(line, reads)});")

    def applied(self, line: int, number: str) -> str:
        """The factor that a number stands for, by the slope and the offset with a number behind their names."""
        text = number if self.made.slope == ONE else f"slope{line} * {number}"
        return text if self.made.offset == ZERO else f"{text} + offset{line}"


def _bytes(place: str) -> str:
    return f"(const uint8_t *)({place})"


def _text(expression: Expression, sources: Sequence[str]) -> str:
    """An expression of C over the texts of its sources."""
    match expression:
        case Source(index):
            return sources[index]
        case Constant(value):
            return literal(value)
        case Apply(template, arguments):
            return template.format(*(_text(argument, sources) for argument in arguments))


class Dequantizing(Packed):
    """Column vectors in registers, beside which those of one group are summed."""

    def __init__(self, writer: Writer, product: Matmul) -> None:
        super().__init__(writer, product)
        self.of = _Made(writer, product)
        self.fours, self.behind, self.made = self.strips.fours, applied_behind(product, writer.dtype(product.left)), self.of.made
        self.steps = 4 if self.fours else 1
        self.span = min(self.made.group, self.panel_rows)
        """Values of k that are summed with one slope."""
        self.adds = self.behind and self.made.offset != ZERO

    def write(self) -> None:
        if self.fours:
            self.print_left()
        self.of.print_sources()
        self.of.print_table(self.fours)
        if self.adds:
            self.print_sums()
        widths, sums = (self.strips.width // self.lanes,), 2 if self.behind else 1
        rows, _ = outer_tile(self.rows, 0, self.writer.vectors, widths, sums)
        for panel in runs(self.depth, self.panel_rows):
            with self.loop("k0", panel):
                self.tiles(rows, self.strips.width, partial(self.tile, panel.size))

    def print_left(self) -> None:
        """Declare `fours_a`, the left factor in bf16, every other one of four numbers first."""
        print_left_pairs(self)
        size = self.rows * self.depth
        self.writer.line(f"bf16_t fours_a[{size}] __attribute__((aligned(64)));")
        rows, steps = f"for (long i = 0; i < {self.rows}; ++i)", f"for (long k = 0; k < {self.depth}; k += 4)"
        with self.writer.block(rows), self.writer.block(steps):
            self.writer.line(f"exchange_middle(fours_a + {self.depth} * i + k, pairs_a + {left_stride(self)} * i + k);")

    def print_sums(self) -> None:
        """Sum the left factor up for each span of k."""
        write, spans = self.writer, self.depth // self.span
        write.line(f"float sums_a[{self.rows * spans}];")
        with write.block(f"for (long i = 0; i < {self.rows}; ++i)"), write.block(f"for (long q = 0; q < {spans}; ++q)"):
            write.line("vec total = {0};")
            for run in runs(self.span, self.lanes):
                with self.loop("k", run):
                    place = f"{self.span} * q + k"
                    if self.fours:
                        first = "" if run.size == self.lanes else "first_"
                        count = f", {run.size}" if first else ""
                        value = f"load_{first}bf16(pairs_a + {left_stride(self)} * i + {place}{count})"
                    else:
                        value = self.load("a", self.product.left, "i", place, run.size)
                    write.line(f"total += {value};")
            write.line(f"sums_a[{spans} * i + q] = total_sum(total);")

    def tile(self, depth: int, rows: int, columns: int) -> None:
        write, lanes = self.writer, self.lanes
        widths = [min(lanes, columns - start) for start in range(0, columns, lanes)]
        cells = [(r, v) for r in range(rows) for v in range(len(widths))]
        self.of.strip_columns = columns
        for r, v in cells:
            write.line(f"vec c{r}_{v} = {{0}};")
        self.print_ahead(columns, depth)
        fitting = (turns for turns in (8, 4, 2) if turns * len(cells) <= _SUMS and self.span % (turns * self.steps) == 0)
        turns = next(fitting, 1)
        parts = [[f"p{r}_{v}_{turn}" if self.behind else f"c{r}_{v}" for turn in range(turns)] for r, v in cells]
        with write.block(f"for (long q = k0; q < k0 + {depth}; q += {self.span})"):
            if self.behind:
                for names in parts:
                    write.line(f"vec {', '.join(f'{name} = {{0}}' for name in names)};")
            else:
                self.print_lines(depth, widths)
            with write.block(f"for (long k = q; k < q + {self.span}; k += {self.steps * turns})"):
                self.print_ahead_of(columns, turns)
                for turn in range(turns):
                    with write.block():
                        self.step_at(f"k + {turn * self.steps}", widths, rows, [names[turn] for names in parts])
            if self.behind:
                self.print_lines(depth, widths)
                for (r, v), names in zip(cells, parts, strict=True):
                    write.line(f"c{r}_{v} += {self.scaled_sum(r, v, ' + '.join(names))};")
        for r, v in cells:
            self.store(r, v * lanes, widths[v], f"c{r}_{v}")

    def print_lines(self, depth: int, widths: Sequence[int]) -> None:
        for v, width in enumerate(widths):
            self.of.print_lines(str(v), "q", depth, v, width)

    def scaled_sum(self, r: int, v: int, total: str) -> str:
        """What a group's sum adds to column vector v of row r."""
        text = f"({total})" if self.made.slope == ONE else f"slope{v} * ({total})"
        spans = self.depth // self.span
        return f"{text} + offset{v} * sums_a[{spans} * (i + {r}) + q / {self.span}]" if self.adds else text

    def print_ahead_of(self, columns: int, turns: int) -> None:
        """Ask for what the strip has further on, or the strips behind it."""
        for line in range(0, self.steps * turns * columns, CACHE_LINE):
            self.writer.line(f"__builtin_prefetch(strip + {columns} * (k - k0) + {line + STREAM_AHEAD}, 0, 2);")

    def step_at(self, k: str, widths: Sequence[int], rows: int, sums: Sequence[str]) -> None:
        """Multiply-adds at k; `sums` are those of each row and column vector."""
        write, columns, left = self.writer, sum(widths), self.product.left
        places = [f"strip + {columns} * ({k} - k0) + {self.steps * v * self.lanes}" for v in range(len(widths))]
        if self.fours:
            for v, (place, width) in enumerate(zip(places, widths, strict=True)):
                write.line(f"const pairs w{v} = {self.of.fours_at(place, width)};")
            for turn in (0, 1):
                with write.block():
                    for v in range(len(widths)):
                        write.line(f"const pairs b{v} = {self.of.pairs_of(f'w{v}', turn)};")
                    for r in range(rows):
                        write.line(f"const pairs a{r} = spread_pair(fours_a + {self.depth} * (i + {r}) + {k} + {2 * turn});")
                        for v, total in enumerate(sums[r * len(widths) : (r + 1) * len(widths)]):
                            write.line(f"{total} = add_products({total}, a{r}, b{v});")
            return
        for v, (place, width) in enumerate(zip(places, widths, strict=True)):
            value = self.of.numbers_at(place, width)
            write.line(f"const vec b{v} = {value if self.behind else self.of.applied(v, value)};")
        for r in range(rows):
            write.line(f"const vec a{r} = spread_{write.dtype(left)}({self.address('a', left, f'i + {r}', k)});")
            for v, total in enumerate(sums[r * len(widths) : (r + 1) * len(widths)]):
                write.line(f"{total} += a{r} * b{v};")


class DequantizingTiles(PackedTiles):
    """On the matrix unit: 32 rows of 16 columns become pairs of bf16 in the first-level cache on the way to it."""

    widens = True

    def __init__(self, writer: Writer, product: Matmul) -> None:
        super().__init__(writer, product)
        self.of = _Made(writer, product)
        self.panel = self.panel_rows
        """Rows of the panel that is written."""

    def write(self) -> None:
        self.of.print_sources()
        self.of.print_table(self.strips.fours)
        super().write()

    @property
    def lines(self) -> tuple[tuple[str, Expression], ...]:
        """What is applied to each number, by name."""
        return _lines(self.of.made)

    @property
    def copies(self) -> bool:
        return super().copies or self.strips.fours

    def print_left(self, depth: int, held: int) -> None:
        super().print_left(depth, held)
        if self.strips.fours:
            with self.writer.block(f"for (long k = 0; k < {self.high * depth}; k += 4)"):
                place = f"{self.left_at(depth, '0', '0L')} + k"
                self.writer.line(f"exchange_middle({place}, {place});")

    def prepare(self, depth: int, columns: int) -> None:
        self.panel, self.of.strip_columns = depth, columns
        super().prepare(depth, columns)

    def widen(self, v: int, columns: int, to: str) -> None:
        write = self.writer
        with write.block():
            if self.lines:
                self.of.print_lines("", "k", self.panel, v, SIDE)
                for name, _ in self.lines:
                    write.line(f"const vec {name}0 = FIRST_TWICE({name}), {name}1 = LAST_TWICE({name});")
            step, columns_of = self.strips.together, f"strip + {columns} * (k - k0 + {self.strips.together} * r)"
            with write.block(f"for (long r = 0; r < {STEP // step}; ++r)"):
                place = f"{columns_of} + {step * SIDE * v}"
                if self.strips.fours:
                    write.line(f"const pairs w = {self.of.fours_at(place, SIDE)};")
                    write.line(f"const pairs x[2] = {{{self.of.pairs_of('w', 0)}, {self.of.pairs_of('w', 1)}}};")
                    write.line(f"__builtin_memcpy({to} + {4 * SIDE} * r, x, sizeof x);")
                else:
                    halves = [self.of.numbers_at(f"{place} + {SIDE * half}", SIDE) for half in (0, 1)]
                    values = [self.of.applied(half, number) if self.lines else number for half, number in enumerate(halves)]
                    write.line(f"store_pairs({to} + {2 * SIDE} * r, {', '.join(values)});")


class ScaledTiles(DequantizingTiles):
    """The same with numbers as they are, which are exact: sums of a group leave the registers, and are scaled."""

    lines = ()

    def __init__(self, writer: Writer, product: Matmul) -> None:
        super().__init__(writer, product)
        self.span = min(self.of.made.group, self.panel_rows)
        """Values of k that are summed with one slope."""
        self.adds = self.of.made.offset != ZERO

    def write(self) -> None:
        if self.adds:
            self.writer.line(f"float sums_a[{self.rows * (self.depth // self.span)}];")
        super().write()

    @property
    def copies(self) -> bool:
        """Also where the copy is summed up."""
        return super().copies or self.adds

    def print_left(self, depth: int, held: int) -> None:
        """Also sum the left factor up for each span of k."""
        super().print_left(depth, held)
        if not self.adds:
            return
        write, spans = self.writer, self.depth // self.span
        rows, steps = f"for (long i = 0; i < {self.rows}; ++i)", f"for (long q = 0; q < {depth}; q += {self.span})"
        with write.block(rows), write.block(steps):
            write.line("vec total = {0};")
            write.line(f"const bf16_t *from = {self.left_at(depth, 'q', 'i')};")
            with write.block(f"for (long k = 0; k < {self.span}; k += {STEP})"):
                write.line(f"total += load_bf16(from + {SIDE} * k) + load_bf16(from + {SIDE} * k + {SIDE});")
            write.line(f"sums_a[{spans} * i + (k0 + q) / {self.span}] = total_sum(total);")

    def tile(self, depth: int, rows: int, columns: int) -> None:
        write, parts, stacked = self.writer, range(columns // SIDE), range(-(-rows // SIDE))
        self.print_ahead(columns, depth)
        self.print_sums(stacked, columns)
        write.line(f"float group[{SIDE * SIDE * len(stacked) * len(parts)}] __attribute__((aligned(64)));")
        with write.block(f"for (long q = k0; q < k0 + {depth}; q += {self.span})"):
            for number in (r * self.across + v for r in stacked for v in parts):
                write.line(f"CLEAR_TILE({number});")
            with write.block(f"for (long k = q; k < q + {self.span}; k += {STEP})"):
                self.multiply(depth, stacked, columns)
            for r in stacked:
                for v in parts:
                    place = f"group + {SIDE * SIDE * (len(parts) * r + v)}"
                    write.line(f"STORE_TILE({r * self.across + v}, {place}, {SIDE * DType.FP32.bytes});")
            for v in parts:
                self.of.print_lines(str(v), "q", depth, v, SIDE)
            for r in stacked:
                with write.block(f"for (long m = 0; m < {min(SIDE, rows - SIDE * r)}; ++m)"):
                    for v in parts:
                        self.print_scaled(r, v, columns)
        self.print_finished(depth, rows, columns)

    def print_scaled(self, r: int, v: int, columns: int) -> None:
        """Add what was summed up for a group, scaled, to 16 columns of a row."""
        place, stride = self.sums_of(r, v, columns)
        there = f"{place} + {stride // DType.FP32.bytes} * m"
        adds = self.product.accumulate and not self.holds
        old = f"load_fp32({there})" if adds else f"(q ? load_fp32({there}) : (vec){{0}})"
        spans = self.depth // self.span
        total = f"load_fp32(group + {SIDE * SIDE * (columns // SIDE * r + v)} + {SIDE} * m)"
        new = total if self.of.made.slope == ONE else f"slope{v} * {total}"
        if self.adds:
            new = f"{new} + offset{v} * sums_a[{spans} * (i + {SIDE * r} + m) + q / {self.span}]"
        self.writer.line(f"store_fp32({there}, {old} + {new});")
