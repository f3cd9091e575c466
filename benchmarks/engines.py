"""The same kernels with and without units beside the threads: bulk copies, tensor maps, warp groups, on a GPU or compiled alone.

    python benchmarks/engines.py --output benchmarks/results/engines.json

For every workload the best candidate is built in each variant. With a GPU, its result is compared with float64 and the
variants are timed in turn as CUDA graphs; without one, times are null and the figures of the compiler remain.
Exits with 1 when a result is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_check import compared
from kept import Record, records
from mugraph.devices import NO_ENGINES, Engines, device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType
from mugraph.lower import construct
from mugraph.runtime import Executable
from mugraph.search import search
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Timed
from mugraph.testing.mugraph_runs import LARGEST_ERROR

VARIANTS = {
    "threads alone": NO_ENGINES,
    "bulk copies": Engines(bulk_row_bytes=128),
    "tensor maps": Engines(tensor_maps=True),
    "warp groups": Engines(warp_group_rows=1),
    "warp groups and tensor maps": Engines(warp_group_rows=1, tensor_maps=True),
}
"""What kernels may use; `as described` stands for what the device's description says, and `early launches` for that and kernels
that are launched before those before them are over."""
NOT_MEASURED: Record = {"microseconds": None, "relative_error": None, "right": None}
ROUNDS = 20


def record(workload: str, dtype: str, batch: int, target: str) -> Record:
    """The figures of every variant of a workload's best candidate, and on a GPU its time and error."""
    described = Cuda.of(target)
    inputs = WORKLOADS[workload].inputs(batch, dtype, "full")
    found = search(trace(WORKLOADS[workload].function(), inputs).graph, device_for(target)).candidates[0]
    graph = construct(found.graph)
    early = replace(described.engines, early_launches=True)
    variants = {"as described": described.engines, "early launches": early} | VARIANTS
    built = {which: Executable(graph, replace(described, engines=engines)) for which, engines in variants.items()}
    measured = on_gpu(WORKLOADS[workload].function(), inputs, built, dtype) if torch.cuda.is_available() else {}
    return {
        "variants": {
            which: {"kernels": [asdict(figures) for figures in executable.resources], **measured.get(which, NOT_MEASURED)}
            for which, executable in built.items()
        }
    }


def on_gpu(
    function: Callable[..., Any], inputs: tuple[Any, ...], built: dict[str, Executable], dtype: str
) -> dict[str, dict[str, Any]]:
    """The time of a call and the error of each variant against the function in float64; variants take turns in every round."""
    tensors = [tensor.cuda() for tensor in inputs]
    exact = function(*(tensor.double() for tensor in tensors))
    found: dict[str, dict[str, Any]] = {}
    timed = {}
    for which, executable in built.items():
        found[which] = compared(executable, tensors, exact, DType(dtype))
        timed[which] = executable.machine.timed(partial(executable, *tensors))
    for which, microseconds in in_turns(timed).items():
        found[which]["microseconds"] = microseconds
    return found


def in_turns(calls: Mapping[str, Timed]) -> dict[str, float]:
    """The least microseconds of each of these calls on a GPU, which take turns in every round."""
    least = dict.fromkeys(calls, math.inf)
    for _ in range(ROUNDS):
        for which, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # not annotated
            start.record()
            call.run()
            end.record()
            end.synchronize()
            least[which] = min(least[which], 1e3 * start.elapsed_time(end) / call.times)
    return least


def summary(found: Sequence[Record]) -> Record:
    """Registers of a thread and microseconds of a call of every variant, by combination."""
    return {
        f"{entry['workload']} {entry['dtype']} batch {entry['batch']}": {
            which: {"registers": [kernel["registers"] for kernel in of["kernels"]], "microseconds": of["microseconds"]}
            for which, of in entry["variants"].items()
        }
        for entry in found
    }


def main() -> None:
    """Make the records that are missing; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--dtype", default="bf16", choices=[dtype.value for dtype in LARGEST_ERROR])
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    combinations = itertools.product(options.workloads, [options.dtype], options.batches, [options.target])
    names = ("workload", "dtype", "batch", "target")
    found = records([dict(zip(names, each, strict=True)) for each in combinations], record, options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(of["right"] is False for entry in found for of in entry["variants"].values()) else 0)


if __name__ == "__main__":
    main()
