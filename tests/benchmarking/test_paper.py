"""The page of the paper's evaluation is what the script makes of the stored records, and says what they say."""

from __future__ import annotations

import copy
import json
import re
from functools import partial

import pytest
from benchmarks import paper, plots

STORED = json.loads(paper.OUTPUT.read_text(encoding="utf-8"))["parts"]
READ = [name for name in paper.PARTS if name not in ("optimizer", "norms")]
"""Parts that are made of records alone."""


def test_the_page_and_its_plots_are_made_of_the_stored_json() -> None:
    assert paper.PAGE.read_text(encoding="utf-8") == paper.page(STORED)
    for name, drawn in paper.plots(STORED).items():
        assert (paper.PLOTS / name).read_text(encoding="utf-8") == drawn


@pytest.mark.parametrize("name", READ)
def test_a_part_is_what_its_records_say(name: str) -> None:
    make, _ = paper.PARTS[name]
    made = json.loads(json.dumps(make()))
    assert {key: value for key, value in STORED[name].items() if key != "digest"} == made


def test_a_part_is_made_again_when_asked_for_or_when_its_records_change(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counting(name: str) -> paper.Part:
        calls.append(name)
        return {}

    counted = {name: (partial(counting, name), files) for name, (_, files) in paper.PARTS.items()}
    monkeypatch.setattr(paper, "PARTS", counted)
    known = paper.made(None, {})
    assert calls == list(paper.PARTS)
    assert paper.made("cpu", known) == known
    assert calls[len(paper.PARTS) :] == ["cpu"]
    stale = {**known, "gpu": {**known["gpu"], "digest": "of other records"}}
    assert paper.made(None, stale) == known
    assert calls[len(paper.PARTS) + 1 :] == ["gpu"]


def test_figures_of_the_page_follow_the_records() -> None:
    changed = copy.deepcopy(STORED)
    changed["gpu"]["rows"][0]["best"] = 123.4e-6
    changed["cpu"]["rows"][0]["ratios"]["torch eager"] = 98.76
    before, after = paper.page(STORED), paper.page(changed)
    assert "| 123.4 |" in after
    assert "| 98.76 |" in after
    assert "| 123.4 |" not in before


def test_systems_that_were_timed_have_a_column_and_are_missing_no_more() -> None:
    changed = copy.deepcopy(STORED)
    before = paper.page(changed)
    assert "| TensorRT |" in before.split("Not shown")[1]
    assert "gpu_rivals.py" not in before
    changed["gpu"]["rows"][0]["systems"]["TensorRT"] = 3 * changed["gpu"]["rows"][0]["best"]
    after = paper.page(changed)
    assert "| TensorRT |" not in after.split("Not shown")[1]
    assert "| PyTorch | TensorRT |" in after
    assert "| 3.00 |" in after


def test_rivals_go_to_the_system_that_they_are_of() -> None:
    seconds = {"torch eager": 4.0, "attention, flash": 3.0, "FlashInfer decode": 2.0, "of no table": 1.0}
    assert paper.by_system("gqa", seconds) == {"PyTorch": 3.0, "FlashInfer": 2.0}


def test_every_workload_of_the_paper_and_every_batch_is_there() -> None:
    measured = {(row["workload"], row["batch"]) for row in STORED["gpu"]["rows"]}
    assert {name for name, _ in measured} == set(paper.SAID)
    assert {batch for _, batch in measured} >= {1, 8, 16}
    assert {(row["graph"], row["target"]) for row in STORED["graphs"]["rows"]} >= {
        (graph, target)
        for graph in ("rmsnorm", "gqa", "qknorm", "lora", "gated_mlp", "ntrans")
        for target in ("cuda:sm_80", "cuda:sm_90")
    }


def test_on_an_a100_fused_kernels_come_first_where_the_paper_measured_them_to() -> None:
    for row in STORED["graphs"]["rows"]:
        if row["target"] == "cuda:sm_80" and row["graph"] in ("rmsnorm", "lora", "gated_mlp"):
            (kernel,) = row["best"]["kernels"]
            assert kernel["grid"] is not None


def test_an_ablation_of_the_search_is_shown_where_there_is_one() -> None:
    cell = {"seconds": 1.25, "exhausted": False}
    found = {
        "file": "ablation-search.json",
        "shape": [16, 1024, 4096],
        "seconds": 60,
        "rows": [{"limit": 5, "cells": {"full": cell}}],
    }
    assert "| 5 | > (1.2) |" in paper.page({**STORED, "search": {**STORED["search"], "ours": [found]}})


def test_long_programs_of_a_size_that_no_record_has_are_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = paper._read("long-programs.json")
    short = [record for record in found["records"] if record.get("operators", 0) < paper.SIZES[1]]
    monkeypatch.setattr(paper, "_read", lambda name: {**found, "records": short})
    assert [row["operators"][1] < paper.SIZES[1] for row in paper.long_programs()["rows"]] == [True]


PLOTTED = {"one power of ten": [(1, 10.0), (2, 10.0)], "below it": [(1, 3.0), (4, 3.0)], "a single x": [(2, 0.5), (2, 40.0)]}


@pytest.mark.parametrize("points", PLOTTED.values(), ids=PLOTTED)
def test_points_are_drawn_within_the_frame_where_all_are_alike_in_a_number(points: list[tuple[float, float]]) -> None:
    drawn = (plots.lines({"a": points}, "x", "y"), plots.scatter(points, lambda x: points[0][1], "x", "y", "label"))
    for picture in drawn:
        places = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', picture)]
        assert len(places) == len(points)
        assert all(plots.MARGIN <= x <= plots.WIDTH - plots.MARGIN for x, _ in places)
        assert all(plots.MARGIN <= y <= plots.HEIGHT - plots.MARGIN for _, y in places)


def test_a_power_law_through_equal_points_is_level_and_explains_them() -> None:
    assert plots.power_law([(1, 10.0), (2, 10.0), (4, 10.0)]) == pytest.approx((0.0, 10.0, 1.0))


def test_bars_are_as_high_as_their_values() -> None:
    heights = re.findall(r'height="([\d.]+)" fill="steelblue"', plots.bars({"a": {"x": 1.0}, "b": {"x": 2.0}}, "y"))
    assert [float(height) for height in heights[:2]] == [130.0, 260.0]
