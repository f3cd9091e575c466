"""The CPU's grid goes on where it stopped, and says which cells are lost and which were not measured."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import cpu
from cpu_limits import Limits

WORDS = ["rmsnorm", "softmax-32k", "--batches", "1", "8", "--dtypes", "fp32", "--threads", "1"]


def timed(ours: float, best: float) -> dict[str, Any]:
    return {"outcome": "timed", "seconds": {"mugraph": ours, "eager": 2 * best, "OpenVINO": best}, "errors": {}, "missing": {}}


def test_a_grid_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[str, int]] = []

    def stops(*, case: str, batch: int, **_: Any) -> dict[str, Any]:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append((case, batch))
        return timed(1e-3, 2e-3)

    words = [*WORDS, "--record", str(tmp_path / "record.json")]
    monkeypatch.setattr(cpu, "made", stops)
    with pytest.raises(KeyboardInterrupt):
        cpu.main(words)
    assert made == [("rmsnorm", 1), ("rmsnorm", 8)]

    def goes_on(*, case: str, batch: int, **_: Any) -> dict[str, Any]:
        made.append((case, batch))
        return timed(1e-3, 5e-4)

    monkeypatch.setattr(cpu, "made", goes_on)
    cpu.main(words)
    assert made[2:] == [("softmax-32k", 1), ("softmax-32k", 8)]
    said = capsys.readouterr().out
    assert "2 lost:\n| softmax-32k | fp32 | 1 | 1 | default |" in said
    summary = json.loads((tmp_path / "record.json").read_text())["summary"]
    assert summary["workloads"] == pytest.approx({"cases": 2, "geometric_mean": 2.0, "least": 2.0, "lost": 0})
    assert summary["other programs"] == pytest.approx({"cases": 2, "geometric_mean": 0.5, "least": 0.5, "lost": 2})


def test_cells_without_times_of_ours_are_named() -> None:
    name = {"case": "rmsnorm", "dtype": "bf16", "batch": 8, "threads": 1, "wait": "default"}
    refused = {**name, **timed(1.0, 1.0), "seconds": {"eager": 1.0}, "missing": {"mugraph": "ValueError: no kernels"}}
    ended = {**name, "outcome": "no answer", "why": "after 9 seconds"}
    said = cpu.table([{**name, **timed(1.0, 0.97)}, refused, ended])
    assert "0 lost:" in said
    assert said.endswith(f"2 not measured:\n{cpu.line(refused)}\n{cpu.line(ended)}")
    assert "ValueError: no kernels" in said
    assert "after 9 seconds" in said


def test_a_row_says_what_ran_and_what_it_is_bound_by() -> None:
    name = {"case": "rmsnorm", "dtype": "bf16", "batch": 8, "threads": 1, "wait": "default"}
    row = {**name, **timed(2e-3, 4e-3), "ran": "kernels", "limits": {"reading": 1.5e-3, "products": 3e-3}}
    assert cpu.line({**row, "bound": "reading"}).endswith("| kernels | 0.75 of reading | 2.00 |")
    assert cpu.line({**row, "bound": "products"}).endswith("| kernels | 1.50 of products | 2.00 |")
    assert cpu.line({**row, "ran": None}).endswith("| - | - | 2.00 |")  # of what is no program
    assert cpu.line({**name, **timed(2e-3, 4e-3)}).endswith("| - | - | 2.00 |")  # as earlier versions wrote it


@pytest.mark.parametrize(("found", "ran"), [(True, "kernels"), (False, "function")])
def test_a_record_has_what_ran_and_the_limits(monkeypatch: pytest.MonkeyPatch, found: bool, ran: str) -> None:
    amount, nothing = SimpleNamespace(bytes=1), SimpleNamespace(bytes=0)
    coverage = SimpleNamespace(mugraphs=amount, library=nothing, torch=nothing)

    class Result(nn.Softmax):
        report = SimpleNamespace(found=found, coverage=coverage)

    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    monkeypatch.setattr(cpu, "limits", lambda module, inputs: Limits({"reading": lambda: module(*inputs)}, "reading"))
    monkeypatch.setitem(cpu.PROGRAMS, "softmax-32k", (cpu.Softmax, cpu._rows(64), (1,)))
    monkeypatch.setattr(
        cpu, "CONTESTANTS", {cpu.OURS: lambda case, threads, budget: cpu.Ours(Result(-1), case), "eager": cpu.eager}
    )
    try:
        record = cpu.timed(partial(cpu.case_of, "softmax-32k", 1, "fp32"), threads, budget=1.0, bursts=1)
    finally:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(gradients)
    assert record["ran"] == ran
    assert record["limits"].keys() == {record["bound"]} == {"reading"}
    assert record["seconds"].keys() == {"mugraph", "eager"}


def test_threads_wait_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert {"OMP_WAIT_POLICY", "OMP_NUM_THREADS"} & cpu.waiting("default", 2).keys() == {"OMP_NUM_THREADS"}
    assert cpu.waiting("passive", 3).items() >= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"}.items()


def test_every_case_can_be_called() -> None:
    for name in cpu.PROGRAMS:
        if name not in ("prefill-2048", "swiglu"):
            case = cpu.case_of(name, 1, "fp32")
            assert all(tensor.isfinite().all() for tensor in cpu.tensors(case.module(*case.inputs)))


def test_a_case_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(["nothing"])
    assert "no case nothing" in capsys.readouterr().err
