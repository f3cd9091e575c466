"""The checker's own count of sums: what it says decides about all sizes does, by exact arithmetic at each."""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mugraph.checker.saved_files import Rejected, Undecided
from mugraph.checker.size_templates import program_at
from mugraph.checker.sum_orders import conditions_of, orders_of_outputs
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.testing.named_sizes import NAME, Template, template_of_function
from mugraph.testing.summed_functions import Member, function_of, in_other_words, random_plan, span_of_sums, with_mistake

Function = Callable[[Any, Any, Any], Any]
SIZES = range(1, 9)


def counted(function: Function) -> tuple[Counter[str], Counter[str]]:
    """The orders of what a function returns."""
    ((numerator, denominator),) = orders_of_outputs(template_of_function(function), [NAME])[0]
    return numerator, denominator


def deciding(left: Function, right: Function) -> range:
    """The sizes at which equality is equality at all, where that is known."""
    conditions = conditions_of(template_of_function(left), template_of_function(right), [NAME])
    assert conditions.positive or conditions.analytic
    first, count = conditions.cutoffs[NAME]
    return range(first, first + count)


@pytest.mark.parametrize(
    ("function", "numerator", "denominator"),
    [
        (lambda x, y, w: x @ w, 0, 0),
        (lambda x, y, w: x.sum(0), 1, 0),
        (lambda x, y, w: x.mean(0), 1, 1),
        (lambda x, y, w: x @ x.T @ x, 1, 0),
        (lambda x, y, w: (x @ x.T).sum(0) * x.sum(1).sum(0), 2, 0),
        (lambda x, y, w: x * (x.shape[0] * x.shape[0] - 1), 2, 0),
        (lambda x, y, w: x / (1 + (x * x).sum(0, keepdim=True)), 0, 1),
        (lambda x, y, w: x.sum(0, keepdim=True) / x.sum(0, keepdim=True), 1, 1),
        (lambda x, y, w: (x / x.sum(0, keepdim=True)) / (y / x.sum(0, keepdim=True)), 0, 0),
        (lambda x, y, w: (x / x.sum(0, keepdim=True)).sum(1), 1, 2),
    ],
)
def test_orders_of_numerators_and_denominators(function: Function, numerator: int, denominator: int) -> None:
    assert counted(function) == (
        Counter({NAME: numerator} if numerator else {}),
        Counter({NAME: denominator} if denominator else {}),
    )


def test_a_divisor_of_both_is_no_factor_of_either() -> None:
    def total(x: Any) -> Any:
        return 1 + (x * x).sum(0, keepdim=True)

    assert len(deciding(lambda x, y, w: x / total(x) + y / total(x), lambda x, y, w: (x + y) / total(x))) == 1
    assert len(deciding(lambda x, y, w: x / total(x) + y / total(y), lambda x, y, w: (x + y) / total(x))) == 2
    assert len(deciding(lambda x, y, w: x / total(x), lambda x, y, w: (1 * x) / total(x))) == 1


def test_divisors_in_other_places_are_others() -> None:
    """1 / d[i] and 1 / d[j] are not one number, though d is one tensor."""

    def rows(x: Any) -> Any:
        return x @ x.T / (1 + ((x * x).sum(1, keepdim=True) * x.mean(0, keepdim=True)).sum(1, keepdim=True) * 0 + x.shape[0])

    sizes = deciding(lambda x, y, w: rows(x) - rows(x).T, lambda x, y, w: 0 * (x @ x.T))
    assert len(sizes) > len(deciding(lambda x, y, w: rows(x) - rows(x), lambda x, y, w: 0 * (x @ x.T)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, y, w: (x / (x @ x.T).sum(1, keepdim=True)).sum(0), "by another sum at each index"),
        (lambda x, y, w: x.writer.add("exp", (NAME, 2), [x + x.sum(0, keepdim=True)]), "no sum, product or quotient"),
        (lambda x, y, w: x.writer.add("sqrt", (NAME, 2), [x.mean(0, keepdim=True) + x]), "no sum, product or quotient"),
        (lambda x, y, w: x.writer.add("max", (1, 2), [x], dim=0, size=NAME), "it is no sum over n"),
        (lambda x, y, w: x.writer.add("slice", (1, 2), [x], dim=0, start=0, size=1, step=1), "positions along n"),
        (lambda x, y, w: x.writer.add("cumsum", (NAME, 2), [x], dim=0), "it is no sum over n"),
        (lambda x, y, w: x.writer.add("repeat", (NAME, 2), [x], dim=0, times=NAME), "it repeats what varies"),
    ],
)
def test_what_is_not_counted_is_undecided(function: Function, reason: str) -> None:
    with pytest.raises(Undecided, match=reason):
        counted(function)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, y, w: x.writer.add("add", (NAME, 2), [x, x.T]), "broadcast"),
        (lambda x, y, w: x.writer.add("matmul", (NAME, 2), [x, x]), "matrix product"),
        (lambda x, y, w: x.writer.add("sum", (1, 2), [x], dim=0, size=3), "groups of 3"),
        (lambda x, y, w: x.writer.add("add", (4, 2), [x, x]), "at every size"),
        (lambda x, y, w: x.writer.add("transpose", (2, NAME), [x], permutation=[0, 0]), "permutation"),
    ],
)
def test_programs_that_are_none_at_some_sizes_are_refused(function: Function, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        counted(function)


def test_only_positive_divisors_and_analytic_functions_decide() -> None:
    def conditions(function: Function) -> tuple[bool, bool]:
        return orders_of_outputs(template_of_function(function), [NAME])[1:]

    assert conditions(lambda x, y, w: x / (1 + (x * x).sum(0, keepdim=True))) == (True, True)
    assert conditions(lambda x, y, w: x / x.sum(0, keepdim=True)) == (False, True)
    assert conditions(lambda x, y, w: x.writer.add("relu", (NAME, 2), [x]) / x.sum(0, keepdim=True)) == (False, False)
    assert conditions(lambda x, y, w: x / x) == (True, True)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_is_a_program_at_every_size(seed: int) -> None:
    template = template_of_function(function_of(random_plan(random.Random(seed), 4)))
    for size in (2, 5):
        program_at(template, {NAME: size}, "program")


# --- attacks -----------------------------------------------------------------------------------------------------------


def members_of(seed: int) -> list[tuple[Template, Member]]:
    """A random function, the same in other words, and with mistakes, which both counts know."""
    draw = random.Random(seed)
    plan = random_plan(draw, draw.randrange(1, 6))
    plans = [plan, *((with_mistake if number % 2 else in_other_words)(plan, draw) for number in range(1, 6))]
    found = []
    for function in map(function_of, plans):
        try:
            template = template_of_function(function)
            orders_of_outputs(template, [NAME])
            found.append((template, Member(function)))
        except (SizeMatters, Undecided):
            continue
    return found


def wrong_pairs(seeds: Sequence[int], fewer: int) -> list[int]:
    """Seeds of pairs that agree at the sizes that decide, but for so many of the last, and differ at another one."""
    wrong = []
    for seed in seeds:
        for (left, ours), (right, theirs) in itertools.combinations(members_of(seed), 2):
            first, count = conditions_of(left, right, [NAME]).cutoffs[NAME]
            sizes = range(first, first + count - fewer)
            if count > 12 or not sizes or not ours.is_accepted(theirs, sizes, seed):
                continue
            differs = [ours.agrees(theirs, size, seed + 1) is False for size in range(1, max(8, first + count + 1) + 1)]
            wrong += [seed] * any(differs)
    return wrong


def test_no_pair_that_agrees_at_the_sizes_that_decide_differs_at_another() -> None:
    assert wrong_pairs(range(40), 0) == []


def test_with_one_size_fewer_wrong_pairs_are_found() -> None:
    assert wrong_pairs(range(40), 1) != []


@pytest.mark.parametrize("seed", range(4))
def test_combinations_of_sums_that_vanish_at_the_sizes_that_decide_do_at_all(seed: int) -> None:
    span = span_of_sums(random.Random(seed))
    total = template_of_function(lambda x, y, w: functools.reduce(operator.add, (each(x, y, w) for each in span.functions)))
    zero = template_of_function(lambda x, y, w: 0 * x.sum(0))
    first, count = conditions_of(total, zero, [NAME]).cutoffs[NAME]
    assert span.vanish_at_all(range(first, first + count))
    assert not span.vanish_at_all(range(first, first + count - 1))
