"""What a waiting user sees, and budgets of seconds."""

from __future__ import annotations

import io
import math
import sys
import time
import types
from typing import Any

import pytest
from rich.console import Console

from mugraph.errors import InvalidInput
from mugraph.support.deadline import Deadline
from mugraph.support.progress import INTERRUPTED, Event, Reporter, _live_console, since


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_a_line_per_stage() -> None:
    stream = io.StringIO()
    with Reporter(stream) as tell:
        tell(Event("search", "10 tensors", 0.1))
        tell(Event("search", "20 tensors", 0.2))
        tell(Event("verify", "candidate 1", 0.3))
    assert stream.getvalue() == "search: 10 tensors (0.1 s)\nverify: candidate 1 (0.3 s)\n"


def test_a_terminal_has_a_bar_that_is_gone_in_the_end() -> None:
    stream = Terminal()
    with Reporter(stream) as tell:
        tell(Event("search", "10 tensors [not markup]", 0.1))
        tell(Event("compile", "candidate 2 of 4", 0.2, done=0.5))
    shown = stream.getvalue()
    assert "compile: candidate 2 of 4" in shown
    assert "━" in shown
    assert shown.endswith("\x1b[2K")


def test_stages_tell_the_seconds_of_the_call_and_not_of_their_part_of_it() -> None:
    events: list[Event] = []
    begun = Deadline(60.0, started=time.monotonic() - 10.0)
    since(begun, events.append)(Event("search", "10 tensors", Deadline(30.0).elapsed, done=0.5))
    (told,) = events
    assert 10.0 <= told.seconds < 60.0
    assert (told.stage, told.text, told.done) == ("search", "10 tensors", 0.5)


def test_the_answer_to_ctrl_c_stays() -> None:
    for stream in (Terminal(), io.StringIO()):
        with Reporter(stream) as tell:
            tell(Event("search", "10 tensors", 0.1))
            tell(Event(INTERRUPTED, "finishing with the best so far; again to stop", 0.2))
        assert "finishing with the best so far; again to stop" in stream.getvalue()


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    consoles: list[Console] = []

    def noted(*args: Any, **settings: Any) -> Console:
        consoles.append(Console(*args, **settings, force_jupyter=True))
        return consoles[-1]

    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr("rich.console.Console", noted)
    stream = io.StringIO()
    assert _live_console(stream) is consoles[-1]
    assert stream.getvalue() == ""


def test_without_a_budget_there_is_no_end() -> None:
    deadline = Deadline(None)
    assert deadline.remaining is None
    assert deadline.share(0.5) is None
    assert not deadline.passed


def test_a_budget_runs_out() -> None:
    fresh, spent = Deadline(1e6), Deadline(0.0)
    assert 499_000.0 < (fresh.share(0.5) or 0.0) <= 500_000.0
    assert not fresh.passed
    assert spent.passed
    assert spent.share(0.5) == 0.0


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_a_budget_that_is_no_duration_is_refused(budget: float) -> None:
    with pytest.raises(InvalidInput, match="budget is a number of seconds, at least 0, not"):
        Deadline(budget)
