"""How far one order of figures is another one: what is predicted beside what is measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation of two figures of the same things; None where there are fewer than two, or one figure is level."""
    places = [_ranks(first), _ranks(second)]
    return None if any(len(set(each)) < 2 for each in places) else statistics.correlation(*places)


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value, that of equal ones in the middle of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
