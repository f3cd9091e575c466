"""Timing several callables fairly: interleaved, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


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
