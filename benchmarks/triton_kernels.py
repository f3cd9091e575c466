"""The Triton kernels of the six workloads, without a GPU: what they take when compiled, and whether they are right.

    python benchmarks/triton_kernels.py --output benchmarks/results/triton-kernels.json
    python benchmarks/triton_kernels.py --searched gfx942 --architectures gfx942 --candidates 1

For every workload, element type and batch size, the best candidates of a search at full size for one architecture are compiled
for three; those of a search at the small size run in Triton's interpreter and are compared with float64 (bf16 is only
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
from mugraph.targets.triton.machine import TritonMachine


def compiled(graph: Graph, architectures: list[str]) -> dict[str, Any]:
    """What a candidate's kernels take on each architecture, or why it cannot be compiled for it."""
    found: dict[str, Any] = {}
    for architecture in architectures:
        try:
            started = time.perf_counter()
            executable = build(graph, f"triton:{architecture}")
            seconds = time.perf_counter() - started
            found[architecture] = {"seconds": seconds, "kernels": [asdict(figures) for figures in executable.resources]}
        except MugraphError as error:
            found[architecture] = {"refused": str(error)}
    return found


def interpreted(graph: Graph, target: str, inputs: tuple[Any, ...], exact: Any) -> dict[str, Any]:
    """The error of interpreted kernels against float64, relative to the largest result, and their writes out of bounds."""
    machine = InterpretedTriton(TritonMachine.of(target))
    try:
        (result,) = Executable(graph, machine)(*inputs)
    except MugraphError as refusal:
        return {"refused": str(refusal)}
    error = ((result.double() - exact).abs().max() / exact.abs().max()).item()
    return {"relative_error": error if math.isfinite(error) else None, "findings": len(machine.findings)}


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record for every combination."""
    target = f"triton:{options.searched}"
    device = device_for(target)
    for name in options.workloads:
        function = WORKLOADS[name].function()
        for dtype in options.dtypes:
            for batch in options.batches:
                record: dict[str, Any] = {"workload": name, "dtype": dtype, "batch": batch}
                program = trace(function, WORKLOADS[name].inputs(batch, dtype)).graph
                best = search(program, device).candidates[: options.candidates]
                record["roofline_seconds"] = roofline_seconds(program, device)
                record["predicted_seconds"] = [candidate.cost for candidate in best]
                record["compiled"] = [compiled(construct(candidate.graph), options.architectures) for candidate in best]
                if dtype != "bf16":
                    inputs = WORKLOADS[name].inputs(batch, dtype, "small")
                    exact = function(*(tensor.double() for tensor in inputs))
                    small = search(trace(function, inputs).graph, device).candidates[: options.candidates]
                    record["interpreted"] = [
                        interpreted(construct(candidate.graph), target, inputs, exact) for candidate in small
                    ]
                yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "fp32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--candidates", type=int, default=3)
    parser.add_argument("--searched", default="sm_90", help="the architecture that is searched for")
    parser.add_argument("--architectures", nargs="+", default=["sm_80", "sm_90", "sm_100"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = []
    for record in rows(options):
        found.append(record)
        print(json.dumps(record), file=sys.stderr, flush=True)
        if options.output is not None:
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
