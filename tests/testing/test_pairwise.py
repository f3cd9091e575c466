"""Rows that always run have every pair of values, and there are few of them."""

from __future__ import annotations

import itertools

import pytest

from pairwise import covering, pairwise


@pytest.mark.parametrize("counts", [(5, 4, 2, 3), (2, 2), (3,), (4, 3, 3, 2, 2)])
def test_every_pair_of_values_is_covered(counts: tuple[int, ...]) -> None:
    rows = covering([range(count) for count in counts])
    for (first, some), (second, others) in itertools.combinations(enumerate(counts), 2):
        assert {(row[first], row[second]) for row in rows} == set(itertools.product(range(some), range(others)))
    largest = sorted(counts)[-2:]
    assert len(rows) <= 1.5 * largest[0] * largest[-1]


def test_what_no_pair_needs_is_slow() -> None:
    mark = pairwise(x=[1, 2, 3], y=["a", "b"], z=[False, True]).mark
    names, rows = mark.args
    assert names == ("x", "y", "z")
    assert len(rows) == 12
    slow = [row.values for row in rows if row.marks]
    assert 0 < len(slow) <= 6
    assert {row.values for row in rows} == set(itertools.product([1, 2, 3], ["a", "b"], [False, True]))
