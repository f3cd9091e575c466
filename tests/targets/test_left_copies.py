"""Left factors that all blocks of a kernel multiply are copied for the matrix unit once a thread, and in each call anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.runtime import Executable
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.compiler import find_compiler
from mugraph.targets.cpu.machine import SOURCE_NAME, Cpu

TILED = Vectors(16, 32, bf16_pairs=True, tiles=True)
UNITS = pytest.mark.parametrize("real", [False, True], ids=["emulated", "real"])
ROWS, DEPTH = 40, 96
"""So many rows fill no whole registers, and are copied."""
MODULE = "mugraph.targets.cpu.matrix_tiles"


def products(grid: int = 8, weights: int = 2, loop: int = 1, rows: int = ROWS, stored: DType = DType.BF16) -> Graph:
    """The product of as many linear layers of one input, in a kernel: blocks of columns, iterations over k."""
    kernel = GraphBuilder(Level.KERNEL)
    given = [kernel.input("x", (rows, DEPTH), DType.BF16)]
    given += [kernel.input(f"w{number}", (DEPTH, 32 * grid), stored) for number in range(weights)]
    block = GraphBuilder(Level.BLOCK, grid=(grid,), loop=loop)
    x, *right = (
        block.iterator(number, kernel.tensor(value), (1,) if number else (None,), None if loop == 1 else 0 if number else 1)
        for number, value in enumerate(given)
    )
    made = [block.add("matmul", x, weight) for weight in right]
    if loop > 1:
        made = [block.add("accumulate", each, combine="sum") for each in made]
    whole = made[0] if weights == 1 else block.add("mul", *made)
    (result,) = kernel.graph_defined(block.build([block.add("output_saver", whole, omap=(1,))]), given)
    return kernel.build([result]).with_constants([f"w{number}" for number in range(weights)])


def text_of(graph: Graph) -> str:
    machine = Cpu(TILED)
    return machine.print([launch.kernel for launch in machine.lower(graph).values()])[SOURCE_NAME]


def drawn(graph: Graph, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    x, *weights = (node.output for node in graph.inputs())
    whole = [torch.randint(-128, 128, each.shape, dtype=torch.int8) for each in weights if each.dtype is DType.INT8]
    return [torch.randn(x.shape).bfloat16() / 4, *(whole or [torch.randn(each.shape).bfloat16() / 4 for each in weights])]


def expected(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    made = [x.double() @ weight.double() for weight in weights]
    return made[0] if len(made) == 1 else made[0] * made[1]


@UNITS
@pytest.mark.parametrize("small", [(), ("_PANEL", "_PANEL_BYTES"), ("_PANEL", "_PANEL_BYTES", "_LEFT_BYTES")])
@pytest.mark.parametrize(("weights", "stored"), [(1, DType.BF16), (2, DType.BF16), (1, DType.INT8)])
def test_each_call_multiplies_what_it_is_given(
    real: bool, small: Sequence[str], weights: int, stored: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if real and not find_compiler().vectors.tiles:
        pytest.skip("this host has no matrix unit, or does not let us use it")
    for name in small:
        monkeypatch.setattr(f"{MODULE}.{name}", 32)
    graph = products(weights=weights, stored=stored)
    text = text_of(graph)
    assert text.count("allocated(worker") == text.count("int has_left_0 = 0;") == 1
    assert "has_left_1" not in text
    executable = Executable(graph, Cpu(TILED), {SOURCE_NAME: text if real else f"#define EMULATED_TILES\n{text}"})
    for seed in range(2):
        given = drawn(graph, seed)
        (made,) = executable(*given)
        wanted = expected(*given)
        np.testing.assert_allclose(made.double(), wanted, rtol=2e-2, atol=1e-2 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    "graph",
    [products(grid=4), products(loop=3), products(rows=64)],
    ids=["few blocks", "other parts in iterations", "not copied"],
)
def test_left_factors_that_blocks_copy_by_themselves_or_not_at_all(graph: Graph) -> None:
    text = text_of(graph)
    assert "MULTIPLY_TILES(0" in text
    assert "has_left" not in text


def apart(widths: Sequence[int], rows: int = 64, depth: int = 1024) -> Graph:
    """Linear layers of one input in a kernel of eight blocks, with so many columns of each in a block."""
    kernel = GraphBuilder(Level.KERNEL)
    given = [kernel.input("x", (rows, depth), DType.BF16)]
    given += [kernel.input(f"w{number}", (depth, 8 * width), DType.BF16) for number, width in enumerate(widths)]
    block = GraphBuilder(Level.BLOCK, grid=(8,))
    x, *right = (
        block.iterator(number, kernel.tensor(value), (1,) if number else (None,), None) for number, value in enumerate(given)
    )
    made = [block.add("output_saver", block.add("matmul", x, weight), omap=(1,)) for weight in right]
    results = kernel.graph_defined(block.build(made), given)
    return kernel.build(list(results)).with_constants([f"w{number}" for number in range(len(widths))])


@UNITS
@pytest.mark.parametrize("widths", [(256, 1024), (1024, 256), (128, 1024, 544)])
def test_a_product_that_reads_the_left_factor_where_it_lies_copies_nothing_for_others(real: bool, widths: Sequence[int]) -> None:
    """Few columns meet it where it lies; the copy that further products share is made by the first of those."""
    if real and not find_compiler().vectors.tiles:
        pytest.skip("this host has no matrix unit, or does not let us use it")
    graph = apart(widths)
    text = text_of(graph)
    copying = sum(width > 512 for width in widths)
    assert [text.count(each) for each in ("int has_left", "if (!has_left_0)", "has_left_0 = 1;")] == [1, copying, copying]
    executable = Executable(graph, Cpu(TILED), {SOURCE_NAME: text if real else f"#define EMULATED_TILES\n{text}"})
    x, *weights = drawn(graph, 0)
    for made, weight in zip(executable(x, *weights), weights, strict=True):
        wanted = expected(x, weight)
        np.testing.assert_allclose(made.double(), wanted, rtol=2e-2, atol=1e-2 * float(wanted.abs().max()))
