"""The same kernels with and without units beside the threads: bulk copies and warp groups, on a GPU or compiled alone.

    python benchmarks/engines.py --output benchmarks/results/engines.json

For every workload the best candidate is built in each variant. With a GPU, its result is compared with float64 and the
variants are timed in turn as CUDA graphs; without one, times are null and the figures of the compiler remain.
Exits with 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mugraph.devices import NO_ENGINES, Engines, device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.lower import construct
from mugraph.runtime import Executable
from mugraph.runtime.cuda.figures import kernel_figures
from mugraph.runtime.cuda.machine import Cuda
from mugraph.search import search

VARIANTS = {
    "threads alone": NO_ENGINES,
    "bulk copies": Engines(bulk_copies=True),
    "warp groups": Engines(warp_group_rows=1),
}
"""What kernels may use; `as described` stands for what the device's description says."""
LARGEST_ERROR = {"fp16": 3e-3, "bf16": 2e-2}
ROUNDS = 20


def records(target: str, workloads: list[str], dtype: str, batches: list[int]) -> Iterator[dict[str, Any]]:
    """One record for every workload, batch size and variant."""
    described = Cuda.of(target)
    for name in workloads:
        for batch in batches:
            inputs = WORKLOADS[name].inputs(batch, dtype, "full")
            found = search(trace(WORKLOADS[name].function(), inputs).graph, device_for(target)).candidates[0]
            graph = construct(found.graph)
            variants = {"as described": described.engines} | VARIANTS
            built = {which: Executable(graph, replace(described, engines=engines)) for which, engines in variants.items()}
            measured = on_gpu(name, inputs, built, dtype) if torch.cuda.is_available() else {}
            for which, executable in built.items():
                kernels = [asdict(figures) for figures in kernel_figures(executable)]
                case = {"workload": name, "dtype": dtype, "batch": batch, "variant": which, "kernels": kernels}
                yield case | measured.get(which, {"microseconds": None, "relative_error": None, "right": None})


def on_gpu(name: str, inputs: tuple[Any, ...], built: dict[str, Executable], dtype: str) -> dict[str, dict[str, Any]]:
    """The time of a call and the error against float64 of each variant; variants take turns in every round."""
    tensors = [tensor.cuda() for tensor in inputs]
    exact = WORKLOADS[name].function()(*(tensor.double() for tensor in tensors))
    found: dict[str, dict[str, Any]] = {}
    timed = {}
    for which, executable in built.items():
        (result,) = executable(*tensors)
        error = ((result.double() - exact).abs().max() / exact.abs().max()).item()
        found[which] = {"relative_error": error, "right": error < LARGEST_ERROR[dtype]}
        timed[which] = executable.machine.timed(partial(executable, *tensors))
    for _ in range(ROUNDS):
        for which, call in timed.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # not annotated
            start.record()
            call.run()
            end.record()
            end.synchronize()
            elapsed = 1e3 * start.elapsed_time(end) / call.times
            found[which]["microseconds"] = min(elapsed, found[which].get("microseconds", elapsed))
    return found


def main() -> None:
    """Write the records; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--dtype", default="bf16", choices=list(LARGEST_ERROR))
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = []
    for record in records(options.target, options.workloads, options.dtype, options.batches):
        found.append(record)
        print(json.dumps(record), file=sys.stderr, flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(record["right"] is False for record in found) else 0)


if __name__ == "__main__":
    main()
