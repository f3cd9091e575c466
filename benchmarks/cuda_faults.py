"""Faults planted in the CUDA kernels of the six workloads, without a GPU: how many of each kind the emulator notices.

    python benchmarks/cuda_faults.py --output benchmarks/results/cuda-faults.json    # an hour of one core

For every workload and element type, faults are planted in the best looped kernels of a search at the small size: a barrier
removed, a wait dropped, a mask dropped, a wrong swizzle, a wrong row pitch, two live buffers in one place. fp16 kernels
are those of an A100, whose threads fill rings; bf16 kernels those of an H100, where bulk copies do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.lower import construct
from mugraph.runtime.cuda.machine import Cuda
from mugraph.search import search
from mugraph.trials.kernel_faults import try_faults

TARGETS = {"fp16": "cuda:sm_80", "bf16": "cuda:sm_90"}
BATCH = 8


def record(name: str, dtype: str, most: int) -> dict[str, Any]:
    """What became of the faults in the kernels of one workload."""
    inputs = WORKLOADS[name].inputs(BATCH, dtype, "small")
    found = search(trace(WORKLOADS[name].function(), inputs).graph, device_for(TARGETS[dtype])).candidates
    graph = next((c.graph for c in found if _loops(c.graph)), found[0].graph)
    started = time.process_time()
    trials = try_faults(construct(graph), inputs, Cuda.of(TARGETS[dtype]), most)
    kinds = {kind: asdict(of_kind) for kind, of_kind in trials.items()}
    return {"workload": name, "dtype": dtype, "target": TARGETS[dtype], "seconds": time.process_time() - started, "kinds": kinds}


def _loops(graph: Graph) -> bool:
    return any(node.body is not None and node.body.loop > 1 for node in graph.kernels())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--most", type=int, default=12, help="faults of each kind in each workload's kernels")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = []
    for name in options.workloads:
        for dtype in options.dtypes:
            found.append(record(name, dtype, options.most))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
