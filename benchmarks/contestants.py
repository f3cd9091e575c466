"""PyTorch's compiler as a contestant, and calls of several contestants in bursts, one after the other in random order.

A burst has up to 25 calls, and fewer, at least three, of those that take long; between bursts there is a pause of 50 ms, since
pools of threads that spin disturb the next. The median of the bursts' medians counts.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

Call = Callable[[], Any]
"""A contestant that was made for its inputs: gives a tensor or several."""

_CALLS, _PAUSE, _SECONDS = 25, 0.05, 0.5


def tensors(result: Any) -> list[torch.Tensor]:
    """What a call gives."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def error(given: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """The largest difference over the largest element, of the output where that is most; not of outputs that are not given.

    NaN where one of them has it that should not, which Python's `max` might pass over.
    """
    pairs = zip(given, exact, strict=False)
    return float(torch.stack([(one.double() - other).abs().max() / other.abs().max() for one, other in pairs]).max())


def by_inductor(module: nn.Module, inputs: Sequence[torch.Tensor], *, freezing: bool = False) -> Call:
    """`torch.compile` by default, or with frozen weights, which it packs, and its most thorough search; called once."""
    torch._dynamo.reset()
    mode = "max-autotune-no-cudagraphs" if freezing else None
    with torch._inductor.config.patch(freezing=freezing):
        compiled = torch.compile(module, dynamic=False, mode=mode)
        compiled(*inputs)
    return lambda: compiled(*inputs)


def first_line(failure: Exception) -> str:
    """The type of an exception and the beginning of its text."""
    return f"{type(failure).__name__}: {failure}".splitlines()[0][:200]


Clock = Callable[[], float]
"""Gives seconds: of the wall or, for work on one thread of a busy machine, of the process."""


def processor_seconds() -> float:
    """Seconds of processors that this process has had, and those processes, as of compilers, that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def compared(
    makers: Mapping[str, Callable[[], Call]], exact: Sequence[torch.Tensor], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, Any]:
    """Of contestants that are made one by one: `seconds` of a call, `errors` against `exact`, and why others are `missing`."""
    calls: dict[str, Call] = {}
    missing: dict[str, str] = {}
    errors: dict[str, float] = {}
    for title, make in makers.items():
        try:
            call = make()
            errors[title] = error(tensors(call()), exact)
        except Exception as failure:  # a rival that is not installed, or refuses the program
            missing[title] = first_line(failure)
            continue
        calls[title] = call
    return {"seconds": in_bursts(calls, rounds, clock), "errors": errors, "missing": missing}


def in_bursts(calls: Mapping[str, Call], rounds: int, clock: Clock = time.perf_counter) -> dict[str, float]:
    """The seconds of a call of each contestant, over so many bursts of each."""
    bursts: dict[str, list[float]] = {title: [] for title in calls}
    counts = {title: _count(call) for title, call in calls.items()}
    for _ in range(rounds):
        for title in random.sample(list(calls), len(calls)):
            time.sleep(_PAUSE)
            bursts[title].append(_burst(calls[title], counts[title], clock))
    return {title: statistics.median(medians) for title, medians in bursts.items()}


def _count(call: Call) -> int:
    """Calls of a burst."""
    before = time.perf_counter()
    call()
    return max(3, min(_CALLS, int(_SECONDS / max(time.perf_counter() - before, 1e-9))))


def _burst(call: Call, count: int, clock: Clock) -> float:
    """The median seconds of consecutive calls."""
    seconds: list[float] = []
    for _ in range(count):
        before = clock()
        call()
        seconds.append(clock() - before)
    return statistics.median(seconds)


def run_cases(
    parser: argparse.ArgumentParser, cases: Iterable[str], measured: Callable[[str, float, int], dict[str, Any]], result: Path
) -> None:
    """The command of a benchmark: measure cases within a budget and rounds, print them, and store all if none was left out.

    `parser` has `--threads`, `--budget` and `--rounds`, which `measured` gets behind a case's name.
    """
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    records = []
    for name in cases:
        if options.only in name:
            records.append(measured(name, options.budget, options.rounds))
            if not options.json:
                print(name, {title: f"{seconds * 1e3:.2f} ms" for title, seconds in records[-1]["seconds"].items()}, flush=True)
                print(*records[-1].get("kernels", ()), sep="\n", end="\n" if records[-1].get("kernels") else "", flush=True)
    if options.json:
        print(json.dumps(records, indent=1))
    if not options.only:
        result.write_text(json.dumps({"torch": torch.__version__, "cases": records}, indent=1) + "\n")
