"""Generated kernels on a GPU: the results of the best candidates of every workload against float64.

    python benchmarks/gpu_check.py --output benchmarks/results/gpu-check.json
    python benchmarks/gpu_check.py --backend triton --dtypes fp16 bf16 fp32 --output benchmarks/results/gpu-check-triton.json
    compute-sanitizer --tool racecheck --error-exitcode 3 python benchmarks/gpu_check.py --size small

Exits with 1 when a result is wrong. The target is the GPU that PyTorch sees.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mugraph.devices import device_for
from mugraph.devices.registry import GPU_BACKENDS
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.lower import construct
from mugraph.runtime import build
from mugraph.search import search

CANDIDATES = 3
LARGEST_ERROR = {"fp16": 3e-3, "bf16": 2e-2, "fp32": 1e-4}
"""What rounding explains, relative to the largest result."""


def this_target(backend: str) -> str:
    """The target of the current GPU, as in `cuda:sm_90`."""
    if not torch.cuda.is_available():
        sys.exit(f"gpu_check: PyTorch sees no GPU; benchmarks/{backend}_kernels.py checks the same kernels on a CPU")
    major, minor = torch.cuda.get_device_capability()
    return f"{backend}:sm_{major}{minor}"


def records(target: str, workloads: list[str], dtypes: list[str], batches: list[int], size: str) -> Iterator[dict[str, Any]]:
    """One record for every candidate of every combination."""
    for name in workloads:
        function = WORKLOADS[name].function()
        for dtype in dtypes:
            for batch in batches:
                inputs = WORKLOADS[name].inputs(batch, dtype, size)
                on_gpu = [tensor.cuda() for tensor in inputs]
                exact = function(*(tensor.double() for tensor in on_gpu))
                found = search(trace(function, inputs).graph, device_for(target)).candidates[:CANDIDATES]
                for rank, candidate in enumerate(found):
                    case = {"workload": name, "dtype": dtype, "batch": batch, "size": size, "candidate": rank}
                    try:
                        (result,) = build(construct(candidate.graph), target)(*on_gpu)
                    except MugraphError as refusal:
                        yield case | {"refused": str(refusal)}
                        continue
                    error = ((result.double() - exact).abs().max() / exact.abs().max()).item()
                    yield case | {"relative_error": error, "right": error < LARGEST_ERROR[dtype]}


def main() -> None:
    """Check what is asked for, write the records, exit with 1 when one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--backend", choices=GPU_BACKENDS, default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "bf16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8])
    parser.add_argument("--size", default="full", help="size of the workloads: full or small")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    target, found = this_target(options.backend), []
    for record in records(target, options.workloads, options.dtypes, options.batches, options.size):
        found.append(record)
        print(json.dumps(record), file=sys.stderr, flush=True)
    report = {"device": torch.cuda.get_device_name(), "target": target, "torch": torch.__version__, "records": found}
    text = json.dumps(report, indent=1) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    sys.exit(0 if all(record.get("right", False) for record in found) else 1)


if __name__ == "__main__":
    main()
