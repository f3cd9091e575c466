"""Whole calls of a result beside the function's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mugraph.runtime.baselines import BaselineComparison
from mugraph.selection.own_function import OwnCall
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import machine_for


@pytest.mark.parametrize(
    ("slowdown", "budget", "kept", "seconds", "limit"),
    [
        (1.0, None, False, 0.5, math.inf),
        (1.0, 0.0, False, 0.5, 5.0),
        (2.0, 0.0, False, 2.0, 9.0),
        (6.0, 0.0, False, 18.0, 9.0),
        (6.0, 0.0, True, 18.0, 3.0),
        (6.0, None, True, 18.0, math.inf),
    ],
)
def test_a_busy_machine_is_given_more_rounds_as_far_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, budget: float | None, kept: bool, seconds: float, limit: float
) -> None:
    asked: dict[str, Any] = {}

    def compared(*call: object, **settings: object) -> BaselineComparison:
        asked.update(settings)
        return BaselineComparison({})

    monkeypatch.setattr("mugraph.selection.own_function.slowdown", lambda: slowdown)
    monkeypatch.setattr("mugraph.selection.own_function.compare", compared)
    OwnCall(torch.neg, (torch.zeros(1),), {}).beside(torch.neg, machine_for("cpu"), Deadline(budget), compiled=False, kept=kept)
    assert (asked["seconds"], asked["limit"]) == (seconds, limit)
