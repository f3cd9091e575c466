"""Random programs are LAX programs of the size asked for, finite in float64, and varied."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import Graph, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import Kind, operator
from mugraph.testing import ProgramSpace, random_program

SMALL = ProgramSpace(sizes=(2, 3, 4, 6))
SEEDS = range(150)


def exponentiations(graph: Graph) -> int:
    """The most exponentiations on one path."""
    depth: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        before = max((depth[value] for value in node.inputs), default=0)
        depth[Value(index)] = before + (operator(node.op).kind is Kind.EXPONENTIATION)
    return max(depth.values())


@pytest.mark.parametrize("space", [SMALL, ProgramSpace()])
def test_operators_and_sizes_are_those_asked_for(space: ProgramSpace) -> None:
    for seed in SEEDS:
        graph = random_program(seed, space)
        assert 3 <= len(graph.kernels()) <= 10
        assert all(size in (1, 2, 3, *space.sizes) for node in graph.inputs() for size in node.output.shape)


def test_programs_lie_in_the_lax_fragment() -> None:
    graphs = [random_program(seed, SMALL) for seed in SEEDS]
    assert all(exponentiations(graph) <= 1 for graph in graphs)
    assert sum(exponentiations(graph) for graph in graphs) > len(graphs) / 5
    assert not any(operator(node.op).kind is Kind.OPAQUE for graph in graphs for node in graph.nodes)


def test_opaque_operators_on_request() -> None:
    graphs = [random_program(seed, ProgramSpace(sizes=(2, 4), opaque=True)) for seed in SEEDS]
    names = {node.op for graph in graphs for node in graph.nodes if operator(node.op).kind is Kind.OPAQUE}
    assert {"silu", "relu", "max"} <= names


def test_every_program_is_finite_in_float64() -> None:
    for seed in SEEDS:
        graph = random_program(seed, SMALL)
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
        assert all(np.isfinite(output).all() for output in evaluate(graph, inputs, FloatArithmetic()))


def test_nothing_is_divided_by_zero() -> None:
    """Rows less their maximum have zeros, and so has what relu makes; their squares are no denominators."""
    for seed in range(200, 300):
        graph = random_program(seed, ProgramSpace(operators=(3, 14), opaque=True))
        denominators = tuple(node.inputs[1] for node in graph.nodes if node.op == "div")
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
        divided_by = evaluate(graph.with_nodes(graph.nodes, denominators), inputs, FloatArithmetic())
        assert all(np.all(tensor != 0) for tensor in divided_by)


def test_every_operator_feeds_an_output() -> None:
    for seed in SEEDS:
        graph = random_program(seed, SMALL)
        assert graph.needed() == frozenset(range(len(graph.nodes)))


def test_seeds_repeat_and_differ() -> None:
    assert random_program(7, SMALL) == random_program(7, SMALL)
    assert len({str(random_program(seed, SMALL)) for seed in SEEDS}) > 0.9 * len(SEEDS)


def test_most_operators_of_the_table_occur() -> None:
    names = {node.op for seed in SEEDS for node in random_program(seed, SMALL).nodes}
    assert {"matmul", "add", "sub", "mul", "div", "exp", "square", "sqrt", "sum", "transpose", "constant"} <= names


def test_impossible_spaces_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the least first"):
        ProgramSpace(operators=(5, 3))
    with pytest.raises(InvalidInput, match="sizes"):
        ProgramSpace(sizes=())
