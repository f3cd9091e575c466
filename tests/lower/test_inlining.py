"""Which passes over tiles a block of a CPU is spared, and that kernels compute the same without them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import lower
from mugraph.lower.check import check
from mugraph.lower.inlining import with_joined_reductions
from mugraph.lower.tile_form import Elementwise, Kernel, Reduce
from mugraph.runtime import build
from mugraph.targets.cpu.machine import PASSES
from mugraph.testing.mugraphs import LARGE, random_mugraph

SHAPE = (3, 4, 6, 16)
Body = Callable[[GraphBuilder, Value], Value]


def one_block(body: Body) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", SHAPE, DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(3,))
    saved = block.add("output_saver", body(block, block.iterator(0, kernel.tensor(x), (0,), None)), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def lowered(graph: Graph, *passes: Callable[[Kernel], Kernel]) -> Kernel:
    (launch,) = lower(graph, passes=passes).values()
    return launch.kernel


def reduced(block: GraphBuilder, x: Value, op: str, dims: tuple[int, ...]) -> Value:
    for dim in dims:
        x = block.add(op, x, dim=dim, size=SHAPE[dim])
    return x


def reductions(kernel: Kernel) -> list[int]:
    """The sizes that the reductions of a kernel run over."""
    return [statement.sources[0].shape[-1] for statement in kernel.statements if isinstance(statement, Reduce)]


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize(("dims", "sizes"), [((2, 3), [96]), ((3, 2), [96]), ((1, 2, 3), [384]), ((3, 1), [16, 4])])
def test_reductions_of_dimensions_that_line_up_are_one(op: str, dims: tuple[int, ...], sizes: list[int]) -> None:
    graph = one_block(lambda block, x: reduced(block, block.add("exp", x), op, dims))
    kernel = lowered(graph, with_joined_reductions)
    check(kernel)
    assert reductions(kernel) == sizes
    same(graph)


def test_reductions_of_two_sorts_stay_two() -> None:
    graph = one_block(lambda block, x: reduced(block, reduced(block, x, "max", (2,)), "sum", (3,)))
    assert reductions(lowered(graph, with_joined_reductions)) == [6, 16]


def test_a_sum_that_others_read_too_stays() -> None:
    def body(block: GraphBuilder, x: Value) -> Value:
        rows = reduced(block, x, "sum", (3,))
        return block.add("mul", rows, reduced(block, rows, "sum", (2,)))

    graph = one_block(body)
    assert reductions(lowered(graph, *PASSES)) == [16, 6]
    same(graph)


def centred(block: GraphBuilder, x: Value) -> Value:
    """The variance's way: the difference from the mean is read by the sum of its squares and by the result."""
    difference = block.add("sub", x, block.add("mul", reduced(block, x, "sum", (2, 3)), block.constant(1 / 96, DType.FP32)))
    squares = reduced(block, block.add("square", difference), "sum", (2, 3))
    flat, deviation = block.add("reshape", difference, shape=(1, 4, 96)), block.add("reshape", squares, shape=(1, 4, 1))
    return block.add("div", flat, block.add("sqrt", deviation))


def test_a_difference_from_a_mean_is_computed_where_it_is_read() -> None:
    graph = one_block(centred)
    kernel = lowered(graph, *PASSES)
    check(kernel)
    assert reductions(kernel) == [96, 96]
    assert len(kernel.statements) == 3
    assert kernel.shared_bytes < 96 * 4
    same(graph)


def test_what_is_expensive_or_made_of_two_tiles_is_computed_once() -> None:
    def shared(op: str, *others: str) -> Body:
        def body(block: GraphBuilder, x: Value) -> Value:
            value = block.add(op, x, *(block.add(other, x) for other in others))
            return block.add("mul", value, reduced(block, value, "sum", (3,)))

        return body

    for made in (shared("exp"), shared("mul", "exp")):
        kernel = lowered(one_block(made), *PASSES)
        assert sum(isinstance(statement, Elementwise) for statement in kernel.statements) >= 2
        same(one_block(made))


@pytest.mark.parametrize("seed", range(30))
def test_random_mugraphs_compute_the_same(seed: int) -> None:
    graph = random_mugraph(random.Random(seed), 3, LARGE)
    for launch in lower(graph, passes=PASSES).values():
        check(launch.kernel)
    same(graph)


def same(graph: Graph) -> None:
    generator = np.random.default_rng(0)
    inputs = [generator.uniform(0.5, 1.5, node.output.shape).astype(np.float32) for node in graph.inputs()]
    expected = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    for result, exact in zip(build(graph)(*inputs), expected, strict=True):
        np.testing.assert_allclose(result, exact, rtol=2e-5, atol=1e-5 * max(1.0, float(np.abs(exact).max())))
