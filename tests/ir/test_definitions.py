"""Operators that others define: one node in programs, and what it is made of for whatever looks for muGraphs or proves them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from mugraph.algebra import Algebra
from mugraph.devices import device_for
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.ir import Graph
from mugraph.ir.axes import axis_program
from mugraph.ir.definitions import defined, spelled_out
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import OPERATORS, flops_of, operator
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.ir.text import format_graph, parse_graph
from mugraph.runtime import build
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.verifier import prove, recheck, verify_graphs
from mugraph.verifier.certificate import digest
from mugraph.verifier.prover import verify

ROWS = {
    "norm": defined("norm", 1, lambda x, dim: x.square().sum(dim, keepdim=True).sqrt(), ("dim",)),
    "normalized": defined("normalized", 1, lambda x, dim: x / x.apply("norm", dim=dim), ("dim",)),
    "matmul_nt": defined("matmul_nt", 2, lambda x, y: x @ y.transpose(-1, -2)),
    "rectified": defined("rectified", 1, lambda x: x.relu() * 2),
    "flat": defined("flat", 1, lambda x: 1.0),  # type: ignore[arg-type,return-value]
}


@pytest.fixture(autouse=True)
def rows() -> Iterator[None]:
    with mock.patch.dict(OPERATORS, ROWS):
        yield


def written(*, by_name: bool, dim: int = 1, swapped: bool = False, dtype: DType = DType.FP32) -> Graph:
    program = Program()
    x, w = program.input("x", (4, 8), dtype), program.input("w", (8, 8), dtype)
    if by_name:
        program.output(x.apply("normalized", dim=dim).apply("matmul_nt", w).apply("rectified"))
    else:
        product = (x / x.square().sum(dim, keepdim=True).sqrt()) @ (w if swapped else w.transpose(-1, -2))
        program.output(product.relu() * 2)
    return program.graph


def test_programs_have_one_node_which_prints_and_saves() -> None:
    graph = written(by_name=True)
    assert [node.op for node in graph.kernels()] == ["normalized", "matmul_nt", "rectified"]
    assert parse_graph(format_graph(graph)) == graph
    assert graph_from_json(graph_to_json(graph)) == graph


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_definitions_of_definitions_are_spelled_out(dtype: DType) -> None:
    graph = spelled_out(written(by_name=True, dtype=dtype))
    assert "norm" not in {node.op for node in graph.nodes}
    assert graph.output_tensors == written(by_name=True, dtype=dtype).output_tensors
    assert spelled_out(graph) is graph
    assert axis_program(written(by_name=True)) == axis_program(written(by_name=False))


def test_meaning_cost_and_expression_are_those_of_the_parts() -> None:
    named, plain = written(by_name=True), written(by_name=False)
    x, w = np.random.default_rng(0).standard_normal((2, 8, 8))
    ours, theirs = (evaluate(graph, [x[:4], w], FloatArithmetic())[0] for graph in (named, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    np.testing.assert_allclose(build(named)(*(a.astype(np.float32) for a in (x[:4], w)))[0], theirs, rtol=1e-4, atol=1e-6)
    assert flops_of(named) == flops_of(plain)
    assert predicted_seconds(named, device_for("cpu")) == predicted_seconds(plain, device_for("cpu"))
    algebra, row = Algebra(), operator("norm")
    variable = algebra.variable("x")
    from mugraph.ir.ops import Call

    expression = row.express(algebra, Call("norm", ((4, 8),), {"dim": 1}), [variable])
    assert expression == algebra.sqrt(algebra.sum(8, algebra.mul(variable, variable)))


def test_proofs_read_what_operators_are_made_of() -> None:
    named, plain = written(by_name=True), written(by_name=False)
    verdict = verify_graphs(named, plain, seed=3)
    assert verdict.equivalent
    assert verdict.error_bound is not None
    assert verdict.error_bound < 2**-40
    assert (verdict.certificate.left, verdict.certificate.right) == (digest(named), digest(plain))
    recheck(verdict.certificate, named, plain)
    with pytest.raises(InvalidInput, match="the left graph is not the one"):
        recheck(verdict.certificate, plain, plain)
    assert verify(named, plain).equivalent
    assert prove(named, plain).equivalent


@pytest.mark.parametrize("wrong", ["another dimension", "another order"])
def test_wrong_programs_are_told_apart(wrong: str) -> None:
    named = written(by_name=True)
    other = written(by_name=False, dim=0) if wrong == "another dimension" else written(by_name=False, swapped=True)
    for left, right in ((named, other), (other, named)):
        assert verify(left, right).equivalent is False


def test_wrong_use_says_what_is_wrong() -> None:
    program = Program()
    x = program.input("x", (4, 8))
    with pytest.raises(ShapeMismatch, match="norm: attribute 'dim' is missing"):
        x.apply("norm")
    with pytest.raises(ShapeMismatch, match="inner dimensions 8 and 4 differ"):
        x.apply("matmul_nt", program.input("w", (8, 4)))
    with pytest.raises(ShapeMismatch, match="takes 2 operands, not 1"):
        x.apply("matmul_nt")
    with pytest.raises(InvalidInput, match="definition of an operator gives a float"):
        x.apply("flat")


def test_a_definition_is_a_function_of_program_tensors() -> None:
    program = Program()
    assert isinstance(program.input("x", (4, 8)).apply("norm", dim=-1), ProgramTensor)
