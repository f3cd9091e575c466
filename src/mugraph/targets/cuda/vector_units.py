"""Products on vector units: each thread adds up a few rows of one column; neighbouring threads take neighbouring columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mugraph.lower.thread_mapping import rounds_of, rows_together, run_along_k, tasks_of
from mugraph.lower.tile_form import Matmul, Panels, Tile
from mugraph.targets.c_text import scaled
from mugraph.targets.cuda.matrices import panel_offsets, write_batch_offsets, write_panel_pointers, write_result
from mugraph.targets.cuda.source import KernelText


def write_vector_product(text: KernelText, product: Matmul) -> None:
    """Write a product over the pointers `a` and `b`; its factors have the target's batch dimensions."""
    work = _Work(text, product, rows_together(product))
    text.pointer("c", product.target, written=True)
    if product.panels is not None:
        work.write_streamed(product.panels)
    else:
        work.write_in_place()


@dataclass(frozen=True, slots=True)
class _Work:
    text: KernelText
    product: Matmul
    tall: int

    def write_in_place(self) -> None:
        """Factors are read where they lie; threads take tasks in turn."""
        text, product = self.text, self.product
        with text.block(f"for (int task = thread; task < {tasks_of(product)}; task += {text.threads})"):
            self.write_place(product.left, product.right)
            text.line(f"float sum[{self.tall}] = {{}};")
            self.add_products("sum", product.left, product.right)
            self.store("sum")

    def write_streamed(self, panels: Panels) -> None:
        """Factors, or one of them, pass through the ring; every thread keeps the sums of all its tasks throughout."""
        text, product = self.text, self.product
        left, right = panels.left or product.left, panels.right or product.right
        text.line(f"float sum[{rounds_of(product, text.threads)}][{self.tall}] = {{}};")
        with text.block(f"for (int panel = 0; panel < {product.left.shape[-1] // panels.depth}; ++panel)"):
            write_panel_pointers(text, product, panels)
            with self.each_task():
                self.write_place(left, right, panel_offsets(product, panels))
                self.add_products("sum[round]", left, right, panels.depth, "_panel")
        with self.each_task():
            self.write_place(left, right)
            self.store("sum[round]")

    @contextmanager
    def each_task(self) -> Iterator[None]:
        """A loop, unrolled, over the tasks of a thread."""
        text, tasks, rounds = self.text, tasks_of(self.product), rounds_of(self.product, self.text.threads)
        text.line("#pragma unroll")
        with text.block(f"for (int round = 0; round < {rounds}; ++round)"):
            text.line(f"const int task = thread + round * {text.threads};")
            with text.block("" if tasks == rounds * text.threads else f"if (task < {tasks})"):
                yield

    def write_place(self, left: Tile, right: Tile, moved: Mapping[str, str] | None = None) -> None:
        """Declare the column, the band of rows and the matrix of the batch that are a task."""
        *_, rows, columns = self.product.target.shape
        bands = -(-rows // self.tall)
        self.text.line(f"const int n = task % {columns}, band = task / {columns} % {bands}, batch = task / {columns * bands};")
        write_batch_offsets(self.text, {"a": left, "b": right, "c": self.product.target}, moved)

    def add_products(self, sum_: str, left: Tile, right: Tile, depth: int | None = None, suffix: str = "") -> None:
        """Add the products of `depth` values of k, all of them by default, those that lie together loaded together."""
        text, rows = self.text, self.product.target.shape[-2]
        depth = left.shape[-1] if depth is None else depth
        run = max(run_along_k(left, -1), run_along_k(right, -2))
        row = f"min(band * {self.tall} + r, {rows - 1})" if rows % self.tall else f"(band * {self.tall} + r)"
        text.line("UNROLLED_RUNS")
        with text.block(f"for (int k = 0; k < {depth}; k += {run})"):
            self.load("factor", f"b{suffix}", right, -2, ["b_batch", scaled(right.strides[-1], "n")], run)
            text.line("#pragma unroll")
            with text.block(f"for (int r = 0; r < {self.tall}; ++r)"):
                self.load("other", f"a{suffix}", left, -1, ["a_batch", scaled(left.strides[-2], row)], run)
                text.line("#pragma unroll")
                text.line(f"for (int v = 0; v < {run}; ++v)")
                text.line(f"    {sum_}[r] = fma(other[v], factor[v], {sum_}[r]);")

    def load(self, name: str, pointer: str, tile: Tile, inner: int, terms: list[str], run: int) -> None:
        """Declare the elements of a factor from `k` on."""
        text, step = self.text, tile.strides[inner]
        text.line(f"float {name}[{run}];")
        if run_along_k(tile, inner) == run:
            others = [stride for dim, stride in enumerate(tile.strides) if dim != inner % tile.rank and tile.shape[dim] > 1]
            text.load_run(name, tile, text.element(pointer, tile, [*terms, scaled(step, "k")]), run, others)
        else:
            element = text.element(pointer, tile, [*terms, scaled(step, "(k + v)")])
            text.line("#pragma unroll")
            text.line(f"for (int v = 0; v < {run}; ++v)")
            text.line(f"    {name}[v] = {text.loaded(tile, element)};")

    def store(self, sum_: str) -> None:
        """Write the sums that lie inside the target."""
        text, product = self.text, self.product
        text.line("#pragma unroll")
        with text.block(f"for (int r = 0; r < {self.tall}; ++r)"):
            text.line(f"const int m = band * {self.tall} + r;")
            with text.block(f"if (m < {product.target.shape[-2]})"):
                write_result(text, product.target, "m", "n", f"{sum_}[r]", product.accumulate)
