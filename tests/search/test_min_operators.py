"""The fewest operators that make a set of nodes, and in how many ways: against all derivations of small hypergraphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugraph.search.closure import min_operators
from mugraph.search.closure.min_operators import FewestOperators

Ways = list[list[tuple[int, int]]]


@st.composite
def hypergraphs(draw: st.DrawFn) -> Ways:
    """Up to eight nodes, each made in one to three ways from earlier ones; the first is a leaf."""
    count = draw(st.integers(1, 8))
    ways: Ways = []
    for node in range(count):
        earlier = st.integers(0, 2**node - 1)
        ways.append(draw(st.lists(st.tuples(earlier, st.integers(0, 1)), min_size=1, max_size=3)))
    return ways


def derivations(ways: Ways, needed: int) -> Iterator[int]:
    """The operators of every choice of one way for every needed node."""
    if not needed:
        yield 0
        return
    node = needed.bit_length() - 1
    for operands, count in ways[node]:
        yield from (count + rest for rest in derivations(ways, needed ^ 1 << node | operands))


@given(hypergraphs(), st.integers(1, 255), st.integers(0, 9))
def test_the_fewest_operators_are_exact_within_the_budget_and_a_bound_beyond(ways: Ways, needed: int, budget: int) -> None:
    needed &= 2 ** len(ways) - 1
    least = min(derivations(ways, needed))
    bounds = FewestOperators(ways)
    for limit in (budget // 2, budget):
        found = bounds.within(needed, limit)
        assert found <= least
        assert (found == least) == (least <= limit) or found == least > limit


@given(hypergraphs())
def test_where_too_many_sets_are_known_the_answer_is_still_a_bound(ways: Ways) -> None:
    needed = 2 ** len(ways) - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(min_operators, "_MOST_SETS", 1)
        assert FewestOperators(ways).within(needed, 100) <= min(derivations(ways, needed))


@given(hypergraphs(), st.integers(1, 255), st.integers(0, 9))
def test_derivations_are_counted_without_listing_them(ways: Ways, needed: int, budget: int) -> None:
    needed &= 2 ** len(ways) - 1
    listed = sum(operators <= budget for operators in derivations(ways, needed))
    assert FewestOperators(ways).completions(needed, budget, most=10**6) == listed
    assert (FewestOperators(ways).completions(needed, budget, most=3) > 3) >= (listed > 3)
    assert FewestOperators(ways).completions(needed, budget, most=10**6, deadline=0.0) in (listed, 10**6 + 1)


def test_shared_operands_count_once() -> None:
    """Two nodes made from one leaf, and their sum."""
    assert FewestOperators([[(0, 1)], [(1, 1)], [(1, 1)], [(0b110, 1)]]).within(0b1000, 4) == 4
