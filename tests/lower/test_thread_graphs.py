"""Which operators join a thread graph, and that joining never changes results."""

from __future__ import annotations

import numpy as np

from lower.graphs import attention, rms_norm_linear
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import construct
from mugraph.lower.thread_graphs import RULES, Rule

FP32 = DType.FP32


def block_ops(graph: Graph) -> list[list[str]]:
    """Per thread graph of the first block graph, the operators in it; other nodes as lists of one."""
    body = next(node.body for node in graph.nodes if node.body is not None)
    boundary = ("input_iterator", "output_saver", "constant")
    inner = [[inside.op for inside in node.body.nodes] if node.body else [node.op] for node in body.nodes]
    return [[op for op in ops if op not in boundary] for ops in inner if not set(ops) <= set(boundary)]


def one_block(build: GraphBuilder, result: Value) -> Graph:
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input("x", (4, 8), FP32), kernel.input("v", (1, 8), FP32)]
    body = build.build([build.add("output_saver", result, omap=(None,) * len(build.grid))])
    return kernel.build(kernel.graph_defined(body, inputs))


def loads() -> tuple[GraphBuilder, Value, Value]:
    kernel = GraphBuilder(Level.KERNEL)
    x, v = kernel.input("x", (4, 8), FP32), kernel.input("v", (1, 8), FP32)
    block = GraphBuilder(Level.BLOCK)
    return block, block.iterator(0, kernel.tensor(x), (), None), block.iterator(1, kernel.tensor(v), (), None)


def test_the_chain_after_the_loop_of_rms_norm_is_one_thread_graph() -> None:
    assert ["mul", "sqrt", "div"] in block_ops(construct(rms_norm_linear()))


def test_nothing_joins_across_an_accumulator() -> None:
    ops = block_ops(construct(rms_norm_linear()))
    assert ["square"] in ops
    assert ["mul"] in ops
    assert sum(op == ["accumulate"] for op in ops) == 2


def test_a_value_with_two_readers_is_stored() -> None:
    block, x, _ = loads()
    y = block.add("exp", x)
    total = block.add("sum", y, dim=1, size=8)
    assert block_ops(construct(one_block(block, block.add("div", y, total)))) == [["exp"], ["sum"], ["div"]]


def test_a_value_read_twice_by_one_operator_joins() -> None:
    block, x, _ = loads()
    y = block.add("exp", x)
    assert block_ops(construct(one_block(block, block.add("mul", y, y)))) == [["exp", "mul"]]


def test_an_expensive_value_is_not_recomputed_for_every_row() -> None:
    block, x, v = loads()
    assert block_ops(construct(one_block(block, block.add("mul", x, block.add("exp", v))))) == [["exp"], ["mul"]]


def test_a_cheap_value_is() -> None:
    block, x, v = loads()
    assert block_ops(construct(one_block(block, block.add("mul", x, block.add("add", v, v))))) == [["add", "mul"]]


def test_loop_invariant_work_does_not_join_the_loop() -> None:
    constructed = construct(attention())
    body = next(node.body for node in constructed.nodes if node.body is not None)
    (scaling,) = [node for node in body.nodes if node.body is not None and [n.op for n in node.body.nodes].count("mul")]
    assert scaling.body is not None
    assert sorted(node.op for node in scaling.body.nodes) == ["constant", "input_iterator", "mul", "output_saver"]


def test_a_rule_that_is_added_is_obeyed() -> None:
    block, x, _ = loads()
    graph = one_block(block, block.add("exp", block.add("sqrt", block.add("square", x))))
    assert block_ops(construct(graph)) == [["square", "sqrt", "exp"]]
    no_roots = Rule("roots are stored", lambda link: link.producer.op != "sqrt")
    assert block_ops(construct(graph, (*RULES, no_roots))) == [["square", "sqrt"], ["exp"]]
    assert block_ops(construct(graph, (*RULES, Rule("never", lambda link: False)))) == [["square"], ["sqrt"], ["exp"]]


def test_results_are_unchanged() -> None:
    for graph in (rms_norm_linear(), attention()):
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
        expected = evaluate(graph, inputs, FloatArithmetic())
        for result, reference in zip(evaluate(construct(graph), inputs, FloatArithmetic()), expected, strict=True):
            np.testing.assert_array_equal(result, reference)
