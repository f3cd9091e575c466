"""Schedules: what the lower bounds leave out could not have been among the best."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.devices import Device, device_for
from mugraph.ir import Graph
from mugraph.ir.axes import AxisGroup
from mugraph.ir.program import Program
from mugraph.ir.validity import check
from mugraph.search import search
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.scheduling.cost import SketchCost
from mugraph.search.scheduling.cost_table import CostTable, in_femtoseconds
from mugraph.search.scheduling.schedule import Scheduled, Scheduler, TopSchedules
from mugraph.search.scheduling.space import grids_over
from mugraph.verifier import verify_graphs

from .programs import attention, finished, gated_mlp, normalized, outputs, rmsnorm

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


def described(found: Scheduled) -> tuple[float, int, tuple[tuple[AxisGroup, int], ...], int, int]:
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


def projections(batch: int = 2, width: int = 1024) -> Graph:
    """RMSNorm and three products with weights of two widths."""
    p = Program()
    x, *weights = p.input("x", (batch, width)), *(p.input(n, (width // s, width)) for n, s in (("q", 1), ("k", 4), ("v", 4)))
    normed = normalized(x)
    return finished(p, *(normed @ weight.transpose(-2, -1) for weight in weights))


def test_blocks_share_out_the_columns_of_every_weight_that_an_input_meets() -> None:
    program = projections()
    device = dataclasses.replace(CPU, multiprocessors=2, shared_memory_bytes=1 << 19)
    best = search(program, device).candidates[0]
    check(best.graph, device)
    (kernel,) = best.graph.kernels()
    assert kernel.body is not None
    assert kernel.body.grid == (2,)
    operands = {str(best.graph.nodes[value.node]["name"]): number for number, value in enumerate(kernel.inputs)}
    imaps = {node["operand"]: node["imap"] for node in kernel.body.nodes if node.is_iterator}
    assert [imaps[operands[name]] for name in "xqkv"] == [(None,), (0,), (0,), (0,)]
    assert best.cost == pytest.approx(predicted_seconds(best.graph, device), rel=0.05)
    assert verify_graphs(program, best.graph).equivalent
    small = projections(width=16)
    for candidate in search(small, device).candidates:
        for got, wanted in zip(outputs(candidate.graph), outputs(small), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


def sketch_of(*goals: tuple[int, ...], joined: tuple[int, ...] = ()) -> Sketch:
    """The squares of tensors with some axes each; those numbered `joined` are multiplied element by element, as a goal more."""
    leaves = [
        Step("load", (), frozenset(axes), in_loop=False, leaf=Leaf(n, tuple((a,) for a in axes))) for n, axes in enumerate(goals)
    ]
    count = len(leaves)
    squares = [Step("square", (n,), leaf.axes, in_loop=False) for n, leaf in enumerate(leaves)]
    axes = frozenset[int]().union(*(leaves[n].axes for n in joined))
    products = [Step("mul", tuple(count + n for n in joined), axes, in_loop=False)] if joined else []
    steps = (*leaves, *squares, *products)
    return Sketch(steps, tuple(range(count, len(steps))), None)


def test_axes_that_no_tensor_has_two_of_are_cut_together() -> None:
    assert sketch_of((0, 1), (0, 2), (0, 3)).grid_axes == ((0,), (1, 2, 3))
    assert sketch_of((0, 1), (0, 2), (0,)).grid_axes == ((0,),)  # one output would be made by every block
    assert sketch_of((0, 1), (0, 2), joined=(0, 1)).grid_axes == ((0,),)  # a block would have one square of the product
    assert sketch_of((0, 1), (2, 3)).grid_axes == ((0, 2), (1, 3))  # and not 0 with 3 as well
    assert sketch_of((0,)).grid_axes == ((0,),)


def test_axes_that_an_output_repeats_its_elements_along_are_not_cut_with_its_own() -> None:
    p = Program()
    x, y, w = p.input("x", (512,)), p.input("y", (256,)), p.input("w", (512, 64))
    wide, narrow = x.exp().expand(256, 512), y.exp()  # a block would have a part of both dimensions of the first
    program = finished(p, wide, narrow, (wide @ w) * narrow.unsqueeze(1))
    for candidate in search(program, device_for("cuda:sm_90")).candidates:
        assert [tensor.shape for tensor in candidate.graph.output_tensors] == [(256, 512), (256,), (256, 64)]
        for got, wanted in zip(outputs(candidate.graph), outputs(program), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_an_output_that_repeats_its_elements_is_not_read_in_their_place() -> None:
    p = Program()
    x, y = p.input("x", (512,)).exp(), p.input("y", (256,)).exp()
    program = finished(p, x.expand(256, 512), y, x + y.unsqueeze(1))
    for candidate in search(program, CPU).candidates:
        for got, wanted in zip(outputs(candidate.graph), outputs(program), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_parts_that_are_cut_together_are_as_many_of_each_axis() -> None:
    grids = grids_over(((0,), (1, 2)), [(2, 12, 8)])
    assert sorted(zip(grids.parts[0], grids.parts[1], strict=True)) == [(n, m) for n in (1, 2) for m in (1, 2, 4)]
    assert (grids.parts[1] == grids.parts[2]).all()
    assert (grids.blocks == grids.parts[0] * grids.parts[1]).all()
    single = grids_over(((0,), (1, 2)), [(2, 12, 8), (2, 4, 8)], parted=frozenset({1}))
    assert {*single.variant} == {1}  # a single element of 12 goes with none of 8
    assert {*single.parts[1]} == {4.0}


def test_top_schedules_are_the_fastest_of_each_group_and_ties_go_to_the_smaller_id() -> None:
    top = TopSchedules(groups=2, count=2, bound=9.0)
    top.add(np.array([0, 1, 0]), np.array([5.0, 9.0, 3.0]), np.array([7, 1, 8]))
    assert top.cutoff.tolist() == [5.0, 9.0]
    top.add(np.array([0, 0, 1]), np.array([5.0, 5.5, 4.0]), np.array([6, 2, 3]))
    assert top.groups.tolist() == [0, 0, 1]
    assert top.numbers.tolist() == [8, 6, 3]
    assert top.seconds.tolist() == [3.0, 5.0, 4.0]
