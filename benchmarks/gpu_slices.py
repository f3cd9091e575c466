"""Kernels that take the number of slices as an argument beside kernels for that number, on a GPU or compiled alone.

    python benchmarks/gpu_slices.py --output benchmarks/results/gpu-slices.json

The best candidate of a workload for all of a batch is printed once more, so that it computes as many of the first samples as a
launch says (`mugraph.sizes.sliced_kernels`). With a GPU it is timed at a few numbers, in turn with the best candidate for just so
many and with its own kernels for all, as CUDA graphs, and compared with float64 and, bit by bit, with its kernels for all.
Without one, times are null, and the last blocks are compared on the emulator; the compiler's figures remain. Exits with 1 when a
result is wrong. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engines import NOT_MEASURED, in_turns
from gpu_check import compared
from kept import Record, records
from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.sizes.sliced_kernels import SlicedKernels, first_slices, sliced_kernels
from mugraph.sizes.sliced_programs import SlicedProgram
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.resources import kernel_resources
from mugraph.testing.mugraph_runs import LARGEST_ERROR

PARTS = (16, 4, 2)
"""Of all samples, and one less than all."""


def best(workload: str, dtype: str, batch: int, target: str) -> Executable:
    """The first candidate for a batch."""
    inputs = WORKLOADS[workload].inputs(batch, dtype, "full")
    found = search(trace(WORKLOADS[workload].function(), inputs).graph, device_for(target)).candidates[0]
    return build(found.graph, target)


def record(workload: str, dtype: str, batch: int, target: str) -> Record:
    """What the kernels take of a GPU that compute all samples, and that compute the first; on a GPU the times of both."""
    work, whole = WORKLOADS[workload], best(workload, dtype, batch, target)
    inputs, fewer = work.inputs(batch, dtype, "full"), work.inputs(batch // 2, dtype, "full")
    places = tuple(0 if one.shape != other.shape else None for one, other in zip(inputs, fewer, strict=True))
    outputs = SlicedProgram.of(trace(work.function(), inputs).graph, places).outputs
    kernels = sliced_kernels(whole, places, outputs, inputs)
    found: Record = {"kernels": [asdict(figures) for figures in whole.resources], "sliced": None, "counts": {}}
    machine = whole.machine
    if kernels is None or not isinstance(machine, Cuda):
        return found
    launches: Sequence[Any] = [*kernels.launches.values()]
    taken = kernel_resources(machine, launches, kernels.sources)
    found["sliced"] = [asdict(figures) for figures in taken]
    counts = sorted({*(max(batch // part, 1) for part in PARTS), batch - 1})
    on_gpu = torch.cuda.is_available()
    found["counts"] = {
        f"{count}": _measured(whole, kernels, best(workload, dtype, count, target), workload, dtype, inputs, places, count)
        if on_gpu
        else dict.fromkeys(("first of all", "made for it", "all"), NOT_MEASURED)
        for count in counts
    }
    return found


def _measured(
    whole: Executable,
    kernels: SlicedKernels,
    special: Executable,
    workload: str,
    dtype: str,
    inputs: Sequence[torch.Tensor],
    places: Sequence[int | None],
    count: int,
) -> dict[str, dict[str, Any]]:
    """Microseconds of a call and the error of each way, which take turns in every round."""
    tensors = [tensor.cuda() for tensor in inputs]
    given = first_slices(places, count, tensors)
    exact = WORKLOADS[workload].function()(*(tensor.double() for tensor in tensors))
    ways: dict[str, tuple[Any, Sequence[torch.Tensor]]] = {
        "first of all": (kernels.at(count), given),
        "made for it": (special, given),
        "all": (whole, tensors),
    }
    found = {
        which: compared(run, arguments, exact if which == "all" else exact[:count], DType(dtype))
        for which, (run, arguments) in ways.items()
    }
    timed = {which: whole.machine.timed(partial(run, *arguments)) for which, (run, arguments) in ways.items()}
    for which, microseconds in in_turns(timed).items():
        found[which]["microseconds"] = microseconds
    return found


def summary(found: Sequence[Record]) -> Record:
    """Registers of a thread with and without the argument, and microseconds of a call at each number, by combination."""
    return {
        f"{entry['workload']} {entry['dtype']} batch {entry['batch']}": {
            "registers": [kernel["registers"] for kernel in entry["kernels"]],
            "with the argument": None if entry["sliced"] is None else [kernel["registers"] for kernel in entry["sliced"]],
            "microseconds": {
                count: {which: of["microseconds"] for which, of in ways.items()} for count, ways in entry["counts"].items()
            },
        }
        for entry in found
    }


def main() -> None:
    """Make the records that are missing; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["rmsnorm", "gated-mlp", "gqa", "ntrans"])
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--dtype", default="bf16", choices=[dtype.value for dtype in LARGEST_ERROR])
    parser.add_argument("--batches", nargs="+", type=int, default=[16])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    combinations = itertools.product(options.workloads, [options.dtype], options.batches, [options.target])
    names = ("workload", "dtype", "batch", "target")
    found = records([dict(zip(names, each, strict=True)) for each in combinations], record, options.output, summary)
    print(json.dumps(summary(found), indent=1))
    ways = [of for entry in found for count in entry["counts"].values() for of in count.values()]
    sys.exit(1 if any(of["right"] is False for of in ways) else 0)


if __name__ == "__main__":
    main()
