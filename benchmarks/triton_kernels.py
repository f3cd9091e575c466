"""The Triton kernels of the six workloads, without a GPU: what they take when compiled, and whether they are right.

    python benchmarks/triton_kernels.py --output benchmarks/results/triton-kernels.json

For every workload, element type and batch size, the best candidates of a search at full size are compiled for three
architectures; those of a search at the small size run in Triton's interpreter and are compared with float64 (bf16 is only
compiled: the interpreter computes it wrongly).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mugraph.devices import device_for, roofline_seconds
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.lower import construct
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import Triton

SEARCHED = "triton:sm_90"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def compiled(graph: Graph) -> dict[str, Any]:
    """What a candidate's kernels take on each architecture, or why it cannot be compiled for it."""
    found: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        try:
            started = time.perf_counter()
            executable = build(graph, f"triton:{architecture}")
            seconds = time.perf_counter() - started
            found[architecture] = {"seconds": seconds, "kernels": [asdict(figures) for figures in executable.resources]}
        except MugraphError as error:
            found[architecture] = {"refused": str(error)}
    return found


def interpreted(graph: Graph, inputs: tuple[Any, ...], exact: Any) -> dict[str, Any]:
    """The error of interpreted kernels against float64, relative to the largest result, and their writes out of bounds."""
    machine = InterpretedTriton(Triton.of(SEARCHED))
    try:
        (result,) = Executable(graph, machine)(*inputs)
    except MugraphError as refusal:
        return {"refused": str(refusal)}
    error = ((result.double() - exact).abs().max() / exact.abs().max()).item()
    return {"relative_error": error if math.isfinite(error) else None, "findings": len(machine.findings)}


def rows(workloads: list[str], dtypes: list[str], batches: list[int], candidates: int) -> Iterator[dict[str, Any]]:
    """One record for every combination."""
    device = device_for(SEARCHED)
    for name in workloads:
        function = WORKLOADS[name].function()
        for dtype in dtypes:
            for batch in batches:
                record: dict[str, Any] = {"workload": name, "dtype": dtype, "batch": batch}
                program = trace(function, WORKLOADS[name].inputs(batch, dtype)).graph
                best = search(program, device).candidates[:candidates]
                record["roofline_seconds"] = roofline_seconds(program, device)
                record["predicted_seconds"] = [candidate.cost for candidate in best]
                record["compiled"] = [compiled(construct(candidate.graph)) for candidate in best]
                if dtype != "bf16":
                    inputs = WORKLOADS[name].inputs(batch, dtype, "small")
                    exact = function(*(tensor.double() for tensor in inputs))
                    small = search(trace(function, inputs).graph, device).candidates[:candidates]
                    record["interpreted"] = [interpreted(construct(candidate.graph), inputs, exact) for candidate in small]
                yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "fp32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = []
    for record in rows(options.workloads, options.dtypes, options.batches, options.candidates):
        found.append(record)
        print(json.dumps(record), file=sys.stderr, flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
