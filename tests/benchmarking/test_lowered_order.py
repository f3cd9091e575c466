"""What turns of shared memory make of the order of measured candidates: the page says what the record says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mugraph.devices import device_for

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
    assert kept["described"] == device_for(target).turn_share
    shown = [row.split(" | ", 1)[1] for row in rows[first : first + 3]]
    assert shown == [cells(kept["prices"]["0.0"]), cells(kept["prices"]["0.25"]), cells(kept["held_out_by_order"])]


def test_the_page_says_which_price_is_best_for_what() -> None:
    assert {kept["fitted"] for kept in RECORD.values()} == {0.0}, "of times"
    best = {GPUS[target]: kept["fitted_by_order"] for target, kept in RECORD.items()}
    words = " ".join(PAGE.split())
    assert f"the best for the order is {FRACTIONS[best['H200']]} on the H200 and {FRACTIONS[best['H100']]} on the H100" in words


FRACTIONS = {0.0: "0", 0.0625: "1/16", 0.125: "1/8", 0.25: "1/4", 0.5: "1/2", 1.0: "1"}
