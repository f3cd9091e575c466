"""Kernels of a few capacities, and what runs calls by them: any size by one that holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes.capacities import AtCapacity
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, between
from mugraph.sizes.dims import Dim
from mugraph.sizes.growing_kernels import GrowingCall, growing_call
from mugraph.sizes.masked_calls import MaskedCalls

M = TypeVar("M", bound=MaskedCalls)
_KNOWN = 4
"""Kinds of tensors that calls of one size are recognized by."""


@dataclass
class CapacityCalls(Generic[M]):
    """Results for the masked graph of `masked` at a few capacities, of which other slots reach no result.

    `in_place` has what runs the kernels of a capacity on tensors that are not put into slots, where there is such a thing.
    """

    masked: M
    kernels: dict[int, Superoptimized] = field(default_factory=dict)
    in_place: dict[int, GrowingCall] = field(default_factory=dict, repr=False)
    seconds: dict[int, dict[int, float]] = field(default_factory=dict)
    """By capacity what calls of some sizes take; empty where nothing was measured."""
    _calls: dict[int, Callable[..., Any]] = field(default_factory=dict, init=False, repr=False)
    """What runs each capacity: all sizes that one holds share its memory."""
    _runners: dict[int, AtCapacity] = field(default_factory=dict, init=False, repr=False)
    """What these call."""

    def at(self, capacity: int) -> Callable[..., Any]:
        """What runs calls of up to a capacity by its kernels; calls raise ShapeMismatch and InvalidInput as results do."""
        if capacity not in self._calls:
            self._calls[capacity] = self._call_at(capacity)
        return self._calls[capacity]

    def at_size(self, capacity: int, size: int) -> Callable[..., Any]:
        """What runs calls of one size by the kernels of a capacity."""
        run = self.at(capacity)
        if capacity not in self.in_place or not self.masked.takes_tensors:
            return run
        return _AtSize(run, partial(self._runners[capacity].at_once, size), self.masked.unflatten)

    def _call_at(self, capacity: int) -> Callable[..., Any]:
        runner = self._runners[capacity] = self.runner(capacity, self.kernels[capacity], self.in_place.get(capacity))
        takes_tensors = self.masked.takes_tensors

        def call(*args: Any, **kwargs: Any) -> Any:
            made = runner.recognized(args) if takes_tensors and not kwargs else None
            if made is not None:
                return self.masked.unflatten(made)
            size, inputs = self.masked.flatten(args, kwargs)
            return self.masked.unflatten(runner(size, inputs))

        return call

    def runner(self, capacity: int, result: Superoptimized, in_place: GrowingCall | None = None) -> AtCapacity:
        """What runs a result for the masked graph at a capacity, by kernels that read tensors where they lie if there are any."""
        device = self.masked.inputs[0].device
        if in_place is None:
            return AtCapacity(self.masked.graph, capacity, result, device)
        return AtCapacity(self.masked.graph, capacity, result, device, in_place, in_place.recognized, in_place.at_once)

    def growing(self, capacity: int, made: Superoptimized) -> GrowingCall | None:
        """What runs the kernels of a result on tensors where they lie; None where they cannot."""
        arguments = self.runner(capacity, made).arguments(capacity, self.masked.resized(capacity))
        return growing_call(made, self.masked.graph, arguments)

    def take(self, capacity: int, made: Superoptimized, in_place: GrowingCall | None) -> bool:
        """Let a result run calls of up to a capacity, if other slots make no difference to it as far as calls here tell; where
        its machine is not here, nothing is called. Of kernels that read tensors where they lie, those that give the same bits.
        """
        available = made.executable.machine.available
        if available and not self._ignores_other_slots(self.runner(capacity, made)):
            return False
        self.kernels[capacity] = made
        if in_place is not None and self._ignores_other_slots(self.runner(capacity, made, in_place)):
            self.in_place[capacity] = in_place
        return True

    def _ignores_other_slots(self, runner: AtCapacity) -> bool:
        with torch.inference_mode():
            return all(
                runner.ignores_other_slots(size, self.masked.resized(size))
                for size in looked_at(self.masked.dim, runner.capacity)
            )

    @property
    def error_bound(self) -> float | None:
        """The probability that the muGraph of some capacity is wrong; None where one has no bound."""
        bounds = [made.certificate.error_bound for made in self.kernels.values()]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    def plans(self, size: int) -> list[ChunkPlan]:
        """How a size may be run, by one capacity each. Where nothing is measured the smallest is taken to be the fastest."""
        return [
            ChunkPlan((Chunk(0, capacity),), between(self.seconds[capacity], size) if capacity in self.seconds else capacity)
            for capacity in self.holding(size)
        ]

    def fastest(self, size: int) -> Callable[..., Any]:
        """What runs a size by the kernels of the capacity that is the fastest; there must be one that holds it."""
        return self.at(min(self.plans(size), key=lambda plan: plan.seconds).chunks[0].size)

    def holding(self, size: int) -> list[int]:
        """The capacities that hold a size, the smallest first."""
        return sorted(capacity for capacity in self.kernels if capacity >= size)


class _AtSize:
    """Calls of one size: tensors that come again in the same way are recognized from the third call on, without anything that a
    new size needs. Safe to call from several threads if `run` is."""

    __slots__ = ("_called", "_known", "_recognizing", "_run", "_unflatten")

    def __init__(
        self,
        run: Callable[..., Any],
        recognizing: Callable[[Sequence[Any]], Callable[[Sequence[Any]], Any] | None],
        unflatten: Callable[[Sequence[Any]], Any],
    ) -> None:
        self._run, self._recognizing, self._unflatten = run, recognizing, unflatten
        self._called = False
        self._known: tuple[Callable[[Sequence[Any]], Any], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns; raises ShapeMismatch and InvalidInput as `run` does."""
        if kwargs:
            return self._run(*args, **kwargs)
        for known in self._known:
            made = known(args)
            if made is not None:
                return self._unflatten(made)
        returned = self._run(*args)
        if self._called and len(self._known) < _KNOWN:
            known_now = self._recognizing(args)
            self._known += () if known_now is None else (known_now,)
        self._called = True
        return returned


def looked_at(dim: Dim, capacity: int) -> list[int]:
    """Sizes at which kernels of a capacity are looked at."""
    return sorted(size for size in {dim.low, *map(dim.below, ((dim.low + capacity) // 2, capacity - 1))} if size <= capacity)
