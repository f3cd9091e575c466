"""Interleaved timing."""

from __future__ import annotations

from mugraph.runtime import measure


def test_rounds_are_interleaved_after_the_warmup() -> None:
    calls: list[str] = []
    seconds = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=1)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2}
    assert all(time >= 0 for times in seconds.values() for time in times)


def test_something_may_run_between_calls() -> None:
    calls: list[str] = []
    measure({"a": lambda: calls.append("a")}, repeats=2, warmup=0, between=lambda: calls.append("flush"))
    assert calls == ["flush", "a", "flush", "a"]


def test_a_spent_budget_still_times_everything_once() -> None:
    seconds = measure({"a": lambda: None, "b": lambda: None}, repeats=100, budget=0.0)
    assert [len(times) for times in seconds.values()] == [1, 1]
