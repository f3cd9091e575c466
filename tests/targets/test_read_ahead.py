"""Tiles of the next block that CPU kernels ask for while they compute functions of this one's."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mugraph.ir import DType, GraphBuilder, Level
from mugraph.ir.graph import Graph
from mugraph.lower import construct, lower
from mugraph.runtime import build
from mugraph.targets.cpu import Vectors, print_program
from mugraph.targets.cpu.read_ahead import steps_ahead


def softmax(rows: int, size: int, blocks: int, *, function: str = "exp", dtype: DType = DType.FP32) -> Graph:
    """Softmax of rows, of which each block has some; with another `function`, that over its sum."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, size), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    part = block.iterator(0, kernel.tensor(x), (0,), None)
    made = block.add(function, block.add("sub", part, block.add("max", part, dim=1, size=size)))
    result = block.add("div", made, block.add("sum", made, dim=1, size=size))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), [x]))


def asked_for(graph: Graph) -> list[int]:
    """How many elements ahead of what it reads a kernel asks for lines."""
    (launch,) = lower(construct(graph)).values()
    text = print_program([launch.kernel], Vectors(lanes=16, registers=32))
    body = text[text.index(f"{launch.kernel.name}_blocks") :]
    return [int(ahead) for ahead in re.findall(r"__builtin_prefetch\(x\d+ .*\+ (\d+), 0, 2\);", body)]


def test_lines_of_the_next_row_are_asked_for_where_exponentials_are_computed() -> None:
    assert asked_for(softmax(64, 8192, 64)) == [8192, 8208, 8224, 8240]  # four vectors, each a line
    assert asked_for(softmax(128, 8192, 64, dtype=DType.BF16))[0] == 2 * 8192  # of two rows


@pytest.mark.parametrize(
    "graph",
    [
        softmax(16, 8192, 16),  # half of a second-level cache
        softmax(64, 131072, 64),  # rows that leave no room for the next
        softmax(64, 8192, 1),  # no next block
        softmax(64, 8192, 64, function="square"),  # takes no longer than memory
    ],
)
def test_nothing_is_asked_for_where_it_does_not_pay(graph: Graph) -> None:
    assert not asked_for(graph)


def test_only_what_is_read_again_is_asked_for() -> None:
    (launch,) = lower(construct(softmax(64, 8192, 64))).values()
    assert {buffer for buffer, _ in steps_ahead(launch.kernel)} == {*launch.kernel.inputs}
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (64, 8192), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(64,))
    part = block.add("exp", block.iterator(0, kernel.tensor(x), (0,), None))
    total = block.add("output_saver", block.add("sum", part, dim=1, size=8192), omap=(0,))
    (launch,) = lower(construct(kernel.build(kernel.graph_defined(block.build([total]), [x])))).values()
    assert not steps_ahead(launch.kernel)


def test_results_are_those_of_the_rows_at_the_end_too() -> None:
    rows = np.random.default_rng(0).standard_normal((66, 8192)).astype(np.float32)
    (found,) = build(construct(softmax(66, 8192, 33)))(rows)
    exact = np.exp(rows - rows.max(1, keepdims=True, initial=-np.inf), dtype=np.float64)
    np.testing.assert_allclose(found, exact / exact.sum(1, keepdims=True), rtol=1e-5)
