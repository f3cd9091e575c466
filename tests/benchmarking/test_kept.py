"""Long benchmarks that go on where they stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks import kept
from benchmarks.kept import Record, records

CASES = [{"workload": name, "batch": batch} for name in ("a", "b") for batch in (1, 8)]


class Bench:
    """Counts what it is asked to make, and fails at `broken`."""

    def __init__(self, broken: str = "") -> None:
        self.made: list[str] = []
        self.broken = broken

    def __call__(self, workload: str, batch: int) -> Record:
        if workload == self.broken:
            raise KeyboardInterrupt
        self.made.append(f"{workload}{batch}")
        return {"figure": len(workload) + batch}


def count(found: Sequence[Record]) -> int:
    return len(found)


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    output, first, second = tmp_path / "records.json", Bench(broken="b"), Bench()
    with pytest.raises(KeyboardInterrupt):
        records(CASES, first, output, count)
    assert json.loads(output.read_text())["summary"] == 2
    found = records(CASES, second, output, count)
    assert (first.made, second.made) == (["a1", "a8"], ["b1", "b8"])
    assert [record["figure"] for record in found] == [2, 9, 2, 9]
    assert json.loads(output.read_text()) == {"summary": 4, "records": found}


def test_records_of_other_sources_are_made_anew_and_stay_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, again = tmp_path / "records.json", Bench()
    monkeypatch.setattr(kept, "sources", lambda: "earlier")
    records(CASES, Bench(), output, count)
    monkeypatch.setattr(kept, "sources", lambda: "now")
    records(CASES[1:2], again, output, count)
    written = json.loads(output.read_text())
    assert again.made == ["a8"]
    assert written["summary"] == 1
    assert sorted(record["sources"] for record in written["records"]) == ["earlier"] * 3 + ["now"]


def test_no_case_is_begun_when_the_seconds_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, bench, clock = tmp_path / "records.json", Bench(), iter(range(0, 100, 10))
    monkeypatch.setattr(kept, "sources", lambda: "earlier")
    records(CASES, Bench(), output, count)
    monkeypatch.setattr(kept, "sources", lambda: "now")
    monkeypatch.setattr("benchmarks.kept.time.monotonic", lambda: next(clock, 100))
    found = records(CASES, bench, output, count, seconds=15)
    assert bench.made == ["a1"]
    assert [record["figure"] for record in found] == [2]  # and none of earlier sources
    assert len(json.loads(output.read_text())["records"]) == len(CASES)


def test_without_an_output_everything_is_made() -> None:
    bench = Bench()
    assert len(records(CASES, bench, None, count)) == len(bench.made) == 4


def test_the_sources_are_those_that_decide_what_kernels_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mugraph.__file__", str(tmp_path / "__init__.py"))
    hashed = kept.sources.__wrapped__
    for package in ("cli", "lower", "runtime/cuda"):
        (tmp_path / package).mkdir(parents=True)
    before = hashed()
    (tmp_path / "cli" / "show.py").write_text("words")
    assert hashed() == before
    found = {before}
    for name in ("lower/order.py", "runtime/cuda/fibers.cpp"):
        (tmp_path / name).write_text("")
        found.add(hashed())
        (tmp_path / name).write_text("changed")
        found.add(hashed())
    assert len(found) == 5
    assert {"lower", "runtime", "search", "targets"} <= set(kept.PACKAGES)
