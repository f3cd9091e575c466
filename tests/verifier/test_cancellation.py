"""Errors beside the terms that cancel: kernels pass that err as rounding does, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mugraph.ir import DType
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.verifier import float_check
from mugraph.verifier.cancellation import cancelled_terms, may_cancel, shaken_outputs
from mugraph.verifier.rounding import RoundedArithmetic

from .graphs import program
from .joint_graphs import program as program_of_several

ROWS, COLUMNS = 4, 48


def deviations(x: ProgramTensor, w: ProgramTensor) -> ProgramTensor:
    """exp(x) less the mean of its rows, times w: 0 where rows have equal elements, but for rounding."""
    made = x.exp()
    return (made - made.sum(-1, keepdim=True) * (1 / COLUMNS)) * w


GRAPH = program(deviations, (ROWS, COLUMNS), (COLUMNS,))


def exactly(x: Array, w: Array) -> list[Array]:
    """The program in float64, rounded at the end."""
    made = np.exp(np.minimum(x.astype(np.float64), 80))
    return [((made - made.mean(-1, keepdims=True)) * w).astype(np.float32)]


def with_errors(share: float, where: Callable[[Array], Array] = np.ones_like) -> Callable[..., Sequence[Array]]:
    """The program with errors that are this share of what is subtracted, in some elements."""

    def run(x: Array, w: Array) -> list[Array]:
        return [(exactly(x, w)[0] + share * where(x) * np.exp(x) * w).astype(np.float32)]

    return run


def last(x: Array) -> Array:
    """1 in the last element of the last row."""
    found = np.zeros_like(x)
    found[-1, -1] = 1
    return found


def equal_rows(x: Array) -> Array:
    """1 in rows of equal elements."""
    return np.asarray(np.ones_like(x) * np.all(x == x[:, :1], axis=1, keepdims=True))


def test_errors_of_rounding_pass_where_the_exact_value_is_0() -> None:
    """Also where the program itself makes none."""
    for share in (2e-8, 2e-7, 1e-6):
        report = float_check(with_errors(share, equal_rows), GRAPH, baseline=exactly)
        assert report.stable, report.reason


@pytest.mark.parametrize("where", [np.ones_like, last, equal_rows])
def test_larger_errors_do_not(where: Callable[[Array], Array]) -> None:
    for share in (1e-3, 1e-2, 1.0):
        report = float_check(with_errors(share, where), GRAPH, baseline=exactly)
        assert not report.stable
    assert "rows of equal elements" in report.reason or where is not equal_rows


def test_results_of_other_terms_do_not() -> None:
    """What forgets to subtract, or subtracts something else, errs by as much as the terms."""
    for wrong in (lambda x, w: [np.exp(x) * w], lambda x, w: [(np.exp(x) - 0.999 * np.exp(x).mean(-1, keepdims=True)) * w]):
        assert not float_check(lambda *given, wrong=wrong: [each.astype(np.float32) for each in wrong(*given)], GRAPH).stable


def test_values_that_float64_tells_from_0_are_what_errors_are_relative_to() -> None:
    values = np.array([1e-15, 0.0])
    assert cancelled_terms(values, np.array([1e-12, 2e-12])) == 2e-12 * 2**40
    assert cancelled_terms(values, np.array([1e-14, 2e-12])) is None
    for unknown in (np.inf, np.nan):
        assert cancelled_terms(values, np.array([1e-12, unknown])) is None
        assert cancelled_terms(np.array([1e-15, unknown]), np.array([1e-12, unknown])) == 1e-12 * 2**40
    assert [may_cancel(largest, np.array([1e-12])) for largest in (0.0, 1e-12, 1.0)] == [True, True, False]
    assert may_cancel(1.0, np.array([np.nan]))
    small = program(lambda x: (x.exp() + 2.0**-40) - x.exp(), (4, 8))
    report = float_check(lambda x: [np.zeros_like(x)], small, baseline=lambda x: [np.full_like(x, 2.0**-40)])
    assert not report.stable


def test_one_element_whose_terms_cancel_excuses_no_other() -> None:
    graph = program(lambda x, y: x.program.concat([(x.exp() + 1e20) - x.exp() - 1e20, y], 1), (4, 1), (4, 8))
    report = float_check(lambda x, y: [np.concatenate([0 * x, 0 * y + 3], 1)], graph)
    assert report.scales[0].errors[0] >= 1
    assert not report.stable


def test_large_numbers_that_err_together_excuse_nothing() -> None:
    """Of a softmax of huge numbers it is certain which of them is the largest."""

    def weighted(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        return (x * 1e30).softmax(-1) @ y

    graph = program(weighted, (4, 8), (8, 4))

    def exactly(x: Array, y: Array) -> list[Array]:
        return [y[np.argmax(x, axis=1)]]

    assert float_check(exactly, graph).stable
    assert not float_check(lambda x, y: [y[np.argmin(x, axis=1)]], graph).stable


def test_an_output_whose_terms_cancel_is_not_blamed_for_another() -> None:
    graph = program_of_several(lambda x, w: (deviations(x, w), (w.exp() + 1e6) - 1e6), (ROWS, COLUMNS), (COLUMNS,))

    def right(x: Array, w: Array) -> list[Array]:
        return [*exactly(x, w), np.exp(np.minimum(w.astype(np.float64), 80)).astype(np.float32)]

    def wrong(x: Array, w: Array) -> list[Array]:
        return [*with_errors(1e-7, equal_rows)(x, w), right(x, w)[1] * np.float32(1 + equal_rows(x).max() / 2)]

    report = float_check(wrong, graph, baseline=right, graph=graph)
    assert report.reason.startswith("output 1 at rows of equal elements")
    assert f"of shape [{COLUMNS}] turns errors" in report.reason


FUNCTIONS: dict[str, Callable[[ProgramTensor, ProgramTensor], ProgramTensor]] = {
    "a norm": lambda x, y: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * y,
    "deviations": lambda x, y: (x - x.mean(-1, keepdim=True)) * y.exp(),
    "a softmax": lambda x, y: (x * y).softmax(-1),
    "a product": lambda x, y: (x @ y.transpose(0, 1)).silu() - x.sum(1, keepdim=True),
    "maxima": lambda x, y: (x.exp() - y.exp()).amax(-1, keepdim=True) + x.tanh(),
    "a difference": lambda x, y: (x * y + 1) - x * y,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_values_move_is_what_rounding_does(name: str) -> None:
    """In float32, where that is about as much."""
    graph = program(FUNCTIONS[name], (6, 16), (6, 16))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((6, 16)).astype(np.float32) for _ in range(2)]
    (exact,) = evaluate(graph, [array.astype(np.float64) for array in inputs], FloatArithmetic())
    (rounded,) = evaluate(graph, inputs, RoundedArithmetic(DType.FP32))
    (shaken,) = shaken_outputs(graph, inputs, rng, lambda: None)
    ratio = np.abs(rounded - exact).max() / 2.0**-24 / (np.abs(shaken - exact).max() / 2.0**-40)
    assert 1 / 8 <= ratio <= 8


def test_functions_that_jump_stay_where_they_are() -> None:
    graph = program(lambda x: x.apply("floor"), (5,))
    given = np.array([0.0, 0.5, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(shaken_outputs(graph, [given], np.random.default_rng(0), lambda: None)[0], np.floor(given))
