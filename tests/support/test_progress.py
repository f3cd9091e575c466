"""What a waiting user sees, and budgets of seconds."""

from __future__ import annotations

import io
import math

import pytest

from mugraph.errors import InvalidInput
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, Reporter


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


def test_a_terminal_has_one_live_line_that_is_gone_in_the_end() -> None:
    stream = Terminal()
    with Reporter(stream) as tell:
        tell(Event("search", "10 tensors", 0.1))
        assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K")


def test_without_a_budget_there_is_no_end() -> None:
    deadline = Deadline(None)
    assert deadline.remaining is None
    assert deadline.share(0.5) is None
    assert not deadline.passed


def test_a_budget_runs_out() -> None:
    fresh, spent = Deadline(100.0), Deadline(0.0)
    assert 49.0 < (fresh.share(0.5) or 0.0) <= 50.0
    assert not fresh.passed
    assert spent.passed
    assert spent.share(0.5) == 0.0


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_a_budget_that_is_no_duration_is_refused(budget: float) -> None:
    with pytest.raises(InvalidInput, match="budget is a number of seconds, at least 0, not"):
        Deadline(budget)
