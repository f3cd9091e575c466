"""Which plans become candidates: the best predicted, and the best of every kind that is not far behind.

A predicted time only ranks, and it ranks schedules of one structure better than structures of different kinds. So that
profiling decides between one launch and several, or between for-loops over different axes, each kind sends its best.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from mugraph.search.closure.recipe import Recipe
from mugraph.search.closure.stabilize import exponentials
from mugraph.search.kernels import Kernel
from mugraph.search.planning.plans import WORTH_MEASURING, Library, Plan

CANDIDATES = 16
"""As many as are compiled and measured (`mugraph.qualify`)."""

_PER_STRUCTURE = 4
_SHARE_OF_KINDS = 2
_FEWEST_LAUNCHES = 4


def most_promising(plans: Iterable[Plan], count: int = CANDIDATES) -> list[Plan]:
    """At most `count` plans, best predicted first: the best one of each kind takes part if it is worth measuring.

    So does the best of those with the fewest launches up to four times as far behind, for what a launch costs is what predictions
    know least. Kinds share up to half of the places; of one structure there are a few schedules at most. Where some plans keep
    all exponentials in range, those that do not are left out: they would not agree with the program in floating point.
    """
    known = list(plans)
    safe = [plan for plan in known if _in_range(plan)]
    ranked = sorted(((plan.seconds, number, plan) for number, plan in enumerate(safe or known)), key=lambda item: item[:2])
    if not ranked:
        return []
    least = ranked[0][0]
    leaders: dict[object, int] = {}
    for _, number, plan in itertools.takewhile(lambda item: item[0] <= WORTH_MEASURING * least, ranked):
        leaders.setdefault(plan.kind, number)
    chosen = set(itertools.islice(leaders.values(), count // _SHARE_OF_KINDS))
    seconds, number, _ = min(ranked, key=lambda item: len(item[2].stages))
    if seconds <= _FEWEST_LAUNCHES * WORTH_MEASURING * least:
        chosen.add(number)
    schedules = Counter(_structure(plan) for _, number, plan in ranked if number in chosen)
    for _, number, plan in ranked:
        if len(chosen) == count:
            break
        structure = _structure(plan)
        if number not in chosen and schedules[structure] < _PER_STRUCTURE:
            schedules[structure] += 1
            chosen.add(number)
    return [plan for _, number, plan in ranked if number in chosen]


def _in_range(plan: Plan) -> bool:
    """Whether a row maximum is subtracted before every exponential."""
    return all(isinstance(stage.kernel, Library) or _all_in_range(stage.kernel.recipe) for stage in plan.stages)


@lru_cache(maxsize=1 << 14)
def _all_in_range(recipe: Recipe) -> bool:
    return not exponentials(recipe)


def _structure(plan: Plan) -> tuple[object, ...]:
    """What the plan's launches compute and how, without schedules."""
    return tuple(_kernel(stage.kernel) for stage in plan.stages)


def _kernel(kernel: Kernel | Library) -> object:
    return kernel.recipe if isinstance(kernel, Kernel) else (kernel.left, kernel.right)
