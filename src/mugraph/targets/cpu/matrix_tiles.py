"""Products of 16 or 8 bits on the matrix unit of a CPU (AMX): registers of 16 rows of 64 bytes each.

One instruction adds to 16 x 16 sums the products of 16 rows of 32 numbers with 32 rows of 16, which lie as pairs. Of the eight
registers four hold sums: four beside each other where the left factor has few rows, which is then read once, and two by two
otherwise. The left factor is copied in bf16, the type that the muGraph gives it, in the order in which its registers are filled.
Weights of 8 bits, all of which are numbers of bf16, lie row by row, and become pairs of bf16 on the way to the registers.

Saying how many rows registers have takes as long as ten products of them, so it is said once: registers of the last rows are
full, too, where there are several groups of them, and what is summed up beside the target's rows is never read.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower.argument_strides import has_arguments
from mugraph.lower.tile_form import Matmul, Strips, Tile
from mugraph.targets.c_text import sum_of
from mugraph.targets.cpu.panels import COPIED_BYTES, Panels
from mugraph.targets.cpu.products import CACHE_LINE, Bound, Run, runs
from mugraph.targets.cpu.source import HELD, Vectors, Writer

SIDE = 16
"""Rows and columns of sums in a register."""
STEP = 32
"""Values of k that one instruction multiplies."""
_SUMS = 4
_LEFT, _RIGHT = 4, 6
"""The first register for each factor."""
_FEW = 4
"""Rows from which the unit is worth its set-up; fewer are multiplied as fast as weights come from memory anyway."""
_PANEL_BYTES = 1 << 20
"""What the left factor may take of the second-level cache, if all of k is to be one panel."""
_PANEL = 256
"""Rows of a panel otherwise: a strip of one stays in the first-level cache while further rows of the left factor meet it."""
_LEFT_BYTES = 1 << 20
"""What the left factor may take of the second-level cache, if a few strips at a time are to meet all panels of it."""
_NARROW = 512
"""Columns for which the left factor of several groups of rows is not copied, if it need not be."""
_SECOND_WAY_BYTES = 1 << 17
"""Lines so far apart, or a multiple of it, compete for the same ways of the second-level cache."""
_LOW, _STRIPS = 64, 8
"""Of more rows than these, so many strips are written to the target together: rows of it lie in pages of their own."""
_WRITTEN = 16
"""Rows that are asked for ahead of where sums are written to the target."""
_ROWS = 512
"""Rows of the left factor that meet a panel before the next rows do."""
_AHEAD = 4096
"""Bytes that a single group of rows asks for ahead of where it reads a strip."""
_WAY_BYTES = 4096
"""Rows so far apart, or a multiple of it, compete for the same ways of the first-level cache, fewer than a register has rows."""


def strips_for(product: Matmul, right: DType, vectors: Vectors) -> Strips | None:
    """How the right factor of a product, which is of a type, lies for the matrix unit; None where that is not to multiply it."""
    if product.dtype is not DType.BF16 or not (right is DType.BF16 or right.is_whole) or not suits_tiles(product, vectors):
        return None
    return Strips(panel_rows(product), strip_width(product), pairs=right is DType.BF16)


def suits_tiles(product: Matmul, vectors: Vectors) -> bool:
    """Whether the matrix unit is to multiply factors of these shapes, if they are bf16 or made so."""
    rows, depth = product.left.shape[-2:]
    if not vectors.tiles or vectors.lanes != SIDE:
        return False
    whole = depth % STEP == product.right.shape[-1] % SIDE == 0
    return whole and rows >= _FEW and rounded(_rows_of_block(rows), SIDE) * depth * DType.BF16.bytes <= COPIED_BYTES


def panel_rows(product: Matmul) -> int:
    """Rows of a panel of the right factor."""
    rows, depth = product.left.shape[-2], rounded(product.left.shape[-1], STEP)
    if rows <= _SUMS // 2 * SIDE and rounded(rows, SIDE) * depth * DType.BF16.bytes <= _PANEL_BYTES:
        return depth
    return rounded(-(-depth // -(-depth // _PANEL)), STEP)


def in_blocks_of_rows(product: Matmul) -> Matmul:
    """The product of blocks of rows, of which a panel and the sums of some strips fit the second-level cache, as a batch."""
    rows = product.left.shape[-2]
    size = _rows_of_block(rows)
    if size == rows:
        return product
    left, target = (_with_blocks(tile, rows // size, size) for tile in (product.left, product.target))
    return replace(product, left=left, right=_with_blocks(product.right, rows // size, None), target=target)


def _rows_of_block(rows: int) -> int:
    """As many rows as a block has: whole groups, or all."""
    if rows <= _ROWS:
        return rows
    return next((size for size in range(_ROWS, _ROWS // 2, -_SUMS // 2 * SIDE) if rows % size == 0), rows)


def _with_blocks(tile: Tile, blocks: int, rows: int | None) -> Tile:
    """A tile with a dimension of blocks before its last two: of so many rows each, or the whole tile in each."""
    *batch, _, columns = tile.shape
    *steps, step, last = tile.strides
    own, stride = (tile.shape[-2], 0) if rows is None else (rows, step * rows)
    return replace(tile, shape=(*batch, blocks, own, columns), strides=(*steps, stride, step, last))


def strip_width(product: Matmul) -> int:
    """Columns of a strip."""
    return (_SUMS if product.left.shape[-2] <= SIDE else _SUMS // 2) * SIDE


def rounded(size: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-size // step) * step


class PackedTiles(Panels):
    """Sums are in registers of the matrix unit, four of them."""

    steps = STEP
    copied = DType.BF16

    def __init__(self, writer: Writer, product: Matmul, bound: Bound | None = None) -> None:
        super().__init__(writer, product, bound)
        self.depth = rounded(self.depth, STEP)

    @property
    def across(self) -> int:
        """Registers of sums beside each other."""
        return self.strips.width // SIDE

    @property
    def group(self) -> int:
        return _SUMS // self.across * SIDE

    @property
    def high(self) -> int:
        return rounded(self.rows, self.group)

    @property
    def exact(self) -> bool:
        """Whether registers have as many rows as the target: all of it is one group."""
        return self.groups == 1 and self.bound is not Bound.ROWS

    @property
    def holds(self) -> bool:
        """Not where registers can be written to the target as they are, without more rows or columns than it has."""
        target = self.product.target
        fits = (self.exact or (self.rows % self.group == 0 and self.bound is None)) and self.columns % SIDE == 0
        competes = target.strides[-2] * DType.FP32.bytes % _WAY_BYTES == 0
        return self.writer.dtype(target) is not DType.FP32 or not fits or competes

    @property
    def block(self) -> int:
        if not self.left_stays:
            return super().block
        strips = 1 if self.high <= _LOW else _STRIPS
        return min(strips * self.strips.width, rounded(self.columns, self.strips.width))

    @property
    def left_stays(self) -> bool:
        """Whether all of the left factor's copy stays in the second-level cache, so that a few strips at a time meet it."""
        return self.high * self.depth * DType.BF16.bytes <= _LEFT_BYTES

    @property
    def strip_by_strip(self) -> bool:
        """Whether a strip meets several panels of the left factor before the next one does."""
        return self.left_stays and self.several and self.block == self.strips.width

    @property
    def at_once(self) -> bool:
        """Whether the sums of a group are written to the target as they leave the registers, and not with those beside them."""
        return self.block <= self.strips.width or not self.several

    @property
    def several(self) -> bool:
        """Whether there is more than one panel."""
        return self.depth > self.panel_rows

    @property
    def keeps(self) -> bool:
        """Whether the copies of all panels stay, because several blocks of columns meet them, or of the grid."""
        return self.left_copy is not None or self.block < self.columns

    @property
    def left_key(self) -> Hashable:
        """What products have in common whose left factors have one copy."""
        return type(self), self.product.left, self.high, self.panel_rows

    @property
    def left_copy(self) -> str | None:
        """The memory of the left factor's copy that all blocks of a thread read, if there is one: not where the product reads the
        factor as it lies, as one of few columns may beside others that copy it."""
        return self.writer.left_copies.get(self.left_key) if self.copies else None

    @property
    def left_bytes(self) -> int:
        """Bytes of the copies of all panels."""
        return self.high * rounded(self.depth, self.panel_rows) * self.copied.bytes

    @property
    def copies(self) -> bool:
        """Not where rows of the left factor lie as registers are filled, in whole lines, of which few compete for a set, and few
        columns meet them: rows that lie in pages of their own are read more slowly."""
        left, rows = self.product.left, self.rows
        row, *starts = (DType.BF16.bytes * step for step in (left.strides[-2], *left.strides[:-2], *left.start.parts))
        lies = self.writer.dtype(left) is DType.BF16 and left.strides[-1] == 1 and left.lookup is None
        few = self.groups == 1 or self.columns <= _NARROW
        whole = left.shape[-1] == self.depth and (self.exact or (rows % SIDE == 0 and self.bound is None))
        lines = all(step % CACHE_LINE == 0 and not has_arguments(step) for step in (row, *starts))
        return not (lies and few and whole and lines and rows * math.gcd(row, _SECOND_WAY_BYTES) <= _LEFT_BYTES)

    @property
    def widens(self) -> bool:
        """Whether the right factor becomes pairs of bf16 on the way to the unit."""
        return self.right.is_whole

    def write(self) -> None:
        self.print_memories()
        self.writer.line(f"static const tile_shapes shapes = {self.shapes()};")
        self.writer.line("USE_TILES")
        self.writer.line("SHAPE_TILES(shapes)")
        for block in runs(self.columns, self.block):
            with self.loop("j0", block):
                for panel, held in self.panels_held():
                    with self.loop("k0", panel):
                        self.print_left_of(block, panel.size, held)
                        self.print_block(block.size, panel.size)
                if self.holds and not self.at_once:
                    self.print_rounded(block.size)
        if self.left_copy is not None:
            self.writer.line(f"has_{self.left_copy} = 1;")
        self.writer.line("RELEASE_TILES")

    def print_memories(self) -> None:
        """Declare what copies and sums are in."""
        if self.left_copy is not None:
            self.writer.line(f"{self.copied}_t *const left_a = {self.left_copy};")
        elif self.copies:
            rows = rounded(self.depth, self.panel_rows) if self.keeps else self.panel_rows
            self.memory(self.copied, "left_a", self.high * rows)
        self.memory(DType.FP32, "sums", self.high * self.block if self.holds and self.several else 0)
        if self.widens:
            widened = STEP if self.groups == 1 else self.panel_rows
            self.memory(DType.BF16, "widened", widened * self.strips.width)

    def shapes(self) -> str:
        """Rows of every register, all of which have 64 bytes: as many as the left factor has, if that is one group."""
        high = [SIDE] * (_SUMS // self.across)
        if self.exact:
            high = [max(1, min(SIDE, self.rows - SIDE * r)) for r in range(len(high))]
        registers = [high[number // self.across] for number in range(_SUMS)]
        registers += [high[min(number, len(high) - 1)] for number in range(_RIGHT - _LEFT)]
        registers += [SIDE] * 2
        return f"{{.palette = 1, .bytes = {{{', '.join(['64'] * 8)}}}, .rows = {{{', '.join(map(str, registers))}}}}}"

    # --- copies of factors ---------------------------------------------------------------------------------------------------

    def print_left_of(self, block: Run, depth: int, held: int) -> None:
        """Copy a panel of the left factor before the first columns meet it."""
        if block.start == 0 and self.copies:
            with ExitStack() as first:
                if block.count > 1:
                    first.enter_context(self.writer.block("if (j0 == 0)"))
                if self.left_copy is not None:
                    first.enter_context(self.writer.block(f"if (!has_{self.left_copy})"))
                self.print_left(depth, held)

    def print_left(self, depth: int, held: int) -> None:
        """Copy a panel of the left factor, register by register; of its values of k so many are held, and the others 0."""
        write, whole = self.writer, held // STEP * STEP
        with write.block(f"for (long i = 0; i < {self.end}; ++i)"):
            write.line(f"bf16_t *const to = {self.left_at(depth, '0', 'i')};")
            with write.block(f"for (long k = 0; k < {whole}; k += {STEP})"):
                self.copy_step(STEP)
            if whole < held:
                write.line(f"const long k = {whole};")
                self.copy_step(held - whole)

    def left_at(self, depth: int, k: str, row: str) -> str:
        """Address of the copy of a row of the left factor at k of a panel, in the registers that have it."""
        place = f"{row} / {SIDE} * {SIDE * depth} + {row} % {SIDE} * {STEP} + {SIDE} * ({k})"
        return f"left_a + {f'{self.high} * k0 + ' if self.keeps else ''}{place}"

    def copy_step(self, held: int) -> None:
        """Copy what one instruction multiplies of a row at k."""
        left, write = self.product.left, self.writer
        if write.dtype(left) is DType.BF16 and left.strides[-1] == 1:
            if held < STEP:
                write.line(f"__builtin_memset(to + {SIDE} * k, 0, {STEP * DType.BF16.bytes});")
            source = self.address("a", left, "i", "k0 + k")
            write.line(f"__builtin_memcpy(to + {SIDE} * k, {source}, {held * DType.BF16.bytes});")
            return
        halves = [self.left_vector(f"k0 + k + {start}", min(self.lanes, held - start)) for start in range(0, STEP, self.lanes)]
        write.line(f"store_pairs(to + {SIDE} * k, {', '.join(halves)});")

    def left_vector(self, k: str, held: int) -> str:
        """A vector of the left factor's row i from k on, of which so many numbers are held, and the others 0."""
        if held <= 0:
            return "(vec){0}"
        left = self.product.left
        value = self.load("a", left, "i", k, held)
        if held < self.lanes:
            return f"keep_first({value}, 0.0f, {held})"
        if self.writer.dtype(left) is DType.BF16 and left.strides[-1] == 2:
            other = f"load_alternate_bf16({self.address('a', left, 'i', k)})"
            return f"({k} + {self.lanes} < {left.shape[-1]} ? {other} : {value})"
        return value

    def prepare(self, depth: int, columns: int) -> None:
        """Widen a strip's panel before several groups of rows meet it."""
        if self.widens and self.groups > 1:
            self.print_ahead(columns, depth)
            with self.writer.block(f"for (long k = k0; k < k0 + {depth}; k += {STEP})"):
                for v in range(columns // SIDE):
                    self.widen(v, columns, self.widened_at(v, columns))

    def widened_at(self, v: int, columns: int) -> str:
        """Where the pairs of 16 columns of a strip at k are."""
        step = f" + {columns} * (k - k0)" if self.groups > 1 else ""
        return f"widened{step} + {SIDE * STEP * v}"

    def widen(self, v: int, columns: int, to: str) -> None:
        """Write the pairs of 16 columns of a strip at k."""
        self.writer.line(f"widen_rows_{self.right}({to}, strip + {columns} * (k - k0) + {SIDE * v}, {columns});")

    # --- register tiles ------------------------------------------------------------------------------------------------------

    def parts(self, dimension: Bound, name: str, total: int, size: int) -> Iterator[int]:
        """Of rows that are bounded registers are full, too: there is none without rows."""
        if dimension is not Bound.ROWS or self.bound is not Bound.ROWS:
            yield from super().parts(dimension, name, total, size)
            return
        with self.writer.block():
            self.writer.line(f"long {name} = 0;")
            for piece in range(size, 0, -SIDE):
                with self.writer.block(f"for (; {name} + {piece - SIDE} < {HELD}; {name} += {piece})"):
                    yield piece

    def tile(self, depth: int, rows: int, columns: int) -> None:
        write, stacked = self.writer, range(-(-rows // SIDE))
        registers = self.registers(stacked, columns)
        self.print_ahead(columns, depth)
        self.print_sums(stacked, columns)
        for number, place, stride in registers:
            write.line(self.start(f"LOAD_TILE({number}, {place}, {stride});", f"CLEAR_TILE({number});"))
        with write.block(f"for (long k = k0; k < k0 + {depth}; k += {STEP})"):
            self.multiply(depth, stacked, columns)
        for number, place, stride in registers:
            write.line(f"STORE_TILE({number}, {place}, {stride});")
        self.print_finished(depth, rows, columns)

    def multiply(self, depth: int, stacked: Sequence[int], columns: int) -> None:
        """One step of k: products of registers of rows with those of a strip's columns."""
        self.prefetch(columns)
        for v in range(-(-columns // SIDE)):
            self.load_right(v, columns)
            for r in stacked:
                if v == 0:
                    self.load_left(r, depth)
                self.writer.line(f"MULTIPLY_TILES({r * self.across + v}, {_LEFT + r}, {self.register(v)});")

    def load_left(self, r: int, depth: int) -> None:
        """Load what the left factor has at k in 16 rows into their register."""
        left, row = self.product.left, f"(i + {SIDE * r})"
        place, stride = self.left_at(depth, "k - k0", row), STEP
        if not self.copies:
            place, stride = self.address("a", left, row, "k"), left.strides[-2]
        self.writer.line(f"LOAD_TILE({_LEFT + r}, {place}, {stride * DType.BF16.bytes});")

    def load_right(self, v: int, columns: int) -> None:
        """Load the pairs of 16 columns of a strip into their register."""
        if self.widens:
            place = self.widened_at(v, columns)
            if self.groups == 1:
                self.widen(v, columns, place)
            self.writer.line(f"LOAD_TILE({self.register(v)}, {place}, {STEP * DType.BF16.bytes});")
            return
        wide = rounded(columns, SIDE)
        place = f"strip + {wide} * (k - k0) + {2 * SIDE * v}"
        self.writer.line(f"LOAD_TILE({self.register(v)}, {place}, {2 * DType.BF16.bytes * wide});")

    def register(self, v: int) -> int:
        """The register of 16 columns of the right factor: the next ones are loaded into another."""
        return _RIGHT + v % 2

    def print_ahead(self, columns: int, depth: int) -> None:
        """The start of the strip, and of what is read after it where that does not follow it."""
        at, wide = self.strips_at(), rounded(self.columns, SIDE)
        strip = sum_of([*at, f"{wide} * k0", f"{depth} * j"])
        self.writer.line(f"const {self.right}_t *const strip = {strip};")
        if self.strip_by_strip:
            below = sum_of([*at, f"{wide} * (k0 + {depth})", f"{self.panel_rows} * j"])
            beside = sum_of([*at, f"{self.panel_rows} * (j + {columns})"])
            self.writer.line(f"const {self.right}_t *const next = k0 + {depth} < {self.depth} ? {below} : {beside};")

    def following(self, columns: int) -> str:
        return f"next + {columns} * (k - k0)" if self.strip_by_strip else super().following(columns)

    def prefetch(self, columns: int) -> None:
        """Ask for what a single group of rows reads next into the cache that registers are filled from."""
        if self.groups > 1:
            super().prefetch(columns)
            return
        size = self.right.bytes
        for line in range(0, STEP * columns, CACHE_LINE // size):
            self.writer.line(f"__builtin_prefetch(strip + {columns} * (k - k0) + {line + _AHEAD // size}, 0, 3);")

    # --- sums ----------------------------------------------------------------------------------------------------------------

    def print_sums(self, stacked: Sequence[int], columns: int) -> None:
        """Declare `held_sums`, where the sums of a group are, row by row, if they are not the target's."""
        wide = rounded(columns, SIDE)
        if self.holds and self.several:
            self.writer.line(f"float *const held_sums = sums + {self.high} * (j - j0) + {wide} * i;")
        elif self.holds:
            self.writer.line(f"float held_sums[{SIDE * len(stacked) * wide}] __attribute__((aligned(64)));")

    def registers(self, stacked: Sequence[int], columns: int) -> list[tuple[int, str, int]]:
        """The registers of sums, by number: where these are, and the bytes between their rows."""
        return [(r * self.across + v, *self.sums_of(r, v, columns)) for r in stacked for v in range(-(-columns // SIDE))]

    def sums_of(self, r: int, v: int, columns: int) -> tuple[str, int]:
        """Where the sums of a register are, and the bytes between their rows."""
        if not self.holds:
            place = self.address("c", self.product.target, f"i + {SIDE * r}", f"j + {SIDE * v}")
            return place, DType.FP32.bytes * self.product.target.strides[-2]
        wide = rounded(columns, SIDE)
        return f"held_sums + {SIDE * (wide * r + v)}", DType.FP32.bytes * wide

    def start(self, load: str, clear: str) -> str:
        """What fills a register of sums: what was summed before, or nothing."""
        if self.product.accumulate and not self.holds:
            return load
        return f"if (k0) {load} else {clear}" if self.several else clear

    def print_finished(self, depth: int, rows: int, columns: int) -> None:
        """Write the sums of a group to the target, in its type, behind the last panel."""
        if not self.holds or not self.at_once:
            return
        end = f"smaller({rows}, {HELD} - i)" if self.bound is Bound.ROWS else rows
        with ExitStack() as blocks:
            if self.several:
                blocks.enter_context(self.writer.block(f"if (k0 == {self.depth - depth})"))
            blocks.enter_context(self.writer.block(f"for (long m = 0; m < {end}; ++m)"))
            self.print_written("i + m", "j", f"held_sums + {rounded(columns, SIDE)} * m", columns)

    def print_rounded(self, columns: int) -> None:
        """Write the sums of a block of columns to the target, in its type, row by row."""
        width = self.strips.width
        strips = [*runs(columns, width)]
        with self.writer.block(f"for (long i = 0; i < {self.end}; ++i)"):
            ahead = self.address("c", self.product.target, f"i + {_WRITTEN}", "j0")
            for line in range(0, columns, CACHE_LINE // self.writer.dtype(self.product.target).bytes):
                self.writer.line(f"__builtin_prefetch({ahead} + {line}, 1);")
            for across in strips:
                with self.loop("j", across):
                    place = f"sums + {self.high} * j + {rounded(across.size, SIDE)} * i"
                    self.print_written("i", "j0 + j", place, across.size)

    def print_written(self, row: str, column: str, sums: str, columns: int) -> None:
        """Write so many sums to a row of the target from a column on."""
        target, dtype = self.product.target, self.writer.dtype(self.product.target)
        for start in range(0, columns, SIDE):
            there, width = self.address("c", target, row, f"{column} + {start}"), min(SIDE, columns - start)
            first, count = ("", "") if width == SIDE else ("first_", f", {width}")
            old = f"load_{first}{dtype}({there}{count}) + " if self.product.accumulate else ""
            self.writer.line(f"store_{first}{dtype}({there}, {old}load_fp32({sums} + {start}){count});")
