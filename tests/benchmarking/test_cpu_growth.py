"""Growth on the CPU: sizes of each program, and runs in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cpu
import cpu_growth

WORDS = ["gqa", "--sizes", "128", "256", "--dtypes", "fp32", "--threads", "1", "2"]


def test_sizes_are_those_that_are_asked_of_records() -> None:
    assert cpu_growth.GROWTHS["rmsnorm"].sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    assert cpu_growth.GROWTHS["gqa"].sizes == (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@pytest.mark.parametrize("dtype", list(cpu.DTYPES))
def test_attention_has_as_many_keys_as_its_context(dtype: str) -> None:
    case = cpu_growth.GROWTHS["gqa"].case(256, dtype)
    assert [tuple(each.shape) for each in case.inputs] == [(1, 2, 8, 128), (1, 2, 256, 128), (1, 2, 256, 128)]
    assert {each.dtype for each in case.inputs} == {cpu.DTYPES[dtype]}
    q, k, v = (each.double() for each in case.inputs)
    exact = (q @ k.mT / 128**0.5).softmax(-1) @ v
    torch.testing.assert_close(case.module(*case.inputs).double(), exact, rtol=0.1, atol=0.01)


def test_a_run_begins_nothing_when_its_seconds_are_over_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[int, int]] = []

    def record(*, limit: float, size: int, threads: int, **_: Any) -> dict[str, Any]:
        made.append((threads, size))
        return {"outcome": "timed", "seconds": {"mugraph": 1e-3, "eager": 2e-3}, "errors": {}, "missing": {}}

    monkeypatch.setattr(cpu_growth, "made", record)
    words = [*WORDS, "--record", str(tmp_path / "record.json")]
    cpu_growth.main([*words, "--seconds", "0"])
    assert made == []
    cpu_growth.main(words)
    assert made == [(1, 128), (1, 256), (2, 128), (2, 256)]
    cpu_growth.main(words)
    assert len(made) == 4
    assert "| gqa | 256 | fp32 | 2 | default | 1 | 2 |" in capsys.readouterr().out
    summary = json.loads((tmp_path / "record.json").read_text())["summary"]
    assert summary.keys() == {"gqa fp32, threads 1", "gqa fp32, threads 2"}


def test_a_program_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu_growth.main(["nothing"])
    assert "no case nothing" in capsys.readouterr().err
