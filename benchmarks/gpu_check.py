"""Generated kernels on a GPU: the results of the best candidates of every workload against float64.

    python benchmarks/gpu_check.py --output benchmarks/results/gpu-check.json
    python benchmarks/gpu_check.py --backend triton --dtypes fp16 bf16 fp32 --output benchmarks/results/gpu-check-triton.json
    compute-sanitizer --tool racecheck --error-exitcode 3 python benchmarks/gpu_check.py --size small

Exits with 1 when a result is wrong. The target is the GPU that PyTorch sees. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kept import Case, Record, records
from mugraph.devices import device_for, resolved
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph
from mugraph.lower import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.testing.mugraph_runs import LARGEST_ERROR

CANDIDATES = 3


def this_target(backend: str) -> str:
    """The target of the current GPU, as in `cuda:sm_90:h200`."""
    if not torch.cuda.is_available():
        sys.exit(f"PyTorch sees no GPU; benchmarks/{backend}_kernels.py checks the same kernels on a CPU")
    return resolved(backend)


def record(workload: str, dtype: str, batch: int, size: str, target: str) -> Record:
    """The errors of the best candidates of a combination, or why they cannot run."""
    function, inputs = WORKLOADS[workload].function(), WORKLOADS[workload].inputs(batch, dtype, size)
    there = inputs if target == "cpu" else tuple(tensor.cuda() for tensor in inputs)
    exact = function(*(tensor.double() for tensor in there))
    found = search(trace(function, inputs).graph, device_for(target)).candidates[:CANDIDATES]
    return {"torch": torch.__version__, "candidates": [checked(construct(c.graph), there, exact, target) for c in found]}


def checked(graph: Graph, inputs: Sequence[torch.Tensor], exact: torch.Tensor, target: str) -> Record:
    """The error of a candidate relative to the largest result."""
    try:
        return compared(build(graph, target), inputs, exact, graph.inputs()[0].output.dtype)
    except MugraphError as refusal:
        return {"refused": str(refusal)}
    except Exception as fault:  # a fault on the GPU comes as whatever PyTorch or the driver's bindings raise
        return {"failed": f"{type(fault).__name__}: {fault}"[:300]}


def compared(executable: Executable, inputs: Sequence[torch.Tensor], exact: torch.Tensor, dtype: DType) -> Record:
    """The error of a result, and whether it is right for a program in `dtype`."""
    (result,) = executable(*inputs)
    error = ((result.double() - exact).abs().max() / exact.abs().max()).item()
    return {"relative_error": error, "right": error < LARGEST_ERROR[dtype]}


def is_right(entry: Record) -> bool:
    """Whether all candidates run and none is wrong."""
    return all(candidate.get("right", False) for candidate in entry["candidates"])


def summary(found: Sequence[Record]) -> Record:
    """How many combinations are right, and the largest error by type."""
    return {
        "right": sum(map(is_right, found)),
        "wrong": [f"{r['workload']} {r['dtype']} batch {r['batch']}" for r in found if not is_right(r)],
        "largest_error": {dtype: _largest_error(found, dtype) for dtype in sorted({r["dtype"] for r in found})},
    }


def _largest_error(found: Sequence[Record], dtype: str) -> float:
    errors = [c["relative_error"] for r in found if r["dtype"] == dtype for c in r["candidates"] if "relative_error" in c]
    return float(max(errors, default=0.0))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks for: the combinations, the file of records, and how many processes make them."""

    cases: list[Case]
    output: Path | None
    jobs: int


def asked(description: str | None, dtypes: Sequence[str], batches: Sequence[int]) -> Asked:
    """What the command line asks for, by default all of `dtypes` and `batches`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=dtypes, choices=[dtype.value for dtype in LARGEST_ERROR])
    parser.add_argument("--batches", nargs="+", type=int, default=batches)
    parser.add_argument("--size", default="full", help="size of the workloads: full or small")
    parser.add_argument("--backend", choices=("cuda", "triton"), default="cuda")
    parser.add_argument("--target", default=None, help="cpu, or the current GPU where it is left out")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each of them new for every combination: none for times")
    options = parser.parse_args()
    target = options.target or this_target(options.backend)
    combinations = itertools.product(options.workloads, options.dtypes, options.batches, [options.size], [target])
    names = ("workload", "dtype", "batch", "size", "target")
    cases = [dict(zip(names, combination, strict=True)) for combination in combinations]
    return Asked(cases, options.output, options.jobs)


def main() -> None:
    """Check what is asked for and not yet there; exit with 1 when something is wrong."""
    of = asked(__doc__, dtypes=["fp16", "bf16"], batches=[8])
    found = records(of.cases, record, of.output, summary, of.jobs)
    print(json.dumps(summary(found), indent=1))
    sys.exit(0 if all(map(is_right, found)) else 1)


if __name__ == "__main__":
    main()
