"""What competes to run a program: muGraphs with their kernels, and the times of their calls."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mugraph.ir.graph import Graph
from mugraph.results.data import Candidate, SpotCheck
from mugraph.runtime import Executable
from mugraph.runtime.benchmarking import Burst, bursts_in_turns, raised_as_they_were, undisturbed
from mugraph.targets.machine import Timed
from mugraph.verifier import Certificate, FloatReport


@dataclass(frozen=True, slots=True)
class Contestant:
    """A muGraph, its predicted seconds, its kernels, and seconds per call (infinity until measured): of a typical one, of a
    typical one of the quickest burst, and of one that waited for no other process, where the clock goes on then."""

    graph: Graph
    cost: float | None
    executable: Executable
    latency: float = math.inf
    least: float = math.inf
    undisturbed: float | None = None

    @property
    def compared(self) -> float:
        """Seconds per call by which contestants are put in order."""
        return self.latency if self.undisturbed is None else self.undisturbed

    def clearly_faster_than(self, other: Contestant) -> bool:
        """Whether a typical call takes less than even the quickest of the other: busy machines stretch single calls."""
        return self.latency < other.least


@dataclass(frozen=True, slots=True)
class Proved:
    """A contestant with the evidence that it computes the program."""

    entry: Contestant
    certificate: Certificate
    floats: FloatReport | None
    """None where the budget left no time for it, which only the program itself needs not have."""
    spot_check: SpotCheck | None = None

    def candidate(self) -> Candidate:
        """What the user gets of it."""
        latency = self.entry.compared if math.isfinite(self.entry.compared) else None
        return Candidate(
            self.entry.graph, self.entry.cost, latency, replace(self.certificate, floats=self.floats), self.spot_check
        )


def measured(entries: Sequence[Contestant], inputs: Sequence[Any], rounds: int, limit: float = math.inf) -> list[Contestant]:
    """The entries, at least one, timed in turns; after `limit` seconds no round starts but the first."""
    operands = entries[0].executable.machine.moved(inputs)
    timed = [_timed(entry, operands) for entry in entries]
    with raised_as_they_were():
        times = bursts_in_turns([one.run for one in timed], limit=limit, rounds=rounds, clock=timed[0].clock)
    return [_with_times(entry, one, taken) for entry, one, taken in zip(entries, timed, times, strict=True)]


def called_once(entry: Contestant, inputs: Sequence[Any]) -> Contestant:
    """An entry timed by its first call."""
    timed = _timed(entry, entry.executable.machine.moved(inputs))
    before = timed.clock()
    timed.run()
    return _with_times(entry, timed, [[timed.clock() - before]])


def _timed(entry: Contestant, operands: Sequence[Any]) -> Timed:
    """The call of an entry with operands where its machine reads them."""
    return entry.executable.machine.timed(functools.partial(entry.executable, *operands))


def _with_times(entry: Contestant, timed: Timed, bursts: Sequence[Burst]) -> Contestant:
    """An entry with what its calls took."""
    typical = [statistics.median(calls) for calls in bursts]
    latency, least, quiet = (seconds / timed.times for seconds in (statistics.median(typical), min(typical), undisturbed(bursts)))
    return replace(entry, latency=latency, least=least, undisturbed=quiet if timed.waits else None)


def reordered(kept: Sequence[Proved], entries: Sequence[Contestant]) -> list[Proved]:
    """What was kept with its entries as they are now, fastest first."""
    timed = [replace(proved, entry=entry) for proved, entry in zip(kept, entries, strict=True)]
    return sorted(timed, key=lambda proved: proved.entry.compared)


def one_of_each(entries: Sequence[Contestant]) -> list[Contestant]:
    """The first entry of each muGraph, whether its weights are packed or not."""
    return [*{entry.graph.with_constants(()): entry for entry in reversed(entries)}.values()][::-1]


def fastest_first(entries: Sequence[Contestant]) -> list[Contestant]:
    """The entries in the order in which they are preferred."""
    return sorted(entries, key=lambda entry: entry.compared)
