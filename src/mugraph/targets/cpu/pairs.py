"""Products of pairs of bf16 numbers, by an instruction that takes them: c += a0 * b0 + a1 * b1 in every lane.

The left factor is rounded to bf16, the type that the muGraph gives it, unless it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mugraph.ir.dtypes import DType
from mugraph.lower import tiles
from mugraph.lower.tile_form import Matmul
from mugraph.targets.c_text import number_text
from mugraph.targets.cpu.products import Bound, Inner, Outer, Packed, Product, print_right_vectors
from mugraph.targets.cpu.source import HELD, Vectors

PACKED_BYTES = 1 << 16
"""Largest left factor that is converted to bf16 pairs on the stack."""


def multiplies_pairs(product: Matmul, right: DType, vectors: Vectors) -> bool:
    """Whether a product whose right factor has a type multiplies pairs of bf16 numbers, of which the left factor is one copy."""
    rows, depth = product.left.shape[-2:]
    return takes_pairs(product, right, vectors) and rows * depth * DType.BF16.bytes <= PACKED_BYTES


def takes_pairs(product: Matmul, right: DType, vectors: Vectors, odd: bool = False) -> bool:
    """Whether the factors of a product, the right one of which has a type, could be multiplied as pairs of bf16 numbers; an `odd`
    number of these where there are copies, in which a zero may stand beside the last."""
    return vectors.bf16_pairs and are_bf16(product, right) and (odd or product.left.shape[-1] % 2 == 0)


def are_bf16(product: Matmul, right: DType) -> bool:
    """Whether the factors of a product, the right one of which lies as a type, are both bf16."""
    return product.dtype is right is DType.BF16


def left_stride(product: Product) -> str:
    """Elements between rows of the left factor as pairs."""
    return number_text(product.product.left.strides[-2] if is_packed(product) else product.depth)


def print_left_pairs(product: Product) -> None:
    """Declare `pairs_a`, the left factor in bf16 with k contiguous: in place where it is so, else a copy on the stack."""
    write, left, depth = product.writer, product.product.left, product.depth
    if is_packed(product):
        write.line(f"const bf16_t *pairs_a = {product.address('a', left, '0', '0')};")
        return
    write.line(f"bf16_t pairs_a[{product.rows * depth}] __attribute__((aligned(64)));")
    with write.block(f"for (long i = 0; i < {product.end}; ++i)"):
        strided = write.dtype(left) is DType.BF16 and left.strides[-1] == 2 and product.bound is not Bound.DEPTH
        alternate = (depth - 1) // product.lanes * product.lanes if strided else 0
        with write.block(f"for (long k = 0; k < {alternate}; k += {product.lanes})"):
            write.line(f"store_bf16(pairs_a + {depth} * i + k, load_alternate_bf16({product.address('a', left, 'i', 'k')}));")
        for width in product.along_depth(depth - alternate, product.lanes):
            value = product.load("a", left, "i", f"{alternate} + k", width)
            write.line(f"store_first_bf16(pairs_a + {depth} * i + {alternate} + k, {value}, {width});")


def is_packed(product: Product) -> bool:
    left = product.product.left
    return product.writer.dtype(left) is DType.BF16 and left.strides[-1] == 1


def left_pair_at(product: Product, r: int) -> str:
    """Address of the pair from k on of row r of a register tile."""
    return f"pairs_a + {left_stride(product)} * (i + {r}) + k"


def print_pair_products(
    product: Product, rows: int, vectors: int, place: Callable[[int], str], spread: str = "spread_pair"
) -> None:
    """Multiply-adds of pairs of the left factor, each row's at a place, and column vectors b0, b1, ..."""
    for r in range(rows):
        product.writer.line(f"const pairs a{r} = {spread}({place(r)});")
        for v in range(vectors):
            product.writer.line(f"c{r}_{v} = add_products(c{r}_{v}, a{r}, b{v});")


class OuterPairs(Outer):
    """Two rows of the right factor, interleaved, per step."""

    steps = 2
    widths = (2, 4, 6, 8)
    streamed_widths = (2,)

    def write(self) -> None:
        print_left_pairs(self)
        super().write()

    def step(self, rows: int, widths: Sequence[int], alone: bool = False) -> None:
        """Multiply-adds of two values of k, or of one that is `alone`, with 0 beside it."""
        for v in range(0, len(widths), 2):
            self.print_interleaved(v, widths[v : v + 2], alone)
        print_pair_products(self, rows, len(widths), partial(left_pair_at, self), "spread_alone" if alone else "spread_pair")

    def print_steps(self, depth: int, rows: int, widths: Sequence[int]) -> None:
        """Also of the last row of an odd number, as a pair with a row of 0."""
        super().print_steps(depth, rows, widths)
        if self.bound is Bound.DEPTH:
            with self.writer.block(f"if ({HELD} % 2 && {HELD} <= k0 + {depth})"):
                self.writer.line(f"const long k = {HELD} - 1;")
                self.step(rows, widths, alone=True)

    def print_interleaved(self, v: int, widths: Sequence[int], alone: bool) -> None:
        """Declare column vectors v and, if `widths` has two, v + 1: pairs of two rows, or of one and 0."""
        right = self.product.right
        rows = [self.address("b", right, row, f"j + {v * self.lanes}") for row in ("k", "k + 1")]
        if list(widths) == [self.lanes] * 2:
            first, second = (f"load_pairs({row})" for row in rows)
            self.writer.line(f"const pairs p{v} = {first}, q{v} = {'(pairs){0}' if alone else second};")
            self.writer.line(f"const pairs b{v} = INTERLEAVE_LOW(p{v}, q{v}), b{v + 1} = INTERLEAVE_HIGH(p{v}, q{v});")
            return
        for number, width in enumerate(widths):
            offset = number * self.lanes
            first, second = (f"load_first_pairs({row} + {offset}, {width})" for row in rows)
            self.writer.line(f"const pairs b{v + number} = INTERLEAVE_LOW({first}, {'(pairs){0}' if alone else second});")


class PackedPairs(Packed):
    """Rows of the right factor that lie as pairs."""

    steps = 2

    def write(self) -> None:
        print_left_pairs(self)
        super().write()

    def step(self, rows: int, widths: Sequence[int]) -> None:
        print_strip_pairs(self, rows, widths)
        print_pair_products(self, rows, len(widths), partial(left_pair_at, self))


def print_strip_pairs(product: Packed, rows: int, widths: Sequence[int]) -> None:
    """Declare column vectors b0, b1, ... of a strip's pairs from k on, which so many rows share."""
    columns = sum(widths)
    loads = []
    for v, width in enumerate(widths):
        address = f"strip + {columns} * (k - k0) + {2 * v * product.lanes}"
        loads.append(f"load_pairs({address})" if width == product.lanes else f"load_first_pairs({address}, {2 * width})")
    print_right_vectors(product.writer, "pairs", loads, rows)


class InnerPairs(Inner):
    """Both factors as they lie: neighbours along k are the pairs."""

    numbers_per_lane = 2

    def write(self) -> None:
        print_left_pairs(self)
        super().write()

    def step(self, rows: int, columns: int, width: int | str) -> None:
        right = tiles.transposed(self.product.right)
        self.prefetch_factors(rows, columns)
        values = [self.load_pairs(self.address("b", right, f"j + {s}", "k"), width) for s in range(columns)]
        print_right_vectors(self.writer, "pairs", values, rows)
        for r in range(rows):
            address = f"pairs_a + {left_stride(self)} * (i + {r}) + k"
            self.writer.line(f"const pairs a{r} = {self.load_pairs(address, width)};")
            for s in range(columns):
                self.writer.line(f"c{r}_{s} = add_products(c{r}_{s}, a{r}, b{s});")

    def load_pairs(self, address: str, width: int | str) -> str:
        """`width` neighbouring numbers, the rest zero."""
        return f"load_pairs({address})" if width == 2 * self.lanes else f"load_first_pairs({address}, {width})"
