"""The same kernels with products rounded before they are added, and with compilers free to fuse them.

    python benchmarks/rounded_products.py --target triton:sm_90 --output benchmarks/results/rounded-products.json

Exponents and the maximum that they are shifted by need products as they are rounded: `rounded` in CUDA C++,
`enable_fp_fusion=False` in Triton. For every workload with exponentials the best candidate is built both ways. With a GPU both
are compared with float64 and timed in turn as CUDA graphs; without one, times are null and the figures of the compiler remain.
What is fused is measured and never kept: it may err. Exits with 1 when a result that is rounded is wrong. A run that is repeated
makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from engines import NOT_MEASURED, on_gpu, summary
from kept import Record, records
from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.lower import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.triton import TileLaunch
from mugraph.targets.triton.machine import Triton
from mugraph.testing.mugraph_runs import LARGEST_ERROR

ROUNDED, FUSED = "rounded", "fused"
EXPONENTIAL = ("gqa", "qknorm")


@dataclass(frozen=True, slots=True)
class FusedTriton(Triton):
    """The machine of kernels of which Triton may fuse all products with sums."""

    def lower(self, graph: Graph) -> dict[int, TileLaunch]:
        """The launches of a kernel graph, by node."""
        launches = Triton.lower(self, graph)
        return {index: replace(launch, kernel=replace(launch.kernel, fuses=True)) for index, launch in launches.items()}


def both(graph: Graph, target: str) -> dict[str, Executable]:
    """The graph's kernels for a target as they are, and with products that may be fused."""
    rounded = build(graph, target)
    machine = rounded.machine
    if isinstance(machine, Triton):
        return {ROUNDED: rounded, FUSED: Executable(graph, FusedTriton(machine.architecture, machine.shared_bytes))}
    sources = {name: text.replace("rounded(", "(") for name, text in rounded.sources.items()}
    return {ROUNDED: rounded, FUSED: Executable(graph, machine, sources)}


def record(workload: str, dtype: str, batch: int, target: str) -> Record:
    """The figures of both variants of a workload's best candidate, and on a GPU their times and errors."""
    inputs = WORKLOADS[workload].inputs(batch, dtype, "full")
    found = search(trace(WORKLOADS[workload].function(), inputs).graph, device_for(target)).candidates[0]
    built = both(construct(found.graph), target)
    measured = on_gpu(WORKLOADS[workload].function(), inputs, built, dtype) if torch.cuda.is_available() else {}
    return {
        "variants": {
            which: {"kernels": [asdict(figures) for figures in executable.resources], **measured.get(which, NOT_MEASURED)}
            for which, executable in built.items()
        }
    }


def wrong(found: Sequence[Record]) -> bool:
    """Whether a result is wrong of those that are kept."""
    return any(entry["variants"][ROUNDED]["right"] is False for entry in found)


def main() -> None:
    """Make the records that are missing; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(EXPONENTIAL))
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "fp32"], choices=[dtype.value for dtype in LARGEST_ERROR])
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    combinations = itertools.product(options.workloads, options.dtypes, options.batches, [options.target])
    names = ("workload", "dtype", "batch", "target")
    found = records([dict(zip(names, each, strict=True)) for each in combinations], record, options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(1 if wrong(found) else 0)


if __name__ == "__main__":
    main()
