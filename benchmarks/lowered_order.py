"""What turns of shared memory, counted in lowered kernels, make of the order of candidates that were measured on GPUs.

    python benchmarks/lowered_order.py --output benchmarks/results/lowered-order.json

The candidates and the loss are those of `fit_model.py`. Kernels are lowered without tensor maps, as they were when they were
timed. Of the prices of a turn (`turn_share` of a device) in `PRICES`, `fitted` is that of least loss, of times, and
`fitted_by_order` that of the best correlation. For each price: pairs in the right order, Spearman's correlation, and regret, as
`fit_model.py` has them; `held_out` and `held_out_by_order`: each workload by the price that is best for the others. Takes half a
minute and no GPU.
"""

from __future__ import annotations

import argparse
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
from mugraph.selection.lowered_order import turn_seconds
from mugraph.targets.cuda.machine import Cuda

PRICES = (0.0, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Parts of a turn."""

Best = Callable[[Sequence[Point]], float]


def lowered(target: str) -> list[Point]:
    """The points of a GPU, each with its seconds by price."""
    device, machine = device_for(target), Cuda.described(target)
    machine = replace(machine, engines=replace(machine.engines, tensor_maps=False))
    found = []
    for point in points(device):
        launches = machine.lower(construct(parse_graph(point["graph"]))).values()
        alone = predicted(point, device)
        priced = {price: alone + turn_seconds(launches, machine, _priced(device, price)) for price in PRICES}
        found.append({**point, "priced": priced})
    return found


def _priced(device: Device, price: float) -> Device:
    return replace(device, turn_share=price)


def loss(measured: Sequence[Point], price: float) -> float:
    """As `fit_model.loss`, at a price."""
    errors = (abs(math.log(point["priced"][price] / point["measured"])) for point in measured)
    return statistics.fmean(error**2 if error < OUTLIER else OUTLIER * (2 * error - OUTLIER) for error in errors)


def least_loss(measured: Sequence[Point]) -> float:
    """The price of least loss."""
    return min(PRICES, key=lambda price: loss(measured, price))


def best_order(measured: Sequence[Point]) -> float:
    """The price of the best correlation, the lowest of equal ones."""
    return max(PRICES, key=lambda price: mean(_rows(measured, price))["correlation"])


def held_out(measured: Sequence[Point], best: Best) -> dict[str, Any]:
    """Each workload by the price that is best for the others."""
    prices, rows = {}, list[dict[str, Any]]()
    for workload in dict.fromkeys(point["workload"] for point in measured):
        price = prices[workload] = best([point for point in measured if point["workload"] != workload])
        rows += _rows([point for point in measured if point["workload"] == workload], price)
    return {"prices": prices, **mean(rows)}


def _rows(measured: Sequence[Point], price: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = order(measured, lambda point: float(point["priced"][price]))
    return rows


def report(target: str) -> dict[str, Any]:
    """The order at every price, and by prices that were fitted without the workload."""
    measured = lowered(target)
    return {
        "points": len(measured),
        "described": device_for(target).turn_share,
        "fitted": least_loss(measured),
        "fitted_by_order": best_order(measured),
        "prices": {str(price): {**mean(_rows(measured, price)), "loss": loss(measured, price)} for price in PRICES},
        "held_out": held_out(measured, least_loss),
        "held_out_by_order": held_out(measured, best_order),
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
