"""Predicted beside measured: the candidates of every workload, the paper's muGraph and PyTorch's, timed on one GPU in turn.

    python benchmarks/gpu_order.py --jobs 12 --output benchmarks/results/gpu-order.json
    python benchmarks/gpu_order.py --prepared candidates.json --target cuda:sm_90:h200     # without a GPU: searches and compiles

The search's best candidates, the program as it is (`original`) and, where it was written for these sizes, the muGraph of
examples/paper are compared with float64 and timed beside the rivals of `gpu_rivals.py`. Each contestant is captured into a CUDA
graph, as several calls, and in every round all replay theirs in a random order between two events of the GPU. `warm` calls read
the same tensors, `cold` ones each a set of its own, of which there are so many that none is left in the L2 cache. Times are
medians in seconds of a call. `correlation` is Spearman's, of predicted and cold times of the candidates; `regret`, how much
slower than the fastest candidate the first predicted one is. `--jobs` processes search and compile ahead; nothing is timed
before they are done. What they found is kept in the file `--prepared`, and compiled kernels in the user's store, so that both can
be made on one machine and timed on another. Exits with 1 when a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_check import compared, this_target
from gpu_rivals import offers, rivals
from kept import Case, Record, missing, records
from mugraph.devices import device_for, roofline_seconds
from mugraph.errors import MugraphError
from mugraph.frontend import trace
from mugraph.frontend.handwritten import in_place_of
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.lower import construct
from mugraph.runtime import build
from mugraph.runtime.baselines import COMPILE_MODES
from mugraph.search import search
from mugraph.search.algorithm1.candidates import predicted_seconds
from mugraph.testing.mugraph_runs import LARGEST_ERROR
from mugraph.testing.paper import WRITTEN_FOR
from ranks import rank_correlation

PAPER = Path(__file__).parent.parent / "examples" / "paper"
CALLS = 32
"""In one CUDA graph, at least."""
ROUNDS = 25
CACHES = 3
"""The tensors of all sets take as many times the L2 cache's bytes."""
MOST_SETS = 64

Call = Callable[..., object]


def proposed(workload: str, norm: str | None, dtype: str, batch: int, size: str, target: str, most: int) -> list[Record]:
    """The best candidates, the original and the paper's muGraph, each compiled, with its predicted seconds."""
    function, inputs = WORKLOADS[workload].function(norm), WORKLOADS[workload].inputs(batch, dtype, size)
    program, device = trace(function, inputs).graph, device_for(target)
    found = [(str(n), c.graph, c.cost) for n, c in enumerate(search(program, device).candidates[:most], 1)]
    found.append(("original", program, predicted_seconds(program, device)))
    for name, subject in WRITTEN_FOR.items():
        if (subject.workload, subject.norm or WORKLOADS[workload].norm_names[0]) != (workload, norm):
            continue
        try:
            written = in_place_of(program, (PAPER / f"{name}.mugraph").read_text(encoding="utf-8"), device)
        except MugraphError:
            continue  # it was written for other sizes
        found.append(("paper", written, predicted_seconds(written, device)))
    result = []
    for name, graph, seconds in found:
        constructed = construct(graph)
        entry: Record = {"name": name, "predicted": seconds, "graph": graph_to_json(constructed)}
        try:
            entry["kernels"] = [
                {"name": kernel.name, "grid": list(kernel.grid), "threads": kernel.threads, "shared_bytes": kernel.shared_bytes}
                for kernel in build(constructed, target).kernels
            ]
        except MugraphError as refusal:
            entry["refused"] = str(refusal)[:300]
        result.append(entry)
    return result


def record(
    workload: str,
    norm: str | None,
    dtype: str,
    batch: int,
    size: str,
    target: str,
    most: int,
    *,
    prepared: Mapping[tuple[object, ...], list[Record]],
    modes: Sequence[str],
) -> Record:
    """The errors and times of all contestants of a combination: what is `prepared` of it, and PyTorch in some modes."""
    entries = prepared[workload, norm, dtype, batch, size, target, most]
    function, host = WORKLOADS[workload].function(norm), WORKLOADS[workload].inputs(batch, dtype, size)
    roofline = roofline_seconds(trace(function, host).graph, device_for(target))
    inputs = tuple(tensor.cuda() for tensor in host)
    exact = function(*(tensor.double() for tensor in inputs))
    calls: dict[str, Call] = {}
    for entry in entries:
        graph = graph_from_json(entry.pop("graph"))
        if "refused" in entry:
            continue
        try:
            executable = build(graph, target)
            entry |= compared(executable, inputs, exact, graph.inputs()[0].output.dtype)
        except Exception as fault:  # a fault on the GPU comes as whatever PyTorch or the driver's bindings raise
            entry["failed"] = f"{type(fault).__name__}: {fault}"[:300]
        else:
            calls[entry["name"]] = executable
    offered = offers(rivals(workload, function, modes), inputs, exact)
    refused = dict(offered.refused)
    calls |= offered.functions
    times = {"warm": timed(calls, [inputs], refused), "cold": timed(calls, copies(inputs), refused)}
    for entry in entries:
        entry |= {how: seconds[entry["name"]] for how, seconds in times.items() if entry["name"] in seconds}
    rest = {name: {how: times[how].get(name) for how in times} for name in offered.functions}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "torch": torch.__version__,
        "roofline_seconds": roofline,
        "candidates": entries,
        "rivals": rest,
        "rival_errors": offered.errors,
        "refused": refused,
        **ranking([entry for entry in entries if entry["name"].isdigit() and "cold" in entry]),
    }


def copies(inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Sets of inputs of the same values that together are larger than the L2 cache."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    each = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    return [tuple(tensor.clone() for tensor in inputs) for _ in range(min(MOST_SETS, 1 + math.ceil(CACHES * cache / each)))]


def timed(calls: Mapping[str, Call], sets: Sequence[tuple[torch.Tensor, ...]], refused: dict[str, str]) -> dict[str, float]:
    """Median seconds of a call by contestant; what cannot be captured is added to `refused`."""
    turns = math.ceil(CALLS / len(sets))
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # not annotated by torch
    with torch.no_grad():
        for name, call in calls.items():
            try:
                graphs[name] = _captured(call, sets, turns, stream)
            except RuntimeError as error:
                refused[name] = f"{type(error).__name__}: {error}"[:200]
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    order = random.Random(0)
    for _ in range(ROUNDS + 2):
        for name in order.sample(list(graphs), len(graphs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # not annotated
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            seconds[name].append(1e-3 * start.elapsed_time(end) / (turns * len(sets)))
    return {name: statistics.median(each[2:]) for name, each in seconds.items()}


def _captured(call: Call, sets: Sequence[tuple[torch.Tensor, ...]], turns: int, stream: Any) -> torch.cuda.CUDAGraph:
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(*sets[0])  # loads kernels and lets libraries choose theirs, which must not happen while capturing
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(turns):
            for each in sets:
                call(*each)
    torch.cuda.synchronize()
    return graph


def ranking(measured: Sequence[Record]) -> Record:
    """How far the predicted order is that of the measured times."""
    if len(measured) < 2:
        return {"correlation": None, "regret": None}
    predicted, cold = [entry["predicted"] for entry in measured], [entry["cold"] for entry in measured]
    return {"correlation": rank_correlation(predicted, cold), "regret": cold[0] / min(cold) - 1}


def summary(found: Sequence[Record]) -> Record:
    """Microseconds of the contestants by combination, cold and warm."""
    return {
        f"{r['workload']} {r['norm'] or ''} {r['dtype']} batch {r['batch']} {r['size']}": {
            "roofline": _us(r["roofline_seconds"]),
            **{how: _best(r, how) for how in ("cold", "warm")},
            "correlation": r["correlation"],
            "regret": r["regret"],
        }
        for r in found
    }


def _best(entry: Record, how: str) -> Record:
    ours = [c for c in entry["candidates"] if c.get("right") and how in c]
    chosen = [c for c in ours if c["name"].isdigit()]
    return {
        "first": next((_us(c[how]) for c in chosen if c["name"] == "1"), None),
        "best": min((_us(c[how]), c["name"]) for c in chosen) if chosen else None,
        **{c["name"]: _us(c[how]) for c in ours if not c["name"].isdigit()},
        **{name: _us(of[how]) for name, of in entry["rivals"].items() if of[how] is not None},
    }


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 2)


def wrong(found: Sequence[Record]) -> list[str]:
    """The contestants of ours that are not right."""
    return [
        f"{r['workload']} {r['dtype']} {r['batch']}: {c['name']}"
        for r in found
        for c in r["candidates"]
        if not c.get("right", "refused" in c)
    ]


def ahead(cases: Sequence[Case], jobs: int, file: Path | None) -> dict[tuple[object, ...], list[Record]]:
    """What is `proposed` for cases by their values, made by `jobs` processes where it isn't in the file, which then has it."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else []
    known: dict[tuple[object, ...], list[Record]] = {tuple(each["case"]): each["proposed"] for each in kept}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {tuple(case.values()): pool.submit(proposed, **case) for case in cases if tuple(case.values()) not in known}
        for case, done in running.items():
            known[case] = done.result()
            print("prepared:", *case, flush=True)
    if file is not None:
        file.write_text(json.dumps([{"case": case, "proposed": found} for case, found in known.items()]), encoding="utf-8")
    return known


def main() -> None:
    """Make the records that are missing; exit with 1 when a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=[dtype.value for dtype in LARGEST_ERROR])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--size", default="full", help="size of the workloads")
    parser.add_argument("--backend", choices=("cuda", "triton"), default="cuda")
    parser.add_argument("--target", help="the GPU that candidates are for, by default the one that is here")
    parser.add_argument("--most", type=int, default=16, help="candidates of a workload")
    parser.add_argument("--modes", nargs="*", default=["torch.compile"], choices=list(COMPILE_MODES))
    parser.add_argument("--norms", action="store_true", help="every norm that a workload can have")
    parser.add_argument("--jobs", type=int, default=1, help="processes that search and compile ahead")
    parser.add_argument("--prepared", type=Path, help="file of what they found; without a GPU nothing else is done")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    only_prepares = options.prepared is not None and not torch.cuda.is_available()
    target = options.target or this_target(options.backend)
    cases: list[Case] = [
        {
            "workload": workload,
            "norm": norm,
            "dtype": dtype,
            "batch": batch,
            "size": options.size,
            "target": target,
            "most": options.most,
        }
        for workload, dtype, batch in itertools.product(options.workloads, options.dtypes, options.batches)
        for norm in WORKLOADS[workload].norm_names[: None if options.norms else 1]
        if options.size in WORKLOADS[workload].sizes
    ]
    prepared = ahead(missing(cases, options.output), options.jobs, options.prepared)
    if only_prepares:
        return
    found = records(cases, partial(record, prepared=prepared, modes=options.modes), options.output, summary)
    print(json.dumps(summary(found), indent=1))
    print("wrong:", wrong(found))
    sys.exit(1 if wrong(found) else 0)


if __name__ == "__main__":
    main()
