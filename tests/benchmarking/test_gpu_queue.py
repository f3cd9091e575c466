"""The queue for machines with a GPU: limits, and what is left to run."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from benchmarks import gpu_queue
from benchmarks.gpu_queue import QUEUE, Entry, remaining, run

ROOT = Path(__file__).parents[2]


def test_an_entry_passes_fails_or_is_cut_short(tmp_path: Path) -> None:
    says = Entry("says", ("-c", "print('{results}')"), 60)
    fails = Entry("fails", ("-c", "print('one\\ntwo\\n'); raise SystemExit(3)"), 60)
    assert run(says, tmp_path, 60)["outcome"] == "passed"
    assert (tmp_path / "says.log").read_text().strip() == str(tmp_path)
    failed = {"outcome": "failed", "status": 3, "seconds": 0, "last_line": "two"}
    assert run(fails, tmp_path, 60) | {"seconds": 0} == failed


def test_what_a_command_started_ends_with_it(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    started = time.monotonic()
    assert run(Entry("slow", ("-c", child), 60), tmp_path, 0.5)["outcome"] == "cut short"
    assert time.monotonic() - started < 300


def test_a_missing_tool_is_no_failure(tmp_path: Path) -> None:
    entry = Entry("checked", ("-c", "pass"), 60, under=("no-such-tool-here",))
    assert run(entry, tmp_path, 60) == {"outcome": "not run: there is no no-such-tool-here"}


def test_what_has_passed_is_not_run_again() -> None:
    first, second, third = QUEUE[:3]
    known = {first.name: {"outcome": "passed"}, second.name: {"outcome": "cut short"}}
    assert remaining(QUEUE[:3], known) == [second, third]


def test_entries_stay_below_ten_minutes_and_write_where_they_are_told() -> None:
    assert len({entry.name for entry in QUEUE}) == len(QUEUE)
    for entry in QUEUE:
        assert entry.seconds <= 600
        command = entry.command(Path("there"))
        script = command[command.index(sys.executable) + 1]
        assert script == "-m" or (ROOT / script).exists()
        assert script == "-m" or command[-1] == f"there/{entry.name}.json"


def test_without_a_gpu_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_queue.py", "--results", str(tmp_path / "there")])
    with pytest.raises(SystemExit, match="sees no GPU"):
        gpu_queue.main()
    assert not (tmp_path / "there").exists()


def test_the_documentation_names_every_entry() -> None:
    text = (ROOT / "docs" / "gpu-queue.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)`", text, re.MULTILINE) == [entry.name for entry in QUEUE]
