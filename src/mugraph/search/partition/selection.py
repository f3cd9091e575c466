"""Which plans become candidates: the best predicted, and the best of every kind and precision that is not far behind.

A predicted time only ranks, and it ranks schedules of one structure better than structures of different kinds. So that
profiling decides between one launch and several, or between for-loops over different axes, each kind sends its best. It
knows nothing of rounding either: so that what a comparison in floating point drops leaves others to choose from, plans that
lose more precision than others (`mugraph.search.partition.rounding_model`) share the places with them, and what plans subtract
is taken twice where that makes them more precise (`refined`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from mugraph.search.closure.sketch import Sketch
from mugraph.search.kernels import KernelSearch, ScheduledSketch
from mugraph.search.partition.plan import Library, Plan, Stage
from mugraph.search.partition.plans import WORTH_MEASURING
from mugraph.search.partition.rounding_model import NO_ERROR, Errors, Rehearsal
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.tasks import CANDIDATES


def refined(plans: Iterable[Plan], rehearsal: Rehearsal, kernels: KernelSearch) -> Iterator[Plan]:
    """For each structure among the plans its more precise form, if there is one, under the best schedules of that.

    Partial results are left as they are: their schedules belong together.
    """
    seen: set[tuple[Sketch, ...]] = set()

    def kernels_of(kernel: ScheduledSketch, sketch: Sketch) -> Iterator[ScheduledSketch]:
        """Kernels of another sketch that reads and writes what `kernel` does, best first."""
        sources = tuple(kernels.tensor_of(leaf.source).dtype for leaf in sketch.leaves)
        cost = SketchCost(sketch, sources, kernel.outputs, kernels.device)
        scheduler = kernels.scheduler([kernel.sizes], frame=kernels.space.frame(()))
        for found in scheduler.best_of_each((cost,), kernels.options.schedules_per_sketch):
            yield ScheduledSketch.of(found, kernel.sizes)

    for plan in plans:
        sketches = rehearsal.centred(plan)
        if sketches not in seen and all(len(stage.kernel.sizes) == len(kernels.whole.sizes) for stage in plan.stages):
            seen.add(sketches)
            yield from _scheduled(plan, sketches, kernels_of)


def _scheduled(
    plan: Plan, sketches: Sequence[Sketch], kernels_of: Callable[[ScheduledSketch, Sketch], Iterator[ScheduledSketch]]
) -> Iterator[Plan]:
    """The plan with other sketches, whose launches have the best schedules each, then the second best, and so on."""
    changed: dict[int, list[ScheduledSketch]] = {}
    for position, (stage, sketch) in enumerate(zip(plan.stages, sketches, strict=True)):
        if isinstance(stage.kernel, ScheduledSketch) and sketch != stage.kernel.sketch:
            changed[position] = list(kernels_of(stage.kernel, sketch))
    if not all(changed.values()):
        return
    for place in range(max(map(len, changed.values()), default=0)):
        stages: list[Stage] = list(plan.stages)
        for position, found in changed.items():
            stages[position] = replace(stages[position], kernel=found[min(place, len(found) - 1)])
        yield Plan(tuple(stages))


_PER_STRUCTURE = 4
"""One of so many places is for a schedule of one structure, which predictions rank well."""
_SHARE_OF_KINDS = 2
"""One of so many places is for the leaders of kinds."""
_FEWEST_LAUNCHES = 10
"""How many times as far behind as others the plan of the fewest launches may be."""

_ORDER = 32.0
"""Errors that differ by less are of one order."""


def most_promising(plans: Iterable[Plan], errors: Callable[[Plan], Errors], count: int = CANDIDATES) -> list[Plan]:
    """At most `count` plans, best predicted first: the best one of each kind takes part if it is worth measuring.

    So does the best of those with the fewest launches up to ten times as far behind, for what a launch costs is what predictions
    know least. Kinds share up to half of the places, the most precise plans of each first; the other places go to all orders of
    precision in turn. Of one structure there are a few schedules at most. Plans whose `errors` are infinite where those of
    another are not are left out: they would not agree with the program in floating point.
    """
    known = list(plans)
    lost = orders_lost([errors(plan) for plan in known])
    ranked = sorted((plan.seconds, number) for number, plan in enumerate(known) if lost[number] is not None)
    if not ranked:
        return []
    least, _ = ranked[0]
    leaders: dict[object, int] = {}
    for _, number in itertools.takewhile(lambda entry: entry[0] <= WORTH_MEASURING * least, ranked):
        leaders.setdefault((known[number].kind, lost[number]), number)
    chosen = set(sorted(leaders.values(), key=lambda number: lost[number] or 0)[: count // _SHARE_OF_KINDS])
    seconds, number = min(ranked, key=lambda entry: len(known[entry[1]].stages))
    if seconds <= _FEWEST_LAUNCHES * WORTH_MEASURING * least:
        chosen.add(number)
    schedules = Counter(_structure(known[number]) for number in chosen)
    for number in _in_turn([number for _, number in ranked], lost):
        if len(chosen) == count:
            break
        structure = _structure(known[number])
        if number not in chosen and schedules[structure] * _PER_STRUCTURE < count:
            schedules[structure] += 1
            chosen.add(number)
    return [known[number] for _, number in ranked if number in chosen]


def orders_lost(errors: Sequence[Errors]) -> list[int | None]:
    """By how many orders the errors of each plan exceed the least that any plan has on the same inputs, where they do most.

    None for plans beyond the range of numbers, unless all of them are.
    """
    least = [max(NO_ERROR, min(kind)) for kind in zip(*errors, strict=True)]
    lost = [_orders(found, least) for found in errors]
    return lost if any(orders is not None for orders in lost) else [0] * len(lost)


def _orders(found: Errors, least: Sequence[float]) -> int | None:
    excess = max((error / best for error, best in zip(found, least, strict=True) if math.isfinite(best)), default=1.0)
    return int(math.log(max(1.0, excess), _ORDER)) if math.isfinite(excess) else None


def _in_turn(ranked: Sequence[int], lost: Sequence[int | None]) -> Iterable[int]:
    """The next of every order of precision by turns, the most precise first."""
    by_order: dict[int, list[int]] = {}
    for number in ranked:
        by_order.setdefault(lost[number] or 0, []).append(number)
    turns = itertools.zip_longest(*(by_order[order] for order in sorted(by_order)))
    return (number for turn in turns for number in turn if number is not None)


def _structure(plan: Plan) -> tuple[object, ...]:
    """What the plan's launches compute and how, without schedules."""
    return tuple(_kernel(stage.kernel) for stage in plan.stages)


def _kernel(kernel: ScheduledSketch | Library) -> object:
    return kernel.sketch if isinstance(kernel, ScheduledSketch) else (kernel.left, kernel.right)
