"""The text of matrices in a batch: where one starts, and how an element of the target is stored."""

from __future__ import annotations

from collections.abc import Mapping

from mugraph.lower.lowered import Tile
from mugraph.targets.cuda.source import KernelText
from mugraph.targets.source import scaled, sum_of


def write_batch_offsets(text: KernelText, matrices: Mapping[str, Tile]) -> None:
    """Declare `NAME_batch`, the offset of each tile's matrix number `batch`."""
    for name, tile in matrices.items():
        terms, inner = [], 1
        for size, stride in zip(reversed(tile.shape[:-2]), reversed(tile.strides[:-2]), strict=True):
            if stride and size > 1:
                terms.append(scaled(stride, f"(batch / {inner} % {size})"))
            inner *= size
        text.line(f"const int {name}_batch = {sum_of(terms) or '0'};")


def write_result(text: KernelText, target: Tile, row: str, column: str, value: str, accumulate: bool) -> None:
    """Store one element of the target at `c`, or add to it."""
    element = sum_of(["c", "c_batch", scaled(target.strides[-2], row), scaled(target.strides[-1], column)])
    total = f"to_float(*({element})) + {value}" if accumulate else value
    text.line(f"*({element}) = from_float<{text.dtype(target)}_t>({total});")
