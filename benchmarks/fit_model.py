"""Fits the constants of the cost model to candidates that were measured on a GPU.

    python benchmarks/fit_model.py --output benchmarks/results/model-fit.json
    python benchmarks/fit_model.py --target cuda:sm_90:h200

`results/model-points.json` has each candidate of `gpu-order.json` that the search proposed, as a muGraph, what was measured of
it with cold caches, and what was predicted: when it was measured (`before`), and by a model of three roofs and a launch alone,
which knew of nothing that waits (`roofs`). What its kernels ask of the device is counted anew, by `demand` of
`mugraph.search.algorithm1.candidates`, but for the bytes that their threads waited for (`waiting`): products of several matrices
had no ring then. `results/model-points-h200.json` has those that an H200 timed, whose rings threads filled; its multiprocessors
are the H100's, so that only what kernels draw from its memory system is fitted to them. Bytes through device memory and peak
rates of matrix units are the datasheet's. Least squares of log(predicted / measured), beyond a tenth linear, for some kernels
take twice what any such model says; one constant is changed after the other, so that every run finds the same. `held_out`: each
workload predicted by constants that were fitted without it. `correlation` is Spearman's; `ordered`, the share of the pairs of
candidates whose times differ by more than a twentieth that are in the right order; `regret`, how much slower than the fastest
candidate the first predicted one is.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from gpu_order import ranking
from mugraph.devices import Device, device_for
from mugraph.ir.graph import Graph
from mugraph.ir.text import parse_graph
from mugraph.search.algorithm1.candidates import demand
from mugraph.search.scheduling.cost_table import Demand, in_femtoseconds, kernel_seconds
from ranks import ordered_pairs

RESULTS = Path(__file__).parent / "results"
FITTED = ("cache_bandwidth", "vector_flops", "iteration_seconds", "launch_seconds", "load_seconds")
"""Constants that no datasheet has."""
MEASURED = {"cuda:sm_90": ("model-points.json", FITTED), "cuda:sm_90:h200": ("model-points-h200.json", ("cache_bandwidth",))}
"""For each GPU that was measured the file of its points, and the constants that are fitted to them."""
APART = 0.05
"""How far the times of two candidates must differ for their order to count."""
FIRST_STEP, LAST_STEP = 0.3, 0.005
"""Relative changes of a constant that are tried."""
OUTLIER = 0.1

Point = dict[str, Any]


def points(device: Device) -> list[Point]:
    """The candidates that were measured on a device, with what their kernels ask of it."""
    file, _ = MEASURED[device.target]
    found: list[Point] = json.loads((RESULTS / file).read_text(encoding="utf-8"))["points"]
    return [{**point, "kernels": _kernels(parse_graph(point["graph"]), point.get("waiting"), device)} for point in found]


def _kernels(graph: Graph, waiting: Sequence[float] | None, device: Device) -> list[dict[str, float]]:
    """What kernels ask of a device; they wait for so many bytes each, or for what is counted now."""
    asked = [_asked(node.body, device) for node in graph.kernels() if node.body is not None]
    if waiting is None:
        return asked
    return [{**each, "waiting": waited} for each, waited in zip(asked, waiting, strict=True)]


def _asked(body: Graph, device: Device) -> dict[str, float]:
    """What a kernel asks of a device, its arithmetic by units: seconds of the matrix units, operations of the others."""
    asked, products = demand(body, device), demand(body, replace(device, vector_flops=math.inf)).compute
    operations = (asked.compute - products) * device.vector_flops
    return {**asked._asdict(), "matmul_seconds": products, "vector_operations": operations}


def predicted(point: Point, device: Device) -> float:
    """Seconds of all kernels of a candidate."""
    return float(in_femtoseconds(sum(_kernel(kernel, device) for kernel in point["kernels"])))


def _kernel(kernel: dict[str, float], device: Device) -> Any:
    compute = kernel["matmul_seconds"] + kernel["vector_operations"] / device.vector_flops
    sizes = {name: kernel[name] for name in ("blocks", "loop", "memory", "cache", "steps", "held", "waiting")}
    return kernel_seconds(device, Demand(**sizes, compute=compute))


def loss(measured: Sequence[Point], device: Device) -> float:
    """Mean of the squared logarithms of predicted over measured, of outliers a line that continues the parabola."""
    errors = (abs(math.log(predicted(point, device) / point["measured"])) for point in measured)
    return statistics.fmean(error**2 if error < OUTLIER else OUTLIER * (2 * error - OUTLIER) for error in errors)


def fitted(measured: Sequence[Point], device: Device, names: Sequence[str] = FITTED) -> Device:
    """The device with those constants of least loss, from its own ones on."""
    least, step = loss(measured, device), FIRST_STEP
    while step > LAST_STEP:
        before = least
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                tried = replace(device, **{name: getattr(device, name) * factor})
                cost = loss(measured, tried)
                if cost < least:
                    least, device = cost, tried
        if least == before:
            step /= 2
    return device


def order(measured: Sequence[Point], seconds: Callable[[Point], float]) -> list[dict[str, Any]]:
    """How well seconds rank the candidates of each combination."""
    cases: dict[str, list[Point]] = {}
    for point in measured:
        cases.setdefault(f"{point['workload']} {point['dtype']} batch {point['batch']}", []).append(point)
    return [{"case": case, **_ranked(found, seconds)} for case, found in cases.items()]


def _ranked(found: Sequence[Point], seconds: Callable[[Point], float]) -> dict[str, Any]:
    entries = sorted(({"predicted": seconds(point), "cold": point["measured"]} for point in found), key=lambda e: e["predicted"])
    errors = [math.log(entry["predicted"] / entry["cold"]) for entry in entries]
    right, pairs = ordered_pairs([entry["predicted"] for entry in entries], [entry["cold"] for entry in entries], APART)
    return {**ranking(entries), "right": right, "pairs": pairs, "error": math.exp(statistics.median(map(abs, errors))) - 1}


def mean(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of the combinations' figures, and the largest regret."""
    known = [row["correlation"] for row in rows if row["correlation"] is not None]
    regrets = [row["regret"] for row in rows]
    return {
        "correlation": statistics.fmean(known),
        "ordered": sum(row["right"] for row in rows) / sum(row["pairs"] for row in rows),
        "regret": statistics.fmean(regrets),
        "largest_regret": max(regrets),
        "error": statistics.fmean(row["error"] for row in rows),
    }


def report(target: str = "cuda:sm_90") -> dict[str, Any]:
    """The fit, and the order before, by roofs alone, as described now, as fitted, and as predicted without the workload."""
    device, (_, names) = device_for(target), MEASURED[target]
    measured = points(device)
    best = fitted(measured, device, names)
    held_out: list[dict[str, Any]] = []
    for workload in dict.fromkeys(point["workload"] for point in measured):
        without = fitted([point for point in measured if point["workload"] != workload], device, names)
        own = [point for point in measured if point["workload"] == workload]
        held_out += order(own, lambda point, without=without: predicted(point, without))  # type: ignore[misc]
    earlier = {"before": "predicted_then", "roofs": "predicted_by_roofs"}
    rows = {
        **{row: order(measured, itemgetter(key)) for row, key in earlier.items() if key in measured[0]},
        "described": order(measured, lambda point: predicted(point, device)),
        "fitted": order(measured, lambda point: predicted(point, best)),
        "held_out": held_out,
    }
    return {
        "target": target,
        "points": len(measured),
        "described": {name: getattr(device, name) for name in names},
        "fitted": {name: float(f"{getattr(best, name):.3g}") for name in names},
        "mean": {name: mean(found) for name, found in rows.items()},
        "order": rows,
    }


def main() -> None:
    """Fit, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--target", default="cuda:sm_90", choices=list(MEASURED))
    options = parser.parse_args()
    found = report(options.target)
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: found[name] for name in ("described", "fitted", "mean")}, indent=1))


if __name__ == "__main__":
    main()
