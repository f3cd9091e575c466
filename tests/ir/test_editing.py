"""Kernels with other tiles."""

from __future__ import annotations

import pytest

from mugraph.errors import InvalidGraph
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.editing import untiled
from mugraph.ir.graph import Graph, Level


def kernel_that_writes(tile: tuple[int, ...], sums: bool) -> Graph:
    """A kernel of four blocks along the first dimension that saves tiles of its input, or the sums of each."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (4 * tile[0], *tile[1:]), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,), loop=1)
    read = block.iterator(0, kernel.tensor(x), (0,), None)
    saved = block.add("sum", read, dim=0, size=tile[0]) if sums else read
    (result,) = kernel.graph_defined(block.build([block.add("output_saver", saved, omap=(0,))]), [x])
    return kernel.build([kernel.add("mul", result, result)])


def test_a_kernel_in_one_tile_needs_no_kernel() -> None:
    flat = untiled(kernel_that_writes((2, 8), sums=False))
    assert [node.op for node in flat.nodes] == ["input", "mul"]


def test_tiles_that_are_not_parts_of_one_tile_have_no_such_form() -> None:
    with pytest.raises(InvalidGraph, match="one tile is not all of its tiles"):
        untiled(kernel_that_writes((2, 8), sums=True))
