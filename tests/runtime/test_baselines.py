"""Timing against PyTorch: paired ratios, the fastest baseline decides, what cannot run says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mugraph.runtime import baselines
from mugraph.runtime.baselines import OURS, BaselineComparison, compare


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_ratios_are_medians_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second round the machine was ten times as slow, for everybody."""

    def measure(runs: dict[str, Callable[[], Any]], rounds: int, **options: Any) -> dict[str, list[float]]:
        return {OURS: [1.0, 10.0, 1.0], "torch eager": [2.0, 20.0, 2.0]}

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    monkeypatch.setattr(baselines, "measure", measure)
    comparison = compare(lambda: None, double, (torch.ones(2),))
    assert comparison == BaselineComparison(1.0, {"torch eager": 2.0}, {"torch eager": 2.0}, {})


def test_speedup_is_against_the_fastest_baseline() -> None:
    comparison = BaselineComparison(1.0, {"slow": 4.0, "fast": 0.5}, {"slow": 4.0, "fast": 0.5}, {})
    assert comparison.speedup == 0.5
    assert BaselineComparison(1.0, {}, {}, {}).speedup is None


def test_every_contestant_is_called_with_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    comparison = compare(lambda: seen.append(torch.zeros(1)), function, (torch.ones(1),), rounds=3)
    assert comparison.latency > 0
    assert {tuple(tensor.tolist()) for tensor in seen} == {(0.0,), (1.0,)}


def test_a_compiler_that_cannot_run_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fn: Callable[..., Any], mode: str) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand thirty more lines")

        return compiled

    monkeypatch.setattr(torch, "compile", refuse)
    comparison = compare(lambda: None, double, (torch.ones(2),), rounds=2)
    assert set(comparison.baselines) == {"torch eager"}
    assert set(comparison.unavailable) == set(baselines.COMPILE_MODES)
    assert all(
        reason == "RuntimeError: InvalidCxxCompiler: No working C++ compiler found" for reason in comparison.unavailable.values()
    )
