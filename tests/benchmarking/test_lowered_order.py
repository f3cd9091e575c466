"""What the waits of lowered kernels make of the order of measured candidates: the page says what the record says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mugraph.devices import device_for
from mugraph.selection.lowered_order import Prices

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "benchmarks" / "results" / "lowered-order.json").read_text())
PAGE = (ROOT / "docs" / "cuda-measured.md").read_text().split("### The order by lowered kernels")[1].split("\n## ")[0]
GPUS = {"cuda:sm_90": "H100", "cuda:sm_90:h200": "H200"}


def cells(order: Mapping[str, Any]) -> str:
    """An order as the table has it."""
    return f"{order['ordered']:.3f} | {order['correlation']:.3f} | {order['regret']:.1%} | {order['largest_regret']:.1%}".replace(
        "%", " %"
    )


@pytest.mark.parametrize("target", GPUS)
def test_the_page_has_the_orders_of_the_record(target: str) -> None:
    kept = RECORD[target]
    rows = [line.strip("| ") for line in PAGE.splitlines() if line.startswith("| ")]
    first = next(number for number, row in enumerate(rows) if row.startswith(f"{GPUS[target]}: 0"))
    assert kept["described"] == described(target)
    shown = [row.split(" | ", 1)[1] for row in rows[first : first + 3]]
    assert shown == [cells(kept["prices"]["0.0"]), cells(kept["prices"]["0.25"]), cells(kept["held_out_by_order"])]


@pytest.mark.parametrize("target", GPUS)
def test_the_page_has_what_barriers_and_latencies_make_of_them(target: str) -> None:
    kept = RECORD[target]
    rows = [line.strip("| ") for line in PAGE.splitlines() if line.startswith("| ")]
    first = next(number for number, row in enumerate(rows) if row.startswith(f"{GPUS[target]}: nothing"))
    _, barrier, latency = (f"{weight:g}" for weight in kept["described"])
    nothing, both = kept["waits"]["0 0"], kept["waits"][f"{barrier} {latency}"]
    expected = [nothing, kept["waits"][f"{barrier} 0"], kept["waits"][f"0 {latency}"], both, kept["waits_held_out"]]
    assert [row.split(" | ", 1)[1] for row in rows[first : first + 5]] == [*map(cells, expected)]
    assert all(both[figure] > nothing[figure] for figure in ("ordered", "correlation"))
    assert all(both[figure] <= nothing[figure] for figure in ("regret", "largest_regret"))


def described(target: str) -> list[float]:
    """What a search charges for waits: parts of a turn, operators of an iteration, times of a load."""
    device = device_for(target)
    prices = Prices.of(device)
    return [device.turn_share, prices.barrier / device.iteration_seconds, round(prices.latency / device.load_seconds, 6)]


def test_the_page_says_which_price_is_best_for_what() -> None:
    assert {kept["fitted"] for kept in RECORD.values()} == {0.0}, "of times"
    best = {GPUS[target]: kept["fitted_by_order"] for target, kept in RECORD.items()}
    words = " ".join(PAGE.split())
    assert f"the best for the order is {FRACTIONS[best['H200']]} on the H200 and {FRACTIONS[best['H100']]} on the H100" in words


FRACTIONS = {0.0: "0", 0.0625: "1/16", 0.125: "1/8", 0.25: "1/4", 0.5: "1/2", 1.0: "1"}
