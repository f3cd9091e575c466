"""Graphs, nodes and the builder."""

from __future__ import annotations

import pytest

from mugraph.errors import InvalidGraph, ShapeMismatch, UnsupportedOperator
from mugraph.ir import DType, GraphBuilder, Level, Tensor, Value
from mugraph.ir.text import parse_graph

from .graphs import rmsnorm_mugraph

FP32 = DType.FP32


def test_attributes_are_found_by_name() -> None:
    node = rmsnorm_mugraph().nodes[0]
    assert node["name"] == "X"
    assert node.get("absent", 7) == 7
    with pytest.raises(KeyError, match="input has no attribute 'absent'"):
        node["absent"]


def test_attributes_of_the_wrong_type_are_named() -> None:
    body = rmsnorm_mugraph().nodes[3].body
    assert body is not None
    iterator, saver = body.nodes[0], body.nodes[-1]
    assert (iterator.integer("operand"), saver.integers("omap")) == (0, (1,))
    with pytest.raises(ShapeMismatch, match="input_iterator: attribute 'imap' must be an integer, not "):
        iterator.integer("imap")
    with pytest.raises(ShapeMismatch, match=r"input_iterator: attribute 'imap' must be a tuple of integers, not \(None,\)"):
        iterator.integers("imap")


def test_what_a_kernel_graph_holds() -> None:
    graph = rmsnorm_mugraph()
    assert graph.input_names == ("X", "G", "W")
    assert [node.op for node in graph.kernels()] == ["graph_defined"]
    assert graph.output_tensors == (Tensor((16, 4096), DType.FP16),)
    assert graph.users(Value(0)) == (3,)


def test_what_a_block_graph_holds() -> None:
    body = rmsnorm_mugraph(thread_graph=False).nodes[3].body
    assert body is not None
    assert [node["operand"] for node in body.inputs()] == [0, 1, 2]
    assert body.users(Value(0)) == (3, 5)


@pytest.mark.parametrize("thread_graph", [False, True])
def test_search_limits_count_iterators_and_computations_at_any_level(thread_graph: bool) -> None:
    body = rmsnorm_mugraph(thread_graph).nodes[3].body
    assert body is not None
    iterators, computations, scalings = 3, 9, 1
    assert body.operator_count() == iterators + computations - scalings


def test_walk_visits_every_level_outermost_first() -> None:
    levels = [graph.level for graph, _ in rmsnorm_mugraph().walk()]
    assert [levels.count(level) for level in Level] == [4, 13, 5]
    assert levels[0] is Level.KERNEL


def test_needed_nodes_are_those_an_output_depends_on() -> None:
    graph = parse_graph(
        """kernel_graph {
        X: fp32[4] = input
        Y: fp32[4] = input
        %2: fp32[4] = exp(X)
        %3: fp32[4] = exp(Y)
        %4: fp32[4] = add(%2, X)
        return %4 }"""
    )
    assert graph.needed() == {0, 2, 4}


def test_levels_nest() -> None:
    assert [level.inner for level in Level] == [Level.BLOCK, Level.THREAD, None]


def test_the_builder_checks_each_operator_as_it_is_added() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x, y = builder.input("X", (4, 8), FP32), builder.input("Y", (4, 8), FP32)
    with pytest.raises(ShapeMismatch, match=r"matmul\(\[4, 8\], \[4, 8\]\): inner dimensions 8 and 4 differ"):
        builder.add("matmul", x, y)
    with pytest.raises(UnsupportedOperator, match="'cube' is not in the operator table"):
        builder.add("cube", x)
    with pytest.raises(InvalidGraph, match=r"clause 1 .*accumulate cannot stand at kernel level"):
        builder.add("accumulate", x, combine="sum")
    assert len(builder.nodes) == 2


def test_a_graph_defined_operator_has_the_outputs_of_its_body() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("X", (4, 8), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    tile = block.iterator(0, kernel.tensor(x), (0,), None)
    saved = [block.add("output_saver", tile, omap=(0,)), block.add("output_saver", tile, omap=(1,))]
    first, second = kernel.graph_defined(block.build(saved), [x])
    assert kernel.tensor(first) == Tensor((4, 8), FP32)
    assert kernel.tensor(second) == Tensor((2, 16), FP32)
