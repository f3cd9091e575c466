"""Equality at every size by tests at a few: what is called equal is, and what is equal at small sizes only is not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.size_numbers import SizeNumber
from mugraph.testing.summed_functions import (
    Member,
    counts_of,
    function_of,
    in_other_words,
    random_plan,
    span_of_sums,
    with_mistake,
)
from mugraph.verifier import Verdict

N = Dim("n", 1, 1000)
FROM_TWO = Dim("n", 2, 1000)
BATCH = Dim("batch", 1, 100)
X = torch.randn(3, 2)
Fn = Callable[..., Any]


def asked(left: Fn, right: Fn, *inputs: torch.Tensor, dim: Dim = N, **options: Any) -> Verdict:
    """The verdict on functions of tensors that have the dimension first."""
    given = inputs or (X,)
    return mugraph.verify(left, right, given, dynamic={number: {0: dim} for number in range(len(given))}, seed=1, **options)


def power_sum(x: torch.Tensor, power: int) -> torch.Tensor:
    return (x**power).sum(0)


def elementary(x: torch.Tensor, order: int) -> torch.Tensor:
    """`order!` times the elementary symmetric polynomial, by Newton's identities; 0 where there are fewer rows."""
    p = {power: power_sum(x, power) for power in range(1, 5)}
    if order == 2:
        return p[1] ** 2 - p[2]
    if order == 3:
        return p[1] ** 3 - 3 * p[1] * p[2] + 2 * p[3]
    return p[1] ** 4 - 6 * p[1] ** 2 * p[2] + 3 * p[2] ** 2 + 8 * p[1] * p[3] - 6 * p[4]


def zero(x: torch.Tensor) -> torch.Tensor:
    return 0 * x.sum(0)


def numbered(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x), dtype=torch.float32)[:, None]


def test_the_verdict_says_for_which_sizes_it_is_and_by_which() -> None:
    verdict = asked(lambda x: (2 * x + 1).sum(0), lambda x: 2 * x.sum(0) + x.shape[0])
    assert verdict.equivalent
    assert verdict.claim == "for every size from 1 to 1000 of n, by tests at 1, 2, 3"
    assert verdict.sizes == ({"n": 3}, {"n": 1}, {"n": 2})
    assert verdict.claim in repr(verdict)
    assert 0 < (verdict.error_bound or 0) <= 2**-40


@pytest.mark.parametrize("order", [2, 3, 4])
def test_identities_of_fewer_rows_than_indices_are_found_out(order: int) -> None:
    verdict = asked(lambda x: elementary(x, order), zero, X[:1])
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == {"n": order}
    assert verdict.counterexample is not None


@pytest.mark.parametrize("last", [2, 3, 4])
def test_numbers_that_are_zero_at_some_sizes_are_found_out(last: int) -> None:
    def vanishing(x: torch.Tensor) -> torch.Tensor:
        for size in range(2, last + 1):
            x = x * (x.shape[0] - size)
        return x

    verdict = asked(vanishing, lambda x: 0 * x, X[:2], dim=FROM_TWO)
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == {"n": last + 1}


def test_a_number_that_scales_what_is_taken_away_is_counted_with_it() -> None:
    def vanishing(x: torch.Tensor) -> torch.Tensor:
        """0 at the sizes 1 to 5, as a number of degree 2 times one of degree 3."""
        n = x.shape[0]
        return torch.rsub(x * ((n - 3) * (n - 4) * (n - 5)), 0 * x, alpha=(n - 1) * (n - 2))

    verdict = asked(vanishing, lambda x: 0 * x)
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == {"n": 6}


def test_a_square_and_a_line_meet_at_two_sizes() -> None:
    verdict = asked(lambda x: x.sum(0) * (x.shape[0] ** 2 - 5 * x.shape[0]), lambda x: -6 * x.sum(0), X[:2], dim=FROM_TWO)
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == {"n": 4}


def test_a_mean_is_no_sum_times_a_number() -> None:
    assert asked(lambda x: x.mean(0), lambda x: x.sum(0) / x.shape[0]).equivalent
    verdict = asked(lambda x: x.mean(0), lambda x: x.sum(0) / 3)
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == {"n": 1}


def test_attention_is_one_function_for_any_number_of_keys_and_samples() -> None:
    def divided_last(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        powers = torch.exp(q @ k.transpose(-1, -2) / 2)
        return powers @ v / powers.sum(-1, keepdim=True)

    q, k, v = torch.randn(2, 1, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    dynamic: Any = {0: {0: BATCH}, 1: {0: BATCH, 1: N}, 2: {0: BATCH, 1: N}}
    verdict = mugraph.verify(F.scaled_dot_product_attention, divided_last, (q, k, v), dynamic=dynamic)
    assert verdict.equivalent
    assert verdict.claim.startswith("for every size from 1 to 100 of batch and from 1 to 1000 of n, by tests at (1, 1), (1, 2), ")
    assert {"batch": 2, "n": 4} in verdict.sizes
    scaled = mugraph.verify(
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -1) @ v, divided_last, (q, k, v), dynamic=dynamic
    )
    assert scaled.outcome == "different"


def test_any_function_of_a_row_may_stand_in_sums_over_rows() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1)

    assert asked(lambda x: torch.relu(norm(x)).mean(0), lambda x: torch.relu(norm(x)).sum(0) / x.shape[0]).equivalent
    assert asked(lambda x: torch.softmax(norm(x), -1).sum(0) * 2, lambda x: (2 * torch.softmax(norm(x), -1)).sum(0)).equivalent
    assert asked(lambda x: F.layer_norm(x, (2,)).sum(0), lambda x: F.layer_norm(x, (2,)).sum(0) * 1.5).outcome == "different"


def test_pairs_of_rows_are_compared_where_both_are_one() -> None:
    def off_diagonal(x: torch.Tensor) -> torch.Tensor:
        return x @ x.T - x @ x.T

    assert asked(off_diagonal, lambda x: 0 * (x @ x.T)).equivalent
    verdict = asked(lambda x: x[:, :1] @ x[:, 1:].T, lambda x: x[:, 1:] @ x[:, :1].T, X[:1])
    assert verdict.outcome == "different"
    assert verdict.sizes == ({"n": 1}, {"n": 2})


@pytest.mark.parametrize(
    ("vanishing", "seen"),
    [
        (lambda x, y: (x @ y.T).sum(1) * (x.shape[0] - y.shape[0]), {"n": 1, "batch": 2}),
        (lambda x, y: elementary(x, 2) * elementary(y, 3), {"n": 2, "batch": 3}),
        (lambda x, y: x * y.sum(0) * (x.shape[0] - 1) * (y.shape[0] - 1) * (y.shape[0] - 2), {"n": 2, "batch": 3}),
    ],
)
def test_what_vanishes_at_some_sizes_of_two_is_found_out(vanishing: Fn, seen: dict[str, int]) -> None:
    dynamic: Any = {0: {0: N}, 1: {0: BATCH}}
    verdict = mugraph.verify(vanishing, lambda x, y: 0 * vanishing(x, y), (X[:1], X[:1]), dynamic=dynamic, seed=1)
    assert verdict.outcome == "different"
    assert verdict.sizes[-1] == seen


@pytest.mark.parametrize(
    ("left", "right", "reason"),
    [
        (lambda x: x.flip(0).sum(0), lambda x: x.sum(0), "acts along the axis"),
        (lambda x: (x + x).sum(0).exp(), lambda x: x.sum(0).exp() ** 2, "an exponential of sums"),
        (lambda x: torch.relu(x / x.shape[0]), lambda x: torch.relu(x) / x.shape[0], "no sum, product or quotient of sums"),
        (lambda x: torch.softmax(x @ x.T, -1).mean(0), lambda x: torch.softmax(x @ x.T, -1).sum(0) / x.shape[0], "at each index"),
        (lambda x: x.sum(0) * (1 / x.shape[0]), lambda x: x.mean(0), "Python computes of sizes"),
        (lambda x: 2 * numbered(x).sum(0) * x.sum(0), lambda x: x.sum(0) * (x.shape[0] * (x.shape[0] - 1)), "arange"),
    ],
)
def test_what_a_few_sizes_do_not_decide_is_undecided(left: Fn, right: Fn, reason: str) -> None:
    verdict = asked(left, right)
    assert verdict.outcome == "undecided"
    assert reason in verdict.reason


def test_divisors_that_may_be_zero_are_looked_at_at_each_size() -> None:
    def centred(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum(0) / (x.sum(0) ** 2 - (x * x).sum(0))  # 0 / 0 of one row

    assert asked(lambda x: (x * x).sum(0) / x.sum(0), lambda x: (3 * x * x).sum(0) / (3 * x).sum(0)).equivalent
    assert asked(centred, lambda x: centred(2 * x)).outcome == "undecided"
    assert asked(centred, lambda x: centred(2 * x), dim=FROM_TWO).equivalent
    opaque = asked(lambda x: x.sum(0) / torch.relu(x).sum(0), lambda x: (2 * x).sum(0) / torch.relu(2 * x).sum(0))
    assert opaque.outcome == "undecided"
    assert "may be 0" in opaque.reason
    at_four = asked(lambda x: x.sum(0) / (x.shape[0] - 4), lambda x: 2 * x.sum(0) / (x.shape[0] - 4) / 2, dim=FROM_TWO)
    assert at_four.outcome == "undecided"


def deviations(x: torch.Tensor) -> torch.Tensor:
    return ((x - x.mean(0)) ** 2).sum(0)


def test_a_size_without_a_value_is_named_with_the_way_to_leave_it_out() -> None:
    def of_variance(x: torch.Tensor) -> torch.Tensor:
        return x.var(0) * (x.shape[0] - 1)

    verdict = asked(of_variance, deviations)
    assert verdict.outcome == "undecided"
    assert verdict.reason.startswith("undecided: at n = 1: result 0 is no number in one of them")
    assert "declare n from 2 on" in verdict.reason
    assert asked(of_variance, deviations, dim=FROM_TWO).equivalent
    assert asked(lambda x: 2 * x.var(0), lambda x: x.var(0) + x.var(0)).outcome == "undecided"


@pytest.mark.parametrize(
    ("left", "right", "outcome", "seen"),
    [
        (lambda x: x.sum(0) / (len(x) - 50) * (len(x) - 50), lambda x: x.sum(0), "undecided", 50),
        (lambda x: (x.sum(0) * 0 + (50 - len(x))).log() * 0, lambda x: 0 * x.sum(0), "different", 50),
    ],
)
def test_sizes_far_off_at_which_a_number_made_of_the_size_vanishes_are_looked_at(
    left: Fn, right: Fn, outcome: str, seen: int
) -> None:
    verdict = asked(left, right, dim=FROM_TWO)
    assert verdict.outcome == outcome, verdict
    assert verdict.sizes[-1] == {"n": seen} or f"at n = {seen}:" in verdict.reason


def test_a_number_that_is_zero_at_all_sizes_has_no_degree() -> None:
    size = sympy.Symbol("n")
    number = SizeNumber.of(SimpleNamespace(node=SimpleNamespace(expr=size - size)), {size: "n"})  # type: ignore[arg-type]
    assert number == SizeNumber({"n": 0}, positive=False, vanishing={})


def test_numbers_that_vanish_and_divide_nothing_ask_for_no_further_sizes() -> None:
    verdict = asked(lambda x: x.sum(0) * (len(x) - 50), lambda x: (x * (len(x) - 50)).sum(0))
    assert verdict.equivalent
    assert {"n": 50} not in verdict.sizes


def test_functions_that_branch_on_the_size_are_not_taken_for_one() -> None:
    def odd_one_out(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * (2 if x.shape[0] == 7 else 1)

    verdict = asked(odd_one_out, lambda x: x.sum(0))
    assert verdict.outcome == "undecided"


def test_a_size_at_which_a_function_fails_is_named() -> None:
    verdict = asked(lambda x: x.reshape(-1, 2, 2).sum((0, 1)), lambda x: x.sum(0), torch.randn(4, 2))
    assert verdict.outcome == "undecided"
    assert verdict.reason.startswith("undecided: at n = 1: ")
    assert verdict.claim == ""


def test_ranges_of_few_sizes_are_tested_one_by_one() -> None:
    verdict = asked(lambda x: x.flip(0).sum(0), lambda x: x.sum(0), dim=Dim("n", 0, 4))
    assert verdict.equivalent
    assert verdict.claim == "for every size from 1 to 4 of n, by tests at 1, 2, 3, 4"


def test_arguments_by_name_have_their_own_sizes() -> None:
    def left(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return (2 * (b @ a)).sum(0)

    given = {"b": torch.randn(3, 2), "a": torch.randn(2, 5)}
    dynamic: Any = {"b": {0: N}, "a": {1: BATCH}}
    verdict = mugraph.verify(left, lambda b, a: b.sum(0) @ a * 2, given, dynamic=dynamic)
    assert verdict.equivalent
    assert verdict.sizes[0] == {"n": 3, "batch": 5}
    assert mugraph.verify(left, lambda b, a: b.mean(0) @ a * 6, given, dynamic=dynamic).outcome == "different"


def test_arguments_by_name_come_in_the_order_of_the_example() -> None:
    def by_first(**given: Any) -> Any:
        return given["x"].sum(0) * next(iter(given.values()))

    given = {"z": 2.0, "x": X, "a": 3.0}
    dynamic: Any = {"x": {0: N}}
    assert mugraph.verify(by_first, lambda z, x, a: (x * z).sum(0), given, dynamic=dynamic).equivalent
    assert mugraph.verify(by_first, lambda z, x, a: (x * a).sum(0), given, dynamic=dynamic).outcome == "different"


def test_what_cannot_be_asked_is_an_error() -> None:
    with pytest.raises(ShapeMismatch, match="declared from 1 to 2"):
        asked(zero, zero, dim=Dim("n", 1, 2))
    with pytest.raises(InvalidInput, match="for_all_weights"):
        asked(zero, zero, for_all_weights=True)
    with pytest.raises(InvalidInput, match="size 0"):
        asked(zero, zero, X[:0], dim=Dim("n", 0, 9))


def test_arguments_that_are_no_tensors_are_what_they_are_in_the_example() -> None:
    def scaled(x: torch.Tensor, by: int) -> torch.Tensor:
        return x.sum(0) * by if by > 2 else x.sum(0)

    def once(x: torch.Tensor, by: int) -> torch.Tensor:
        return (2 * x).sum(0) / 2

    dynamic: Any = {0: {0: N}}
    assert mugraph.verify(scaled, once, (X, 1), dynamic=dynamic).equivalent
    assert mugraph.verify(scaled, once, (X, 3), dynamic=dynamic).outcome == "different"
    named: Any = {"x": {0: N}}
    assert mugraph.verify(scaled, once, {"x": X, "by": 2}, dynamic=named).equivalent


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("returned", "reason"),
    [((), "returns no tensor"), (None, "something else than tensors"), ((None, 3), "something else than tensors")],
)
def test_functions_that_return_no_tensor_are_undecided(returned: Any, reason: str, named: bool) -> None:
    given: Any = {"x": X} if named else (X,)
    verdict = mugraph.verify(lambda x: returned, lambda x: returned, given, dynamic={"x" if named else 0: {0: N}})
    assert verdict.outcome == "undecided"
    assert reason in verdict.reason


def test_a_choice_between_graphs_is_undecided() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.cond(x.shape[0] > 100, lambda y: y * 2, lambda y: y * 1, (x,))
        return made

    verdict = mugraph.verify(chosen, lambda x: x * 1, (torch.randn(5, 3),), dynamic={0: {0: N}})
    assert verdict.outcome == "undecided"
    assert "it chooses between graphs" in verdict.reason


def test_a_budget_that_ends_leaves_it_undecided() -> None:
    verdict = asked(lambda x: (2 * x).sum(0), lambda x: 2 * x.sum(0), budget=0.0)
    assert verdict.outcome == "undecided"


# the counts, by exact arithmetic at all sizes ------------------------------------------------------------------------------


def test_each_two_ways_to_sum_are_one_and_are_accepted() -> None:
    for first in range(0, 10, 2):
        one, other = (Member(function_of(((("summed", number, 0.0, 0.0),), 0))) for number in (first, first + 1))
        assert one.is_accepted(other, one.deciding_sizes(other), 1), first
        assert one.is_accepted(other, range(1, 9), 2), first


def test_random_pairs_that_are_accepted_are_equal_at_all_sizes_to_8() -> None:
    accepted = differing = 0
    for seed in range(20):
        draw = random.Random(seed)
        plan = random_plan(draw, 3)
        members = []
        for each in (plan, in_other_words(plan, draw), *(with_mistake(plan, draw) for _ in range(3))):
            try:
                members.append(Member(function_of(each)))
            except SizeMatters:
                continue
        for left, right in itertools.combinations(members, 2):
            sizes = left.deciding_sizes(right)
            differs = any(left.agrees(right, size, seed) is False for size in range(1, max(8, sizes[-1] + 2) + 1))
            if left.is_accepted(right, sizes, seed + 1):
                accepted += 1
                assert not differs, (seed, sizes)
            differing += differs
    assert accepted > 50
    assert differing > 20


def test_all_combinations_of_products_of_sums_that_vanish_where_it_decides_vanish_at_all() -> None:
    early = 0
    for seed in range(3):
        span = span_of_sums(random.Random(seed))
        assert span.vanish_at_all(span.sizes)
        early += not span.vanish_at_all(span.sizes[:-1])
    assert early == 3  # one size fewer says yes too early


@pytest.mark.parametrize("order", [2, 3, 4])
def test_no_fewer_sizes_decide(order: int) -> None:
    """The rules count `order` of a product of as many numbers, which is 0 at all but the last of the sizes that decide."""

    def vanishing(x: Any, y: Any, w: Any) -> Any:
        for size in range(1, order + 1):
            x = x * (x.shape[0] - size)
        return x

    (output,) = counts_of(vanishing).outputs
    assert output.bounds.top.order == {"n": order}
    member, nothing = Member(vanishing), Member(lambda x, y, w: 0 * x)
    sizes = member.deciding_sizes(nothing)
    assert sizes == range(1, order + 2)
    assert member.is_accepted(nothing, sizes[:-1], 1)
    assert not member.is_accepted(nothing, sizes, 1)


def test_elementary_symmetric_polynomials_need_as_many_sizes_as_rows() -> None:
    member = Member(lambda x, y, w: x.sum(0) * x.sum(0) - (x * x).sum(0))
    nothing = Member(lambda x, y, w: 0 * x.sum(0))
    assert member.is_accepted(nothing, [1], 1)
    assert not member.is_accepted(nothing, member.deciding_sizes(nothing), 1)


def test_sizes_that_were_not_declared_are_not_tested() -> None:
    fours = Dim("n", 4, 1000, multiple_of=4)
    verdict = asked(lambda x: (2 * x + 1).sum(0), lambda x: 2 * x.sum(0) + x.shape[0], torch.randn(8, 2), dim=fours)
    assert verdict.equivalent
    assert verdict.claim == "for every size from 4 to 1000 of n that is a multiple of 4, by tests at 4, 8"
    odd = asked(lambda x: x.sum(0) * (x.shape[0] - 8), lambda x: 0 * x.sum(0), torch.randn(8, 2), dim=fours)
    assert odd.outcome == "different"
    assert all(sizes["n"] % 4 == 0 for sizes in odd.sizes)
    few = asked(lambda x: x.sum(0) * (x.shape[0] - 4), lambda x: 0 * x.sum(0), torch.randn(4, 2), dim=Dim("n", 4, 4, 4))
    assert few.equivalent
