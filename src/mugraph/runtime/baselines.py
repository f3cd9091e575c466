"""What a PyTorch user has today, timed beside the optimized program in one run of interleaved rounds.

All contestants see the same tensors in the same process, and each round times each of them, so that a busy machine slows them
alike; a ratio is the median over rounds, not the ratio of two medians.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from mugraph.runtime.benchmarking import Duel, SideFailed, first_leads, in_turns, measure
from mugraph.support.schema import expect
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.machine import Machine

OURS = "mugraph"
EAGER = "torch eager"
"""The function as the user has it."""
ONE_THREAD = f"{EAGER}, one thread"
"""The same where PyTorch uses no other thread: of a small call, waking threads that sleep takes longer than their help saves."""
_SMALL_SECONDS, _SMALL_FIRST_SECONDS = 1e-3, 0.1
"""A call of the function that takes less is small; its first call, which loads and allocates what later ones find, takes less."""
_LOOKING_SECONDS = 1e-2
"""How long warm calls are made to see that; one that takes longer is made once."""
_MEASURING_SECONDS = 20.0
"""After this time no further round starts."""

_HOST = Cpu()
COMPILE_MODES = {"torch.compile": "default", "torch.compile max-autotune": "max-autotune-no-cudagraphs"}
"""On GPUs every contestant is captured into a CUDA graph, which cannot hold those that max-autotune makes of its own."""
_SPREAD = {"median": float, "low": float, "high": float}
_FORM = {
    "duels": {str: {"rounds": int, "won": int, "speedup": float, "ours": _SPREAD, "theirs": _SPREAD}},
    "unavailable": {str: str},
}


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """The rounds against each baseline, seconds of whole calls; and the baselines that could not run, each with its reason."""

    duels: Mapping[str, Duel]
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def latency(self) -> float | None:
        """Median seconds of a call of the optimized program; None when no baseline could run."""
        return next((duel.ours.median for duel in self.duels.values() if duel.ours is not None), None)

    @property
    def baselines(self) -> dict[str, float]:
        """Median seconds of a call of each baseline."""
        return {name: duel.theirs.median for name, duel in self.duels.items() if duel.theirs is not None}

    @property
    def ratios(self) -> dict[str, float]:
        """How much faster the optimized program is (below 1: slower), by baseline."""
        return {name: duel.speedup for name, duel in self.duels.items()}

    @property
    def speedup(self) -> float | None:
        """Ratio against the fastest baseline; None when none could run."""
        baselines = self.baselines
        return self.ratios[min(baselines, key=baselines.__getitem__)] if baselines else None

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "duels": {name: duel.to_json() for name, duel in self.duels.items()},
            "unavailable": dict(self.unavailable),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The comparison `to_json` wrote; raises TypeError for anything else."""
        expect(values, _FORM, "comparison")
        return cls({name: Duel.from_json(duel) for name, duel in values["duels"].items()}, dict(values["unavailable"]))


def compare(
    optimized: Callable[..., Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    seconds: float = _MEASURING_SECONDS,
    limit: float = math.inf,
    rounds: int = 30,
    compiled: bool = True,
    machine: Machine = _HOST,
    taken: float = math.inf,
    tell: Callable[[str], None] = lambda text: None,
) -> BaselineComparison:
    """Time `optimized` against `fn` in eager mode and, if `compiled`, under torch.compile, all on tensors of `machine`.

    There are up to `rounds`; after `seconds` none starts, but for a second look where `optimized` is faster than the first
    baseline and not clearly so, and none but the first that may end after `limit`. Compiling the baselines takes some seconds and
    is not timed. Where calls of `optimized` and `fn` have just `taken` so many seconds, they are warm, if there are no others
    and the machine is a CPU. What takes seconds is `tell`'s to say before it begins.
    """
    import torch

    def calling(function: Callable[..., Any]) -> Callable[[], Any]:
        return functools.partial(function, *args, **(kwargs or {}))

    unavailable: dict[str, str] = {}
    first = taken
    if math.isinf(taken):
        with torch.no_grad(), suppress(Exception):  # tensors that the function keeps for later calls are then usual ones
            started = time.perf_counter()
            calling(fn)()
            first = time.perf_counter() - started
    with torch.inference_mode():
        contestants = {OURS: machine.timed(calling(optimized))}
        for name, made in _variants(fn, compiled).items():
            if name in COMPILE_MODES:
                tell(f"PyTorch compiles the function: {name}")
            try:
                baseline = calling(made())
                if name != EAGER or math.isinf(first):
                    baseline()
                contestants[name] = machine.timed(baseline)
            except Exception as error:  # whatever the compiler stack raises is the reason shown to the user
                unavailable[name] = _reason(error)
        if isinstance(machine, Cpu) and torch.get_num_threads() > 1 and _is_small(calling(fn), first):
            contestants[ONE_THREAD] = machine.timed(_on_one_thread(calling(fn)))
        while True:
            tell(f"calls in turns: {', '.join(contestants)}")
            try:
                clock = contestants[OURS].clock
                known = taken if contestants.keys() == {OURS, EAGER} and isinstance(machine, Cpu) else math.inf
                sides = [each.run for each in contestants.values()]
                cut = list[bool]()
                cut_short = functools.partial(cut.append, True)
                times = in_turns(sides, seconds, limit, rounds, clock, cut_short, again=first_leads, taken=known)
                break
            except SideFailed as failed:
                name = list(contestants)[failed.number]
                cause = failed.__cause__
                if name == OURS or not isinstance(cause, Exception):
                    raise cause or failed from None
                unavailable[name] = _reason(cause)
                del contestants[name]
    per_call = {name: [s / timed.times for s in taken] for (name, timed), taken in zip(contestants.items(), times, strict=True)}
    ours = per_call.pop(OURS)
    duels = {name: replace(Duel.of(ours, theirs), cut_short=bool(cut)) for name, theirs in per_call.items()}
    return BaselineComparison(duels, unavailable)


def _variants(fn: Callable[..., Any], compiled: bool) -> dict[str, Callable[[], Callable[..., Any]]]:
    """What makes each baseline, by name: PyTorch may fail at that already."""
    import torch

    modes = COMPILE_MODES if compiled else {}
    return {EAGER: lambda: fn} | {name: functools.partial(torch.compile, fn, mode=mode) for name, mode in modes.items()}


def _on_one_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call while PyTorch uses one thread for an operator; switching takes a fraction of a microsecond and ends no thread."""
    import torch

    def run() -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return call()
        finally:
            torch.set_num_threads(threads)

    return run


def _is_small(call: Callable[[], Any], first: float) -> bool:
    """Whether a call that took `first` seconds at first is small, by the quickest of a few warm ones; one that fails is none."""
    if first >= _SMALL_FIRST_SECONDS:
        return False
    with suppress(Exception):
        return min(measure({EAGER: call}, warmup=0, budget=_LOOKING_SECONDS)[EAGER]) < _SMALL_SECONDS
    return False


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
