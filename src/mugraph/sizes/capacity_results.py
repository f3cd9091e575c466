"""Results for a range of sizes of a dimension that is reduced: kernels of a few capacities, and any size by one that holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from mugraph.errors import InvalidInput
from mugraph.ir.graph import Graph
from mugraph.results.summary import some_wrong_text
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import medians, quickest
from mugraph.sizes.capacities import capacities
from mugraph.sizes.capacity_calls import CapacityCalls
from mugraph.sizes.chunk_plans import ChunkPlan, between
from mugraph.sizes.growing_kernels import GrowingCall, short_iterations
from mugraph.sizes.masked_functions import MaskedFunction
from mugraph.support.deadline import Deadline

_SMALLEST = 32
"""The smallest capacity: below it a call costs more than its kernels."""
_TRIED = 0.75
"""Of the time that is left, what a part of the search space may take where another one is tried behind it."""
_ROUNDS, _SECONDS = 30, 1.0
"""In which capacities are timed beside the function, and how long at most."""

Optimize = Callable[..., Superoptimized]


@dataclass
class CapacityTable(CapacityCalls[MaskedFunction]):
    """Kernels of a few capacities for a function that is one masked graph at every size.

    `own` has what the function takes at some sizes; it is empty where nothing is measured. `accepts` is asked of what was found
    for a capacity.
    """

    fn: Callable[..., Any] = field(kw_only=True)
    accepts: Callable[[int, Superoptimized], bool] = field(kw_only=True, default=lambda capacity, made: True)
    own: dict[int, float] = field(default_factory=dict)

    def fill(
        self, optimize: Optimize, settings: Mapping[str, Any], deadline: Deadline, like: Graph | None = None, few: bool = False
    ) -> None:
        """Search at the largest capacity, take its muGraph over to the others while there is time, and time what was found.

        The largest takes over the form of `like`, if it is given. With `few` it is the only one if its kernels read tensors where
        they lie.
        """
        dim, graph = self.masked.dim, self.masked.graph
        settings = {**settings, "constants": ()}  # whose names are those of the function's arguments
        wanted = list(capacities(dim.low, dim.high, graph.more, _SMALLEST))
        for number, capacity in enumerate(wanted):
            if not number or not (deadline.passed or (few and self.in_place)):
                share = 1 / (len(wanted) - number) if number else 1.0 if few else 0.5
                self._add(optimize, capacity, {**settings, "like": like}, Deadline(deadline.share(share)))
        if settings.get("profile", True) and any(made.executable.machine.available for made in self.kernels.values()):
            self._measure()

    def _add(self, optimize: Optimize, capacity: int, settings: Mapping[str, Any], deadline: Deadline) -> None:
        """Add kernels of a capacity, of the form of those for the next larger one if that has any."""
        like = self.kernels[min(self.kernels)].graph if self.kernels else settings["like"]
        made = self._fitting(optimize, capacity, {**settings, "like": like}, deadline)
        if made is not None:
            chosen, in_place = self._in_place(capacity, made, _is_timed(settings, made))
            if self.accepts(capacity, chosen):
                self.take(capacity, chosen, in_place)

    def plan(self, size: int) -> ChunkPlan:
        """How a size is run: by the kernels of one capacity, or by the function itself, whatever was measured to be faster."""
        self.masked.dim.check(size)
        return min([*self.plans(size), ChunkPlan((), between(self.own, size))], key=lambda plan: plan.seconds)

    def run(self, size: int) -> Callable[..., Any]:
        """What answers calls of that size; raises ShapeMismatch and InvalidInput as the results do, and where the function brings
        other tensors along than it did."""
        chunks = self.plan(size).chunks
        if not chunks:
            return self.fn
        return self.masked.brought.watching(self.at_size(chunks[0].size, size))

    @property
    def claim(self) -> str:
        """For which sizes results hold, and why, in words."""
        if not self.kernels:
            return f"{self.masked.claim}. No kernels were found at any capacity, and the function itself answers"
        sizes, wrong = ", ".join(map(str, sorted(self.kernels))), some_wrong_text(self.error_bound)
        return (
            f"{self.masked.claim}. The muGraphs of capacities {sizes} are proved to compute the masked program there, and gave "
            f"the same bits whatever number lay behind the elements, where calls put no 0; {wrong}"
        )

    def _optimized(self, optimize: Optimize, capacity: int, settings: Mapping[str, Any]) -> Superoptimized:
        return optimize(self.masked.at_capacity(capacity), tuple(self.masked.arguments(capacity)), **settings)

    def _fitting(
        self, optimize: Optimize, capacity: int, settings: Mapping[str, Any], deadline: Deadline
    ) -> Superoptimized | None:
        """What is found at a capacity in the first part of the search space that has something which reads tensors where they lie
        without copying any of them, or else in the last one; None where none has."""
        ways, found = _ways(settings, capacity + self.masked.graph.more), None
        for number, way in enumerate(ways, start=1):
            with suppress(InvalidInput):  # where that part has nothing
                share = _TRIED if number < len(ways) else 1.0
                made = _with_kernels(self._optimized(optimize, capacity, {**way, "budget": deadline.share(share)}))
                if made is not None:
                    found = made
                    calls = [self.growing(capacity, each) for each in _choices(made, _is_timed(settings, made))]
                    if calls[0] is None or any(call is not None and not call.kernels.copies for call in calls):
                        break
        return found

    def _in_place(self, capacity: int, made: Superoptimized, timed: bool) -> tuple[Superoptimized, GrowingCall | None]:
        """The result with the muGraph, of those that were proved, whose kernels are the fastest on tensors where they lie, and
        what runs them so; the result itself where they are not `timed`, or where its kernels cannot."""
        first = self.growing(capacity, made)
        others = _choices(made, timed and first is not None)[1:]
        calls = [(made, first), *((each, call) for each in others if (call := self.growing(capacity, each)) is not None)]
        if len(calls) == 1:
            return made, first
        size = self.masked.dim.below(capacity // 2)
        inputs = self.masked.resized(size)
        with torch.inference_mode():
            runs = [partial(self.runner(capacity, each, call), size, inputs) for each, call in calls]
            return calls[quickest(runs)]

    def _measure(self) -> None:
        """Time kernels beside each other and the function, all in turns, at sizes where one capacity ends and the next begins:
        kernels that read tensors where they lie take the less time the shorter these are."""
        calls: dict[str, Callable[[], object]] = {}
        machine = next(iter(self.kernels.values())).executable.machine
        dim, held = self.masked.dim, [*map(self.masked.dim.below, self.kernels)]
        ends = {dim.low, dim.high, *held, *(size + dim.multiple_of for size in held)}
        sizes = [size for size in sorted(ends) if size in dim.sizes]
        for size in sizes:
            args, kwargs = tree_unflatten(self.masked.resized(size), self.masked.structure)
            rivals = {f"{capacity}": self.at_size(capacity, size) for capacity in self.holding(size)} | {"own": self.fn}
            runs = {"before": self.fn, **rivals}  # the first finds tensors of other sizes in caches
            calls |= {f"{name} {size}": machine.timed(partial(run, *args, **kwargs)).run for name, run in runs.items()}
        with torch.inference_mode():
            seconds = medians(calls, _ROUNDS, _SECONDS)
        self.own = {size: seconds[f"own {size}"] for size in sizes}
        for capacity in self.kernels:
            self.seconds[capacity] = {size: seconds[f"{capacity} {size}"] for size in sizes if size <= capacity}


def _with_kernels(made: Superoptimized) -> Superoptimized | None:
    """A result with the muGraph that was the fastest of those proved, whoever is faster at the capacity; None where none was."""
    if not made.is_one_program or not made.candidates:
        return None
    return made if made.found else made.with_best(made.candidates[0])


def _is_timed(settings: Mapping[str, Any], made: Superoptimized) -> bool:
    """Whether kernels of a result are timed."""
    return bool(settings.get("profile", True)) and made.executable.machine.available


def _choices(made: Superoptimized, timed: bool) -> list[Superoptimized]:
    """A result, and if they are `timed` those with its other muGraphs: where the fastest at the capacity copies what is left of
    tensors, one of them may not."""
    return [made, *(made.with_best(each) for each in made.candidates[1:] if timed)]


def _ways(settings: Mapping[str, Any], slots: int) -> list[Mapping[str, Any]]:
    """Settings in the order in which they are tried: of the form of other kernels first, with short iterations last."""
    ways = [settings] if settings["like"] is None else [settings, {**settings, "like": None}]
    short = short_iterations(slots) if settings.get("space") is None and settings.get("target", "cpu") == "cpu" else None
    return ways if short is None else [*ways, {**settings, "like": None, "space": short}]
