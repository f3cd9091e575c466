"""Timing against PyTorch: paired ratios, the fastest baseline decides, what cannot run says why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mugraph.runtime import baselines, benchmarking
from mugraph.runtime.baselines import EAGER, ONE_THREAD, BaselineComparison, compare
from mugraph.runtime.benchmarking import Duel, Spread


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """PyTorch has one thread, or as many as a test is given."""
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request, "param", 1))
    yield
    torch.set_num_threads(before)


def test_ratios_are_medians_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second round the machine was ten times as slow, for everybody."""

    def in_turns(sides: list[Callable[[], Any]], *limits: Any, **again: Any) -> list[list[float]]:
        return [[1.0, 10.0, 1.0], [2.0, 20.0, 2.0]]

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    monkeypatch.setattr(baselines, "in_turns", in_turns)
    comparison = compare(lambda x: None, double, (torch.ones(2),))
    assert comparison.latency == 1.0
    assert comparison.baselines == {EAGER: 2.0}
    assert comparison.ratios == {EAGER: 2.0}
    assert comparison.duels[EAGER].theirs == Spread(2.0, 2.0, 11.0)


def test_speedup_is_against_the_fastest_baseline() -> None:
    duels = {"slow": Duel.of([1.0], [4.0]), "fast": Duel.of([1.0], [0.5])}
    comparison = BaselineComparison(duels, {"absent": "ImportError: no"})
    assert comparison.speedup == 0.5
    assert BaselineComparison({}).speedup is None
    assert BaselineComparison.from_json(comparison.to_json()) == comparison


def test_every_contestant_is_called_with_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    comparison = compare(lambda x: seen.append(torch.zeros(1)), function, (torch.ones(1),), rounds=3)
    assert comparison.latency is not None
    assert comparison.latency > 0
    assert {tuple(tensor.tolist()) for tensor in seen} == {(0.0,), (1.0,)}


@pytest.mark.parametrize(("taken", "compiled", "calls"), [(0.5, False, 2), (math.inf, False, 6), (0.5, True, 5)])
def test_what_was_just_called_is_called_for_rounds_alone(
    monkeypatch: pytest.MonkeyPatch, taken: float, compiled: bool, calls: int
) -> None:
    """Otherwise once, and then until it is warm: three times, where it does not take long."""
    called: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        called.append(x)
        return x

    monkeypatch.setattr(
        baselines,
        "_variants",
        lambda fn, compiled: {EAGER: lambda: fn} | {"other": lambda: double} if compiled else {EAGER: lambda: fn},
    )
    monkeypatch.setattr(benchmarking, "_WARM_SECONDS", math.inf)
    monkeypatch.setattr(benchmarking, "_each", lambda call, clock, calls: [call() is None or 1.0 for _ in range(calls)])
    compare(double, function, (torch.ones(1),), rounds=2, compiled=compiled, taken=taken)
    assert len(called) == calls


@pytest.mark.parametrize(("limit", "cut_short"), [(0.0, True), (math.inf, False)])
def test_whether_time_ended_the_rounds_is_said(limit: float, cut_short: bool) -> None:
    comparison = compare(double, double, (torch.ones(2),), rounds=2, limit=limit, compiled=False)
    assert [duel.cut_short for duel in comparison.duels.values()] == [cut_short] * len(comparison.duels)


def test_tensors_that_a_function_keeps_can_be_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(x.cos())
        return x * kept[0]

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    compare(double, function, (torch.ones(2),), rounds=1)
    assert not kept[0].is_inference()


@pytest.mark.parametrize("one_thread", [2], indirect=True)
@pytest.mark.parametrize(("seconds", "also"), [(5e-4, True), (2e-3, False)], ids=["small", "long"])
def test_small_calls_are_timed_on_one_thread_too(monkeypatch: pytest.MonkeyPatch, seconds: float, also: bool) -> None:
    threads: set[int] = set()
    now = [0.0]

    def function(x: torch.Tensor) -> torch.Tensor:
        threads.add(torch.get_num_threads())
        return ours(x)

    def ours(x: torch.Tensor) -> torch.Tensor:
        now[0] += seconds
        return x * 2

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    comparison = compare(ours, function, (torch.ones(2),), rounds=2)
    assert list(comparison.baselines) == ([EAGER, ONE_THREAD] if also else [EAGER])
    assert threads == ({1, 2} if also else {2})
    assert torch.get_num_threads() == 2


def test_a_long_call_is_made_once_more_to_see_that_it_is_not_small() -> None:
    calls = list[None]()

    def long() -> None:
        calls.append(None)
        time.sleep(2e-2)

    assert not baselines._is_small(long, first=2e-2)
    assert len(calls) == 1


@pytest.mark.parametrize("one_thread", [2], indirect=True)
def test_a_call_that_fails_leaves_threads_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(x: torch.Tensor) -> torch.Tensor:
        if torch.get_num_threads() == 1:
            raise ValueError("one thread is no pool")
        return x

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    comparison = compare(double, alone, (torch.ones(2),), rounds=2)
    assert comparison.unavailable == {ONE_THREAD: "ValueError: one thread is no pool"}
    assert torch.get_num_threads() == 2


def test_a_compiler_that_cannot_run_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fn: Callable[..., Any], mode: str) -> Callable[..., Any]:
        def compiled(*args: Any) -> Any:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand thirty more lines")

        return compiled

    monkeypatch.setattr(torch, "compile", refuse)
    comparison = compare(lambda x: None, double, (torch.ones(2),), rounds=2)
    assert set(comparison.baselines) == {"torch eager"}
    assert set(comparison.unavailable) == set(baselines.COMPILE_MODES)
    assert all(
        reason == "RuntimeError: InvalidCxxCompiler: No working C++ compiler found" for reason in comparison.unavailable.values()
    )


def test_a_baseline_that_cannot_be_made_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fn: Callable[..., Any], mode: str) -> Callable[..., Any]:
        raise UnicodeDecodeError("ascii", b"\xe2", 0, 1, "ordinal not in range(128)")

    monkeypatch.setattr(torch, "compile", broken)
    comparison = compare(lambda x: None, double, (torch.ones(2),), rounds=3)
    assert list(comparison.baselines) == [EAGER]
    assert all("UnicodeDecodeError" in reason for reason in comparison.unavailable.values())
    assert set(comparison.unavailable) == set(baselines.COMPILE_MODES)


def test_a_baseline_that_fails_while_it_is_timed_is_a_line_and_the_rest_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def tired(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise MemoryError("no more\nof it")
        return x

    monkeypatch.setattr(torch, "compile", lambda fn, mode: tired)
    monkeypatch.setattr(baselines, "COMPILE_MODES", {"torch.compile": "default"})
    comparison = compare(lambda x: None, double, (torch.ones(2),), rounds=3)
    assert list(comparison.baselines) == [EAGER]
    assert comparison.unavailable == {"torch.compile": "MemoryError: no more"}
    assert comparison.latency is not None


def test_a_result_that_fails_while_it_is_timed_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(baselines, "COMPILE_MODES", {})
    with pytest.raises(ValueError, match="ours"):
        compare(broken, double, (torch.ones(2),), rounds=3)


def test_what_takes_seconds_is_told_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes tens of seconds, in which who waits would hear nothing."""
    moments: list[str] = []

    def compiling(fn: Callable[..., Any], mode: str) -> Callable[..., Any]:
        moments.append(mode)
        return fn

    monkeypatch.setattr(torch, "compile", compiling)
    compare(double, double, (torch.ones(2),), rounds=1, tell=moments.append)
    assert moments == [
        "PyTorch compiles the function: torch.compile",
        "default",
        "PyTorch compiles the function: torch.compile max-autotune",
        "max-autotune-no-cudagraphs",
        "calls in turns: mugraph, torch eager, torch.compile, torch.compile max-autotune",
    ]
