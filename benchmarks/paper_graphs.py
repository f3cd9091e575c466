"""The paper's muGraphs, written in examples/paper, beside the best that the search finds.

    python benchmarks/paper_graphs.py --output benchmarks/results/paper-graphs.json

Each is checked, compared with its program, compiled for every target, and of the GPU kernels some blocks are run on the emulator.
Both graphs are costed as the search costs its candidates (`mugraph.search.algorithm1.candidates`), with what that consists of:
launches, blocks, the rounds they take on the multiprocessors and how many run side by side there, bytes through device memory,
bytes that blocks load, operations, steps of loops. `proposed` says whether the search, in the space around the paper's muGraph,
finds one that computes the same in the same way, and at which cost by its own model; `place`, where that one stands among the
candidates of the whole search. Exits with 1 where a muGraph is not run. A run that is repeated makes what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mugraph
from kept import Record, records
from mugraph import SearchSpace
from mugraph.devices import Device, device_for
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.handwritten import in_place_of
from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import Graph, Level
from mugraph.ir.liveness import peak_bytes
from mugraph.ir.ops import OPERATORS, Scope, apply_call, flops
from mugraph.search import Options, Proposal, search
from mugraph.search.algorithm1.candidates import demand, predicted_seconds
from mugraph.search.scheduling.cost_table import kernel_seconds
from mugraph.testing.containment import way
from mugraph.testing.paper import WRITTEN_FOR

PAPER = Path(__file__).parent.parent / "examples" / "paper"
PATIENT = Options(closure_seconds=120.0)
"""What is found should not depend on how busy the machine is; layer norms in attention take some seconds."""


def record(graph: str, target: str) -> Record:
    """What becomes of one muGraph on one target, and the figures of it and of the best."""
    function, inputs = WRITTEN_FOR[graph].function, WRITTEN_FOR[graph].inputs
    program, device = trace(function, inputs).graph, device_for(target)
    written = in_place_of(program, text_of(graph), device)
    whole = search(program, device, options=PATIENT).candidates
    around = search(program, device, options=PATIENT, space=SearchSpace.of(written)).candidates
    ways: dict[Hashable, int] = {}
    same = [candidate for candidate in around if way(candidate.graph, ways) == way(written, ways)]
    places = [place for place, candidate in enumerate(whole, 1) if way(candidate.graph, ways) == way(written, ways)]
    return {
        "paper": demands(written, device),
        "best": demands(whole[0].graph, device),
        "search": {
            "best_seconds": whole[0].cost,
            "around_seconds": _cost(around),
            "proposed": bool(same),
            "proposed_seconds": _cost(same),
            "place": places[0] if places else None,
            "candidates": len(whole),
        },
        **compiled(graph, function, inputs, target),
    }


def text_of(graph: str) -> str:
    """The text of a muGraph by the name of its file."""
    return (PAPER / f"{graph}.mugraph").read_text()


def _cost(candidates: Sequence[Proposal]) -> float | None:
    return min((candidate.cost for candidate in candidates), default=None)


def compiled(graph: str, function: Callable[..., Any], inputs: Sequence[Any], target: str) -> Record:
    """The evidence for a muGraph, and what its kernels take."""
    profile = target == "cpu"
    try:
        opt = mugraph.optimize_graph(text_of(graph), function, inputs, target, profile=profile, seed=0, evidence="tested")
    except MugraphError as error:
        return {"runs": False, "reason": str(error)}
    return {
        "runs": True,
        "outcome": opt.certificate.outcome,
        "error_bound": opt.certificate.error_bound,
        "reason": opt.certificate.reason,
        "latency": opt.best.latency,
        "spot_check": None if opt.best.spot_check is None else opt.best.spot_check.to_json(),
        "gpu_kernels": [asdict(figures) for figures in opt.executable.resources],
    }


def demands(graph: Graph, device: Device) -> Record:
    """What a kernel graph asks of a device, and the seconds that are predicted for it."""
    kernels = []
    for node in graph.kernels():
        body, tensors = node.body, [graph.tensor(value) for value in node.inputs]
        kernels.append(
            {
                "operator": node.op,
                "grid": body.grid if body is not None else None,
                "loop": body.loop if body is not None else None,
                "block_operators": body.operator_count() if body is not None else None,
                "shared_bytes": peak_bytes(body) if body is not None else None,
                "device_bytes": sum(tensor.bytes for tensor in (*tensors, *node.outputs)),
                "loaded_bytes": loaded_bytes(body) if body is not None else None,
                "operations": operations(Graph(Level.KERNEL, (node,), ()) if body is None else body, graph),
            }
        )
        if body is not None:
            kernels[-1] |= occupancy(body, device)
    return {"seconds": predicted_seconds(graph, device), "kernels": kernels}


def occupancy(body: Graph, device: Device) -> Record:
    """How the blocks of a kernel fill a device."""
    asked = demand(body, device)
    side_by_side = device.resident_blocks if 2 * asked.held <= device.shared_memory_bytes else 1
    return {
        "rounds": math.ceil(math.prod(body.grid) / device.multiprocessors),
        "side_by_side": side_by_side,
        "loop_steps": int(asked.steps) * body.loop,
        "kernel_seconds": float(kernel_seconds(device, asked)),
    }


def loaded_bytes(body: Graph) -> int:
    """Bytes that all blocks load in all iterations."""
    inside = loop_nodes(body)
    loads = ((index, node.output.bytes) for index, node in enumerate(body.nodes) if node.op == "input_iterator")
    return math.prod(body.grid) * sum(tile * (body.loop if index in inside else 1) for index, tile in loads)


def operations(graph: Graph, around: Graph) -> int:
    """Floating-point operations of all blocks and iterations; of a pre-defined kernel, whose operands are `around` it."""
    inside, total = loop_nodes(graph), 0
    for index, node in enumerate(graph.nodes):
        times = graph.loop if index in inside else 1
        if node.body is not None:
            total += times * operations(node.body, graph)
        elif node.op in OPERATORS and node.inputs:
            operands = [(around if graph.level is Level.KERNEL else graph).tensor(value) for value in node.inputs]
            call = apply_call(node.op, operands, dict(node.attributes), Scope(graph.grid or graph.block, graph.loop))
            total += times * flops(call, node.output.shape)
    return math.prod((*graph.grid, *graph.block)) * total


def summary(found: Sequence[Record]) -> Record:
    """By muGraph and target: the verdict, seconds by the roofline of both, and the place among the candidates."""
    return {
        f"{entry['graph']} {entry['target']}": {
            "outcome": entry.get("outcome", "not run"),
            "paper_microseconds": round(1e6 * entry["paper"]["seconds"], 2),
            "best_microseconds": round(1e6 * entry["best"]["seconds"], 2),
            **{name: entry["search"][name] for name in ("proposed", "place", "candidates")},
        }
        for entry in found
    }


def main() -> None:
    """Make the records that are missing; exit with 1 where a muGraph is not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=list(WRITTEN_FOR))
    parser.add_argument("--targets", nargs="+", default=["cpu", "cuda:sm_80", "cuda:sm_90"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cases = [{"graph": graph, "target": target} for graph, target in itertools.product(options.graphs, options.targets)]
    found = records(cases, record, options.output, summary)
    print(json.dumps(summary(found), indent=1))
    sys.exit(0 if all(entry["runs"] for entry in found) else 1)


if __name__ == "__main__":
    main()
