"""KernelBench's linear chains, the tasks of level 2 without a convolution, both ways: `torch.compile` beside `superoptimize`.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/kernelbench_chains.py --tasks KernelBench/KernelBench              # 37 tasks, half an hour of one core
    python benchmarks/kernelbench_chains.py --tasks KernelBench/KernelBench --only 14_ 45_ --budget 40

Sizes are divided as `kernelbench.py` does with `--bytes`: by the smallest factor that leaves so many bytes of inputs and
parameters together. Each task runs in a process of its own, without caches, and is compiled before it is optimized, so that
`torch.compile` finds nothing that the other way has left in the process. Both are compared with float64 on inputs that they were
not made for, as in `kernelbench.py`. Then whole calls of both and of the model are timed in turns, on one thread by processor
time. `ratio` is how many times as fast as `superoptimize` the way of `torch.compile` is; from NOISE on it is no slower. What
Dynamo itself takes in a call, for guards above all, is what the model takes longer with `backend="eager"` than without
(`dynamo`, seconds); `ratio_without_dynamo` has that taken off.

Records go to `benchmarks/results/kernelbench-chains.json`; what is there by the same sources is not made again.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

import mugraph
from kept import Record, answer_of, records
from kernelbench import ERRORS, FACTORS, LIMIT, NOISE, covered, errors, files, task
from mugraph.integrations.torch_compile import compilations
from mugraph.runtime.benchmarking import Duel, in_turns

RESULT = Path(__file__).parent / "results" / "kernelbench-chains.json"
LEVEL = "2"
BYTES = 32 << 20
SECONDS, ROUNDS = 4.0, 60
"""Of rounds that the calls of a task are timed in."""
WAYS = ("torch.compile", "superoptimize")

Call = Callable[..., Any]


def chains(folder: Path) -> list[str]:
    """The tasks of level 2 that have no convolution, as paths in the folder."""
    return [name for name in files(folder, [LEVEL]) if "nn.Conv" not in (folder / name).read_text(encoding="utf-8")]


def record(file: Path, most: int, budget: float, threads: int) -> Record:
    """What became of a task."""
    torch.set_num_threads(threads)
    try:
        model, get_inputs, factor = task(file, FACTORS[0], most)
    except RuntimeError as error:
        return {"outcome": "not run by PyTorch", "why": str(error)}
    inputs = tuple(get_inputs())
    with torch.inference_mode():
        ways, found = _both_ways(model, inputs, budget)
        found["factor"] = factor
        other = tuple(get_inputs())
        for name, call in ways.items():
            ours, own, equal = errors(call, model, other)
            right = equal and ours <= max(ERRORS * own, 64 * torch.finfo(torch.float32).eps)
            found[name] |= {"outcome": "right" if right else "wrong", "error": ours, "model_error": own}
        found["outcome"] = "right" if all(found[name]["outcome"] == "right" for name in ways) else "wrong"
        return found | timed(ways, model, inputs, threads)


def _both_ways(model: torch.nn.Module, inputs: Sequence[Any], budget: float) -> tuple[dict[str, Call], Record]:
    """The calls of both ways by their names, and of each its seconds and what it runs by kernels."""
    options: dict[str, Any] = {"budget": budget, "cache": "off"}
    started = time.perf_counter()
    compiled = torch.compile(model, backend="mugraph", options=options)
    compiled(*inputs)
    graphs = [str(graph) for graph in compilations]
    found: Record = {WAYS[0]: {"seconds": time.perf_counter() - started, "graphs": graphs}}
    started = time.perf_counter()
    opt = mugraph.superoptimize(model, tuple(inputs), budget=budget, cache="off")
    found[WAYS[1]] = {"seconds": time.perf_counter() - started, "found": opt.found, **covered(opt)}
    return {WAYS[0]: compiled, WAYS[1]: opt}, found


def timed(ways: dict[str, Call], model: Call, inputs: Sequence[Any], threads: int) -> Record:
    """Seconds of whole calls, timed in turns, and how many times as fast the first way is as the other, and each as the model."""
    clock = time.process_time if threads == 1 else time.perf_counter

    def in_rounds(calls: Sequence[Call], seconds: float) -> list[list[float]]:
        sides: list[Callable[[], object]] = [functools.partial(call, *inputs) for call in calls]
        return in_turns(sides, seconds, rounds=ROUNDS, clock=clock)

    compiled, optimized, eager = times = in_rounds([*ways.values(), model], SECONDS)
    torch._dynamo.reset()  # which alone is timed now
    by_dynamo, own = in_rounds([torch.compile(model, backend="eager"), model], SECONDS / 2)
    dynamo = max(0.0, statistics.median(theirs - ours for theirs, ours in zip(by_dynamo, own, strict=True)))
    return {
        "call_seconds": dict(zip((*ways, "eager"), map(statistics.median, times), strict=True)),
        "dynamo": dynamo,
        "ratio": Duel.of(compiled, optimized).speedup,
        "ratio_without_dynamo": Duel.of([each - dynamo for each in compiled], optimized).speedup,
        "over_eager": {WAYS[0]: Duel.of(compiled, eager).speedup, WAYS[1]: Duel.of(optimized, eager).speedup},
    }


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    both = [entry for entry in found if "ratio" in entry]
    return {
        "tasks": len(found),
        "outcomes": dict(Counter(entry["outcome"] for entry in found)),
        "no_slower": sum(entry["ratio"] >= NOISE for entry in both),
        "no_slower_without_dynamo": sum(without_dynamo(entry) >= NOISE for entry in both),
        "geometric_mean_of_ratios": _mean([entry["ratio"] for entry in both]),
        "geometric_means_over_eager": {way: _mean([entry["over_eager"][way] for entry in both]) for way in WAYS},
        "slower": {entry["task"]: round(entry["ratio"], 3) for entry in both if entry["ratio"] < NOISE},
    }


def without_dynamo(entry: Record) -> float:
    """The ratio of both ways but for Dynamo's part of a call; that of earlier records has it in."""
    return float(entry.get("ratio_without_dynamo", entry["ratio"]))


def _mean(ratios: Sequence[float]) -> float | None:
    return statistics.geometric_mean(ratios) if ratios else None


def made(task: str, asked: dict[str, Any], tasks: str) -> Record:
    """The record of a task, by a process of its own, which ends with all that it started."""
    words = [__file__, "--tasks", tasks, "--one", task, "--bytes", str(asked["most"]), "--budget", str(asked["budget"])]
    return answer_of([*words, "--threads", str(asked["threads"])], 2 * LIMIT + 12 * asked["budget"])


def main() -> None:
    """Make the records, print the summary; the exit code is 1 where a result is wrong or a process failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", required=True, help="the folder that has level2")
    parser.add_argument("--only", nargs="+", default=[""], help="words that are in the names of the tasks wanted")
    parser.add_argument("--bytes", type=int, default=BYTES, help="of inputs and parameters, at most")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of each way")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path, default=RESULT)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.tasks)
    if options.one is not None:
        print(json.dumps(record(folder / options.one, options.bytes, options.budget, options.threads)))
        return
    asked = {"most": options.bytes, "budget": options.budget, "threads": options.threads}
    names = [name for name in chains(folder) if any(word in name for word in options.only)]
    if not names:
        sys.exit(f"{folder} has no such tasks of level {LEVEL}; give KernelBench's folder that has level{LEVEL}")
    make = functools.partial(made, tasks=options.tasks)
    found = records([{"task": name, "asked": asked} for name in names], make, options.record, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(entry["outcome"] in ("wrong", "failed") for entry in found) else 0)


if __name__ == "__main__":
    main()
