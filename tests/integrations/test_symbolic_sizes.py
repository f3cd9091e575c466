"""Graphs at changing sizes: which get a run of their own, and what happens when making one fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mugraph.integrations.background import Run
from mugraph.integrations.sized_graph import SizedGraph


def general(*arguments: Any) -> str:
    return "general"


class Specializer:
    """Makes runs that name their size, and remembers for which."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, arguments: Sequence[Any]) -> Run:
        size = arguments[1]
        self.made.append(size)
        return lambda *arguments: f"size {size}"


def sized(specializer: Any, limit: int = 2, strict: bool = False) -> SizedGraph:
    return SizedGraph(general, specializer, numbers=(1,), limit=limit, strict=strict)


def test_a_size_is_specialized_when_it_comes_the_third_time() -> None:
    make = Specializer()
    graph = sized(make)
    assert [graph("tensor", 4) for _ in range(4)] == ["general", "general", "size 4", "size 4"]
    assert [graph("another tensor", 4), graph("tensor", 5)] == ["size 4", "general"]
    assert make.made == [4]


def test_sizes_that_come_once_never_are() -> None:
    make = Specializer()
    graph = sized(make)
    assert {graph("tensor", size) for size in range(10_000)} == {"general"}
    assert make.made == []


def test_only_so_many_sizes_are(caplog: pytest.LogCaptureFixture) -> None:
    make = Specializer()
    graph = sized(make, limit=2)
    with caplog.at_level(logging.INFO, logger="mugraph"):
        answers = [graph("tensor", size) for size in (1, 2, 3) for _ in range(5)]
    assert answers[4::5] == ["size 1", "size 2", "general"]
    assert "no more sizes of this graph get kernels; option sizes=... allows more than 2" in caplog.text


def test_a_failure_is_reported_once_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def fail(arguments: Sequence[Any]) -> Run:
        raise ZeroDivisionError("a defect")

    graph = sized(fail)
    with caplog.at_level(logging.WARNING, logger="mugraph"):
        assert [graph("tensor", 4) for _ in range(5)] == ["general"] * 5
    assert [record.message.partition(",")[0] for record in caplog.records] == ["optimizing a graph for sizes (4"]
    strict = sized(fail, strict=True)
    strict("tensor", 4), strict("tensor", 4)
    with pytest.raises(ZeroDivisionError):
        strict("tensor", 4)


def test_threads_do_not_wait_for_kernels() -> None:
    begun, finish = threading.Event(), threading.Event()

    def patient(arguments: Sequence[Any]) -> Run:
        begun.set()
        assert finish.wait(500)
        return lambda *arguments: "special"

    graph = sized(patient)
    graph("tensor", 4), graph("tensor", 4)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(graph, "tensor", 4)
        assert begun.wait(500)
        assert graph("tensor", 4) == "general"
        finish.set()
        assert waiting.result() == "special"
    assert graph("tensor", 4) == "special"
