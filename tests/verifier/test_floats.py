"""The float check tells rounding from instability."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mugraph.errors import BudgetExceeded
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.verifier import float_check
from mugraph.verifier.domain import positive_inputs
from mugraph.verifier.float_checks import ADVERSARIAL, errors_against, random_inputs
from mugraph.verifier.vectorized_eval import evaluate_batched

from .graphs import fused_rmsnorm, program, rmsnorm


def in_float32(graph: Graph) -> Callable[..., Sequence[Array]]:
    def run(*inputs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return evaluate_batched(graph, [array.astype(np.float32) for array in inputs], FloatArithmetic(np.float32))

    return run


def softmax(safe: bool, dtype: DType = DType.FP32) -> Graph:
    written = Program()
    x = written.input("x", (4, 16), dtype)
    shifted = x - x.amax(-1, keepdim=True) if safe else x
    written.output(shifted.exp() / shifted.exp().sum(-1, keepdim=True))
    return written.graph


def test_a_fused_kernel_agrees_at_every_scale() -> None:
    report = float_check(in_float32(fused_rmsnorm(8, 96, 32)), rmsnorm(8, 96, 32))
    assert report.stable
    assert report.reason == ""
    assert 0 < report.max_relative_error < 1e-6
    assert [entry.inputs for entry in report.scales] == [
        *(f"input scale {scale:g}" for scale in (1e-3, 1e-1, 1.0, 10.0, 1e3)),
        *ADVERSARIAL,
    ]
    assert report.error_ratio is not None
    assert 0 < report.error_ratio < 10


def test_overflow_that_the_program_avoids_is_unstable() -> None:
    report = float_check(in_float32(softmax(safe=False)), softmax(safe=True))
    assert not report.stable
    assert "not finite" in report.reason
    assert "input scale 1000" in report.reason


def test_overflow_of_the_program_itself_is_not_held_against_a_candidate() -> None:
    assert float_check(in_float32(softmax(safe=False)), softmax(safe=False)).stable


def test_overflow_of_kernels_run_by_numpy_is_no_warning_to_the_user() -> None:
    def run(x: Array) -> list[Array]:
        return [np.exp(x.astype(np.float32))]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float_check(run, program(lambda x: x.exp(), (4, 16))).stable


def test_cancellation_is_unstable_and_the_reason_has_both_errors() -> None:
    def cancelling(x: Array) -> list[Array]:
        return [(x.sum(-1) + np.float32(1e4)) - np.float32(1e4)]

    report = float_check(cancelling, program(lambda x: x.sum(-1), (4, 16)))
    assert not report.stable
    assert "errs by" in report.reason
    assert report.scales[0].baseline is not None


def test_errors_that_the_program_makes_too_are_allowed() -> None:
    poor = program(lambda x: (x.sum(-1, keepdim=True) + 10000) - 10000, (4, 16))

    def also_poor(x: Array) -> list[Array]:
        total = np.sum(x[:, ::-1], axis=-1, keepdims=True) + np.float32(1e4)
        return [total - np.float32(1e4)]

    report = float_check(also_poor, poor)
    assert report.stable, report.reason
    own = report.scales[0].baseline
    assert own is not None
    assert own[0] > 1e-4


def test_a_runner_of_the_program_can_be_the_baseline() -> None:
    def wrong(x: Array) -> list[Array]:
        return [x * np.float32(1.1)]

    reference = program(lambda x: x, (8,))
    assert not float_check(wrong, reference).stable
    assert float_check(wrong, reference, baseline=wrong).stable


@pytest.mark.parametrize(("dtype", "limit"), [(DType.BF16, 2e-2), (DType.FP16, 4e-3)])
def test_sixteen_bit_programs_are_checked_at_their_precision(dtype: DType, limit: float) -> None:
    from mugraph.ir.dtypes import round_to

    def rounded(x: Array) -> list[Array]:
        assert np.array_equal(x, round_to(dtype, x)), "inputs are numbers of the program's dtype"
        return [round_to(dtype, result) for result in in_float32(softmax(True, dtype))(x)]

    report = float_check(rounded, softmax(True, dtype))
    assert report.stable
    assert 1e-5 < report.max_relative_error < limit


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP16])
def test_rounding_to_sixteen_bits_is_not_blamed_on_operators_computed_in_fp32(dtype: DType) -> None:
    from mugraph.ir.dtypes import round_to

    graph = softmax(True, dtype)

    def rounded(x: Array) -> list[Array]:
        return [round_to(dtype, result) for result in in_float32(graph)(x)]

    def wrong(x: Array) -> list[Array]:
        return [2 * result for result in in_float32(graph)(x)]

    assert float_check(rounded, graph, graph=graph).blamed.startswith(f"rounding to {dtype} where values are stored; ")
    assert "rounding to" not in float_check(in_float32(graph), graph, graph=graph).blamed
    assert "rounding to" not in float_check(wrong, graph, graph=graph).reason


def test_errors_are_relative_to_the_largest_element() -> None:
    expected, fp32 = np.array([1e-9, 4.0]), [DType.FP32]
    assert errors_against([expected], [np.array([0.0, 4.4])], fp32) == pytest.approx((0.1,))
    assert errors_against([np.array([np.inf, 2.0])], [np.array([1.0, 2.0])], fp32) == (0.0,)
    assert errors_against([expected], [np.array([np.nan, 4.0])], fp32) == (np.inf,)
    assert errors_against([np.zeros(2)], [np.array([0.0, 1e-3])], fp32) == (1e-3,)


def test_overflow_is_an_error_of_outputs_that_stay_in_range_alone() -> None:
    """Where the largest elements leave it, the others are differences of such numbers, which rounding moves across its end."""
    overflowing = [np.array([np.inf, 5.0])]
    assert errors_against([np.array([6e4, 5.0])], [np.array([np.inf, 5.0])], [DType.FP16]) == (np.inf,)
    assert errors_against([np.array([1e8, 6.5e4])], [np.array([np.inf, np.inf])], [DType.FP16]) == pytest.approx((504e-8,))
    assert errors_against([np.array([1e8, 5.0])], overflowing, [DType.FP16]) == (0.0,)
    assert errors_against([np.array([1e8, 5.0])], overflowing, [DType.FP32]) == (np.inf,)
    assert errors_against([np.array([1e8, 5.0])], [np.array([np.inf, np.nan])], [DType.FP16]) == (np.inf,)


def test_equal_shaped_inputs_are_different_and_seeds_repeat() -> None:
    graph = program(lambda x, y: x + y, (50,), (50,))
    first, second = random_inputs(graph, 0)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, random_inputs(graph, 0)[0])
    assert np.std(random_inputs(graph, 0, 100.0)[0]) == pytest.approx(100 * np.std(first), rel=1e-5)


def test_the_comparison_ends_with_the_budget() -> None:
    with pytest.raises(BudgetExceeded, match="comparison with float64"):
        float_check(in_float32(fused_rmsnorm(8, 96, 32)), rmsnorm(8, 96, 32), seed=7, budget=0.0)


def test_elements_beyond_the_range_of_their_type_are_not_asked_for() -> None:
    written = Program()
    x = written.input("x", (4, 64), DType.FP16)
    written.output(x * x * 0.125)

    def rounded_once(array: Array) -> list[Array]:
        with np.errstate(over="ignore"):
            return [(np.square(array.astype(np.float32)) / 8).astype(np.float16)]

    def zeros(array: Array) -> list[Array]:
        return [np.zeros_like(array)]

    assert float_check(rounded_once, written.graph, baseline=zeros).stable


def normalized_by_inputs() -> Graph:
    """What batch normalization computes of given means and variances, then a linear layer."""

    def function(x: ProgramTensor, mean: ProgramTensor, variance: ProgramTensor, w: ProgramTensor) -> ProgramTensor:
        return ((x - mean) / (variance + 1e-5).sqrt()) @ w

    return program(function, (16, 32), (32,), (32,), (32, 8))


def test_wrong_results_are_noticed_where_a_root_is_taken_of_an_input() -> None:
    """Every row of a product has a NaN where half of the variances are negative."""
    graph = normalized_by_inputs()
    right, wrong = in_float32(graph), lambda *inputs: [np.zeros((16, 8))]
    report = float_check(right, graph)
    assert report.stable
    assert 0 < report.max_relative_error < 1e-5
    assert not float_check(wrong, graph).stable


@pytest.mark.parametrize(
    ("function", "positive"),
    [
        (lambda x, y: (x + y) / (2 * y).sqrt(), {1}),
        (lambda x, y: x * (y.sum(-1, keepdim=True) / 8 + 1).apply("log"), {1}),
        (lambda x, y: (x.transpose(0, 1) + 1e-5).sqrt() @ y, {0}),
        (lambda x, y: (x * x + y * y).sqrt(), set()),
        (lambda x, y: (x - y).sqrt(), set()),
        (lambda x, y: x.exp() @ y, set()),
    ],
)
def test_inputs_under_roots_and_logarithms_are_positive(
    function: Callable[[ProgramTensor, ProgramTensor], ProgramTensor], positive: set[int]
) -> None:
    graph = program(function, (8, 8), (8, 8))
    assert positive_inputs(graph) == positive
    assert {number for number, array in enumerate(random_inputs(graph, 0)) if (array >= 0).all()} == positive


def test_inputs_of_kernels_are_positive_where_those_of_their_program_are() -> None:
    assert positive_inputs(fused_rmsnorm()) == positive_inputs(rmsnorm()) == set()
    kernel = GraphBuilder(Level.KERNEL)
    x, y = (kernel.input(name, (4, 8), DType.FP32) for name in "xy")
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=2)
    x_tile, y_tile = (block.iterator(number, kernel.tensor(value), (0,), 1) for number, value in enumerate((x, y)))
    total = block.add(
        "accumulate", block.add("sum", block.add("mul", x_tile, block.add("sqrt", y_tile)), dim=1, size=4), combine="sum"
    )
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(0,))]), [x, y]))
    assert positive_inputs(graph) == {1}
