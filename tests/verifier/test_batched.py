"""Evaluating all blocks at once gives what running them one by one gives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.algebra.fields import LARGE, FieldArithmetic, FieldValue
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate, loop_nodes
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import construct
from mugraph.verifier.characters import Characters
from mugraph.verifier.root_semantics import Factored, Remembering, evaluate_products
from mugraph.verifier.semantics import FreeArithmetic
from mugraph.verifier.vectorized_eval import evaluate_batched

from .graphs import FP32, fused_rmsnorm, linear_with_bias, online_attention, rmsnorm, scaled_sums


def shared_omap() -> Graph:
    """Two grid dimensions that cut and rejoin the same data dimension, and a tile rearranged inside the block."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (12, 6), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2, 3))
    tile = block.iterator(0, kernel.tensor(x), (0, 0), None)
    turned = block.add("transpose", block.add("reshape", tile, shape=(6, 2)), permutation=(1, 0))
    flat = block.add("reshape", turned, shape=(2, 6))
    saved = block.add("output_saver", block.add("add", flat, block.constant(2, FP32)), omap=(0, 0))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def concatenated(loop: int = 40) -> Graph:
    """A long loop whose accumulators concatenate and take maxima; operands of different rank meet in the loop."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (4, loop * 2), FP32)
    b = kernel.input("B", (loop * 2,), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2, 1, 2), loop=loop)
    xs = block.iterator(0, kernel.tensor(x), (0, None, None), 1)
    bs = block.iterator(1, kernel.tensor(b), (None, None, None), 0)
    whole = block.add("accumulate", block.add("mul", xs, bs), combine="concat", dim=1)
    top = block.add("accumulate", block.add("max", xs, dim=1, size=2), combine="max")
    parts = block.add("sum", block.add("sub", whole, top), dim=1, size=4)
    saved = block.add("output_saver", block.add("repeat", parts, dim=0, times=3), omap=(0, 1, 1))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, b]))


def threaded() -> Graph:
    """A thread graph inside a block graph inside a batched product."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (2, 4, 8), FP32)
    w = kernel.input("W", (8, 4), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2, 2), loop=2)
    xs = block.iterator(0, kernel.tensor(x), (0, None), 2)
    ws = block.iterator(1, kernel.tensor(w), (None, 1), 0)
    product = block.add("accumulate", block.add("matmul", xs, ws), combine="sum")
    thread = GraphBuilder(Level.THREAD, block=(4,))
    register = thread.iterator(0, block.tensor(product), (1,), None)
    value = thread.add("add", thread.add("silu", register), thread.constant(3, FP32))
    body = thread.build([thread.add("output_saver", value, omap=(1,))])
    (activated,) = block.graph_defined(body, [product])
    saved = block.add("output_saver", activated, omap=(0, 2))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, w]))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "program": rmsnorm,
    "loop": fused_rmsnorm,
    "rescaled accumulators": online_attention,
    "shared omap": shared_omap,
    "concatenation": concatenated,
    "threads": threaded,
    "threads inside of the loop": lambda: construct(fused_rmsnorm()),
    "loop-invariant operand": linear_with_bias,
    "a computed constant": scaled_sums,
}


AT_ONCE = (0, 1 << 10, 1 << 20)
"""One iteration after the other, some of them as one, and all."""


@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("name", GRAPHS)
def test_agrees_with_the_literal_evaluation_over_fields(name: str, at_once: int) -> None:
    graph = GRAPHS[name]()
    arith, rng = FieldArithmetic(seed=3), np.random.default_rng(0)
    inputs = [arith.random(node.output.shape, rng) for node in graph.inputs()]
    for mine, literal, tensor in zip(
        evaluate_batched(graph, inputs, arith, at_once=at_once), evaluate(graph, inputs, arith), graph.output_tensors, strict=True
    ):
        assert mine.p.shape == tensor.shape
        np.testing.assert_array_equal(mine.p, literal.p)
        assert (mine.q is None) == (literal.q is None)
        if mine.q is not None and literal.q is not None:
            np.testing.assert_array_equal(mine.q, literal.q)


@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("name", GRAPHS)
def test_agrees_with_the_literal_evaluation_in_floating_point(name: str, at_once: int) -> None:
    graph = GRAPHS[name]()
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=node.output.shape) for node in graph.inputs()]
    arith = FloatArithmetic(np.float64)
    ours = evaluate_batched(graph, inputs, arith, at_once=at_once)
    for mine, literal in zip(ours, evaluate(graph, inputs, arith), strict=True):
        np.testing.assert_allclose(mine, literal, rtol=1e-12)


@pytest.mark.parametrize("remembering", [Factored[FieldValue], Characters[FieldValue]])
@pytest.mark.parametrize("name", GRAPHS)
def test_random_functions_have_the_same_values_however_many_iterations_are_one(
    name: str, remembering: Callable[[FreeArithmetic], Remembering]
) -> None:
    graph = GRAPHS[name]()
    free, rng = FreeArithmetic(LARGE, omega=LARGE.root(np.random.default_rng(0)), seed=3), np.random.default_rng(7)
    inputs = [free.random(node.output.shape, rng) for node in graph.inputs()]
    first, *others = [evaluate_products(graph, inputs, remembering(free), at_once) for at_once in AT_ONCE]
    for other in others:
        assert all(mine.agrees_with(literal) for mine, literal in zip(other, first, strict=True))


def test_iterations_are_evaluated_as_one_while_tensors_are_small() -> None:
    graph = concatenated(40)
    arrays = [np.ones(node.output.shape) for node in graph.inputs()]
    body = graph.kernels()[0].body
    assert body is not None
    largest = max(math.prod(body.nodes[index].output.shape) for index in loop_nodes(body)) * math.prod(body.grid)
    steps = []
    for count in (1, 3, 40):  # of which 3 is no divisor: two at once are
        pulses: list[None] = []
        evaluate_batched(graph, arrays, FloatArithmetic(), functools.partial(pulses.append, None), at_once=count * largest)
        steps.append(len(pulses))
    inside = sum(not body.nodes[index].is_iterator for index in loop_nodes(body))
    assert (steps[0] - steps[1], steps[0] - steps[2]) == (20 * inside, 39 * inside)


def test_levels_below_the_kernel_have_no_inputs_of_their_own() -> None:
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    block.constant(1, DType.FP32)
    with pytest.raises(Exception, match="kernel graph"):
        evaluate_batched(block.build([]), [], FloatArithmetic())


def test_an_evaluation_may_be_ended_before_any_operator() -> None:
    graph = fused_rmsnorm(8, 96, 32)
    arrays = [np.ones(node.output.shape) for node in graph.inputs()]
    pulses: list[None] = []
    evaluate_batched(graph, arrays, FloatArithmetic(), lambda: pulses.append(None))
    (kernel,) = graph.kernels()
    assert kernel.body is not None
    assert len(pulses) > kernel.body.loop > 1
    with pytest.raises(IndexError):
        evaluate_batched(graph, arrays, FloatArithmetic(), pulses[:-1].pop)
