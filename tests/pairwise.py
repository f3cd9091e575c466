"""Products of parameters in tests: of every two values that stand together somewhere one row runs always, all rows at night.

Most mistakes need two values at once; a product of four parameters has rows by the hundred, and its pairs are in a tenth of them.
Of seeds a few run always, and all at night.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

Places = tuple[int, ...]


def pairwise(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by the product of these parameters; rows that no pair needs are slow."""
    counts = [range(len(each)) for each in values.values()]
    needed = set(covering(counts))
    rows = [
        pytest.param(
            *(each[place] for each, place in zip(values.values(), places, strict=True)),
            marks=() if places in needed else pytest.mark.slow,
        )
        for places in itertools.product(*counts)
    ]
    return pytest.mark.parametrize(tuple(values), rows)


def first_by_day(values: Iterable[Any], count: int) -> list[Any]:
    """Values of a parameter, as seeds, of which the first `count` run always and all at night."""
    return [value if place < count else pytest.param(value, marks=pytest.mark.slow) for place, value in enumerate(values)]


def covering(counts: Sequence[Iterable[int]]) -> list[Places]:
    """Rows of a product that have every pair of values of two factors: again and again the first with most of what is left."""
    rows = list(itertools.product(*counts))
    left = set().union(*map(_pairs, rows)) if rows else set()
    chosen: list[Places] = []
    while left:
        chosen.append(max(rows, key=lambda row: len(_pairs(row) & left)))
        left -= _pairs(chosen[-1])
    return chosen


def _pairs(row: Places) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(row), min(2, len(row))))
