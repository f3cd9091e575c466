"""Structures found so far: what a context of a program holds, whatever the sizes of its axes.

Closures and derivations know no sizes, so a second batch size, dtype or device repeats only the schedules. Structures are
kept for the life of the process, and longer where there is a shelf (`mugraph.search.structure_cache`); one that a deadline
cut short serves whoever would not have given it more time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mugraph.ir.axes import AxisProgram
from mugraph.search.closure.sketch import SketchTuple
from mugraph.search.closure.tiers import Tier
from mugraph.search.report import Pruning, TierReport

_AS_LONG = 0.8
"""Share of a time that counts as that time: clocks and machines vary."""


def as_long(given: float, seconds: float) -> bool:
    """Whether a time of `given` seconds counts as `seconds`, within the spread of clocks and machines."""
    return given >= _AS_LONG * seconds


@dataclass(frozen=True, slots=True)
class FoundStructure:
    """The result of searching one context of a program.

    `sketches` in an order that depends on neither sizes nor device; `safe_sketches` those with safe exponentials (all, if none
    is); how much was visited; whether the closure `saturated`, for the operators asked for or for any number; up to how many
    block `operators` its derivations are all there, and whether that is `complete`, that is no less than asked for; what was
    `pruned`, counted by reason; the `seconds` it took, those that it was `given`, and whether these ran out (`timed_out`).
    """

    sketches: SketchTuple
    safe_sketches: SketchTuple
    states: int
    edges: int
    saturated: bool
    complete: bool
    operators: int
    pruned: tuple[tuple[Pruning, int], ...] = ()
    seconds: float = field(default=0.0, compare=False)
    given: float = field(default=0.0, compare=False)
    timed_out: bool = field(default=False, compare=False)

    @property
    def exhausted(self) -> bool:
        """Whether everything within the limits was found."""
        return self.saturated and self.complete

    def as_good_as(self, seconds: float) -> bool:
        """Whether another search of so many seconds would find no more: this one ended by itself, or had as long."""
        return not self.timed_out or as_long(self.given, seconds)

    def count_in(self, report: TierReport, whole: bool) -> None:
        """Add this context to the statistics of its tier, one of the `whole` program or of a part of it."""
        report.states += self.states
        report.edges += self.edges
        report.pruned.update(dict(self.pruned))
        if not whole:
            report.parts += 1
            report.unfinished += not self.exhausted
        else:
            report.closures += 1
            report.saturated += self.saturated
            report.derivations += len(self.sketches)
            report.complete = report.complete and self.complete
            report.operators = max(report.operators, self.operators if self.sketches else 0)
            report.bound = self.operators if report.bound is None else min(report.bound, self.operators)


Key = tuple[AxisProgram, Tier, int | None, object]
"""A program without sizes, tier, loop axis, and the limits it was searched under."""


K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The most recently used values by their keys; safe to share between threads."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of `key`, if it is still known."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def put(self, key: K, value: V) -> None:
        """Store a value, and drop the least recently used one beyond the capacity."""
        with self._lock:
            self._known[key] = value
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._known.clear()


class StructureCache(Recent[Key, FoundStructure]):
    """The most recently used structures."""

    def __init__(self, capacity: int = 4096) -> None:
        super().__init__(capacity)


KNOWN = StructureCache()
"""The structures of this process."""
