"""Comparisons and choices are functions of several operands: their order counts, and nothing else is known of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mugraph.algebra.families import FieldFamily
from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.frontend.operators.choices import less, select
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.scalar import Scalar
from mugraph.verifier import Outcome, verify_graphs
from mugraph.verifier.bounds import difference_of
from mugraph.verifier.degree_bounds import Magnitudes
from mugraph.verifier.doubt import DoubtArithmetic, Doubted, certain_outputs
from mugraph.verifier.enclosures import Ball, State
from mugraph.verifier.float_balls import FloatBalls
from mugraph.verifier.float_checks import float_check
from mugraph.verifier.prover import verify
from mugraph.verifier.semantics import FreeArithmetic
from mugraph.verifier.signs import conditions
from mugraph.verifier.variables import RandomFunction

from .choices import DIFFERENT, EQUAL, attended, graphs, hidden
from .graphs import program
from .test_variables import counting


@pytest.mark.parametrize("name", EQUAL)
def test_equal_arguments_give_equal_results(name: str) -> None:
    verdict = verify_graphs(*graphs(EQUAL[name]), seed=1)
    assert verdict.equivalent, verdict.reason
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40


@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses_are_told_apart(name: str) -> None:
    pair = graphs(DIFFERENT[name])
    assert not any(verify_graphs(*order, seed=seed).equivalent for seed in range(3) for order in (pair, pair[::-1]))


def test_shares_of_what_is_hidden_as_a_whole_do_not_add_up() -> None:
    def shares(condition: ProgramTensor, x: ProgramTensor) -> ProgramTensor:
        return attended(hidden(x, condition)).sum(-1)

    some = program(lambda x, y: shares(less(y, -1), x), (4, 6), (4, 6))
    others = program(lambda x, y: shares(less(-1, -1 * y), x), (4, 6), (4, 6))
    every = program(lambda x, y: shares(less(-1, y * y), x), (4, 6), (4, 6))
    assert verify_graphs(some, every).equivalent, "for every real number in the place of infinity"
    verdict = verify(some, every, seed=0)
    assert verdict.outcome is Outcome.UNDECIDED
    assert "infinite constants make output 0 1 in the left program and nan in the right one" in verdict.reason
    assert verify(some, program(lambda x, y: shares(less(y, -1), 2 * x - x), (4, 6), (4, 6)), seed=0).equivalent
    assert not verify(some, others, seed=0).equivalent


# --- functions of several operands in fields ---------------------------------------------------------------------------


def test_a_tuple_of_arguments_has_a_value_of_its_own_that_stays() -> None:
    function = RandomFunction(counting())
    first, second = np.array([5, 5, 7, 7]), np.array([1, 2, 1, 1])
    assert function(first, second).p.tolist()[2:] == [1002, 1002]
    assert len(set(function(first, second).p.tolist())) == 3
    assert function(second, first).p.tolist()[0] not in function(first, second).p.tolist()
    assert function(np.array([7]), np.array([[2], [1]])).p.shape == (2, 1)
    assert function(np.array([7]), np.array([1])).p.tolist() == [1002]


def test_tuples_that_differ_in_one_place_have_other_values() -> None:
    rng = np.random.default_rng(0)
    function, parts = RandomFunction(counting()), rng.integers(0, 8, (3, 4000))
    values = function(*parts).p
    assert len(np.unique(values)) == len(np.unique(parts, axis=1).T)
    np.testing.assert_array_equal(function(*parts[:, ::-1]).p, values[::-1])


@pytest.mark.parametrize("kind", [FreeArithmetic, FieldArithmetic])
def test_the_order_of_operands_counts_in_every_field(kind: type[FieldArithmetic]) -> None:
    arith = kind(FieldFamily(34).draw(np.random.default_rng(0)), seed=3)
    x, y, z = (arith.random((20,), np.random.default_rng(seed)) for seed in range(3))
    for operands in ((x, y), (x, y, z)):
        found = [arith.opaque(f"of {len(operands)}", *operands[turn:], *operands[:turn]).p for turn in range(len(operands))]
        assert len(np.unique(np.concatenate(found))) == 20 * len(operands)
        np.testing.assert_array_equal(arith.opaque(f"of {len(operands)}", *operands).p, found[0])
    column = FieldValue(x.p[:, None], x.q[:, None] if x.q is not None else None)
    assert arith.opaque("of 2", column, y).shape == (20, 20)
    np.testing.assert_array_equal(np.diagonal(arith.opaque("of 2", column, y).p), arith.opaque("of 2", x, y).p)


def test_bounds_count_pairs_of_tuples_and_heed_the_largest_operand() -> None:
    magnitudes = Magnitudes()
    x, y = magnitudes.input((3, 4)), magnitudes.mul(magnitudes.input((4,)), magnitudes.input((4,)))
    value = magnitudes.opaque("f", x, y)
    assert value.shape == (3, 4)
    assert magnitudes.functions["f"].count == 12
    assert magnitudes.functions["f"].argument.numerator.degree == 2
    magnitudes.opaque("f", y, x)
    assert magnitudes.functions["f"].count == 24
    graph = program(lambda a, b: less(a * a, b), (5,), (5,))
    difference = difference_of(graph, graph)
    assert difference is not None
    (function,) = difference.functions
    assert (function.name, function.pairs, function.argument.degree) == ("less", 45, 2)


# --- real numbers ------------------------------------------------------------------------------------------------------


def ball(*ends: tuple[float, float]) -> Ball:
    lower, upper = (np.array(part) for part in zip(*ends, strict=True))
    return Ball((lower + upper) / 2, (upper - lower) / 2, np.zeros(len(ends), np.uint8))


def ends_of(found: Ball) -> list[tuple[float, float]]:
    return [(round(m - r, 6), round(m + r, 6)) for m, r in zip(found.middle.tolist(), found.radius.tolist(), strict=True)]


def test_enclosures_of_comparisons_are_both_answers_where_either_may_be() -> None:
    arith = FloatBalls()
    x, y = ball((0, 1), (2, 3), (0, 2), (1, 1), (1, 1)), ball((2, 3), (0, 1), (1, 3), (1, 1), (1, 2))
    assert ends_of(arith.opaque("less", x, y)) == [(1, 1), (0, 0), (0, 1), (0, 0), (0, 1)]
    assert ends_of(arith.opaque("equal", x, y)) == [(0, 0), (0, 0), (0, 1), (1, 1), (0, 1)]
    assert ends_of(arith.opaque("truth", ball((0, 0), (-1, 1), (2, 3)))) == [(0, 0), (0, 1), (1, 1)]


def test_what_a_choice_leaves_out_need_not_exist() -> None:
    arith = FloatBalls()
    x, condition = ball((1, 2), (1, 2), (1, 2), (1, 2)), ball((1, 1), (0, 0), (0, 1), (1, 1))
    undefined = Ball(x.middle, x.radius, np.array([State.UNDEFINED] * 3 + [State.UNKNOWN], np.uint8))
    found = arith.opaque("select", condition, x, undefined)
    assert found.state.tolist() == [State.KNOWN, State.UNDEFINED, State.UNKNOWN, State.KNOWN]
    assert arith.opaque("select", condition, undefined, x).state.tolist()[:3] == [State.UNDEFINED, State.KNOWN, State.UNKNOWN]
    assert ends_of(arith.opaque("select", condition, x, ball(*[(5, 6)] * 4))) == [(1, 2), (5, 6), (1, 6), (1, 2)]
    assert arith.opaque("infinity", x).state.tolist() == [State.UNKNOWN] * 4


def test_comparisons_are_never_negative_and_choices_have_the_signs_of_both() -> None:
    def roots(x: object, y: object) -> list[str]:
        graph = Program()
        a, b = graph.input("a", (3,)), graph.input("b", (3,))
        graph.output((less(a, b) + 1).sqrt() + select(a, b * b, 1).sqrt() + select(a, b, 1).sqrt())
        return [str(condition) for condition in conditions(graph.graph)]

    assert roots(None, None) == ["select(a, b, 1) >= 0"]


# --- floats ------------------------------------------------------------------------------------------------------------


def test_doubt_is_where_rounding_may_decide_and_the_answer_matters() -> None:
    arith = DoubtArithmetic(1e-5)
    x = Doubted(np.array([1.0, 1.0 + 1e-7, 2.0, math.nan]), exact=False)
    one = Doubted(np.array(1.0), exact=True)
    compared = arith.opaque("less", one, x)
    assert compared.doubtful is not None
    assert compared.doubtful.tolist() == [False, True, False, False]
    assert arith.opaque("less", one, Doubted(x.values, exact=True)).doubtful is None
    chosen = arith.opaque("select", compared, x, arith.constant(Scalar.of(7)))
    assert chosen.doubtful is not None
    assert chosen.doubtful.tolist() == [False, True, False, False]
    assert arith.opaque("select", compared, x, Doubted(x.values * (1 + 1e-9))).doubtful is None  # continuous there
    assert arith.sum(compared, 0).doubtful.tolist() == [True]  # type: ignore[union-attr]


def thresholds() -> Program:
    made = Program()
    x, w = made.input("x", (64, 128)), made.input("w", (128, 256))
    made.output(select(less(0.25, x @ w), x @ w, -1))
    return made


def test_kernels_that_decide_doubtful_comparisons_otherwise_are_stable() -> None:
    graph = thresholds().graph

    def in_float32(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
        product = x.astype(np.float32) @ w.astype(np.float32)
        shaken = product * np.float32(1 + 3e-7)
        return [np.where(shaken > np.float32(0.25), product, np.float32(-1))]

    assert float_check(in_float32, graph, seed=3).stable
    assert not float_check(lambda x, w: [np.where(x @ w > 0.26, x @ w, -1)], graph, seed=3).stable


@pytest.mark.parametrize(
    ("name", "points", "doubted"),
    [
        ("floor", [2 - 1e-7, 2 + 1e-7, 2, 2.5, math.inf], [True, True, False, False, False]),
        ("ceil", [2 - 1e-7, 2 + 1e-7, 2, 2.5, math.nan], [True, True, False, False, False]),
        ("trunc", [-1 + 1e-7, 1e-4, 2.5], [True, False, False]),
        ("round", [2.5 - 1e-7, -0.5 + 1e-7, 2.5, 2 + 1e-7], [True, True, False, False]),
        ("sin", [1e-7, 3.14159265], [False, False]),
    ],
)
def test_functions_that_jump_are_in_doubt_near_the_jump(name: str, points: list[float], doubted: list[bool]) -> None:
    arith = DoubtArithmetic(1e-5)
    found = arith.opaque(name, Doubted(np.array(points)))
    assert (np.zeros(len(points), bool) if found.doubtful is None else found.doubtful).tolist() == doubted
    assert arith.opaque(name, Doubted(np.array(points), exact=True)).doubtful is None


@pytest.mark.parametrize(
    ("name", "x", "y", "doubted"),
    [
        ("fmod", [6 - 1e-6, 6 + 1e-6, 6, 5, 1e-6], [3, 3, 3, 3, 3], [True, True, False, False, False]),
        ("atan2", [1e-6, -1e-6, 1e-6, 1, 0], [-1, -1, 1, -1, -1], [True, True, False, False, False]),
        ("copysign", [1, 1, 1], [1e-6, -1e-6, 1], [True, True, False]),
        ("pow", [1, 2, 3], [1e-6, 1, 2], [False, False, False]),
    ],
)
def test_so_are_those_of_two_operands(name: str, x: list[float], y: list[float], doubted: list[bool]) -> None:
    arith = DoubtArithmetic(1e-5)
    found = arith.opaque(name, Doubted(np.array(x)), Doubted(np.array(y)))
    assert (np.zeros(len(x), bool) if found.doubtful is None else found.doubtful).tolist() == doubted
    assert arith.opaque(name, Doubted(np.array(x), exact=True), Doubted(np.array(y), exact=True)).doubtful is None


@pytest.mark.parametrize(("name", "other"), [("floor", "ceil"), ("round", "floor"), ("trunc", "floor")])
def test_kernels_that_fall_on_the_other_side_of_a_jump_are_stable_and_others_are_not(name: str, other: str) -> None:
    made = Program()
    x, w = made.input("x", (64, 128)), made.input("w", (128, 256))
    made.output((x @ w).apply(name))
    functions = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}

    def run(which: str, factor: float) -> object:
        return lambda x, w: [functions[which](x.astype(np.float32) @ w.astype(np.float32) * np.float32(factor))]

    assert float_check(run(name, 1 + 3e-7), made.graph, seed=3).stable  # type: ignore[arg-type]
    assert not float_check(run(other, 1), made.graph, seed=3).stable  # type: ignore[arg-type]
    assert not float_check(run(name, 1 + 1e-3), made.graph, seed=3).stable  # type: ignore[arg-type]


def test_functions_without_values_everywhere_are_conditions() -> None:
    made = Program()
    a, b = made.input("a", (3,)), made.input("b", (3,))
    made.output(*(a.apply(name) for name in ("log1p", "asin", "acosh", "log2")), a.apply("fmod", b), (a * a).apply("log1p"))
    found = [str(condition) for condition in conditions(made.graph)]
    assert found == ["a + 1 > 0", "a + 1 >= 0", "1 - a >= 0", "a - 1 >= 0", "a > 0", "b != 0"]


def test_what_is_in_doubt_everywhere_is_asked_for_all_the_same() -> None:
    made = Program()
    x, y = made.input("x", (1000,)), made.input("y", (1000,))
    made.output(less(x * y, (x + 1e-9) * y))
    rng = np.random.default_rng(0)
    (found,) = certain_outputs(made.graph, [rng.standard_normal(1000), rng.standard_normal(1000)])
    assert np.isfinite(found).all()
