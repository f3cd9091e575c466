"""What muGraphs mean: grids, loops, maps and accumulators against direct NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate, loop_nodes
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import AttributeValue, Shape
from mugraph.ir.program import Program
from mugraph.ir.text import parse_graph
from mugraph.ir.validity import check

from .graphs import kernel_graphs

Array = npt.NDArray[Any]
FP32 = DType.FP32


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-2.0, 2.0, shape)


def run(graph: Graph, *inputs: Array) -> list[Array]:
    return evaluate(graph, inputs, FloatArithmetic())


def one_kernel(
    shape: Shape,
    grid: tuple[int, ...],
    imap: tuple[int | None, ...],
    omap: tuple[int, ...],
    fmap: int | None = None,
    loop: int = 1,
    combine: dict[str, AttributeValue] | None = None,
) -> Graph:
    """One kernel that squares its input and, where asked, accumulates."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", shape, FP32)
    block = GraphBuilder(Level.BLOCK, grid=grid, loop=loop)
    value = block.add("square", block.iterator(0, kernel.tensor(x), imap, fmap))
    if combine is not None:
        value = block.add("accumulate", value, **combine)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", value, omap=omap)]), [x]))


@pytest.mark.parametrize("grid", [(), (1,), (4,), (2, 3), (3, 2), (2, 3, 2)])
def test_blocks_cover_the_tensor_along_their_maps(grid: tuple[int, ...]) -> None:
    dims = (0, 1, 2)[: len(grid)] if len(grid) != 1 else (2,)
    shape = (2, 3, 4) if grid == (2, 3, 2) else (6, 6, 8)
    x = numbers(*shape)
    np.testing.assert_array_equal(run(one_kernel(shape, grid, dims, dims), x)[0], x * x)


def test_a_map_may_exchange_the_order_of_blocks() -> None:
    x = numbers(4, 6)
    (result,) = run(one_kernel((4, 6), (2, 3), (0, 1), (1, 0)), x)
    blocks = [[(x * x)[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] for i in range(2)] for j in range(3)]
    np.testing.assert_array_equal(result, np.block(blocks))


def test_a_replicated_operand_is_whole_in_every_block() -> None:
    x = numbers(2, 3)
    np.testing.assert_array_equal(run(one_kernel((2, 3), (4,), (None,), (1,)), x)[0], np.tile(x * x, (1, 4)))


def test_two_grid_dimensions_may_cut_one_dimension() -> None:
    x = numbers(12, 2)
    np.testing.assert_array_equal(run(one_kernel((12, 2), (3, 2), (0, 0), (0, 0)), x)[0], x * x)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        ({"combine": "sum"}, lambda parts: sum(parts)),
        ({"combine": "max"}, lambda parts: np.maximum.reduce(parts)),
        ({"combine": "concat", "dim": 1}, lambda parts: np.concatenate(parts, 1)),
        ({"combine": "concat", "dim": 0}, lambda parts: np.concatenate(parts, 0)),
    ],
)
@pytest.mark.parametrize("fmap", [0, 1, None])
def test_accumulators_combine_the_iterations(combine: dict[str, AttributeValue], expected: Any, fmap: int | None) -> None:
    x = numbers(6, 9)
    parts: Sequence[Array] = [x] * 3 if fmap is None else np.split(x, 3, axis=fmap)
    graph = one_kernel((6, 9), (), (), (), fmap, 3, combine)
    np.testing.assert_allclose(run(graph, x)[0], expected([part * part for part in parts]), rtol=1e-14)


def test_grid_and_loop_cut_one_dimension_grid_first() -> None:
    x = numbers(12)
    graph = one_kernel((12,), (2,), (0,), (0,), 0, 3, {"combine": "sum"})
    blocks = [sum((half * half)[2 * i : 2 * i + 2] for i in range(3)) for half in (x[:6], x[6:])]
    np.testing.assert_allclose(run(graph, x)[0], np.concatenate(blocks), rtol=1e-14)


ATTENTION = """\
kernel_graph {
  Q: fp32[3, 8] = input
  K: fp32[8, 20] = input
  V: fp32[20, 6] = input
  %3: fp32[3, 6] = block_graph(Q, K, V) grid(x=2) loop(i=5) {
    | %0: fp32[3, 8] = input_iterator(Q) {x<->phi, i<->phi}
    | %1: fp32[8, 4] = input_iterator(K) {x<->phi, i<->1}
    | %2: fp32[4, 3] = input_iterator(V) {x<->1, i<->0}
    | %3: fp32[3, 4] = matmul(%0, %1)
    | %4: fp32[3, 1] = max(%3) dim=1 size=4
    | %5: fp32[3, 4] = sub(%3, %4)
    | %6: fp32[3, 4] = exp(%5)
    | %7: fp32[3, 1] = sum(%6) dim=1 size=4
    | %8: fp32[3, 3] = matmul(%6, %2)
      %9: fp32[3, 1] = accumulate_rescaled(%7, %4)
      %10: fp32[3, 3] = accumulate_rescaled(%8, %4)
      %11: fp32[3, 3] = div(%10, %9)
      %12: fp32[3, 6] = output_saver(%11) {x<->1}
    return %12
  }
  return %3
}"""


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_rescaled_accumulators_are_an_online_softmax(scale: float) -> None:
    q, k, v = numbers(3, 8, seed=1), numbers(8, 20, seed=2), numbers(20, 6, seed=3)
    scores = scale * q @ k
    weights = np.exp(scores - scores.max(1, keepdims=True))
    (result,) = run(parse_graph(ATTENTION), scale * q, k, v)
    np.testing.assert_allclose(result, weights @ v / weights.sum(1, keepdims=True), rtol=1e-12)


def test_a_carried_operand_is_itself_after_the_loop() -> None:
    text = """kernel_graph {
      X: fp32[4, 6] = input
      B: fp32[4] = input
      %2: fp32[4, 1] = block_graph(X, B) loop(i=3) {
        | %0: fp32[4, 2] = input_iterator(X) {i<->1}
        | %1: fp32[4] = input_iterator(B) {i<->phi}
        | %2: fp32[4, 1] = sum(%0) dim=1 size=2
          %3: fp32[4, 1] = accumulate(%2) combine=sum
          %4: fp32[4] = accumulate(%1) combine=max
          %5: fp32[4, 1] = reshape(%4)
          %6: fp32[4, 1] = add(%3, %5)
          %7: fp32[4, 1] = output_saver(%6) {}
        return %7
      }
      return %2 }"""
    x, b = numbers(4, 6), numbers(4, seed=1)
    np.testing.assert_allclose(run(parse_graph(text), x, b)[0], x.sum(1, keepdims=True) + b[:, None], rtol=1e-14)


def test_thread_graphs_run_inside_blocks_and_several_outputs_keep_apart() -> None:
    text = """kernel_graph {
      X: fp32[4, 6] = input
      %1: fp32[4, 6], fp32[6, 4] = block_graph(X) grid(x=2) {
        %0: fp32[2, 6] = input_iterator(X) {x<->0}
        %1: fp32[2, 6], fp32[2, 6] = thread_graph(%0) block(x=3, y=2) {
          %0: fp32[1, 2] = input_iterator(%0) {x<->1, y<->0}
          %1: fp32[1, 2] = exp(%0)
          %2: fp32[1, 2] = mul(%1, %0)
          %3: fp32[2, 6] = output_saver(%1) {x<->1, y<->0}
          %4: fp32[2, 6] = output_saver(%2) {x<->1, y<->0}
          return %3, %4
        }
        %2: fp32[6, 2] = transpose(%1.1) permutation=(1, 0)
        %3: fp32[4, 6] = output_saver(%1) {x<->0}
        %4: fp32[6, 4] = output_saver(%2) {x<->1}
        return %3, %4
      }
      return %1.1, %1 }"""
    x = numbers(4, 6)
    second, first = run(parse_graph(text), x)
    np.testing.assert_allclose(first, np.exp(x), rtol=1e-14)
    np.testing.assert_allclose(second, (np.exp(x) * x).T, rtol=1e-14)


def test_constants_are_read_inside_and_after_the_loop() -> None:
    text = """kernel_graph {
      X: fp32[4] = input
      %1: fp32[2] = block_graph(X) loop(i=2) {
        | %0: fp32[] = constant 1/2
        | %1: fp32[2] = input_iterator(X) {i<->0}
        | %2: fp32[2] = mul(%1, %0)
          %3: fp32[2] = accumulate(%2) combine=sum
          %4: fp32[2] = add(%3, %0)
          %5: fp32[2] = output_saver(%4) {}
        return %5
      }
      return %1 }"""
    np.testing.assert_allclose(run(parse_graph(text), np.array([1.0, 2.0, 3.0, 4.0]))[0], [2.5, 3.5])


def test_what_is_computed_from_constants_is_read_inside_and_after_the_loop() -> None:
    text = """kernel_graph {
      X: fp32[4] = input
      %1: fp32[2] = block_graph(X) loop(i=2) {
        | %0: fp32[] = constant 1/2
        | %1: fp32[] = square(%0)
        | %2: fp32[2] = input_iterator(X) {i<->0}
        | %3: fp32[2] = mul(%2, %1)
          %4: fp32[2] = accumulate(%3) combine=sum
          %5: fp32[2] = add(%4, %1)
          %6: fp32[2] = output_saver(%5) {}
        return %6
      }
      return %1 }"""
    graph = parse_graph(text)
    check(graph)
    np.testing.assert_allclose(run(graph, np.array([1.0, 2.0, 3.0, 4.0]))[0], [1.25, 1.75])


def test_nodes_of_the_loop_that_no_output_needs_are_passed_over() -> None:
    text = """kernel_graph {
      X: fp32[4] = input
      %1: fp32[2] = block_graph(X) loop(i=2) {
        | %0: fp32[2] = input_iterator(X) {i<->0}
          %1: fp32[2] = exp(%0)
          %2: fp32[2] = accumulate(%0) combine=sum
          %3: fp32[2] = output_saver(%2) {}
        return %3
      }
      return %1 }"""
    np.testing.assert_allclose(run(parse_graph(text), np.array([1.0, 2.0, 3.0, 4.0]))[0], [4.0, 6.0])


def test_loop_nodes_are_those_before_an_accumulator() -> None:
    body = parse_graph(ATTENTION).nodes[3].body
    assert body is not None
    assert loop_nodes(body) == frozenset(range(9))
    assert loop_nodes(parse_graph(ATTENTION)) == frozenset()


def test_evaluation_keeps_to_the_dtype_of_its_arithmetic() -> None:
    program = Program()
    x = program.input("X", (3,))
    program.output((x * 0.1).exp())
    (result,) = evaluate(program.graph, [np.ones(3, np.float32)], FloatArithmetic(np.float32))
    assert result.dtype == np.float32


def test_only_kernel_graphs_are_evaluated() -> None:
    body = parse_graph(ATTENTION).nodes[3].body
    assert body is not None
    with pytest.raises(InvalidGraph, match="evaluate takes a kernel graph, not a block graph"):
        evaluate(body, [], FloatArithmetic())


@given(kernel_graphs())
@settings(max_examples=60, deadline=None)
def test_values_have_the_shapes_that_were_inferred(graph: Graph) -> None:
    inputs = [numbers(*node.output.shape) for node in graph.nodes if node.op == "input"]
    with np.errstate(all="ignore"):
        results = run(graph, *inputs)
    assert [result.shape for result in results] == [tensor.shape for tensor in graph.output_tensors]
