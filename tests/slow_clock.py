"""A plugin that lets clocks run eight times as fast, so that budgets and deadlines end as early as on a machine that much slower.

`python -m pytest -n 0 -p tests.slow_clock FILE` shows which tests depend on how fast or busy the machine is: whether something is
found, equal or rejected must not. Clocks of processor time run as ever, those of other processes too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 8.0


def _faster(clock: Callable[[], float]) -> Callable[[], float]:
    begun = clock()
    return lambda: begun + FACTOR * (clock() - begun)


time.perf_counter = _faster(time.perf_counter)
time.monotonic = _faster(time.monotonic)
