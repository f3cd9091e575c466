"""The CUDA kernels of the six workloads, without a GPU: what they take when compiled, and whether they run clean when emulated.

    python benchmarks/cuda_kernels.py --output benchmarks/results/cuda-kernels.json

For every workload, element type and batch size, the best candidates of a search at full size are compiled for three
architectures, and their shared memory is compared with what is proved to be the least. Those of a search at the small size are
run on the CPU emulator and compared with float64, and after the best ones more, until every feature that some candidate's
schedule has was run; each engine beside the threads is used once where the device's description would not use it. A record names
the features of what was run. A run that is repeated makes what is missing; it exits with 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kept import Record, records
from mugraph.devices import Engines, device_for, roofline_seconds
from mugraph.errors import ExceedsMemory, MugraphError
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import construct
from mugraph.lower.memory import least_shared_bytes
from mugraph.runtime import Executable
from mugraph.search import search
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.testing.kernel_features import FEATURES, features
from mugraph.testing.mugraph_runs import LARGEST_ERROR, relative_error

SEARCHED = "cuda:sm_90"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
CANDIDATES = 3
ORDERS = (0, 1)
"""Seeds of the order in which the emulator's warps take turns."""
ENGINES = {"bulk copies": Engines(bulk_row_bytes=128), "warp groups": Engines(warp_group_rows=1)}
"""By the names of their features."""


def record(workload: str, dtype: str, batch: int) -> Record:
    """The best candidates at full size, compiled, and those at the small size, emulated."""
    return {**at_full_size(workload, dtype, batch), **at_small_size(workload, dtype, batch)}


def at_full_size(workload: str, dtype: str, batch: int) -> Record:
    """What the best candidates take on each architecture, and their predicted times."""
    program = trace(WORKLOADS[workload].function(), WORKLOADS[workload].inputs(batch, dtype, "full")).graph
    device = device_for(SEARCHED)
    started = time.process_time()
    best = search(program, device).candidates[:CANDIDATES]
    return {
        "search_seconds": time.process_time() - started,
        "roofline_seconds": roofline_seconds(program, device),
        "predicted_seconds": [candidate.cost for candidate in best],
        "compiled": [
            {architecture: compiled(construct(candidate.graph), architecture) for architecture in ARCHITECTURES}
            for candidate in best
        ],
    }


def compiled(graph: Graph, architecture: str) -> Record:
    """What a candidate's kernels take on an architecture, or why it cannot be compiled for it; seconds are of a processor."""
    try:
        started = time.process_time()
        executable = Executable(graph, Cuda.of(f"cuda:{architecture}"))
        seconds = time.process_time() - started
        figures = [asdict(figure) for figure in executable.resources]
    except MugraphError as error:
        return {"refused": str(error)}
    least = map(least_shared_bytes, executable.kernels)
    return {"seconds": seconds, "kernels": [f | {"least_shared_bytes": bound} for f, bound in zip(figures, least, strict=True)]}


def at_small_size(workload: str, dtype: str, batch: int) -> Record:
    """What the emulator says of the best candidates and of others with more features, and the features of all."""
    inputs = WORKLOADS[workload].inputs(batch, dtype, "small")
    program = trace(WORKLOADS[workload].function(), inputs).graph
    graphs = [construct(candidate.graph) for candidate in search(program, device_for(SEARCHED)).candidates]
    runs = [emulated(machine, graph, inputs) for machine, graph in exercised(graphs)]
    return {"emulated": runs, "features": [name for name in ALL_FEATURES if any(name in run["features"] for run in runs)]}


def exercised(graphs: Sequence[Graph]) -> Iterator[tuple[Cuda, Graph]]:
    """The best candidates, of the others each that has a feature which none before it has, and the first for each engine."""
    described, seen = Cuda.of(SEARCHED), set[str]()
    for number, graph in enumerate(graphs):
        of_graph = _features(described, graph)
        if number < CANDIDATES or not of_graph <= seen:
            yield described, graph
        seen |= of_graph
    for engine, engines in ENGINES.items():
        machine = replace(described, engines=engines)
        if engine not in seen:
            yield from ((machine, graph) for graph in itertools.islice((g for g in graphs if engine in _features(machine, g)), 1))


def _features(machine: Cuda, graph: Graph) -> set[str]:
    """Those of a candidate's kernels; none where it does not fit."""
    try:
        return set(features(launch.kernel for launch in machine.lower(graph).values()))
    except ExceedsMemory:
        return set()


def emulated(machine: Cuda, graph: Graph, inputs: tuple[Any, ...]) -> Record:
    """A candidate's features, the error of its emulated kernels against float64, relative to the largest result, and faults."""
    exact = evaluate(graph, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())
    errors, findings = [], 0
    for seed in ORDERS:
        on = EmulatedCuda(machine, seed)
        executable = Executable(graph, on)
        errors.append(relative_error([result.double().numpy() for result in executable(*inputs)], exact))
        findings += len(on.findings)
    error = max(errors) if all(map(math.isfinite, errors)) else None
    return {"features": features(executable.kernels), "relative_error": error, "findings": findings}


ALL_FEATURES = (*FEATURES, "several kernels")


def faults(entry: Record) -> list[str]:
    """What is not as it should be in a record."""
    found = []
    kernels = _compiled_kernels([entry])
    best = [kernel for of_architecture in entry["compiled"][0].values() for kernel in of_architecture.get("kernels", ())]
    for condition, what in (
        (any("refused" in made for made in entry["compiled"][0].values()), "the best candidate is refused"),
        (any(kernel["spill_bytes"] for kernel in best), "the best candidate spills"),
        (any(kernel["shared_bytes"] > kernel["least_shared_bytes"] for kernel in kernels), "more shared memory than needed"),
        (any(run["findings"] for run in entry["emulated"]), "findings"),
        (not all(_is_right(run, entry["dtype"]) for run in entry["emulated"]), "a wrong result"),
    ):
        if condition:
            found.append(what)
    return found


def _compiled_kernels(found: Sequence[Record]) -> list[Record]:
    made = (of_architecture for entry in found for candidate in entry["compiled"] for of_architecture in candidate.values())
    return [kernel for of_architecture in made for kernel in of_architecture.get("kernels", ())]


def _is_right(run: Record, dtype: str) -> bool:
    return run["relative_error"] is not None and run["relative_error"] < LARGEST_ERROR[DType(dtype)]


def summary(found: Sequence[Record]) -> Record:
    """The figures of all records together, and in how many combinations each feature was run, by type and by workload."""
    kernels, runs = _compiled_kernels(found), [run for entry in found for run in entry["emulated"]]
    made = [by for entry in found for candidate in entry["compiled"] for by in candidate.values()]
    return {
        "combinations": len(found),
        "faults": {f"{e['workload']} {e['dtype']} batch {e['batch']}": faults(e) for e in found if faults(e)},
        "compiled_kernels": len(kernels),
        "refused": sum("refused" in by for by in made),
        "most_registers": max((kernel["registers"] for kernel in kernels), default=0),
        "kernels_with_spills": sum(kernel["spill_bytes"] > 0 for kernel in kernels),
        "seconds_a_candidate": sum(by.get("seconds", 0.0) for by in made) / max(1, len(made)),
        "emulated_candidates": len(runs),
        "findings": sum(run["findings"] for run in runs),
        "largest_error": _by(
            found, "dtype", lambda group: max((r["relative_error"] or math.inf) for e in group for r in e["emulated"])
        ),
        "features": {which: _by(found, which, _feature_counts) for which in ("dtype", "workload")},
    }


def _largest_error(found: Sequence[Record]) -> float | None:
    errors = [run["relative_error"] for entry in found for run in entry["emulated"]]
    return None if None in errors else max(errors)


def _feature_counts(found: Sequence[Record]) -> dict[str, int]:
    return {name: sum(name in entry["features"] for entry in found) for name in ALL_FEATURES}


def _by(found: Sequence[Record], key: str, figure: Callable[[Sequence[Record]], Any]) -> dict[str, Any]:
    values = dict.fromkeys(entry[key] for entry in found)
    return {value: figure([entry for entry in found if entry[key] == value]) for value in values}


def main() -> None:
    """Make the records that are missing and print the summary; exit with 1 where one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "bf16", "fp32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    combinations = itertools.product(options.workloads, options.dtypes, options.batches)
    cases = [{"workload": name, "dtype": dtype, "batch": batch} for name, dtype, batch in combinations]
    found = records(cases, record, options.output, summary, options.jobs)
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if any(map(faults, found)) else 0)


if __name__ == "__main__":
    main()
