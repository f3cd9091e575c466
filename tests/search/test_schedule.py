"""Schedules: what the lower bounds leave out could not have been among the best."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.devices import Device, device_for
from mugraph.ir import Graph
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.scheduling.cost_table import CostTable, in_femtoseconds
from mugraph.search.scheduling.schedule import Scheduled, Scheduler, TopSchedules

from .programs import attention, gated_mlp, rmsnorm

CPU = device_for("cpu")
SMALL = dataclasses.replace(CPU, shared_memory_bytes=2048)
"""A device with so little shared memory that most schedules do not fit."""
LEAVING = dataclasses.replace(CPU, multiprocessors=2, last_level_bytes=2048)
"""A device on which most of what blocks read again comes from memory again."""

VARIANTS = 3

Entry = tuple[float, int, int, int]
"""Predicted seconds, number of the sketch, place in its space, variant."""


def costs_and_variants(program: Graph, device: Device) -> tuple[tuple[SketchCost, ...], list[tuple[int, ...]]]:
    """The sketches of all contexts, and some sizes of their axes."""
    search = Search(program, device)
    produces = tuple(-1 - index for index in range(len(search.axes.outputs)))
    costs = tuple(itertools.chain.from_iterable(search.kernels.costs(search.axes, Tier.OPAQUE_SUMS, produces)))
    return costs, [tuple(size * factor for size in search.axes.sizes) for factor in range(1, VARIANTS + 1)]


def all_that_fit(costs: tuple[SketchCost, ...], scheduler: Scheduler) -> list[Entry]:
    """Every schedule of every sketch, none left out but for its memory."""
    entries: list[Entry] = []
    for number, cost in enumerate(costs):
        space, table = scheduler.space(cost.cut_axes), CostTable([cost])
        everything = np.arange(len(space))
        (seconds,), (memory,) = table.seconds(space, everything), table.memory(space, everything)
        fits = np.flatnonzero(memory <= cost.device.shared_memory_bytes)
        entries.extend((float(seconds[i]), number, int(i), int(space.variant[i])) for i in fits)
    return sorted(entries)


def described(found: Scheduled) -> tuple[float, int, tuple[tuple[int, int], ...], int, int]:
    """A result in terms that can be compared."""
    return found.seconds, id(found.cost), found.schedule.grid, found.schedule.loop, found.variant


def expected(entry: Entry, costs: tuple[SketchCost, ...], scheduler: Scheduler) -> object:
    """The same for one of `all_that_fit`."""
    seconds, number, index, variant = entry
    schedule = scheduler.space(costs[number].cut_axes).schedule(index)
    return seconds, id(costs[number]), schedule.grid, schedule.loop, variant


CASES = pytest.mark.parametrize(
    ("make", "device"),
    [(make, device) for make in (rmsnorm, gated_mlp, lambda: attention(4, 32, 8)) for device in (CPU, SMALL, LEAVING)],
)


@CASES
def test_the_best_of_each_sketch_are_the_best_of_all_its_schedules(make: Callable[[], Graph], device: Device) -> None:
    costs, variants = costs_and_variants(make(), device)
    scheduler = Scheduler(variants[:1])
    entries = all_that_fit(costs, scheduler)
    by_sketch = [[entry for entry in entries if entry[1] == number][:4] for number in range(len(costs))]
    found = [described(one) for one in scheduler.best_of_each(costs, 4)]
    assert found == [expected(entry, costs, scheduler) for entry in itertools.chain.from_iterable(by_sketch)]
    assert found


@CASES
def test_the_best_of_all_sketches_count_what_a_variant_costs_besides(make: Callable[[], Graph], device: Device) -> None:
    costs, variants = costs_and_variants(make(), device)
    scheduler, rest = Scheduler(variants), np.array([3e-4, 1e-4, 0.0])
    entries = sorted(
        (seconds + rest[variant], number, i, variant) for seconds, number, i, variant in all_that_fit(costs, scheduler)
    )
    bound = entries[len(entries) // 2][0]
    below = [entry for entry in entries if entry[0] < bound][:5]
    found = [described(one) for one in scheduler.best(costs, 5, bound, rest)]
    own = [float(in_femtoseconds(total - rest[variant])) for total, _, _, variant in below]
    assert found == [expected((seconds, *entry[1:]), costs, scheduler) for seconds, entry in zip(own, below, strict=True)]
    assert found


@CASES
def test_the_least_of_each_variant_is_the_least_of_all(make: Callable[[], Graph], device: Device) -> None:
    costs, variants = costs_and_variants(make(), device)
    scheduler = Scheduler(variants)
    entries = all_that_fit(costs, scheduler)
    least = {variant: next(entry for entry in entries if entry[3] == variant) for variant in {entry[3] for entry in entries}}
    found = {variant: described(one) for variant, one in scheduler.least(costs).items()}
    assert found == {variant: expected(entry, costs, scheduler) for variant, entry in least.items()}
    assert found


def test_top_schedules_are_the_fastest_of_each_group_and_ties_go_to_the_smaller_id() -> None:
    top = TopSchedules(groups=2, count=2, bound=9.0)
    top.add(np.array([0, 1, 0]), np.array([5.0, 9.0, 3.0]), np.array([7, 1, 8]))
    assert top.cutoff.tolist() == [5.0, 9.0]
    top.add(np.array([0, 0, 1]), np.array([5.0, 5.5, 4.0]), np.array([6, 2, 3]))
    assert top.groups.tolist() == [0, 0, 1]
    assert top.numbers.tolist() == [8, 6, 3]
    assert top.seconds.tolist() == [3.0, 5.0, 4.0]
