"""Timing callables on a machine that does other things too: interleaved, so that what disturbs one disturbs all; and a test of
which of two is the faster."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_WARMUP = 3
_CALLS = 3
"""Consecutive calls of a side in one round, of which the median counts: one stalled call decides nothing."""
_FEWEST, _MOST = 8, 60
_SECONDS = 0.5
"""After this time, and the fewest rounds, no further round starts."""


def measure(
    callables: Mapping[str, Callable[[], object]],
    repeats: int = 20,
    warmup: int = 2,
    between: Callable[[], object] | None = None,
    budget: float | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call, by name: `repeats` rounds in which every callable runs once.

    `between` runs before every timed call (to flush caches, say) and is not timed. After `budget` seconds no new
    round starts, but every callable is timed at least once.
    """
    for function in callables.values():
        for _ in range(warmup):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in callables}
    started = time.perf_counter()
    for _ in range(max(repeats, 1)):
        for name, function in callables.items():
            if between is not None:
                between()
            before = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - before)
        if budget is not None and time.perf_counter() - started > budget:
            break
    return seconds


@dataclass(frozen=True, slots=True)
class Duel:
    """The outcome of a duel: in how many of its rounds the challenger took less time, and the median of the rounds' ratios."""

    rounds: int
    won: int
    speedup: float
    """Time of the defender over that of the challenger."""

    @property
    def clear(self) -> bool:
        """Whether the challenger is the faster, and equals would win so often in less than one duel of forty."""
        return self.speedup > 1 and self.won - self.rounds / 2 > math.sqrt(self.rounds)  # two deviations of a fair coin

    def to_json(self) -> dict[str, Any]:
        """The duel as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Duel:
        """The duel `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        return cls(int(values["rounds"]), int(values["won"]), float(values["speedup"]))


def duel(challenger: Callable[[], object], defender: Callable[[], object], seconds: float = _SECONDS) -> Duel:
    """Time two callables in interleaved rounds that they begin in turns, both warm, for about so many seconds."""
    sides = (challenger, defender)
    for side in sides:
        for _ in range(_WARMUP):
            side()
    ratios: list[float] = []
    started = time.perf_counter()
    while len(ratios) < _FEWEST or (len(ratios) < _MOST and time.perf_counter() - started < seconds):
        first = len(ratios) % 2
        times = {number: _time(sides[number]) for number in (first, 1 - first)}
        ratios.append(times[1] / times[0])
    return Duel(len(ratios), sum(ratio > 1 for ratio in ratios), statistics.median(ratios))


def _time(call: Callable[[], object]) -> float:
    """Seconds of a typical one of a few calls."""
    times: list[float] = []
    for _ in range(_CALLS):
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times)
