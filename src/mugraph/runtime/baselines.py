"""What a PyTorch user has today, timed beside the optimized program in one run of interleaved rounds.

All contestants see the same tensors in the same process, and each round times each of them once, so that a busy
machine slows them alike; a ratio is the median over rounds, not the ratio of two medians.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.runtime import measure
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.machine import Machine, Timed

OURS = "mugraph"
_MEASURING_SECONDS = 20.0
"""After this time no further round starts."""

_HOST = Cpu()
COMPILE_MODES = {"torch.compile": "default", "torch.compile max-autotune": "max-autotune-no-cudagraphs"}
"""On GPUs every contestant is captured into a CUDA graph, which cannot hold those that max-autotune makes of its own."""


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """Median seconds per call, and how much faster the optimized program is (below 1: slower), by baseline."""

    latency: float
    baselines: dict[str, float]
    ratios: dict[str, float]
    unavailable: dict[str, str]
    """Baselines that could not run, with the reason in one line."""

    @property
    def speedup(self) -> float | None:
        """Ratio against the fastest baseline; None when none could run."""
        if not self.baselines:
            return None
        return self.ratios[min(self.baselines, key=self.baselines.__getitem__)]


def compare(
    optimized: Callable[[], Any], fn: Callable[..., Any], inputs: Sequence[Any], rounds: int = 30, machine: Machine = _HOST
) -> BaselineComparison:
    """Time `optimized()` against `fn(*inputs)` in eager mode and under torch.compile, all on tensors of `machine`.

    Compiling the baselines takes some seconds and is not timed.
    """
    import torch

    contestants: dict[str, Timed] = {OURS: machine.timed(optimized)}
    unavailable: dict[str, str] = {}
    with torch.no_grad():
        for name, baseline in _torch_variants(fn).items():
            try:
                baseline(*inputs)
                contestants[name] = machine.timed(functools.partial(baseline, *inputs))
            except Exception as error:  # whatever the compiler stack raises is the reason shown to the user
                unavailable[name] = _reason(error)
        taken = measure({name: timed.run for name, timed in contestants.items()}, rounds, budget=_MEASURING_SECONDS)
    times = {name: [seconds / contestants[name].times for seconds in taken[name]] for name in contestants}
    return _summary(times, unavailable)


def _torch_variants(fn: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    import torch

    compiled = {name: torch.compile(fn, mode=mode) for name, mode in COMPILE_MODES.items()}
    return {"torch eager": fn, **compiled}


def _summary(times: Mapping[str, Sequence[float]], unavailable: dict[str, str]) -> BaselineComparison:
    baselines = {name: statistics.median(seconds) for name, seconds in times.items() if name != OURS}
    ratios = {
        name: statistics.median(theirs / ours for theirs, ours in zip(times[name], times[OURS], strict=True))
        for name in baselines
    }
    return BaselineComparison(statistics.median(times[OURS]), baselines, ratios, unavailable)


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
