"""Faults planted in the CUDA kernels of the six workloads, without a GPU: how many of each kind the emulator notices.

    python benchmarks/cuda_faults.py --output benchmarks/results/cuda-faults.json

For every workload, element type, batch size and generation of GPUs, faults are planted in the kernels of a search at the small
size: a barrier removed, a wait dropped, a mask dropped, a wrong swizzle, a wrong row pitch, two live buffers in one place. The
best kernels come first, those with a loop before others; more follow until every kind of fault has had a place. A run that is
repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kept import Record, records
from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.lower import construct
from mugraph.search import search
from mugraph.targets.cuda.machine import Cuda
from mugraph.testing.kernel_faults import planted, try_faults
from mugraph.testing.kernel_features import features

TARGETS = ("cuda:sm_80", "cuda:sm_90")
KINDS = ("barrier", "wait", "mask", "layout", "swizzle", "overlap")
"""Those that more muGraphs are tried for; kernels with engines have places for others, too."""
NEEDLESS = {"barrier", "swizzle"}
"""Kinds of which a plant can be no fault: a barrier between statements that share elements of one thread alone is needless, and a
swizzle may exchange terms of one sum."""
MOST_GRAPHS = 4
"""muGraphs of one combination that faults are planted in."""


def record(workload: str, dtype: str, batch: int, target: str, most: int) -> Record:
    """What became of the faults in the kernels of one combination."""
    inputs = WORKLOADS[workload].inputs(batch, dtype, "small")
    candidates = search(trace(WORKLOADS[workload].function(), inputs).graph, device_for(target)).candidates
    machine = Cuda.of(target)
    missing, graphs = set(KINDS), list[dict[str, Any]]()
    for candidate in sorted(candidates, key=lambda candidate: not _loops(candidate.graph)):
        graph = construct(candidate.graph)
        if not graphs or missing & planted(graph, machine).keys():
            trials = try_faults(graph, inputs, machine, most)
            kernels = [launch.kernel for launch in machine.lower(graph).values()]
            kinds = {kind: asdict(of_kind) for kind, of_kind in trials.items()}
            graphs.append({"features": features(kernels), "kinds": kinds})
            missing -= trials.keys()
        if not missing or len(graphs) == MOST_GRAPHS:
            break
    return {"graphs": graphs, "without_a_place": sorted(missing)}


def _loops(graph: Graph) -> bool:
    return any(node.body is not None and node.body.loop > 1 for node in graph.kernels())


def summary(found: Sequence[Record]) -> Record:
    """Faults of each kind tried and unnoticed for each workload."""
    figures: Record = {}
    for entry in found:
        of_workload = figures.setdefault(entry["workload"], {kind: {"tried": 0, "unnoticed": 0} for kind in KINDS})
        for kind, trials in ((kind, trials) for graph in entry["graphs"] for kind, trials in graph["kinds"].items()):
            of_kind = of_workload.setdefault(kind, {"tried": 0, "unnoticed": 0})
            of_kind["tried"] += trials["tried"]
            of_kind["unnoticed"] += len(trials["unnoticed"])
    return figures


def main() -> None:
    """Make the records that are missing and print the summary; exit with 1 where a fault that must show did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--most", type=int, default=4, help="faults of each kind in the kernels of one muGraph")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    combinations = itertools.product(options.workloads, options.dtypes, options.batches, options.targets)
    names = ("workload", "dtype", "batch", "target", "most")
    cases = [dict(zip(names, (*combination, options.most), strict=True)) for combination in combinations]
    figures = summary(records(cases, record, options.output, summary, options.jobs))
    print(json.dumps(figures, indent=1))
    escaped = {kind for kinds in figures.values() for kind, trials in kinds.items() if trials["unnoticed"]}
    sys.exit(1 if escaped - NEEDLESS else 0)


if __name__ == "__main__":
    main()
