"""Products of many rows with a right factor that lies as it is: it is copied into strips before, as constant ones are packed.

Copying takes a few instructions for each element, multiplying takes some for each row. Where neighbours lie along k, as in keys
of attention, dot products would be summed across lanes for each row; bf16 would be interleaved for each group of rows.
"""

from __future__ import annotations

import math

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul, Strips
from mugraph.targets.cpu.panels import PairPanels, VectorPanels, strips_in_panels
from mugraph.targets.cpu.products import runs
from mugraph.targets.cpu.source import Vectors

_COPIED_BYTES = 1 << 19
"""Largest right factor that is copied: a part of the second-level cache."""


def strips_copied(product: Matmul, right: DType, vectors: Vectors) -> Strips | None:
    """How the right factor of a product, which is of a type, is copied; None where few rows would read the copy."""
    shape, strides = product.right.shape[-2:], product.right.strides[-2:]
    small = min(shape) < vectors.lanes
    large = math.prod(shape) * DType.FP32.bytes > _COPIED_BYTES
    if small or large or 1 not in strides or product.target.strides[-1] != 1:
        return None
    strips = strips_in_panels(product, right, vectors, copied=True)
    return None if strips is not None and strides[-1] == 1 and not strips.pairs else strips


class CopiedVectors(VectorPanels):
    """A copy in fp32."""

    @property
    def right(self) -> DType:
        return self.copied

    def strips_at(self) -> list[str]:
        return ["right_b"]

    def prefetch(self, columns: int) -> None:
        """Ask for nothing: the copy is in a cache."""

    def write(self) -> None:
        with self.memory(self.copied, "right_b", self.depth * self.columns):
            self.print_right()
            super().write()

    def print_right(self) -> None:
        """Copy the right factor to `right_b`, panel by panel and strip by strip."""
        copy = self.copy_rows if self.product.right.strides[-1] == 1 else self.copy_turned
        for panel, held in self.panels_held():
            with self.loop("k0", panel):
                for across in runs(self.columns, self.strips.width):
                    with self.loop("j0", across):
                        self.writer.line(f"{self.copied}_t *const to = right_b + {self.columns} * k0 + {panel.size} * j0;")
                        copy(held, across.size)

    def copy_rows(self, depth: int, columns: int) -> None:
        """A strip from rows whose neighbours lie together."""
        whole = depth // self.steps * self.steps
        with self.writer.block(f"for (long k = k0; k < k0 + {whole}; k += {self.steps})"):
            self.copy_row(columns, self.steps)
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
        for along in runs(depth, self.lanes * self.steps):
            with self.loop("k", along):
                for run in runs(columns, self.lanes):
                    with self.loop("v", run):
                        self.writer.line("vec turned[LANES] = {0};")
                        with self.writer.block(f"for (long lane = 0; lane < {run.size}; ++lane)"):
                            self.writer.line(f"turned[lane] = {self.column_to_copy(along.size)};")
                        self.writer.line("turn(turned);")
                        with self.writer.block(f"for (long s = 0; s < {-(-along.size // self.steps)}; ++s)"):
                            self.store_copied(f"(k + {self.steps} * s)", "turned[s]", columns, run.size)

    def store_copied(self, k: str, value: str, columns: int, width: int) -> None:
        """Write what a vector holds of columns from v on to a strip's row."""
        place = f"to + {columns} * {k} + {self.steps} * v"
        self.writer.line(f"__builtin_memcpy({place}, &{value}, {DType.FP32.bytes * width});")

    def row_to_copy(self, width: int, held: int) -> str:
        """Columns from v on of the `held` rows from k on."""
        return self.load("b", self.product.right, "k", "j0 + v", width)

    def column_to_copy(self, depth: int) -> str:
        """What column v + lane has at k."""
        return self.load("b", tiles.transposed(self.product.right), "j0 + v + lane", "k0 + k", depth)


class CopiedPairs(CopiedVectors, PairPanels):
    """A copy in pairs of bf16 numbers."""

    def row_to_copy(self, width: int, held: int) -> str:
        rows = [self.load("b", self.product.right, k, "j0 + v", width) for k in ("k", "k + 1")[:held]]
        return f"pair_up({', '.join([*rows, '(vec){0}'][:2])})"

    def column_to_copy(self, depth: int) -> str:
        place = self.address("b", tiles.transposed(self.product.right), "j0 + v + lane", "k0 + k")
        whole = depth == self.steps * self.lanes
        return f"(vec)load_pairs({place})" if whole else f"(vec)load_first_pairs({place}, {depth})"
