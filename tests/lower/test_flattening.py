"""Thread graphs with threads of their own, loops and reductions become operators of their block, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.errors import UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Node, attributes_of
from mugraph.ir.validity import check
from mugraph.lower.flattening import flattened
from mugraph.runtime import build

FP32 = DType.FP32
Maps = tuple[int | None, ...]


def in_one_block(body: Graph, *shapes: tuple[int, ...]) -> Graph:
    """A thread graph on whole inputs of these shapes."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    inputs = [kernel.input(f"x{number}", shape, FP32) for number, shape in enumerate(shapes)]
    tiles = [block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(inputs)]
    saved = [block.add("output_saver", value, omap=(0,)) for value in block.graph_defined(body, tiles)]
    graph = kernel.build(kernel.graph_defined(block.build(saved), inputs))
    check(graph)
    return graph


def operand(threads: GraphBuilder, number: int, shape: tuple[int, ...], imap: Maps, fmap: int | None = None) -> Value:
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK)
    tensor = block.tensor(block.iterator(0, kernel.tensor(kernel.input("x", shape, FP32)), (), None))
    return threads.iterator(number, tensor, imap, fmap)


def moved_columns(imap: int | None = 1, omap: int = 0) -> Graph:
    """tanh by 4 threads, each of which reads some of the columns and writes them below those of the thread before."""
    threads = GraphBuilder(Level.THREAD, block=(4,))
    x = operand(threads, 0, (4, 8), (imap,))
    return in_one_block(threads.build([threads.add("output_saver", threads.add("tanh", x), omap=(omap,))]), (4, 8))


def register_tiles() -> Graph:
    """A product whose threads have 2 x 3 elements each, summed over a loop of their own; and the largest of what each read."""
    threads = GraphBuilder(Level.THREAD, block=(2, 4), loop=3)
    x, y = operand(threads, 0, (4, 6), (0, None), 1), operand(threads, 1, (6, 12), (None, 1), 0)
    product = threads.add("accumulate", threads.add("matmul", x, y), combine="sum")
    largest = threads.add("accumulate", threads.add("max", x, dim=1, size=2), combine="max")
    parts = threads.add("accumulate", threads.add("sum", y, dim=0, size=2), combine="concat", dim=0)
    shifted = threads.add("add", product, largest)
    saved = [threads.add("output_saver", value, omap=omap) for value, omap in ((shifted, (0, 1)), (parts, (0, 1)))]
    return in_one_block(threads.build(saved), (4, 6), (6, 12))


def broadcast_rows() -> Graph:
    """Threads that own rows, beside an operand that all read whole and one of lower rank: an expression over whole operands."""
    threads = GraphBuilder(Level.THREAD, block=(2,))
    x, v = operand(threads, 0, (4, 8), (0,)), operand(threads, 1, (8,), (None,))
    return in_one_block(
        threads.build([threads.add("output_saver", threads.add("mul", threads.add("exp", v), x), omap=(0,))]), (4, 8), (8,)
    )


def one_column() -> Graph:
    """Threads that cut a column whose broadcast they do not own: each has 1 of 4 numbers for 2 of 8 columns."""
    threads = GraphBuilder(Level.THREAD, block=(4,))
    x, v = operand(threads, 0, (4, 8), (1,)), operand(threads, 1, (1, 4), (1,))
    return in_one_block(threads.build([threads.add("output_saver", threads.add("mul", x, v), omap=(1,))]), (4, 8), (1, 4))


def saved_twice() -> Graph:
    """A block graph, and a thread graph in it, with a saver that is two of their outputs."""
    threads = GraphBuilder(Level.THREAD, block=(2,))
    x = operand(threads, 0, (4, 8), (0,))
    saver = threads.add("output_saver", threads.add("exp", x), omap=(0,))
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    given = kernel.input("x", (4, 8), FP32)
    first, second = block.graph_defined(threads.build([saver, saver]), [block.iterator(0, kernel.tensor(given), (None,), None)])
    both = block.add("output_saver", block.add("add", first, block.add("tanh", second)), omap=(0,))
    graph = kernel.build(kernel.graph_defined(block.build([both, both]), [given]))
    check(graph)
    return graph


def one_thread() -> Graph:
    """A thread graph of one thread, whose operators are no expression: a product, a sum behind it, and two results."""
    threads = GraphBuilder(Level.THREAD)
    x, y = operand(threads, 0, (4, 6), ()), operand(threads, 1, (6, 8), ())
    product = threads.add("accumulate", threads.add("tanh", threads.add("matmul", x, y)), combine="sum")
    total = threads.add("sum", product, dim=1, size=4)
    return in_one_block(
        threads.build([threads.add("output_saver", value, omap=()) for value in (product, total)]), (4, 6), (6, 8)
    )


GRAPHS = {
    "columns to rows": moved_columns(),
    "repeated": moved_columns(None, 1),
    "aligned": moved_columns(1, 1),
    "register tiles": register_tiles(),
    "broadcast rows": broadcast_rows(),
    "one column": one_column(),
    "saved twice": saved_twice(),
    "one thread": one_thread(),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_flattened_graph_means_the_same_and_runs(name: str) -> None:
    graph = GRAPHS[name]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]
    exact = [array.astype(np.float64) for array in inputs]
    flat = flattened(graph)
    check(flat)
    for wanted, same, ran in zip(
        evaluate(graph, exact, FloatArithmetic()), evaluate(flat, exact, FloatArithmetic()), build(graph)(*inputs), strict=True
    ):
        np.testing.assert_allclose(same, wanted, rtol=1e-12)
        np.testing.assert_allclose(ran, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_no_thread_graph_is_left(name: str) -> None:
    assert not any(graph.level is Level.THREAD for graph, _ in flattened(GRAPHS[name]).walk())


@pytest.mark.parametrize(("name", "added"), [("aligned", set()), ("broadcast rows", set()), ("columns to rows", {"reshape"})])
def test_an_expression_over_whole_operands_needs_no_dimensions_for_its_threads(name: str, added: set[str]) -> None:
    before, after = ({node.op for _, node in graph.walk()} for graph in (GRAPHS[name], flattened(GRAPHS[name])))
    assert added <= after - before
    assert bool(added) or not after - before


def test_a_saver_that_is_two_outputs_becomes_two() -> None:
    """Each output of a kernel is a tensor of its own: one of them used to be left as it was allocated."""
    (body,) = (node.body for node in flattened(saved_twice()).nodes if node.body is not None)
    assert len(set(body.outputs)) == 2


def test_an_operand_that_no_block_reads_is_none_of_the_kernel() -> None:
    """Not even of a type in which kernels do not compute: its buffer used to be printed and did not compile."""
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(2,))
    wide, given = kernel.input("wide", (4,), DType.FP64), kernel.input("x", (4,), FP32)
    tile = block.add("exp", block.iterator(1, kernel.tensor(given), (0,), None))
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", tile, omap=(0,))]), [wide, given]))
    check(graph)
    x = np.arange(4, dtype=np.float32)
    (result,) = build(graph)(np.zeros(4), x)
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-6)


def test_an_operator_that_blocks_cannot_have_is_refused_by_name() -> None:
    threads = GraphBuilder(Level.THREAD, block=(2,))
    x = operand(threads, 0, (4, 8), (0,))
    rolled = threads.append(Node("roll", (x,), (threads.tensor(x),), attributes_of({})))
    threads.nodes.append(Node("output_saver", (rolled,), threads.nodes[0].outputs, attributes_of({"omap": (0,)})))
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(1,))
    given = kernel.input("x", (4, 8), FP32)
    tile = block.iterator(0, kernel.tensor(given), (None,), None)
    (made,) = block.graph_defined(threads.build([Value(2)]), [tile])
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [given]))
    with pytest.raises(UnsupportedOperator, match="roll in a thread graph"):
        build(graph)
