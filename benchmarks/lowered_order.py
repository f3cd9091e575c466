"""What the waits of lowered kernels make of the order of candidates that were measured on GPUs.

    python benchmarks/lowered_order.py --output benchmarks/results/lowered-order.json

The candidates and the loss are those of `fit_model.py`. Kernels are lowered without tensor maps, as they were when they were
timed. Prices of a turn of shared memory (`TURNS`) are tried alone: `fitted` is that of least loss, of times, and
`fitted_by_order` that of the best correlation. At the price that the device describes, prices of a barrier and of a latency of
copies (`BARRIERS`, `LATENCIES`) are tried together (`waits`). For all of these: pairs in the right order, Spearman's correlation,
and regret, as `fit_model.py` has them; `held_out`, `held_out_by_order` and `waits_held_out`: each workload by the prices that are
best for the others, the last two by order. Takes a minute and no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fit_model import MEASURED, OUTLIER, Point, mean, order, points, predicted
from mugraph.devices import Device, device_for
from mugraph.ir.text import parse_graph
from mugraph.lower import construct
from mugraph.lower.tile_form import Kernel
from mugraph.lower.waits import Waits
from mugraph.selection.lowered_order import Prices, waiting_seconds
from mugraph.targets.cuda.machine import Cuda

Weights = tuple[float, float, float]
"""What is charged for each wait: parts of a turn, operators of an iteration for a barrier, times a load takes for a latency."""
TURNS = (0.0, 0.0625, 0.125, 0.25, 0.5, 1.0)
BARRIERS = (0.0, 0.5, 1.0, 2.0)
LATENCIES = (0.0, 1.0, 2.0, 3.0, 4.0)
"""The lowest first: of equally good ones the lowest is taken."""

Best = Callable[[Sequence[Point], Sequence[Weights]], Weights]


class _Counted:
    """A machine that counts the waits of each kernel once."""

    def __init__(self, machine: Cuda) -> None:
        self.machine = machine
        self.known: dict[Kernel, Waits] = {}

    def waits(self, kernel: Kernel) -> Waits:
        if kernel not in self.known:
            self.known[kernel] = self.machine.waits(kernel)
        return self.known[kernel]


def alone() -> list[Weights]:
    """Prices of turns without others."""
    return [(turn, 0.0, 0.0) for turn in TURNS]


def together(device: Device) -> list[Weights]:
    """Prices of the other waits beside that of a turn."""
    return [(device.turn_share, *others) for others in itertools.product(BARRIERS, LATENCIES)]


def lowered(target: str) -> list[Point]:
    """The points of a GPU, each with its seconds by prices."""
    device, machine = device_for(target), Cuda.described(target)
    machine = replace(machine, engines=replace(machine.engines, tensor_maps=False))
    found = []
    for point in points(device):
        launches, counted = [*machine.lower(construct(parse_graph(point["graph"]))).values()], _Counted(machine)
        seconds = predicted(point, device)
        weights = {*alone(), *together(device)}
        priced = {each: seconds + waiting_seconds(launches, counted, device, _prices(device, each)) for each in weights}
        found.append({**point, "priced": priced})
    return found


def _prices(device: Device, weights: Weights) -> Prices:
    turn, barrier, latency = weights
    return Prices(turn / device.clock_hertz, barrier * device.iteration_seconds, latency * device.load_seconds)


def described(device: Device) -> Weights:
    """The prices that a search takes."""
    prices = Prices.of(device)
    return (device.turn_share, prices.barrier / device.iteration_seconds, round(prices.latency / device.load_seconds, 6))


def loss(measured: Sequence[Point], weights: Weights) -> float:
    """As `fit_model.loss`, at prices."""
    errors = (abs(math.log(point["priced"][weights] / point["measured"])) for point in measured)
    return statistics.fmean(error**2 if error < OUTLIER else OUTLIER * (2 * error - OUTLIER) for error in errors)


def least_loss(measured: Sequence[Point], tried: Sequence[Weights]) -> Weights:
    """The prices of least loss."""
    return min(tried, key=lambda weights: loss(measured, weights))


def best_order(measured: Sequence[Point], tried: Sequence[Weights]) -> Weights:
    """The prices of the best correlation, the first of equal ones."""
    return max(tried, key=lambda weights: mean(_rows(measured, weights))["correlation"])


def held_out(measured: Sequence[Point], best: Best, tried: Sequence[Weights]) -> dict[str, Any]:
    """Each workload by the prices that are best for the others."""
    prices, rows = {}, list[dict[str, Any]]()
    for workload in dict.fromkeys(point["workload"] for point in measured):
        weights = prices[workload] = best([point for point in measured if point["workload"] != workload], tried)
        rows += _rows([point for point in measured if point["workload"] == workload], weights)
    return {"prices": prices, **mean(rows)}


def _rows(measured: Sequence[Point], weights: Weights) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = order(measured, lambda point: float(point["priced"][weights]))
    return rows


def _of(measured: Sequence[Point], weights: Weights) -> dict[str, float]:
    return {**mean(_rows(measured, weights)), "loss": loss(measured, weights)}


def report(target: str) -> dict[str, Any]:
    """The order at all prices, and by prices that were fitted without the workload."""
    measured, device = lowered(target), device_for(target)
    turns, waits = alone(), together(device)
    return {
        "points": len(measured),
        "described": described(device),
        "fitted": least_loss(measured, turns)[0],
        "fitted_by_order": best_order(measured, turns)[0],
        "prices": {str(weights[0]): _of(measured, weights) for weights in turns},
        "held_out": held_out(measured, least_loss, turns),
        "held_out_by_order": held_out(measured, best_order, turns),
        "waits": {f"{barrier:g} {latency:g}": _of(measured, (turn, barrier, latency)) for turn, barrier, latency in waits},
        "waits_fitted": least_loss(measured, waits)[1:],
        "waits_by_order": best_order(measured, waits)[1:],
        "waits_held_out": held_out(measured, best_order, waits),
    }


def main() -> None:
    """Count, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found = {target: report(target) for target in MEASURED}
    text = json.dumps(found, indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
