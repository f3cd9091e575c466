"""Products of packed factors in panels: both factors are read from the caches, however many rows the left one has.

A strip of one panel stays in the first-level cache while groups of rows meet it. The left factor is converted once, panel by
panel, unless it is of the type that is multiplied.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from mugraph.ir.dtypes import DType
from mugraph.lower.tile_form import Matmul, Strips
from mugraph.targets.cpu.pairs import PACKED_BYTES, print_pair_products, print_strip_pairs, takes_pairs
from mugraph.targets.cpu.products import CACHE_LINE, STRIP_WIDTHS, Bound, Packed, Run, outer_tile, runs
from mugraph.targets.cpu.source import Vectors, Writer

COPIED_BYTES = 1 << 23
"""Largest left factor that is copied."""
_STRIP_BYTES = 3 << 13
"""What a strip of a panel may take of the first-level cache."""
_STACK_BYTES = 1 << 18


class Panels(Packed):
    """Registers of sums stay while k runs through a panel. Panels add to sums in fp32: the target, or memory of its own."""

    copied = DType.FP32
    """The type of the left factor's copy."""
    sums_bytes = 1 << 20
    """What the sums of a block of columns may take of the second-level cache, where panels add to them."""

    @property
    @abstractmethod
    def group(self) -> int:
        """Rows of the target that are in registers together."""

    @property
    @abstractmethod
    def high(self) -> int:
        """Rows of the left factor's copy."""

    @property
    def groups(self) -> int:
        """How many groups of rows there are."""
        return -(-self.rows // self.group)

    @property
    def block(self) -> int:
        """Columns whose sums are held together."""
        width = self.strips.width
        fitting = self.sums_bytes // (DType.FP32.bytes * self.high * width) * width
        return min(max(fitting, width), -(-self.columns // width) * width)

    def memory(self, dtype: DType, name: str, elements: int) -> None:
        """Declare memory, on the stack where it is little."""
        size = elements * dtype.bytes
        if size > _STACK_BYTES:
            self.writer.allocated(f"{dtype}_t", name, -(-size // 64) * 64)
        elif size:
            self.writer.line(f"{dtype}_t {name}[{elements}] __attribute__((aligned(64)));")

    def print_block(self, columns: int, depth: int) -> None:
        """A panel times a block of columns: strips outside, so that one is read from cache for further rows."""
        for width in self.along_strips(columns):
            self.prepare(depth, width)
            for down in self.parts(Bound.ROWS, "i", self.rows, self.group):
                self.tile(depth, down, width)

    def along_strips(self, columns: int) -> Iterator[int]:
        """A loop over the strips of a block of columns: inside, how wide they are."""
        for across in runs(columns, self.strips.width):
            start, end = across.start, across.start + across.count * across.size
            with self.writer.block(f"for (long j = j0 + {start}; j < j0 + {end}; j += {across.size})"):
                yield across.size

    def prepare(self, depth: int, columns: int) -> None:
        """What is done with a strip's panel before groups of rows meet it."""

    def following(self, columns: int) -> str:
        """Address of what is read after a strip, as far on as k is in it."""
        return f"strip + {columns} * ({self.panel_rows} + k - k0)"

    def panels_held(self) -> Iterator[tuple[Run, int]]:
        """Panels, and how many values of k of each the factors have: an odd number of these has zeros behind it in copies."""
        terms = self.product.left.shape[-1]
        last = self.depth if terms == self.depth else (terms - 1) // self.panel_rows * self.panel_rows
        yield from ((panel, panel.size) for panel in runs(last, self.panel_rows))
        if last < self.depth:
            yield Run(last, 1, self.depth - last), terms - last

    def prefetch(self, columns: int) -> None:
        """Ask for what is read later: each group of rows that meet a strip, for its part of the next one."""
        if self.groups == 1:
            super().prefetch(columns)
            return
        line = CACHE_LINE // self.right.bytes
        count = -(-self.steps * columns // (line * self.groups))
        for number in range(count):
            part = f"{line} * ({count} * (i / {self.group}) + {number})"
            self.writer.line(f"__builtin_prefetch({self.following(columns)} + {part}, 0, 2);")


def strips_in_panels(product: Matmul, right: DType, vectors: Vectors, copied: bool = False) -> Strips | None:
    """How the right factor of a product, which is of a type, lies for vectors in panels; None where few rows read it. Behind an
    odd number of rows in pairs one that is `copied` has a row of zeros."""
    rows, depth = product.left.shape[-2:]
    pairs = takes_pairs(product, right, vectors, odd=copied)
    left = DType.BF16 if pairs else DType.FP32
    tall, wide = outer_tile(rows, -(-product.right.shape[-1] // vectors.lanes), vectors, STRIP_WIDTHS)
    few = rows <= tall and not (pairs and rows * depth * left.bytes > PACKED_BYTES)
    if few or rows * depth * left.bytes > COPIED_BYTES:
        return None
    panel = _STRIP_BYTES // (left.bytes * wide * vectors.lanes) // 2 * 2
    return Strips(min(depth + (depth % 2 if pairs else 0), panel), wide * vectors.lanes, pairs)


class VectorPanels(Panels):
    """By vectors of fp32."""

    @property
    def group(self) -> int:
        return outer_tile(self.rows, 0, self.writer.vectors, (self.strips.width // self.lanes,))[0]

    @property
    def high(self) -> int:
        return self.rows

    @property
    def copies(self) -> bool:
        """Not where it is what a copy would be."""
        left = self.product.left
        return self.writer.dtype(left) is not self.copied or left.strides[-1] != 1

    @property
    def holds(self) -> bool:
        return self.writer.dtype(self.product.target) is not DType.FP32 and self.depth > self.panel_rows

    def write(self) -> None:
        panels = -(-self.depth // self.panel_rows)
        self.memory(self.copied, "left_a", self.high * panels * self.panel_rows if self.copies else 0)
        self.memory(DType.FP32, "sums", self.high * self.block if self.holds else 0)
        if self.copies:
            self.print_left()
        for block in runs(self.columns, self.block):
            with self.loop("j0", block):
                for panel in runs(self.depth, self.panel_rows):
                    with self.loop("k0", panel):
                        self.print_block(block.size, panel.size)
                if self.holds:
                    self.print_rounded(block.size)

    def print_left(self) -> None:
        """Row by row of a panel; rows have the same distance in all panels."""
        left, write = self.product.left, self.writer
        for panel, held in self.panels_held():
            with self.loop("k0", panel), write.block(f"for (long i = 0; i < {self.end}; ++i)"):
                row = f"left_a + {self.high} * k0 + {self.panel_rows} * i"
                for run in runs(held, self.lanes):
                    with self.loop("k", run):
                        value = self.load("a", left, "i", "k0 + k", run.size)
                        write.line(f"store_first_{self.copied}({row} + k, {value}, {run.size});")
                if held < panel.size:
                    write.line(f"({row})[{held}] = 0;")

    def sums_at(self, row: str, column: str) -> str:
        """Address of a sum."""
        if self.holds:
            return f"sums + {self.block} * ({row}) + {column} - j0"
        return self.address("c", self.product.target, row, column)

    def print_rounded(self, columns: int) -> None:
        """Write the sums of a block of columns to the target in its type."""
        target, dtype = self.product.target, self.writer.dtype(self.product.target)
        with self.writer.block(f"for (long i = 0; i < {self.end}; ++i)"):
            for run in runs(columns, self.lanes):
                with self.loop("j", run):
                    there = self.address("c", target, "i", "j0 + j")
                    first, count = ("", "") if run.size == self.lanes else ("first_", f", {run.size}")
                    old = f"load_{first}{dtype}({there}{count}) + " if self.product.accumulate else ""
                    value = f"{old}load_{first}fp32(sums + {self.block} * i + j{count})"
                    self.writer.line(f"store_{first}{dtype}({there}, {value}{count});")

    def left_number(self, r: int) -> str:
        return f"spread_{self.copied}({self.left_at(r)})"

    def left_at(self, r: int) -> str:
        """Address of the number at k of row r of a register tile."""
        if not self.copies:
            return self.address("a", self.product.left, f"i + {r}", "k")
        return f"left_a + {self.high} * k0 + {self.panel_rows} * (i + {r}) + k - k0"

    def store(self, row: int, column: int, width: int, value: str) -> None:
        if not self.holds:
            super().store(row, column, width, value)
            return
        place, first = self.sums_at(f"i + {row}", f"j + {column}"), "" if width == self.lanes else "first_"
        count = f", {width}" if first else ""
        value = f"{value} + (k0 ? load_{first}fp32({place}{count}) : (vec){{0}})"
        self.writer.line(f"store_{first}fp32({place}, {value}{count});")


class PairPanels(VectorPanels):
    """By pairs of bf16 numbers."""

    steps = 2
    copied = DType.BF16

    def __init__(self, writer: Writer, product: Matmul, bound: Bound | None = None) -> None:
        super().__init__(writer, product, bound)
        self.depth += self.depth % 2

    @property
    def copies(self) -> bool:
        """Also where there are zeros behind an odd number of values of k."""
        return super().copies or self.depth > self.product.left.shape[-1]

    def step(self, rows: int, widths: Sequence[int]) -> None:
        print_strip_pairs(self, rows, widths)
        print_pair_products(self, rows, len(widths), self.left_at)
