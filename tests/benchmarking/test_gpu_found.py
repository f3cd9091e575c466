"""How long results take: what counts as late, what fails, and that each program has a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import gpu_found
from benchmarks.gpu_found import LIMIT, beyond, failures, line, processor_seconds, subject

from mugraph.support.progress import Event


def record(clock: float, proved: bool = True, late: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    times = {
        "clock_seconds": clock,
        "processor_seconds": 2.0,
        "load": 1.0,
        "first_proof_seconds": None,
        "seconds": {"total": 1.0},
    }
    return {"program": "gqa", "dtype": "bf16", "proved": proved, "beyond": list(late), **times}


def test_what_ends_after_the_budget_is_named_with_the_seconds_of_it_that_are_late() -> None:
    events = [Event("search", "a", 1.0), Event("compile", "b", 8.0), Event("verify", "c", 11.0)]
    assert list(beyond(events, 10.0, 12.5)) == [{"step": "compile: b", "seconds": 1.0}, {"step": "verify: c", "seconds": 1.5}]
    assert list(beyond(events, 13.0, 12.5)) == []


def test_late_and_unproved_programs_fail() -> None:
    dead = {"program": "lora", "dtype": "fp16", "outcome": "failed", "why": "exit code 1"}
    assert failures([record(LIMIT - 1)], LIMIT) == []
    assert failures([record(LIMIT + 1)], LIMIT) == ["gqa bf16"]
    assert failures([record(LIMIT + 1)], 0) == []
    assert failures([record(1.0, proved=False), dead], 0) == ["gqa bf16", "lora fp16"]
    assert "exit code 1" in line(dead)
    assert "1.5 s late in verify: c" in line(record(3.0, late=[{"step": "verify: c", "seconds": 1.5}]))


def test_seconds_of_a_processor_are_those_of_work() -> None:
    before = processor_seconds()
    while processor_seconds() == before:
        sum(range(10_000))
    assert processor_seconds() > before


def test_products_have_the_sizes_that_they_are_named_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_found.PRODUCTS, "product", (gpu_found.product, 2, 8))
    function, inputs = subject("product", "bf16")
    assert [tuple(each.shape) for each in inputs] == [(8, 8), (8, 8)]
    assert function(*inputs).shape == (8, 8)


def test_every_program_and_type_has_a_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def answer(words: Sequence[str], limit: float) -> dict[str, Any]:
        asked.append(words)
        return {name: value for name, value in record(1.0).items() if name not in ("program", "dtype")}

    monkeypatch.setattr(gpu_found, "answer_of", answer)
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    output = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["gpu_found.py", "lora", "product", "--budget", "45", "--output", str(output)])
    gpu_found.main()
    made = json.loads(output.read_text(encoding="utf-8"))["records"]
    assert [(each["program"], each["dtype"]) for each in made] == [(p, d) for p in ("lora", "product") for d in ("fp16", "bf16")]
    assert all(words[-2:] == ["--budget", "45.0"] and "--alone" in words for words in asked)


def test_an_unknown_program_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_found.py", "convolution"])
    with pytest.raises(SystemExit):
        gpu_found.main()
    assert "there is no program convolution" in capsys.readouterr().err
