"""Products of packed weights of 16 or 8 bits on the matrix unit of a CPU (AMX): registers of 16 rows of 64 bytes each.

One instruction adds to 16 x 16 sums the products of 16 rows of 32 numbers with 32 rows of 16, which lie as pairs. Of the eight
registers four hold sums: four beside each other where the left factor has few rows, which is then read once, and two by two
otherwise. The left factor is copied in bf16, the type that the muGraph gives it, in the order in which its registers are filled.
Weights of 8 bits, all of which are numbers of bf16, lie row by row, and become pairs of bf16 on the way to the registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.ir.dtypes import DType
from mugraph.lower.tile_form import Matmul, Strips
from mugraph.targets.cpu.panels import COPIED_BYTES, Panels
from mugraph.targets.cpu.products import runs
from mugraph.targets.cpu.source import Vectors

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


def strips_for(product: Matmul, right: DType, vectors: Vectors) -> Strips | None:
    """How the right factor of a product, which is of a type, lies for the matrix unit; None where that is not to multiply it."""
    if product.dtype is not DType.BF16 or not (right is DType.BF16 or right.is_whole) or not suits_tiles(product, vectors):
        return None
    wide = _SUMS if product.left.shape[-2] <= SIDE else _SUMS // 2
    return Strips(panel_rows(product), wide * SIDE, pairs=right is DType.BF16)


def suits_tiles(product: Matmul, vectors: Vectors) -> bool:
    """Whether the matrix unit is to multiply factors of these shapes, if they are bf16 or made so."""
    rows, depth = product.left.shape[-2:]
    if not vectors.tiles or vectors.lanes != SIDE:
        return False
    whole = depth % STEP == product.right.shape[-1] % SIDE == 0
    return whole and rows >= _FEW and _rounded(rows) * depth * DType.BF16.bytes <= COPIED_BYTES


def panel_rows(product: Matmul) -> int:
    """Rows of a panel of the right factor."""
    rows, depth = product.left.shape[-2:]
    return depth if _rounded(rows) * depth * DType.BF16.bytes <= _PANEL_BYTES else min(depth, _PANEL)


def _rounded(rows: int) -> int:
    return -(-rows // SIDE) * SIDE


class PackedTiles(Panels):
    """Sums are in registers of the matrix unit, four of them."""

    steps = STEP
    copied = DType.BF16
    sums_bytes = 1 << 19

    @property
    def across(self) -> int:
        """Registers of sums beside each other."""
        return self.strips.width // SIDE

    @property
    def group(self) -> int:
        return _SUMS // self.across * SIDE

    @property
    def high(self) -> int:
        return _rounded(self.rows)

    @property
    def holds(self) -> bool:
        return self.writer.dtype(self.product.target) is not DType.FP32

    def write(self) -> None:
        for rows in {run.size for run in runs(self.rows, self.group)}:
            self.writer.line(f"static const tile_shapes shapes_{rows} = {_shapes(rows, self.across)};")
        self.writer.line("USE_TILES")
        super().write()
        self.writer.line("RELEASE_TILES")

    def print_left(self) -> None:
        """Copy the left factor, panel by panel and register by register."""
        left, dtype, write = self.product.left, self.writer.dtype(self.product.left), self.writer
        alternate = dtype is DType.BF16 and left.strides[-1] == 2
        for panel in runs(self.depth, self.panel_rows):
            with self.loop("k0", panel), write.block(f"for (long i = 0; i < {self.rows}; ++i)"):
                place = f"left_a + {self.high} * k0 + i / {SIDE} * {SIDE * panel.size} + i % {SIDE} * {STEP}"
                with write.block(f"for (long k = 0; k < {panel.size}; k += {STEP})"):
                    if dtype is DType.BF16 and left.strides[-1] == 1:
                        source = self.address("a", left, "i", "k0 + k")
                        write.line(f"__builtin_memcpy({place} + {SIDE} * k, {source}, {STEP * DType.BF16.bytes});")
                        continue
                    for start in range(0, STEP, self.lanes):
                        value = self.load("a", left, "i", f"k0 + k + {start}", self.lanes)
                        if alternate:
                            other = f"load_alternate_bf16({self.address('a', left, 'i', f'k0 + k + {start}')})"
                            value = f"k0 + k + {start + self.lanes} < {self.depth} ? {other} : {value}"
                        write.line(f"store_bf16({place} + {SIDE} * k + {start}, {value});")

    def tile(self, depth: int, rows: int, columns: int) -> None:
        write, parts, stacked = self.writer, range(columns // SIDE), range(-(-rows // SIDE))
        registers = [(r * self.across + v, *self.register_at(r, v)) for r in stacked for v in parts]
        write.line(f"SHAPE_TILES(shapes_{rows})")
        for number, place, stride in registers:
            write.line(self.start(depth, f"LOAD_TILE({number}, {place}, {stride});", f"CLEAR_TILE({number});"))
        self.print_ahead(columns, depth)
        if self.right.is_whole:
            write.line(f"bf16_t widened[{SIDE * STEP}] __attribute__((aligned(64)));")
        with write.block(f"for (long k = k0; k < k0 + {depth}; k += {STEP})"):
            self.multiply(depth, stacked, columns)
        for number, place, stride in registers:
            write.line(f"STORE_TILE({number}, {place}, {stride});")

    def multiply(self, depth: int, stacked: Sequence[int], columns: int) -> None:
        """One step of k: products of registers of rows with those of a strip's columns."""
        self.prefetch(columns)
        for r in stacked:
            place = f"left_a + {self.high} * k0 + {depth} * (i + {SIDE * r}) + {SIDE} * (k - k0)"
            self.writer.line(f"LOAD_TILE({_LEFT + r}, {place}, {STEP * DType.BF16.bytes});")
        for v in range(columns // SIDE):
            self.load_right(v, columns)
            for r in stacked:
                self.writer.line(f"MULTIPLY_TILES({r * self.across + v}, {_LEFT + r}, {self.register(v)});")

    def load_right(self, v: int, columns: int) -> None:
        """Load the pairs of 16 columns of a strip into their register."""
        if self.right.is_whole:
            self.writer.line(f"widen_rows_{self.right}(widened, strip + {columns} * (k - k0) + {SIDE * v}, {columns});")
            self.writer.line(f"LOAD_TILE({self.register(v)}, widened, {STEP * DType.BF16.bytes});")
            return
        place = f"strip + {columns} * (k - k0) + {2 * SIDE * v}"
        self.writer.line(f"LOAD_TILE({self.register(v)}, {place}, {2 * DType.BF16.bytes * columns});")

    def register(self, v: int) -> int:
        """The register of 16 columns of the right factor: the next ones are loaded into another."""
        return _RIGHT + v % 2

    def register_at(self, r: int, v: int) -> tuple[str, int]:
        """Where the sums of a register are, and the bytes between their rows."""
        stride = self.block if self.holds else self.product.target.strides[-2]
        return self.sums_at(f"i + {SIDE * r}", f"j + {SIDE * v}"), DType.FP32.bytes * stride

    def start(self, depth: int, load: str, clear: str) -> str:
        """What fills a register of sums: what was summed before, or nothing."""
        if self.product.accumulate and not self.holds:
            return load
        return f"if (k0) {load} else {clear}" if self.depth > depth else clear


def _shapes(rows: int, across: int) -> str:
    """Rows of every register, all of which have 64 bytes: those of a group of the left factor's rows, and of the right one's."""
    high = [max(1, min(SIDE, rows - SIDE * r)) for r in range(_SUMS // across)]
    registers = [high[number // across] for number in range(_SUMS)]
    registers += [high[min(number, len(high) - 1)] for number in range(_RIGHT - _LEFT)]
    registers += [SIDE] * 2
    return f"{{.palette = 1, .bytes = {{{', '.join(['64'] * 8)}}}, .rows = {{{', '.join(map(str, registers))}}}}}"
