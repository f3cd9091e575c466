"""Results for a range of sizes of a dimension that is reduced: kernels of a few capacities, and any size by one that holds it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from mugraph.errors import InvalidInput
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import measure, quickest
from mugraph.sizes.capacities import AtCapacity, capacities
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, between
from mugraph.sizes.growing_kernels import GrowingCall, growing_call, short_iterations
from mugraph.sizes.masked_functions import MaskedFunction
from mugraph.support.deadline import Deadline

_SMALLEST = 32
"""The smallest capacity: below it a call costs more than its kernels."""
_TRIED = 0.75
"""Of the time that is left, what a part of the search space may take where another one is tried behind it."""
_ROUNDS, _SECONDS = 30, 1.0
"""In which a capacity is timed beside the function, and how long at most."""

Optimize = Callable[..., Superoptimized]


@dataclass
class CapacityTable:
    """Kernels of a few capacities for a function that is one masked graph at every size.

    `kernels` are those that nothing reaches but what is held; `seconds` what calls take that are just too large for the next
    smaller capacity, `own` what the function takes at such sizes (empty where nothing is measured).
    """

    masked: MaskedFunction
    fn: Callable[..., Any]
    kernels: dict[int, Superoptimized] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    own: dict[int, float] = field(default_factory=dict)
    in_place: dict[int, GrowingCall] = field(default_factory=dict, repr=False)
    """What runs the kernels of a capacity on tensors that are not put into slots, of those for which there is such a thing."""
    _calls: dict[int, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)
    """What runs each capacity: all sizes that one holds share its memory."""

    def fill(self, optimize: Optimize, settings: Mapping[str, Any], deadline: Deadline) -> None:
        """Search at the largest capacity, and take its muGraph over to the others as long as there is time."""
        dim, graph = self.masked.dim, self.masked.graph
        settings = {**settings, "like": None, "constants": ()}  # whose names are those of the function's arguments
        wanted = list(capacities(dim.low, dim.high, graph.more, _SMALLEST))
        like = None
        for number, capacity in enumerate(wanted):
            if number and deadline.passed:
                return
            share = 0.5 if not number else 1 / (len(wanted) - number)
            made = self._fitting(optimize, capacity, {**settings, "like": like}, Deadline(deadline.share(share)))
            if made is None:
                continue
            timed = settings.get("profile", True) and made.executable.machine.available
            made, in_place = self._in_place(capacity, made, timed)
            if self._is_sound(capacity, made):
                self.kernels[capacity] = made
                self._take_in_place(capacity, in_place)
                like = made.graph
                if timed:
                    self._measure(capacity, max(dim.low, _least(wanted, number, dim.low)))

    def plan(self, size: int) -> ChunkPlan:
        """How a size is run: by the kernels of one capacity, or by the function itself."""
        self.masked.dim.check(size)
        own = ChunkPlan((), between(self.own, size))
        holding = [capacity for capacity in self.kernels if capacity >= size]
        if not holding:
            return own
        capacity = min(holding)
        kernels = ChunkPlan((Chunk(0, capacity),), self.seconds.get(capacity, 0.0))
        return min(kernels, own, key=lambda plan: plan.seconds)

    def run(self, size: int) -> Callable[..., Any]:
        """What answers calls of that size; raises ShapeMismatch and InvalidInput as the results do."""
        chunks = self.plan(size).chunks
        if not chunks:
            return self.fn
        return self.at(chunks[0].size)

    def at(self, capacity: int) -> Callable[..., Any]:
        """What runs calls of up to a capacity by its kernels."""
        if capacity not in self._calls:
            self._calls[capacity] = self._call_at(capacity)
        return self._calls[capacity]

    def _call_at(self, capacity: int) -> Callable[..., Any]:
        runner = self._runner(capacity, self.kernels[capacity], self.in_place.get(capacity))
        takes_tensors = self.masked.takes_tensors

        def call(*args: Any, **kwargs: Any) -> Any:
            made = runner.recognized(args) if takes_tensors and not kwargs else None
            if made is not None:
                return self.masked.unflatten(made)
            size, inputs = self.masked.flatten(args, kwargs)
            return self.masked.unflatten(runner(size, inputs))

        return call

    @property
    def error_bound(self) -> float | None:
        """The probability that the muGraph of some capacity is wrong; None where one has no bound."""
        bounds = [made.certificate.error_bound for made in self.kernels.values()]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def claim(self) -> str:
        """For which sizes results hold, and why, in words."""
        if not self.kernels:
            return f"{self.masked.claim}. No kernels were found at any capacity, and the function itself answers"
        sizes, bound = ", ".join(map(str, sorted(self.kernels))), self.error_bound
        wrong = "no error bound is claimed" if bound is None else f"one of them is wrong with probability at most {bound:.3g}"
        return (
            f"{self.masked.claim}. The muGraphs of capacities {sizes} are proved to compute the masked program there, and gave "
            f"the same bits whatever number lay behind the elements; {wrong}"
        )

    def _optimized(self, optimize: Optimize, capacity: int, settings: Mapping[str, Any]) -> Superoptimized:
        arguments = self._runner(capacity, None).arguments(capacity, self.masked.resized(capacity))
        return optimize(self.masked.at_capacity(capacity), tuple(arguments), **settings)

    def _fitting(
        self, optimize: Optimize, capacity: int, settings: Mapping[str, Any], deadline: Deadline
    ) -> Superoptimized | None:
        """What is found at a capacity in the first part of the search space that has something which reads tensors where they lie
        without copying any of them, or else in the last one; None where none has."""
        ways, found = _ways(settings, capacity + self.masked.graph.more), None
        for number, way in enumerate(ways, start=1):
            with suppress(InvalidInput):  # where that part has nothing
                share = _TRIED if number < len(ways) else 1.0
                made = self._optimized(optimize, capacity, {**way, "budget": deadline.share(share)})
                if made.found and made.is_one_program:
                    found = made
                    if (in_place := self._growing(capacity, made)) is None or not in_place.kernels.copies:
                        break
        return found

    def _in_place(self, capacity: int, made: Superoptimized, timed: bool) -> tuple[Superoptimized, GrowingCall | None]:
        """The result with the muGraph, of those that were proved, whose kernels are the fastest on tensors where they lie, and
        what runs them so; the result itself where they are not `timed`, or where its kernels cannot."""
        first = self._growing(capacity, made)
        others = [made.with_best(each) for each in made.candidates[1:]] if timed and first is not None else []
        calls = [(made, first), *((each, call) for each in others if (call := self._growing(capacity, each)) is not None)]
        if len(calls) == 1:
            return made, first
        size = max(self.masked.dim.low, capacity // 2)
        inputs = self.masked.resized(size)
        with torch.inference_mode():
            runs = [partial(self._runner(capacity, each, call), size, inputs) for each, call in calls]
            return calls[quickest(runs)]

    def _growing(self, capacity: int, made: Superoptimized) -> GrowingCall | None:
        """What runs the kernels of a result on tensors where they lie; None where they cannot."""
        arguments = self._runner(capacity, None).arguments(capacity, self.masked.resized(capacity))
        return growing_call(made, self.masked.graph, arguments)

    def _runner(self, capacity: int, result: Superoptimized | None, in_place: GrowingCall | None = None) -> AtCapacity:
        run = self.masked.graph.module if result is None else result
        recognized = None if in_place is None else in_place.recognized
        return AtCapacity(self.masked.graph, capacity, run, self.masked.inputs[0].device, in_place, recognized)

    def _take_in_place(self, capacity: int, in_place: GrowingCall | None) -> None:
        """Let kernels read tensors where they lie, if they give the same bits."""
        if in_place is not None and self._ignores_other_slots(self._runner(capacity, self.kernels[capacity], in_place)):
            self.in_place[capacity] = in_place

    def _is_sound(self, capacity: int, made: Superoptimized) -> bool:
        """Whether there are kernels, to whose results other slots make no difference, as far as calls here tell."""
        if not made.executable.machine.available:
            return True
        return self._ignores_other_slots(self._runner(capacity, made))

    def _ignores_other_slots(self, runner: AtCapacity) -> bool:
        low, capacity = self.masked.dim.low, runner.capacity
        with torch.inference_mode():
            return all(
                runner.ignores_other_slots(size, self.masked.resized(size))
                for size in {low, (low + capacity) // 2, capacity - 1}
                if low <= size <= capacity
            )

    def _measure(self, capacity: int, size: int) -> None:
        """Time kernels beside the function, at a size that they are padded most for."""
        args, kwargs = tree_unflatten(self.masked.resized(size), self.masked.structure)
        run, machine = self.at(capacity), self.kernels[capacity].executable.machine
        with torch.inference_mode():
            rivals = {"ours": run, "own": self.fn}
            calls = {name: machine.timed(partial(each, *args, **kwargs)).run for name, each in rivals.items()}
            seconds = {name: statistics.median(each) for name, each in measure(calls, _ROUNDS, budget=_SECONDS).items()}
        self.seconds[capacity], self.own[size] = seconds["ours"], seconds["own"]


def _ways(settings: Mapping[str, Any], slots: int) -> list[Mapping[str, Any]]:
    """Settings in the order in which they are tried: of the form of other kernels first, with short iterations last."""
    ways = [settings] if settings["like"] is None else [settings, {**settings, "like": None}]
    short = short_iterations(slots) if settings.get("space") is None and settings.get("target", "cpu") == "cpu" else None
    return ways if short is None else [*ways, {**settings, "like": None, "space": short}]


def _least(wanted: Sequence[int], number: int, low: int) -> int:
    """The smallest size that the capacity with that number is there for."""
    return wanted[number + 1] + 1 if number + 1 < len(wanted) else low
