"""Rows that a CPU kernel sums up, or takes the maximum of: as many at a time as vectors have lanes, as they are stored."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.lower.lower import launches
from mugraph.lower.tile_form import Memory
from mugraph.targets.cpu import Vectors
from targets.test_cpu import WIDTHS, executable_for, normal_inputs, reference

FP32 = DType.FP32
SCALE = 0.1875
"""Of scores: products with it are not exact."""
STORED_AND_COMPARED = r"store_fp32\(x\d[^\n]*\n\s*total0 = vec_max"


def row_reductions(rows: int, columns: int, dtype: DType = FP32) -> Graph:
    """The sum of each row's squares, and its largest element."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, columns), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tile = block.iterator(0, kernel.tensor(x), (None,), None)
    total = block.add("sum", block.add("square", tile), dim=1, size=columns)
    largest = block.add("max", tile, dim=1, size=columns)
    saved = [block.add("output_saver", value, omap=(0,)) for value in (total, largest)]
    return kernel.build(kernel.graph_defined(block.build(saved), [x]))


def softmax_of_scores(rows: int, columns: int, depth: int = 0) -> Graph:
    """Rows of scaled and masked scores, less their maxima from the lowest number on, as exponentials over their sums; with a
    `depth`, scores are a product."""
    kernel = GraphBuilder(Level.KERNEL)
    factors = {"q": (rows, depth), "k": (depth, columns)} if depth else {"scores": (rows, columns)}
    operands = [kernel.input(name, shape, FP32) for name, shape in (factors | {"mask": (rows, columns)}).items()]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    *given, mask = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(operands))
    scores = block.add("matmul", *given) if depth else given[0]
    shown = block.add("add", mask, block.add("mul", scores, block.constant(SCALE, FP32)))
    largest = block.add("max", shown, dim=1, size=columns, least="lowest")
    made = block.add("exp", block.add("sub", shown, largest))
    shares = block.add("div", made, block.add("sum", made, dim=1, size=columns))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", shares, omap=(0,))]), operands))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (15, 65), (16, 1), (17, 63), (31, 7), (64, 130), (197, 197)])
def test_rows_are_reduced_as_many_at_a_time_as_vectors_have_lanes(vectors: Vectors, rows: int, columns: int) -> None:
    graph = row_reductions(rows, columns)
    executable, inputs = executable_for(graph, vectors), normal_inputs(graph)
    (text,) = executable.sources.values()
    kernel = text[text.index("_blocks(void **arguments, worker *worker)") :]
    together = rows >= vectors.lanes and columns > 1
    assert ("all_sum(" in kernel, "all_max(" in kernel) == (together, together)
    for result, expected in zip(executable(*inputs), reference(graph, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16], ids=str)
def test_rows_of_16_bits_too(vectors: Vectors, dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    graph = row_reductions(33, 97, dtype)
    x = torch.randn(33, 97, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype.torch_name))
    total, largest = executable_for(graph, vectors)(x)
    np.testing.assert_allclose(total.float(), x.double().square().sum(1, keepdim=True), rtol=1e-2)
    assert torch.equal(largest, x.amax(1, keepdim=True))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
def test_no_row_has_anything_of_another(vectors: Vectors) -> None:
    """What is NaN or infinite in one row is so in no other."""
    graph = row_reductions(37, 70)
    (x,) = normal_inputs(graph)
    x[3, 69], x[16, 0], x[17, 40], x[20], x[36, 5] = np.nan, np.inf, -np.inf, -np.inf, np.nan
    total, largest = executable_for(graph, vectors)(x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(total[:, 0], np.square(x.astype(np.float64)).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(largest[:, 0], x.max(1))


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (16, 63), (17, 64), (33, 65), (64, 197)])
def test_the_largest_score_is_found_as_scores_are_stored(vectors: Vectors, rows: int, columns: int) -> None:
    graph = softmax_of_scores(rows, columns)
    executable, (scores, mask) = executable_for(graph, vectors), normal_inputs(graph)
    mask[:, columns // 2 :] = -np.inf
    mask[rows - 1] = -np.inf
    (text,) = executable.sources.values()
    assert (re.search(STORED_AND_COMPARED, text) is not None) == (columns >= 4 * vectors.lanes)
    inputs: list[Array] = [scores, mask]
    with np.errstate(invalid="ignore"):
        (expected,) = reference(graph, inputs)
    np.testing.assert_allclose(executable(*inputs)[0], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("vectors", WIDTHS, ids=lambda vectors: f"{vectors.lanes} lanes")
def test_maxima_are_not_filled_before_scores_in_their_place_are_read(vectors: Vectors) -> None:
    """The product's scores are read for the last time as they are masked: what comes behind may have their bytes."""
    graph = softmax_of_scores(33, 197, depth=8)
    executable, inputs = executable_for(graph, vectors), normal_inputs(graph)
    places = [
        [each.offset for each in launch.kernel.buffers if each.memory is Memory.SHARED] for launch in launches(graph).values()
    ]
    assert any(len(each) > len({*each}) for each in places), places
    (text,) = executable.sources.values()
    assert re.search(STORED_AND_COMPARED, text) is None
    np.testing.assert_allclose(executable(*inputs)[0], reference(graph, inputs)[0], rtol=1e-5, atol=1e-7)
