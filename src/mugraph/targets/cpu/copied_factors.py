"""Products of many rows with a right factor that lies as it is: it is copied into strips before, as constant ones are packed.

Copying takes a few instructions for each element, multiplying takes some for each row. Where neighbours lie along k, as in keys
of attention, dot products would be summed across lanes for each row; bf16 would be interleaved for each group of rows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul, Strips, Tile
from mugraph.targets.cpu.matrix_tiles import SIDE, STEP, PackedTiles, panel_rows, rounded, strip_width
from mugraph.targets.cpu.pairs import are_bf16
from mugraph.targets.cpu.panels import COPIED_BYTES, PairPanels, Panels, VectorPanels, strips_in_panels
from mugraph.targets.cpu.products import Bound, Run, runs
from mugraph.targets.cpu.source import Vectors

_COPIED_BYTES = 1 << 19
"""Largest right factor that is copied: a part of the second-level cache."""


def strips_copied(product: Matmul, right: DType, vectors: Vectors) -> Strips | None:
    """How the right factor of a product, which is of a type, is copied; None where few rows would read the copy."""
    shape, strides = product.right.shape[-2:], product.right.strides[-2:]
    small = min(shape) < vectors.lanes
    if small or not _fits(*shape) or 1 not in strides or product.target.strides[-1] != 1:
        return None
    strips = strips_in_panels(product, right, vectors, copied=True)
    if strips is not None and copies_to_tiles(product, right, vectors):
        return Strips(panel_rows(product), strip_width(product), pairs=True)
    return None if strips is not None and strides[-1] == 1 and not strips.pairs else strips


def _fits(depth: int, columns: int) -> bool:
    """Whether a right factor of this shape is small enough to be copied as a whole."""
    return depth * columns * DType.FP32.bytes <= _COPIED_BYTES


def in_copied_parts(product: Matmul, right: DType, target: DType, vectors: Vectors) -> tuple[Matmul, ...]:
    """The products that one becomes, whose factors and target have these types, where its right factor is too large to be copied
    as a whole: of parts of the columns, or of k, which add up. It alone where parts would not be copied either, or sums would be
    rounded in between."""
    depth, columns = product.right.shape[-2:]
    if product.strips is not None or product.dequantized is not None or _fits(depth, columns):
        return (product,)
    if columns <= depth and target is not DType.FP32:
        return (product,)
    parts = _parts_of_columns(product) if columns > depth else _parts_of_k(product)
    copied = all(strips_copied(part, right, vectors) is not None for part in parts)
    return parts if parts and copied else (product,)


def _parts_of_columns(product: Matmul) -> tuple[Matmul, ...]:
    """A batch of products with the fewest equal parts of the columns that fit; none where there are no such parts."""
    depth, columns = product.right.shape[-2:]
    count = _fewest(columns, SIDE, depth)
    if not count:
        return ()
    right, target = (_parts_outside(tile, -1, count) for tile in (product.right, product.target))
    left = tiles.inserted(product.left, product.left.rank - 2, count)
    return (replace(product, left=left, right=right, target=target),)


def _parts_of_k(product: Matmul) -> tuple[Matmul, ...]:
    """A product with the first of the fewest equal parts of k that fit, and a batch with the others, which adds to that."""
    depth, columns = product.right.shape[-2:]
    count = _fewest(depth, STEP, columns)
    if not count:
        return ()
    first, others = (
        [tiles.sliced(tile, tile.rank + dim, start, size, 1) for tile, dim in ((product.left, -1), (product.right, -2))]
        for start, size in ((0, depth // count), (depth // count, depth - depth // count))
    )
    left, right = (_parts_outside(tile, dim, count - 1) for tile, dim in zip(others, (-1, -2), strict=True))
    target = tiles.inserted(product.target, product.target.rank - 2, count - 1)
    return (
        replace(product, left=first[0], right=first[1]),
        replace(product, left=left, right=right, target=target, accumulate=True),
    )


def _fewest(size: int, step: int, other: int) -> int:
    """The fewest equal parts, of whole steps, of a dimension of a right factor that fit; 0 where there are none."""
    fitting = (n for n in range(2, size // step + 1) if size % (n * step) == 0 and _fits(size // n, other))
    return next(fitting, 0)


def _parts_outside(tile: Tile, dim: int, count: int) -> Tile:
    """A tile of matrices with one of their dimensions in equal parts, each a matrix of its own."""
    cut = tiles.split(tile, tile.rank + dim, count)
    order = [*range(cut.rank)]
    order.insert(cut.rank - 3, order.pop(cut.rank + dim - 1))
    return tiles.permuted(cut, order)


def copies_to_tiles(product: Matmul, right: DType, vectors: Vectors) -> bool:
    """Whether the matrix unit is to multiply with a copy of the right factor, which is of a type."""
    rows, depth = (rounded(size, step) for size, step in zip(product.left.shape[-2:], (SIDE, STEP), strict=True))
    fits = rows * depth * DType.BF16.bytes <= COPIED_BYTES
    return vectors.tiles and vectors.lanes == SIDE and are_bf16(product, right) and fits


class Copied(Panels):
    """A copy of the right factor in strips, in the type in which it is multiplied."""

    @property
    def right(self) -> DType:
        return self.copied

    def strips_at(self) -> list[str]:
        return ["right_b"]

    def prefetch(self, columns: int) -> None:
        """Ask for nothing: the copy is in a cache."""

    def write(self) -> None:
        self.memory(self.copied, "right_b", self.depth * self.stored(self.columns))
        self.print_right()
        super().write()

    def stored(self, columns: int) -> int:
        """Columns that the copy has for so many."""
        return columns

    def print_right(self) -> None:
        """Copy the right factor to `right_b`, panel by panel and strip by strip."""
        for panel, held in self.panels_held():
            with self.loop("k0", panel):
                for across in runs(self.columns, self.strips.width):
                    with self.loop("j0", across):
                        start = f"{self.stored(self.columns)} * k0 + {panel.size} * j0"
                        self.writer.line(f"{self.copied}_t *const to = right_b + {start};")
                        self.copy_strip(panel, held, across.size)

    def copy_strip(self, panel: Run, held: int, columns: int) -> None:
        """Copy a strip's panel, of which so many rows are held."""
        (self.copy_rows if self.product.right.strides[-1] == 1 else self.copy_turned)(held, columns)

    def copy_rows(self, depth: int, columns: int) -> None:
        """A strip from rows whose neighbours lie together."""
        together = self.strips.together
        whole = depth // together * together
        with self.writer.block(f"for (long k = k0; k < k0 + {whole}; k += {together})"):
            self.copy_row(columns, together)
        if whole < depth:
            with self.writer.block():
                self.writer.line(f"const long k = k0 + {whole};")
                self.copy_row(columns, depth - whole)

    def copy_row(self, columns: int, held: int) -> None:
        """A row of a strip, of so many rows from k on."""
        for run in runs(columns, self.lanes):
            with self.loop("v", run):
                self.writer.line(f"const vec x = {self.row_to_copy(run.size, held)};")
                self.store_copied("(k - k0)", "x", columns, run.size)

    def copy_turned(self, depth: int, columns: int) -> None:
        """A strip from columns whose neighbours lie together: squares of as many columns as lanes are turned."""
        together = self.strips.together
        for along in runs(depth, self.lanes * together):
            with self.loop("k", along):
                for run in runs(columns, self.lanes):
                    with self.loop("v", run):
                        self.writer.line("vec turned[LANES] = {0};")
                        with self.writer.block(f"for (long lane = 0; lane < {run.size}; ++lane)"):
                            self.writer.line(f"turned[lane] = {self.column_to_copy(along.size)};")
                        self.writer.line("turn(turned);")
                        with self.writer.block(f"for (long s = 0; s < {-(-along.size // together)}; ++s)"):
                            self.store_copied(f"(k + {together} * s)", "turned[s]", columns, run.size)

    def store_copied(self, k: str, value: str, columns: int, width: int) -> None:
        """Write what a vector holds of columns from v on to a strip's row."""
        place = f"to + {self.stored(columns)} * {k} + {self.strips.together} * v"
        self.writer.line(f"__builtin_memcpy({place}, &{value}, {DType.FP32.bytes * width});")

    @abstractmethod
    def row_to_copy(self, width: int, held: int) -> str:
        """Columns from v on of the `held` rows from k on."""

    @abstractmethod
    def column_to_copy(self, depth: int) -> str:
        """What column v + lane has at k."""


class CopiedVectors(Copied, VectorPanels):
    """A copy in fp32."""

    def row_to_copy(self, width: int, held: int) -> str:
        return self.load("b", self.product.right, "k", "j0 + v", width)

    def column_to_copy(self, depth: int) -> str:
        return self.load("b", tiles.transposed(self.product.right), "j0 + v + lane", "k0 + k", depth)


class CopiedInPairs(Copied):
    """A copy in pairs of bf16 numbers."""

    def row_to_copy(self, width: int, held: int) -> str:
        rows = [self.load("b", self.product.right, k, "j0 + v", width) for k in ("k", "k + 1")[:held]]
        return f"pair_up({', '.join([*rows, '(vec){0}'][:2])})"

    def column_to_copy(self, depth: int) -> str:
        place = self.address("b", tiles.transposed(self.product.right), "j0 + v + lane", "k0 + k")
        whole = depth == 2 * self.lanes
        return f"(vec)load_pairs({place})" if whole else f"(vec)load_first_pairs({place}, {depth})"


class CopiedPairs(CopiedInPairs, PairPanels):
    """A copy that vectors multiply."""


class CopiedTiles(CopiedInPairs, PackedTiles):
    """A copy that the matrix unit multiplies: whole registers, with 0 behind the last value of k."""

    def stored(self, columns: int) -> int:
        return rounded(columns, SIDE)

    def print_block(self, columns: int, depth: int) -> None:
        """Rows outside where there is one panel: its strips stay in the second-level cache, and lines of the target's rows are
        written one after the other. Strips outside would write to pages far apart."""
        if self.several:
            super().print_block(columns, depth)
            return
        for down in self.parts(Bound.ROWS, "i", self.rows, self.group):
            for width in self.along_strips(columns):
                self.tile(depth, down, width)

    def copy_strip(self, panel: Run, held: int, columns: int) -> None:
        super().copy_strip(panel, held, columns)
        copied = rounded(held, 2)
        if copied < panel.size:
            wide = self.stored(columns)
            zeros = (panel.size - copied) * wide * DType.BF16.bytes
            self.writer.line(f"__builtin_memset(to + {wide * copied}, 0, {zeros});")
