"""Which operators join a thread graph, and that joining never changes results."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.validity import check
from mugraph.lower import construct, lower
from mugraph.lower.flattening import flattened
from mugraph.lower.thread_graphs import CHAINS, RULES, FusionRule
from mugraph.lower.tile_form import Kernel
from mugraph.runtime import build
from mugraph.testing.mugraphs import LARGE, SMALL, random_mugraph
from mugraph.verifier import verify_graphs

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


def lowered(graph: Graph, rules: tuple[FusionRule, ...] = RULES) -> Kernel:
    (launch,) = lower(graph, rules).values()
    return launch.kernel


def loads() -> tuple[GraphBuilder, Value, Value]:
    kernel = GraphBuilder(Level.KERNEL)
    x, v = kernel.input("x", (4, 8), FP32), kernel.input("v", (1, 8), FP32)
    block = GraphBuilder(Level.BLOCK)
    return block, block.iterator(0, kernel.tensor(x), (), None), block.iterator(1, kernel.tensor(v), (), None)


def test_the_chain_after_the_loop_of_rms_norm_is_one_thread_graph() -> None:
    assert ["mul", "sqrt", "div"] in block_ops(construct(rms_norm_linear()))


def test_nothing_joins_across_an_accumulator() -> None:
    ops = block_ops(construct(rms_norm_linear()))
    assert ["square", "sum"] in ops
    assert ["mul"] in ops
    assert sum(op == ["accumulate"] for op in ops) == 2


def test_a_value_with_two_readers_is_stored() -> None:
    block, x, _ = loads()
    y = block.add("exp", x)
    total = block.add("sum", y, dim=1, size=8)
    assert block_ops(construct(one_block(block, block.add("div", y, total)))) == [["exp"], ["sum"], ["div"]]


def test_what_a_reduction_alone_reads_joins_it() -> None:
    for reduction in ("sum", "max"):
        block, x, v = loads()
        made = block.add(reduction, block.add("square", block.add("mul", x, block.add("exp", v))), dim=1, size=4)
        assert block_ops(construct(one_block(block, made))) == [["exp"], ["mul", "square", reduction]]
        block, x, v = loads()
        made = block.add(reduction, block.add("square", block.add("mul", x, block.add("exp", x))), dim=0, size=4)
        ops = block_ops(construct(one_block(block, block.add("add", made, v))))
        assert ops == [["exp", "mul", "square", reduction], ["add"]]


def test_nothing_joins_behind_a_reduction() -> None:
    block, x, _ = loads()
    assert block_ops(construct(one_block(block, block.add("exp", block.add("sum", x, dim=1, size=8))))) == [["sum"], ["exp"]]


def test_a_product_of_reduced_values_has_them_stored() -> None:
    """A reduction is no elementwise operator, so it never disappears into one, nor into a second reduction."""
    block, x, _ = loads()
    twice = block.add("sum", block.add("sum", block.add("exp", x), dim=1, size=2), dim=1, size=4)
    assert block_ops(construct(one_block(block, twice))) == [["exp", "sum"], ["sum"]]


def test_a_value_with_several_readers_joins_where_all_of_them_are_in_one_thread_graph() -> None:
    block, x, v = loads()
    y = block.add("exp", x)
    made = block.add("mul", block.add("sqrt", y), block.add("add", block.add("square", y), v))
    graph = one_block(block, made)
    assert block_ops(construct(graph)) == [["exp", "sqrt", "square", "add", "mul"]]
    body = next(node.body for node in construct(graph).nodes if node.body is not None)
    (threads,) = (node.body for node in body.nodes if node.body is not None)
    assert sum(node.op == "exp" for node in threads.nodes) == 1
    assert peak_bytes(body, operands_in_place=True) == 4 * 8 * 4
    assert lowered(graph).shared_bytes == 0
    assert lowered(graph, (FusionRule("never", lambda link: False),)).shared_bytes >= 4 * 8 * 4


def test_an_expression_does_not_double_without_end() -> None:
    """Written out, a chain of squares by `mul` doubles with each link."""
    block, x, _ = loads()
    for _ in range(64):
        x = block.add("mul", x, x)
    ops = block_ops(construct(one_block(block, x)))
    assert sum(map(len, ops)) == 64
    assert max(map(len, ops)) == 12
    build(one_block(block, x), "cpu")


def test_a_kernel_takes_no_shared_memory_for_what_its_thread_graphs_hold() -> None:
    """Muls and sums as in the second kernel of an attention whose keys are split: the muGraph says what the kernel takes."""
    block, x, v = loads()
    graph = one_block(block, block.add("sqrt", block.add("sum", block.add("mul", x, v), dim=0, size=4)))
    (body,) = (node.body for node in construct(graph).nodes if node.body is not None)
    (stored,) = (node.body for node in construct(graph, CHAINS).nodes if node.body is not None)
    assert peak_bytes(stored, operands_in_place=True) == 4 * (4 * 8 + 8)
    assert peak_bytes(body, operands_in_place=True) == 4 * (8 + 8)
    assert lowered(graph).shared_bytes == 4 * 8


@pytest.mark.parametrize("seed", range(12))
def test_a_constructed_muGraph_is_valid_means_the_same_and_is_constructed_alike_again(seed: int) -> None:
    graph = flattened(random_mugraph(random.Random(seed), 3, SMALL if seed % 2 else LARGE))
    made = construct(graph)
    check(made)
    assert construct(flattened(made)) == made
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
    expected = evaluate(graph, inputs, FloatArithmetic())
    for result, reference in zip(evaluate(made, inputs, FloatArithmetic()), expected, strict=True):
        np.testing.assert_array_equal(result, reference)
    verdict = verify_graphs(graph, made) if all(node.output.dtype is FP32 for node in graph.inputs()) else None
    assert verdict is None or verdict.outcome != "different"


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
    no_roots = FusionRule("roots are stored", lambda link: link.producer.op != "sqrt")
    assert block_ops(construct(graph, (*RULES, no_roots))) == [["square", "sqrt"], ["exp"]]
    assert block_ops(construct(graph, (*RULES, FusionRule("never", lambda link: False)))) == [["square"], ["sqrt"], ["exp"]]


def test_results_are_unchanged() -> None:
    for graph in (rms_norm_linear(), attention()):
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
        expected = evaluate(graph, inputs, FloatArithmetic())
        for result, reference in zip(evaluate(construct(graph), inputs, FloatArithmetic()), expected, strict=True):
            np.testing.assert_array_equal(result, reference)
