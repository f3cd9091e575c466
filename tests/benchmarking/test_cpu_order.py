"""Records of predicted beside measured times say the same again, and of few candidates what can be said."""

from __future__ import annotations

import json
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


def test_what_is_kept_is_read_where_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "order.json"
    with pytest.raises(SystemExit):
        cpu_order.main(["--again", "--record", str(file)])
    assert "no records" in capsys.readouterr().err
    file.write_text(json.dumps({"records": [record([1.0, 2.0])]}), encoding="utf-8")
    cpu_order.main(["--again", "--record", str(file)])
    assert "correlation 1.00" in capsys.readouterr().out
