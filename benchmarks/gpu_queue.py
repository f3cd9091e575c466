"""Everything a machine with a GPU should run, in order, within the time it is there for: see docs/gpu-queue.md.

    python benchmarks/gpu_queue.py --minutes 30 --results gpu-results

Each entry is one command with a limit of its own. Its exit status and the last line that it printed go to `queue.json` in the
folder of results, beside a log of everything that it printed and the JSON it writes itself. Entries that have passed are not run
again, those that were cut short go on where they stopped, and none starts with less time left than `SHORTEST_SECONDS`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SHORTEST_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A question to a GPU: the arguments of Python, where `{results}` is the folder of results, and its limit in seconds."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    under: tuple[str, ...] = ()
    """A tool that runs Python, with its options."""

    def command(self, results: Path) -> list[str]:
        """What is run."""
        return [*self.under, sys.executable, *(argument.format(results=results) for argument in self.arguments)]


def _sanitizer(tool: str) -> tuple[str, ...]:
    """The tool; calls of the driver that fail are not findings, as its bindings ask old drivers for functions they lack."""
    silent = ("--report-api-errors", "no") if tool == "memcheck" else ()
    return ("compute-sanitizer", "--tool", tool, *silent, "--target-processes", "all", "--error-exitcode", "3")


_TRITON = ("--backend", "triton")
_CHECK, _TIMES, _ORDER = "benchmarks/gpu_check.py", "benchmarks/gpu_times.py", "benchmarks/gpu_order.py"
_ROUNDED, _RANDOM, _PAIRS = "benchmarks/rounded_products.py", "benchmarks/random_mugraphs.py", "benchmarks/gpu_pairs.py"
_AT_ONCE = ("--jobs", str(max(1, (os.cpu_count() or 2) - 2)))
_NEVER_ON_A_GPU = (
    "tests/lower/test_concatenations.py",
    "tests/targets/test_choices.py",
    "tests/targets/cuda/test_batched_rings.py",
)
_EMULATED = ("tests/targets", "tests/lower", "tests/runtime/test_fp8.py", "tests/runtime/test_roundings.py", "tests/testing")
"""Tests of kernels that run on emulators where there is no GPU."""
_ON_GPU = ("--targets", "cuda-on-gpu", "triton-on-gpu")
QUEUE = (
    Entry("emulator", ("-m", "pytest", "-q", "tests/targets/cuda/test_on_gpu.py"), 180),
    Entry("parts", ("-m", "pytest", "-q", *_NEVER_ON_A_GPU), 180),
    Entry("emulated", ("-m", "pytest", "-q", "-n", "auto", "--on-gpu", *_EMULATED), 300),
    Entry(
        "random",
        (_RANDOM, "--minutes", "2", *_AT_ONCE, *_ON_GPU, "--output", "{results}/random.json"),
        180,
    ),
    Entry(
        "statistics",
        (_RANDOM, "--statistics", "--minutes", "1", *_AT_ONCE, *_ON_GPU, "--output", "{results}/statistics.json"),
        120,
    ),
    Entry("small", (_CHECK, *_AT_ONCE, "--size", "small", "--output", "{results}/small.json"), 300),
    Entry("models", ("benchmarks/gpu_models.py", "--output", "{results}/models.json"), 600),
    Entry("layers", ("benchmarks/gpu_layers.py", "--saved", "{results}/layers", "--output", "{results}/layers.json"), 600),
    Entry("order", (_ORDER, *_AT_ONCE, "--most", "8", "--output", "{results}/order.json"), 600),
    Entry("engines", ("benchmarks/engines.py", "--batches", "64", "512", "--output", "{results}/engines.json"), 600),
    Entry(
        "early",
        ("benchmarks/engines.py", "gqa", "lora", "qknorm", "--batches", "1", "8", "--output", "{results}/early.json"),
        300,
    ),
    Entry("reductions", (_PAIRS, "reductions", "rmsnorm", "qknorm", "--output", "{results}/reductions.json"), 300),
    Entry("scores", (_PAIRS, "scores", "prefill-128", "prefill-512", "--batches", "1", "--output", "{results}/scores.json"), 300),
    Entry("slices", ("benchmarks/gpu_slices.py", "--output", "{results}/slices.json"), 360),
    Entry("prefetch", (_PAIRS, "prefetch", "gqa", "gated-mlp", "--output", "{results}/prefetch.json"), 300),
    Entry("lowered_order", (_PAIRS, "lowered-order", "--output", "{results}/lowered_order.json"), 540),
    Entry("products", ("benchmarks/gpu_products.py", "--output", "{results}/products.json"), 540),
    Entry("rounded", (_ROUNDED, "--output", "{results}/rounded.json"), 180),
    Entry("aim", (_TIMES, "rmsnorm", "--batches", "2", "--output", "{results}/aim.json"), 180),
    Entry("times", (_TIMES, "--batches", "8", "1", "16", "--output", "{results}/times.json"), 600),
    Entry("memcheck", (_CHECK, "--size", "small", "--output", "{results}/memcheck.json"), 600, _sanitizer("memcheck")),
    Entry("racecheck", (_CHECK, "--size", "small", "--output", "{results}/racecheck.json"), 600, _sanitizer("racecheck")),
    Entry(
        "paper",
        (_ORDER, *_AT_ONCE, "--dtypes", "fp16", "--batches", "8", "--norms", "--most", "6", "--output", "{results}/paper.json"),
        600,
    ),
    Entry("triton", (_CHECK, *_TRITON, *_AT_ONCE, "--dtypes", "fp16", "bf16", "fp32", "--output", "{results}/triton.json"), 600),
    Entry("triton_order", (_ORDER, *_TRITON, *_AT_ONCE, "--most", "4", "--output", "{results}/triton_order.json"), 600),
    Entry("full", (_CHECK, *_AT_ONCE, "--output", "{results}/full.json"), 600),
    Entry("triton_rounded", (_ROUNDED, "--target", "triton:sm_90", "--output", "{results}/triton_rounded.json"), 300),
)


def run(entry: Entry, results: Path, seconds: float) -> dict[str, Any]:
    """What became of an entry within `seconds`: passed, failed, cut short, or not run for want of its tool."""
    if entry.under and shutil.which(entry.under[0]) is None:
        return {"outcome": f"not run: there is no {entry.under[0]}"}
    started = time.monotonic()
    with (results / f"{entry.name}.log").open("wb") as log:
        # A session of its own: what the command starts is ended with it.
        process = subprocess.Popen(entry.command(results), stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(min(seconds, entry.seconds))
            outcome = "passed" if status == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status, outcome = process.wait(), "cut short"
    lines = (results / f"{entry.name}.log").read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return {"outcome": outcome, "status": status, "seconds": round(time.monotonic() - started, 1), "last_line": last}


def remaining(entries: Sequence[Entry], known: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """The entries that have not passed yet."""
    return [entry for entry in entries if known.get(entry.name, {}).get("outcome") != "passed"]


def main() -> None:
    """Run what has not passed yet; exit with 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [entry.name for entry in QUEUE]
    parser.add_argument("entries", nargs="*", default=names, help=f"in this order: {', '.join(names)}")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--results", type=Path, default=Path("gpu-results"))
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    chosen = [entry for entry in QUEUE if entry.name in options.entries]
    if options.list:
        for entry in chosen:
            print(f"{entry.name} (up to {entry.seconds:.0f} s): {' '.join(entry.command(options.results))}")
        return
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU; benchmarks/cuda_kernels.py and benchmarks/cuda_faults.py check the kernels without one")
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / "queue.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    end = time.monotonic() + 60 * options.minutes
    for entry in remaining(chosen, found):
        left = end - time.monotonic()
        if left < SHORTEST_SECONDS:
            break
        found[entry.name] = run(entry, options.results, left)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{entry.name}: {found[entry.name]['outcome']}", flush=True)
    sys.exit(1 if any(of_entry["outcome"] == "failed" for of_entry in found.values()) else 0)


if __name__ == "__main__":
    main()
