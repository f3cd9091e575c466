"""How far one order of figures is another one: what is predicted beside what is measured."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation of two figures of the same things; None where there are fewer than two, or one figure is level."""
    places = [_ranks(first), _ranks(second)]
    return None if any(len(set(each)) < 2 for each in places) else statistics.correlation(*places)


def ordered_pairs(first: Sequence[float], second: Sequence[float], apart: float) -> tuple[float, int]:
    """How many pairs of things, of those whose second figures differ by more than the share `apart` of the smaller one, the first
    figures put in the same order, equal ones counted by half, and how many such pairs there are."""
    both = list(zip(first, second, strict=True))
    pairs = [(a, b) for a, b in itertools.combinations(both, 2) if max(a[1], b[1]) > (1 + apart) * min(a[1], b[1])]
    return sum(0.5 if a[0] == b[0] else float((a[0] < b[0]) == (a[1] < b[1])) for a, b in pairs), len(pairs)


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value, that of equal ones in the middle of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
