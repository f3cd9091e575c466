"""Records of predicted beside measured times say the same again, and of few candidates what can be said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import cpu_order
from mugraph.ir.program import Program
from mugraph.ir.serialize import graph_to_json
from mugraph.search.algorithm1.candidates import predicted_seconds


def record(measured: list[float]) -> cpu_order.Record:
    """Of products of several sizes, which took so long."""
    points = []
    for number, seconds in enumerate(measured, 1):
        p = Program()
        p.output(p.input("x", (8, 64)) @ p.input("w", (64, 64 * number)))
        points.append({"graph": graph_to_json(p.graph), "library": True, "predicted": 1.0, "measured": seconds})
    case = {"program": "products", "rows": 8, "dtype": "fp32", "searched": points[0]["graph"]}
    return {**case, "points": points, **cpu_order.summed_up(points)}


def test_kept_candidates_are_predicted_anew() -> None:
    found = cpu_order.again(record([1.0, 2.0, 3.0]))
    graphs = [cpu_order.graph_from_json(point["graph"]) for point in found["points"]]
    assert [point["predicted"] for point in found["points"]] == [
        predicted_seconds(g, cpu_order.machine(graphs[0])) for g in graphs
    ]
    assert (found["correlation"], found["regret"]) == (pytest.approx(1.0), 0.0)


def test_of_one_candidate_there_is_no_order() -> None:
    one, three = record([1.0]), cpu_order.again(record([3.0, 2.0, 1.0]))
    assert one["regret"] is None
    found = cpu_order.summary([one, three])
    assert (found["cases"], found["regret"], found["within_10_percent"]) == (2, 2.0, 0)
    assert cpu_order.summary([one])["regret"] is None
    assert (found["ordered"], cpu_order.summary([cpu_order.again(record([1.0, 1.05, 3.0]))])["ordered"]) == (0.0, 1.0)
    assert "products fp32 8" in cpu_order.line(one)


def test_what_was_fastest_by_chance_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the first, which takes as long; what is not timed again is brought to the machine's speed of then."""
    asked: list[int] = []

    def timed(runs: Sequence[Callable[[], int]], rounds: int) -> list[list[float]]:
        asked.append(rounds)
        return [[[1.0, 0.8, 0.9, 0.95, 2.0][run()]] * 3 if len(asked) == 1 else [2.0] * 3 for run in runs]

    monkeypatch.setattr(cpu_order, "_in_turns", timed)
    found = cpu_order._medians([lambda number=number: number for number in range(5)], 0)
    assert found[:4] == [2.0] * 4
    assert found[4] == pytest.approx(2.0 * 8.0 / 3.65)
    assert asked == [cpu_order.ROUNDS, 2 * cpu_order.ROUNDS]


def test_all_candidates_are_drawn_under_the_names_of_their_cases(tmp_path: Path) -> None:
    record_file, picture = tmp_path / "order.json", tmp_path / "order.svg"
    record_file.write_text(json.dumps({"records": [record([1.0, 2.0, 3.0])]}), encoding="utf-8")
    cpu_order.main(["--again", "--record", str(record_file), "--plot", str(picture)])
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.count("<title>products fp32 8</title>") == drawn.count("<circle") == 3
    assert ">products fp32 8</text>" in drawn


def test_what_is_kept_is_read_where_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "order.json"
    with pytest.raises(SystemExit):
        cpu_order.main(["--again", "--record", str(file)])
    assert "no records" in capsys.readouterr().err
    file.write_text(json.dumps({"records": [record([1.0, 2.0])]}), encoding="utf-8")
    cpu_order.main(["--again", "--record", str(file)])
    assert "correlation 1.00" in capsys.readouterr().out
