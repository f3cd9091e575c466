"""Whole calls of a result beside the function's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mugraph
from mugraph.errors import UnsupportedOperator
from mugraph.runtime.baselines import BaselineComparison
from mugraph.selection.own_function import OwnCall, before_calls
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import machine_for


@pytest.mark.parametrize(
    ("slowdown", "budget", "seconds", "limit"),
    [
        (1.0, None, 0.5, math.inf),
        (1.0, 0.0, 0.5, 1.0),
        (2.0, 0.0, 2.0, 1.0),
        (6.0, 0.0, 18.0, 1.0),
        (6.0, None, 18.0, math.inf),
    ],
)
def test_a_busy_machine_is_given_more_rounds_as_far_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, budget: float | None, seconds: float, limit: float
) -> None:
    asked: dict[str, Any] = {}

    def compared(*call: object, **settings: object) -> BaselineComparison:
        asked.update(settings)
        return BaselineComparison({})

    monkeypatch.setattr("mugraph.selection.own_function.slowdown", lambda: slowdown)
    monkeypatch.setattr("mugraph.selection.own_function.compare", compared)
    OwnCall(torch.neg, (torch.zeros(1),), {}).beside(torch.neg, machine_for("cpu"), Deadline(budget), compiled=False)
    assert (asked["seconds"], asked["limit"]) == (seconds, limit)


@pytest.mark.parametrize(("slowdown", "call", "left"), [(1.0, 0.0, 59.0), (1.0, 0.2, 55.2), (2.0, 0.2, 50.4), (9.0, 0.2, 42.0)])
def test_a_search_leaves_time_for_calls_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, call: float, left: float
) -> None:
    monkeypatch.setattr("mugraph.devices.host.slowdown", lambda: slowdown)
    monkeypatch.setattr("mugraph.devices.host.slowdown_of_calls", lambda: slowdown)
    assert before_calls(Deadline(60.0), call).remaining == pytest.approx(left, abs=0.1)
    assert before_calls(Deadline(0.0), call).passed
    assert before_calls(Deadline(None), call).remaining is None


@pytest.mark.parametrize(("profile", "left"), [(True, 50.0), (False, 60.0)])
def test_what_is_searched_for_a_function_ends_before_its_calls(
    monkeypatch: pytest.MonkeyPatch, profile: bool, left: float
) -> None:
    """Where these are timed, and these have what is left of all the time."""
    ends = list[float | None]()

    def found(inquiry: object, prepared: Any, *settings: object) -> None:
        ends.append(prepared.qualifier.deadline.remaining)
        raise UnsupportedOperator("nothing")

    monkeypatch.setattr("mugraph.selection.whole_programs.before_calls", lambda deadline, seconds: deadline.leaving(10.0, 1.0))
    monkeypatch.setattr("mugraph.selection.whole_programs._found", found)
    x = torch.randn(8, 8)
    with pytest.raises(UnsupportedOperator):
        mugraph.superoptimize(lambda x: x.exp() * 2, (x,), budget=60.0, profile=profile, cache="off")
    assert ends == [pytest.approx(left, abs=2.0)]
