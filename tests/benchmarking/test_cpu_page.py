"""Tables and plots of the CPU's page say what records say, and which cells miss what bounds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import cpu
import cpu_growth
import cpu_page
import model_rivals


def row(case: str = "rmsnorm", ours: float = 2e-3, rival: float = 3e-3, **other: Any) -> dict[str, Any]:
    seconds = {"mugraph": ours, "eager": 2 * rival, "OpenVINO": rival}
    names = {"case": case, "batch": 8, "dtype": "fp32", "threads": 2, "wait": "default", "budget": 15.0}
    return {**names, "seconds": seconds, "sources": "now", **other}


def model(size: int = 128, phase: str = "decode", **other: Any) -> dict[str, Any]:
    """A step of a model, with the times of a case."""
    return row(model="llama-1b", phase=phase, size=size, layers=4, **other)


def kept(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"summary": {}, "records": rows}))
    return path


NAMES = ("case", "batch", "dtype")


def test_the_page_is_what_the_records_make() -> None:
    text = cpu_page.PAGE.read_text(encoding="utf-8")
    assert cpu_page.page(text) == text
    for name, drawn in cpu_page.plots().items():
        assert (cpu_page.PLOTS / name).read_text(encoding="utf-8") == drawn


def test_cells_have_times_ratios_and_shares_of_what_bounds_them() -> None:
    rows = [
        row(limits={"reading": 1.9e-3, "products": 1e-3}, bound="reading"),
        row(dtype="bf16", ours=4e-3, limits={"products": 3.4e-3, "reading": 1e-3}, bound="products"),
        row(case="pooling", batch=1),
    ]
    assert cpu_page.grid(rows, ("case", "batch"), "dtype").splitlines() == [
        "| case | batch | fp32 | best rival | ratio | reached | bf16 | best rival | ratio | reached |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| rmsnorm | 8 | 2 | 3 OpenVINO | 1.50 | 0.95 reading | 4 | 3 OpenVINO | **0.75** | **0.85** products |",
        "| pooling | 1 | 2 | 3 OpenVINO | 1.50 | - | - | - | - | - |",
    ]


def test_cells_that_miss_are_named() -> None:
    rows = [
        row(limits={"reading": 1.9e-3}, bound="reading"),
        row(batch=1, limits={"reading": 1.78e-3}, bound="reading"),
        row(case="swiglu", ours=4e-3, limits={"products": 3.7e-3}, bound="products"),
        row(case="gqa"),
    ]
    assert " ".join(cpu_page.standing(rows, NAMES).split()) == (
        "4 cells: 1.26 in the geometric mean, 0.75 at least; under 0.97: swiglu 8 fp32 (0.75). "
        "Of those bound by memory 1 of 2 reach 90% of reading; under it: rmsnorm 1 fp32 (0.89). "
        "Of those bound by arithmetic 1 of 1 reach 90% of products. Limits of 1 were not measured."
    )


def test_a_case_that_was_measured_twice_counts_twice() -> None:
    rows = [row(budget=budget, limits={"reading": limit}, bound="reading") for budget, limit in ((15.0, 1e-3), (60.0, 1.9e-3))]
    said = "Of those bound by memory 1 of 2 reach 90% of reading; under it: rmsnorm 8 fp32 (0.5)."
    assert cpu_page.shares(rows, NAMES) == said


def test_the_latest_record_of_a_case_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = row() | {"seconds": {"eager": 1.0}}
    record = kept(tmp_path / "rivals.json", failed, row(ours=1e-3), row(ours=9e-3), row(wait="passive"), row(threads=1))
    monkeypatch.setattr(cpu, "RESULT", record)
    table, said = cpu_page.beside_rivals(["rmsnorm"], 2).split("\n\n")
    assert table.splitlines()[2:] == ["| rmsnorm | 8 | 1 | 3 OpenVINO | 3.00 |"]
    assert said.startswith("1 cell: 3.00")
    kept(record, row(limits={"reading": 1.9e-3}, bound="reading"))
    assert "| rmsnorm | 8 | 2 | 3 OpenVINO | 1.50 | 0.95 reading |" in cpu_page.beside_rivals(["rmsnorm"], 2)
    assert cpu_page.beside_rivals(["gqa"], 2) == "No record is there so far."


def test_a_processor_with_a_matrix_unit_has_a_record_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "RESULT", kept(tmp_path / "rivals.json", row(dtype="bf16", ours=1e-3)))
    monkeypatch.setattr(cpu_page, "AMX", tmp_path / "amx.json")
    assert cpu_page.with_a_matrix_unit() == "No record is there so far."
    kept(cpu_page.AMX, row(dtype="bf16"), row(case="swiglu", dtype="bf16", ours=4e-3), row(threads=1), row(wait="passive"))
    table, said = cpu_page.with_a_matrix_unit().split("\n\n")
    assert table.splitlines()[2:] == ["| rmsnorm | 8 | 2 | 3 OpenVINO | 1.50 |", "| swiglu | 8 | 4 | 3 OpenVINO | **0.75** |"]
    assert said.startswith("2 cells: 1.06 in the geometric mean")
    assert cpu_page.BLOCKS["with a matrix unit"]() == cpu_page.with_a_matrix_unit()
    assert "| rmsnorm | 8 | 1 | 3 OpenVINO | 3.00 |" in cpu_page.beside_rivals(["rmsnorm"], 2)
    assert "| rmsnorm | 8 | 2 | 3 OpenVINO | 1.50 |" in cpu_page.beside_rivals(["rmsnorm"], 2, cpu_page.AMX)


def test_the_summary_has_means_and_worst_cells_by_group_and_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(ours=1e-3), row(batch=1, ours=4e-3), row(case="swiglu", dtype="bf16"), row(ours=1e-9, wait="passive")]
    monkeypatch.setattr(cpu, "RESULT", kept(tmp_path / "rivals.json", *rows))
    monkeypatch.setattr(cpu_page, "AMX", kept(tmp_path / "amx.json", row(dtype="bf16", ours=4e-3), row(dtype="bf16", threads=1)))
    monkeypatch.setattr(
        model_rivals, "RESULT", kept(tmp_path / "models.json", model(), model(threads=1), model(size=1024, ours=1.5e-3))
    )
    assert cpu_page.summary().splitlines()[2:] == [
        "| [six workloads, two threads](#the-six-workloads-two-threads) | fp32 | 2 | 1.50 | **0.75** rmsnorm 1 | 1 |",
        "| [other programs, two threads](#other-programs-two-threads) | bf16 | 1 | 1.50 | 1.50 swiglu 8 | 0 |",
        "| [with a matrix unit, two threads](#with-a-matrix-unit) | bf16 | 1 | 0.75 | **0.75** rmsnorm 8 | 1 |",
        "| [whole models, two threads](#whole-models) | fp32 | 2 | 1.73 | 1.50 llama-1b 128 | 0 |",
    ]
    for record, name in ((cpu, "RESULT"), (cpu_page, "AMX"), (model_rivals, "RESULT")):
        monkeypatch.setattr(record, name, tmp_path / "nothing.json")
    assert cpu_page.summary() == cpu_page.whole_models() == "No record is there so far."


def test_the_summary_links_to_sections_of_the_page() -> None:
    heads = [line.lstrip("# ") for line in cpu_page.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    sections = {head.lower().replace(",", "").replace(" ", "-") for head in heads}
    assert {group.section for group in cpu_page.GROUPS.values()} <= sections


def test_whole_models_have_tokens_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [model(threads=1, wait="passive", ours=4e-3), model(phase="prefill", size=512), model(), model(ours=1.0)]
    monkeypatch.setattr(model_rivals, "RESULT", kept(tmp_path / "models.json", *found))
    table, said = cpu_page.whole_models().split("\n\n")
    assert table.splitlines()[2:] == [
        "| llama-1b | 4 | decode | 128 | fp32 | 2 | default | 500 | 167 | - | - | 333 | - | 1.50 |",
        "| llama-1b | 4 | prefill | 512 | fp32 | 2 | default | 2.56e+05 | 8.53e+04 | - | - | 1.71e+05 | - | 1.50 |",
        "| llama-1b | 4 | decode | 128 | fp32 | 1 | passive | 250 | 167 | - | - | 333 | - | **0.75** |",
    ]
    assert said.endswith("under 0.97: llama-1b 128 fp32 1 (0.75).")


def test_a_page_has_a_place_for_every_block() -> None:
    text = "before\n<!-- benchmarks/cpu_page.py: a -->\nold\n<!-- end: a -->\nbehind\n"
    made = cpu_page.page(text, {"a": lambda: r"new \1"})
    assert made == "before\n<!-- benchmarks/cpu_page.py: a -->\n\nnew \\1\n\n<!-- end: a -->\nbehind\n"
    assert cpu_page.page(made, {"a": lambda: r"new \1"}) == made
    for wrong in ("", text + text, text.replace("end", "END")):
        with pytest.raises(ValueError, match="no place for 'a'"):
            cpu_page.page(wrong, {"a": lambda: "new"})


def test_growth_has_a_table_a_plot_and_what_threads_are_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        row("gqa", ours * size / threads, rival=size * 2e-3, size=size, threads=threads, dtype=dtype)
        for dtype, sizes in (("fp32", (128, 1024)), ("bf16", (128,)))
        for size in sizes
        for threads, ours in ((1, 1e-3), (2, 2e-3 if size == 128 else 1e-3))
    ]
    monkeypatch.setattr(cpu_growth, "RESULT", kept(tmp_path / "growth.json", *rows))
    said = cpu_page.growth("gqa")
    assert "| size | 1 thread | best rival | ratio | reached | 2 threads |" in said
    assert "| 1024 | 1.02e+03 | 2.05e+03 OpenVINO | 2.00 | - | 512 | 2.05e+03 OpenVINO | 4.00 | - |" in said
    assert "2 threads are 1.00 to 2.00 times as fast as 1 thread, and the best rivals 1.00 to 1.00 times (2 sizes)." in said
    assert said.count("](plots/") == 2  # none of a single size
    assert cpu_page.growth("rmsnorm") == "No record is there so far."
    drawn = cpu_page.plots()
    assert set(drawn) == {"cpu-growth-gqa-fp32-1.svg", "cpu-growth-gqa-fp32-2.svg"}
    lines = ElementTree.fromstring(drawn["cpu-growth-gqa-fp32-2.svg"]).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(rows[0]["seconds"])
    ours, _, rival = ([place.split(",") for place in line.get("points", "").split()] for line in lines)
    assert [x for x, _ in ours] == ["60.0", "500.0"]
    assert all(float(mine) > float(other) for (_, mine), (_, other) in zip(ours, rival, strict=True))


def test_files_that_are_not_there_have_no_rows(tmp_path: Path) -> None:
    assert cpu_page.rows_of(tmp_path / "nothing.json") == []
