"""The CUDA kernels of the six workloads, without a GPU: what they take when compiled, and whether they run clean when emulated.

    python benchmarks/cuda_kernels.py --output benchmarks/results/cuda-kernels.json

For every workload, element type and batch size, the best candidates of a search at full size are compiled for three
architectures; those of a search at the small size are run on the CPU emulator and compared with float64, and after the best
ones more, until every feature that some candidate's schedule has was run. Each record names the features of what was run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.devices import device_for, roofline_seconds
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import construct
from mugraph.runtime import Executable, build
from mugraph.runtime.cuda.emulated import EmulatedCuda
from mugraph.runtime.cuda.figures import kernel_figures
from mugraph.runtime.cuda.machine import Cuda
from mugraph.search import search
from mugraph.trials.kernel_features import features

SEARCHED = "cuda:sm_90"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
CANDIDATES = 3
ORDERS = (0, 1)
"""Seeds of the order in which the emulator's warps take turns."""


def compiled(graph: Graph) -> dict[str, Any]:
    """What a candidate's kernels take on each architecture, or why it cannot be compiled for it."""
    found: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        try:
            started = time.process_time()
            figures = kernel_figures(build(graph, f"cuda:{architecture}"))
            found[architecture] = {"seconds": time.process_time() - started, "kernels": [asdict(figure) for figure in figures]}
        except MugraphError as error:
            found[architecture] = {"refused": str(error)}
    return found


def emulated(graph: Graph, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """A candidate's features, the error of its emulated kernels against float64, relative to the largest result, and faults."""
    kernels = [launch.kernel for launch in Cuda.of(SEARCHED).lower(graph).values()]
    exact = evaluate(graph, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())
    error, findings = 0.0, 0
    for seed in ORDERS:
        machine = EmulatedCuda(Cuda.of(SEARCHED), seed)
        for result, reference in zip(Executable(graph, machine)(*inputs), exact, strict=True):
            error = max(error, float(np.max(np.abs(result.double().numpy() - reference)) / np.max(np.abs(reference))))
        findings += len(machine.findings)
    return {"features": features(kernels), "relative_error": error if math.isfinite(error) else None, "findings": findings}


def exercised(graphs: Sequence[Graph]) -> Iterator[Graph]:
    """The best candidates, and of the others each that has a feature of schedules which none before it has."""
    machine, seen = Cuda.of(SEARCHED), set[str]()
    for number, graph in enumerate(graphs):
        try:
            of_graph = set(features(launch.kernel for launch in machine.lower(graph).values()))
        except MugraphError:
            continue
        if number < CANDIDATES or not of_graph <= seen:
            yield graph
        seen |= of_graph


def rows(workloads: list[str], dtypes: list[str], batches: list[int]) -> Iterator[dict[str, Any]]:
    """One record for every combination."""
    device = device_for(SEARCHED)
    for name in workloads:
        for dtype in dtypes:
            for batch in batches:
                record: dict[str, Any] = {"workload": name, "dtype": dtype, "batch": batch}
                for size in ("full", "small"):
                    inputs = WORKLOADS[name].inputs(batch, dtype, size)
                    program = trace(WORKLOADS[name].function(), inputs).graph
                    started = time.process_time()
                    found = search(program, device).candidates
                    best = found[:CANDIDATES]
                    if size == "full":
                        record["search_seconds"] = time.process_time() - started
                        record["roofline_seconds"] = roofline_seconds(program, device)
                        record["predicted_seconds"] = [candidate.cost for candidate in best]
                        record["compiled"] = [compiled(construct(candidate.graph)) for candidate in best]
                    else:
                        graphs = exercised([construct(candidate.graph) for candidate in found])
                        record["emulated"] = [emulated(graph, inputs) for graph in graphs]
                        record["features"] = sorted({name for run in record["emulated"] for name in run["features"]})
                yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = []
    for record in rows(options.workloads, options.dtypes, options.batches):
        found.append(record)
        print(json.dumps(record), file=sys.stderr, flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
