"""How long it takes until a result for a GPU that is not here is found and proved, by the clock and in seconds of a processor.

    python benchmarks/gpu_found.py                               # the paper's programs and two products, on two cores
    python benchmarks/gpu_found.py gqa qknorm --dtypes bf16 --budget 45
    python benchmarks/gpu_found.py product --limit 0             # with no limit of time: nothing fails for being slow

Each program, at its full size and batch 16, goes through `superoptimize` in a process of its own, with no cache and without a
budget unless `--budget` gives one: search, compilation, proof, comparison with float64, and blocks of its kernels run on the
emulator. Seconds count from the call on, so imports and example inputs are left out and what PyTorch loads for its first trace is
not; those of a processor are of the process and all that it started, compilers among them. A busy machine shows in the clock
alone. With a budget, a record names what was still being done when it was spent. Records go to
`benchmarks/results/gpu-found.json`; exits with 1 where something is not proved, or took longer by the clock than `--limit`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mugraph
from kept import Record, answer_of
from mugraph.frontend.workloads import WORKLOADS
from mugraph.support.progress import Event

RESULT = Path(__file__).parent / "results" / "gpu-found.json"
BATCH = 16
LIMIT = 30.0
"""Seconds by the clock that no program is to take on two cores that nobody else wants."""
_TOLD = 0.1
"""Seconds behind the budget from which on a step is named."""
ENDS_AFTER = 1800.0
"""Seconds after which a process is ended."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def two_products(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Two products with one factor, which are one of the sum."""
    return x @ z + y @ z


def product(x: Tensor, w: Tensor) -> Tensor:
    """A product of matrices."""
    return x @ w


PRODUCTS: dict[str, tuple[Callable[..., Tensor], int, int]] = {
    "two-products": (two_products, 3, 2048),
    "product": (product, 2, 8192),
}
"""By name: function, square matrices, and their rows."""
PROGRAMS = (*WORKLOADS, *PRODUCTS)


def subject(name: str, dtype: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """The function of that name and its inputs."""
    if name in WORKLOADS:
        return WORKLOADS[name].function(), WORKLOADS[name].inputs(BATCH, dtype, "full")
    function, count, rows = PRODUCTS[name]
    return function, tuple(torch.randn(rows, rows).to(DTYPES[dtype]) for _ in range(count))


def processor_seconds() -> float:
    """Of this process and of those that it started and has waited for."""
    taken = os.times()
    return taken.user + taken.system + taken.children_user + taken.children_system


def found(name: str, dtype: str, target: str, budget: float | None) -> Record:
    """What `superoptimize` takes for a program, and what it finds."""
    function, inputs = subject(name, dtype)
    events: list[Event] = []
    clock, processor = time.perf_counter(), processor_seconds()
    opt = mugraph.superoptimize(function, inputs, target, budget, cache="off", progress=events.append)
    clock, processor = time.perf_counter() - clock, processor_seconds() - processor
    report = opt.report
    checked = opt.best.spot_check
    return {
        "budget": budget,
        "clock_seconds": round(clock, 2),
        "processor_seconds": round(processor, 2),
        "load": round(os.getloadavg()[0], 1),
        "proved": report.found,
        "first_proof_seconds": min((round(event.seconds, 2) for event in events if event.stage == "proved"), default=None),
        "blocks": None if checked is None else checked.ran,
        "seconds": {
            "search": round(report.search["seconds"], 2),
            **{stage: round(getattr(report, f"{stage}_seconds"), 2) for stage in ("compile", "measure", "verify", "total")},
        },
        "beyond": [] if budget is None else [*beyond(events, budget, report.total_seconds)],
    }


def beyond(events: Sequence[Event], budget: float, end: float) -> Iterator[Record]:
    """What ended after the budget: each step that was told of, and how many seconds of it were late."""
    for event, until in zip(events, [*(event.seconds for event in events[1:]), end], strict=True):
        late = until - max(budget, event.seconds)
        if late > _TOLD:
            yield {"step": f"{event.stage}: {event.text}", "seconds": round(late, 2)}


def line(record: Record) -> str:
    """A record in words."""
    head = f"{record['program']} {record['dtype']}"
    if "clock_seconds" not in record:
        return f"{head}: {record['outcome']} ({record['why']})"
    first = record["first_proof_seconds"]
    proved = "nothing proved" if not record["proved"] else "proved" if first is None else f"first proof after {first:.1f}"
    late = "".join(f"; {step['seconds']:.1f} s late in {step['step']}" for step in record["beyond"])
    own = f"{record['seconds']['total']:.1f} without what PyTorch loads to trace"
    times = f"{record['clock_seconds']:.1f} s by the clock ({own}), {record['processor_seconds']:.1f} of a processor"
    return f"{head}: {times}, {proved}, load {record['load']:.1f}{late}"


def failures(made: Sequence[Record], limit: float) -> list[str]:
    """What is not as it should be, in words; a `limit` of 0 is none."""
    return [
        f"{record['program']} {record['dtype']}"
        for record in made
        if not record.get("proved") or 0 < limit < record["clock_seconds"]
    ]


def main() -> None:
    """Run all programs, each in a process of its own; exit with 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS), metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "bf16"], choices=list(DTYPES))
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds by the clock; 0: none")
    parser.add_argument("--cores", type=int, default=2, help="that processes may run on")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--alone", action="store_true", help="run the one program here, and print its record")
    asked = parser.parse_args()
    if unknown := [name for name in asked.programs if name not in PROGRAMS]:
        parser.error(f"there is no program {unknown[0]}; known are {', '.join(PROGRAMS)}")
    if asked.alone:
        print(json.dumps(found(asked.programs[0], asked.dtypes[0], asked.target, asked.budget)))
        return
    if hasattr(os, "sched_setaffinity"):  # which processes that are started from here on inherit
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    made: list[Record] = []
    for name, dtype in itertools.product(asked.programs, asked.dtypes):
        words = [__file__, name, "--dtypes", dtype, "--target", asked.target, "--alone"]
        words += [] if asked.budget is None else ["--budget", str(asked.budget)]
        made.append({"program": name, "dtype": dtype, "target": asked.target} | answer_of(words, ENDS_AFTER))
        print(line(made[-1]), flush=True)
        asked.output.write_text(json.dumps({"cores": asked.cores, "records": made}, indent=1) + "\n", encoding="utf-8")
    if failed := failures(made, asked.limit):
        sys.exit(f"not proved, or too late by the clock: {', '.join(failed)}")


if __name__ == "__main__":
    main()
