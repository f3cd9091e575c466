"""Which operator of a program loses its precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.program import Program
from mugraph.verifier import float_check
from mugraph.verifier.float_checks import Runner
from mugraph.verifier.rounding import operator_errors

from .graphs import fused_rmsnorm, online_attention, program


def normal(graph: Graph, scale: float = 1.0) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.normal(0, scale, node.output.shape) for node in graph.inputs()]


def softmax(safe: bool) -> Graph:
    written = Program()
    x = written.input("x", (4, 16))
    shifted = x - x.amax(-1, keepdim=True) if safe else x
    written.output(shifted.exp() / shifted.exp().sum(-1, keepdim=True))
    return written.graph


def test_cancellation_is_laid_at_the_subtraction() -> None:
    graph = program(lambda x: (x.sum(-1, keepdim=True) + 10000) - 10000, (4, 16))
    worst = operator_errors(graph, normal(graph), DType.FP32)[0]
    assert (worst.op, worst.shape) == ("add", (4, 1)), "subtracting a constant is adding one"
    assert worst.result > 1e-5
    assert worst.result > 100 * worst.operands
    assert worst.local < 1e-6, "the operation itself is exact; it uncovers the error of the one before"


def test_what_an_operation_rounds_away_is_relative_to_the_exact_result() -> None:
    graph = program(lambda x: x.sum(-1), (3,))
    (error,) = operator_errors(graph, [np.array([1 + 2.0**-25, 2.0**-30, -1])], DType.FP32)
    assert error.result == 1, "the operands differ by rounding alone: nothing is left of the sum"
    assert error.local == 1 / 33, "2^-30 is lost of 2^-25 + 2^-30"


def test_overflow_is_laid_at_the_exponential() -> None:
    worst = operator_errors(softmax(safe=False), normal(softmax(safe=False), 100.0), DType.FP32)[0]
    assert worst.op == "exp"
    assert math.isinf(worst.growth)
    assert str(worst) == "exp of shape [4, 16] leaves the number range"


def test_a_root_of_negative_numbers_is_named() -> None:
    graph = program(lambda x: x.sqrt() * x.sqrt(), (8,))
    worst = operator_errors(graph, normal(graph), DType.FP32)[0]
    assert str(worst) == "sqrt of shape [8] has no result for some of its operands"


def test_operators_of_kernels_are_counted_in_every_block_and_iteration() -> None:
    graph = fused_rmsnorm(4, 12, 8)
    errors = operator_errors(graph, normal(graph), DType.FP32)
    assert {"matmul", "mul", "sum", "sqrt", "div"} <= {entry.op for entry in errors}
    assert all(entry.result < 1e-5 for entry in errors)
    assert [entry.growth for entry in errors] == sorted((entry.growth for entry in errors), reverse=True)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [(DType.FP32, 1e-9, 1e-6), (DType.FP16, 1e-5, 1e-2), (DType.BF16, 1e-4, 1e-1)]
)
def test_errors_have_the_size_of_the_element_type(dtype: DType, least: float, most: float) -> None:
    graph = online_attention()
    worst = operator_errors(graph, normal(graph), dtype)[0]
    assert least < worst.result < most


def test_the_reason_for_dropping_a_candidate_names_the_operator() -> None:
    def unsafe(x: Array) -> list[Array]:
        with np.errstate(all="ignore"):
            weights = np.exp(x)
            return [weights / weights.sum(-1, keepdims=True)]

    report = float_check(unsafe, softmax(safe=True), graph=softmax(safe=False))
    assert not report.stable
    assert "not finite" in report.reason
    assert "exp of shape [1, 16] leaves the number range" in report.reason, "one row shows it"


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        ("one huge element per row", lambda x: [np.where(np.ptp(x, -1) > 200 * np.median(np.abs(x), -1), 0, x.sum(-1))]),
        ("rows of equal elements", lambda x: [np.where((x == x[:, :1]).all(-1), np.float32(0), x.sum(-1))]),
        ("alternating signs", lambda x: [np.where((x[:, ::2] > 0).all(-1) & (x[:, 1::2] < 0).all(-1), 0, x.sum(-1))]),
    ],
)
def test_adversarial_rows_find_what_normal_inputs_do_not(pattern: str, wrong: Runner) -> None:
    graph = program(lambda x: x.sum(-1), (4, 16))
    report = float_check(wrong, graph, scales=(1e3,))
    assert not report.stable
    assert pattern in report.reason
