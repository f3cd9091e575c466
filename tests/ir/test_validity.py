"""Definition 2.1: valid graphs pass, and each way to break a clause is found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from mugraph.devices import Device, device_for
from mugraph.errors import ExceedsMemory, InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Layout, Level, Node, Tensor, Value
from mugraph.ir.graph import AttributeValue, attributes_of
from mugraph.ir.text import parse_graph
from mugraph.ir.validity import check

from .graphs import kernel_graphs, mutated, rmsnorm_mugraph, with_body

A100 = device_for("cuda:sm_80")
KERNEL_NODE = 3
THREAD_NODE = 11

Change = Callable[[Graph], Graph]


@given(kernel_graphs())
@settings(max_examples=150, deadline=None)
def test_random_valid_graphs_pass_at_every_level(graph: Graph) -> None:
    check(graph)
    for around, _ in graph.walk():
        check(around)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "triton:sm_100", "cpu"])
def test_the_papers_rmsnorm_is_valid_and_fits(target: str) -> None:
    check(rmsnorm_mugraph(), device_for(target))


def block(change: Change) -> Change:
    """A change of RMSNorm's block graph."""
    return lambda graph: with_body(graph, KERNEL_NODE, change)


def thread(change: Change) -> Change:
    """A change of RMSNorm's thread graph."""
    return block(lambda body: with_body(body, THREAD_NODE, change))


def node(index: int, **changes: object) -> Change:
    """Fields of one node changed."""
    return lambda graph: mutated(graph, index, lambda node: replace(node, **changes))  # type: ignore[arg-type] # any field


def attribute(index: int, **changes: AttributeValue) -> Change:
    """Attributes of one node changed."""

    def change(node: Node) -> Node:
        return replace(node, attributes=attributes_of({**dict(node.attributes), **changes}))

    return lambda graph: mutated(graph, index, change)


def without_attribute(index: int, name: str) -> Change:
    """One attribute of one node left out."""
    return lambda graph: mutated(
        graph, index, lambda node: replace(node, attributes=tuple(pair for pair in node.attributes if pair[0] != name))
    )


def half(*shape: int, level: Level = Level.BLOCK) -> tuple[Tensor, ...]:
    return (Tensor(shape, DType.FP16, level),)


CLAUSE_1 = {
    "unknown operator": (block(node(3, op="cube")), "block level, node `%3.*cube.*operator 'cube' is not in the operator table"),
    "operator at a level it cannot stand at": (
        thread(node(2, op="reshape", attributes=(("shape", (16, 1)),))),
        "thread level.*reshape cannot stand at thread level",
    ),
    "too few operands": (block(node(6, inputs=(Value(5),))), r"%6.*matmul takes 2 operands, not 1"),
    "operands that do not match": (block(node(6, inputs=(Value(2), Value(5)))), r"%6.*inner dimensions 32 and 16 differ"),
    "an operand from later": (block(node(4, inputs=(Value(5),))), r"node 4 \(sum\) reads \(5, 0\), which no earlier node makes"),
    "an operand from nowhere": (block(node(4, inputs=(Value(3, 1),))), r"reads \(3, 1\), which no earlier node makes"),
    "a shape its operands do not make": (block(node(3, outputs=half(16, 32))), r"%3.*its operands make fp16\[16, 64\]"),
    "a dtype its operands do not make": (
        block(node(3, outputs=(Tensor((16, 64), DType.FP32, Level.BLOCK),))),
        r"%3.*its operands make fp16\[16, 64\]",
    ),
    "two outputs where there is one": (block(node(3, outputs=half(16, 64) * 2)), r"its operands make fp16\[16, 64\]"),
    "a tensor of another level": (block(node(3, outputs=half(16, 64, level=Level.KERNEL))), "its output is a kernel tensor"),
    "an empty dimension": (block(node(3, outputs=half(0, 64))), r"shape \[0, 64\] has an empty dimension"),
    "a layout that is no order": (
        block(node(3, outputs=(Tensor((16, 64), DType.FP16, Level.BLOCK, Layout((0, 0))),))),
        r"layout \[0, 0\] is not an order of its dimensions",
    ),
    "a missing attribute": (block(without_attribute(4, "size")), "attribute 'size' is missing"),
    "attributes out of order": (block(node(4, attributes=(("size", 64), ("dim", 1)))), "attributes are not sorted by name"),
    "an unknown accumulator": (block(attribute(7, combine="product")), "unknown accumulator 'product'"),
    "an iterator that does not divide": (block(attribute(2, imap=(0,), fmap=0)), r"does not divide into|its operands make"),
    "an imap of the wrong length": (
        block(attribute(2, imap=(1, 0))),
        "imap must name a dimension or none for each of 1 grid dims",
    ),
    "an imap beyond the tensor": (block(attribute(2, imap=(2,))), "maps to dimension 2"),
    "an iterator of an operand that is not there": (block(attribute(2, operand=3)), "reads operand 3 of 3"),
    "an iterator of another operand": (block(attribute(2, operand=0)), r"%2.*its operands make"),
    "an iterator with an operand inside": (
        block(node(2, inputs=(Value(0),))),
        "an input iterator reads an operand of the level above",
    ),
    "an omap with a hole": (
        block(attribute(12, omap=(None,))),
        "every grid dimension must map to a data dimension of the output",
    ),
    "an omap of another dimension": (block(attribute(12, omap=(0,))), r"%12.*its operands make fp16\[2048, 32\]"),
    "a graph-defined operator without a body": (node(KERNEL_NODE, body=None), "graph_defined without a body"),
    "a body on a pre-defined operator": (
        lambda graph: mutated(graph, 0, lambda node: replace(node, body=graph)),
        "input has a body; only graph_defined may",
    ),
    "a body of the wrong level": (
        lambda graph: node(KERNEL_NODE, body=graph)(graph),
        "a kernel graph cannot be the body of a node of a kernel graph",
    ),
    "a result its body does not save": (
        node(KERNEL_NODE, outputs=half(16, 4095, level=Level.KERNEL)),
        r"kernel level, node `%3.*its body saves fp16\[16, 4096\]",
    ),
    "grid dimensions at kernel level": (lambda graph: replace(graph, grid=(2,)), "only a block graph has grid dimensions"),
    "thread dimensions at block level": (
        block(lambda body: replace(body, block=(2,))),
        "only a thread graph has block dimensions",
    ),
    "a grid of four dimensions": (block(lambda body: replace(body, grid=(128, 1, 1, 1))), r"grid dimensions \[128, 1, 1, 1\]"),
    "an empty grid dimension": (block(lambda body: replace(body, grid=(0,))), r"grid dimensions \[0\]"),
    "a loop of no iterations": (block(lambda body: replace(body, loop=0)), "a for-loop of 0 iterations"),
    "a loop at kernel level": (lambda graph: replace(graph, loop=2), "kernel level: a for-loop of 2 iterations"),
    "no outputs": (lambda graph: replace(graph, outputs=()), "the graph has no outputs"),
    "an output from nowhere": (lambda graph: replace(graph, outputs=(Value(9),)), r"output \(9, 0\) is no value of the graph"),
    "two inputs of one name": (attribute(1, name="X"), "inputs X, X, W do not have names of their own"),
}


@pytest.mark.parametrize(("change", "error"), CLAUSE_1.values(), ids=CLAUSE_1.keys())
def test_clause_1_operators_match_their_specification(change: Change, error: str) -> None:
    with pytest.raises(InvalidGraph, match=rf"^clause 1 \(operator specification\), .*{error}"):
        check(change(rmsnorm_mugraph()))


def matmul_mugraph(tile: int, loop: int) -> Graph:
    """X[64, 1024] @ W[1024, 64] in one block, `loop` iterations."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("X", (64, 1024), DType.FP32), kernel.input("W", (1024, tile), DType.FP32)
    body = GraphBuilder(Level.BLOCK, grid=(1,), loop=loop)
    product = body.add("matmul", body.iterator(0, kernel.tensor(x), (None,), 1), body.iterator(1, kernel.tensor(w), (None,), 0))
    saved = body.add("output_saver", body.add("accumulate", product, combine="sum"), omap=(1,))
    return kernel.build(kernel.graph_defined(body.build([saved]), [x, w]))


def test_clause_2_block_tensors_fit_shared_memory() -> None:
    needed = 4 * (64 * 64 + 64 * 32 + 2 * 64 * 32)
    exact = replace(A100, shared_memory_bytes=needed)
    check(matmul_mugraph(32, 16), exact)
    with pytest.raises(
        ExceedsMemory, match=rf"^clause 2 \(memory\), block level: .*{needed} bytes of shared memory.*has {needed - 1}"
    ):
        check(matmul_mugraph(32, 16), replace(exact, shared_memory_bytes=needed - 1))
    with pytest.raises(InvalidGraph, match=r"clause 2.*shared memory"):
        check(matmul_mugraph(64, 1), A100)


def test_clause_2_counts_no_tiles_where_operands_are_read_in_place() -> None:
    small = replace(A100, shared_memory_bytes=4 * 2 * 64 * 32, operands_in_place=True)
    check(matmul_mugraph(32, 16), small)


def test_clause_2_kernel_tensors_fit_device_memory() -> None:
    graph = rmsnorm_mugraph()
    needed = 2 * (16 * 1024 + 1024 + 1024 * 4096 + 16 * 4096)
    check(graph, replace(A100, device_memory_bytes=needed))
    with pytest.raises(InvalidGraph, match=rf"^clause 2 \(memory\), kernel level: .*{needed} bytes of device memory"):
        check(graph, replace(A100, device_memory_bytes=needed - 1))


def thread_matmul(size: int, threads: int) -> Graph:
    """A thread graph in which each of `threads` threads multiplies matrices of `size` x `size`."""
    body = GraphBuilder(Level.THREAD, block=(threads,))
    source = Tensor((size, size), DType.FP32, Level.BLOCK)
    product = body.add("matmul", body.iterator(0, source, (None,), None), body.iterator(1, source, (None,), None))
    return body.build([body.add("output_saver", product, omap=(0,))])


def test_clause_2_thread_tensors_fit_the_registers_of_all_threads() -> None:
    per_thread = 3 * 4 * 4 * 4
    check(thread_matmul(4, 32), replace(A100, register_bytes=32 * per_thread))
    with pytest.raises(InvalidGraph, match=r"^clause 2 \(memory\), thread level: .*6144 bytes of registers"):
        check(thread_matmul(4, 32), replace(A100, register_bytes=32 * per_thread - 1))
    check(thread_matmul(4, 32), replace(A100, register_bytes=8 * per_thread, resident_threads=8))


def test_clause_2_threads_fit_the_block() -> None:
    with pytest.raises(InvalidGraph, match=r"clause 2 \(memory\), thread level: 2048 threads in a block, and .* allows 1024"):
        check(thread_matmul(1, 2048), A100)


def test_clause_2_is_checked_in_bodies() -> None:
    tight: Device = replace(A100, register_bytes=16)
    with pytest.raises(InvalidGraph, match=r"clause 2.*thread level.*registers"):
        check(rmsnorm_mugraph(), tight)


LOOPS = {
    "a value that passed no accumulator is saved": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
          %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = output_saver(%0) {}
        return %2""",
        r"%2.*saves a value that passed no for-loop accumulator",
    ),
    "a value passes two accumulators": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
        | %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = accumulate(%1) combine=sum
          %3: fp32[4] = output_saver(%2) {}
        return %3""",
        r"%2.*is the second for-loop accumulator on a path",
    ),
    "a constant passes two accumulators": (
        """
        | %0: fp32[] = constant 3
        | %1: fp32[] = accumulate(%0) combine=sum
          %2: fp32[] = accumulate(%1) combine=sum
          %3: fp32[] = output_saver(%2) {}
        return %3""",
        r"%2.*is the second for-loop accumulator on a path",
    ),
    "a value of the loop is used after it": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
          %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = add(%1, %0)
          %3: fp32[4] = output_saver(%2) {}
        return %3""",
        r"%2.*joins paths that passed a for-loop accumulator with paths that did not",
    ),
    "an accumulated value is used in the loop": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
        | %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = accumulate_rescaled(%0, %1)
          %3: fp32[4] = output_saver(%2) {}
        return %3""",
        r"%2.*is the second for-loop accumulator on a path",
    ),
    "an output is not saved": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
          %1: fp32[4] = accumulate(%0) combine=sum
        return %1""",
        r"%1.*is an output and passed no output saver",
    ),
    "a saver is saved again": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
          %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = output_saver(%1) {}
          %3: fp32[4] = output_saver(%2) {}
        return %2, %3""",
        r"%3.*reads an output saver",
    ),
    "a saver is no output": (
        """
        | %0: fp32[4] = input_iterator(#0) {i<->0}
          %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = output_saver(%1) {}
          %3: fp32[4] = output_saver(%1) {}
        return %2""",
        r"%3.*saves a value that is not an output",
    ),
}


@pytest.mark.parametrize(("body", "error"), LOOPS.values(), ids=LOOPS.keys())
def test_clause_3_paths_pass_one_iterator_one_accumulator_one_saver(body: str, error: str) -> None:
    graph = parse_graph(f"block_graph loop(i=4) {{{body}\n}}")
    with pytest.raises(InvalidGraph, match=rf"^clause 3 \(one iterator, .*, block level, node `{error}"):
        check(graph)


def test_clause_3_holds_for_thread_graphs_too() -> None:
    body = LOOPS["a value of the loop is used after it"][0]
    with pytest.raises(InvalidGraph, match=r"clause 3.*thread level"):
        check(parse_graph(f"thread_graph loop(i=4) {{{body}\n}}"))


def test_clause_3_asks_nothing_of_values_no_output_needs() -> None:
    check(
        parse_graph(
            """block_graph loop(i=4) {
        | %0: fp32[4] = input_iterator(#0) {i<->0}
          %1: fp32[4] = accumulate(%0) combine=sum
          %2: fp32[4] = add(%1, %0)
          %3: fp32[4] = output_saver(%1) {}
        return %3 }"""
        )
    )


def test_clause_3_lets_constants_join_after_the_loop() -> None:
    check(
        parse_graph(
            """block_graph loop(i=4) {
        | %0: fp32[] = constant 2
        | %1: fp32[4] = input_iterator(#0) {i<->0}
        | %2: fp32[4] = mul(%1, %0)
          %3: fp32[4] = accumulate(%2) combine=sum
          %4: fp32[4] = mul(%3, %0)
          %5: fp32[4] = output_saver(%4) {}
        return %5 }"""
        )
    )


def test_without_a_loop_no_accumulator_is_needed() -> None:
    check(parse_graph("block_graph { %0: fp32[4] = input_iterator(#0) {} %1: fp32[4] = output_saver(%0) {} return %1 }"))
