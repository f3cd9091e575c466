"""Calls that are made before anybody waits for them, by which a library knows the shapes of later ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mugraph.sizes.first_calls import call_each_once

WEIGHT = torch.randn(37, 41)


def linear(rows: torch.Tensor) -> torch.Tensor:
    """A linear layer of the library, of widths that no other test has."""
    packed = torch.ops.mkldnn._reorder_linear_weight(WEIGHT)
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, packed, None, "none", [], "")
    return made


def example(size: int) -> tuple[tuple[torch.Tensor], dict[str, Any]]:
    return (torch.randn(size, 41),), {}


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.sizes.first_calls._SECONDS", math.inf)


@pytest.mark.skipif(not torch._C._has_mkldnn, reason="PyTorch has no oneDNN here")
def test_the_library_writes_code_for_shapes_before_they_are_called(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def writes(size: int) -> bool:
        capfd.readouterr()
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):  # type: ignore[no-untyped-call]
            linear(*example(size)[0])
        return "create:cache_miss,cpu,inner_product" in capfd.readouterr().out

    monkeypatch.setattr("mugraph.sizes.first_calls._MOST", 3)
    call_each_once(dict.fromkeys((11, 5, 7, 13), linear), example)
    assert [writes(size) for size in (5, 7, 11, 13, 13)] == [False, False, False, True, False]


def test_weights_come_a_second_time_and_no_gradient_is_recorded() -> None:
    called = list[tuple[int, bool]]()

    def run(rows: torch.Tensor, scale: float = 0.0) -> None:
        called.append((len(rows), torch.is_grad_enabled()))
        assert scale == 2.0

    runs: dict[int, Callable[..., Any]] = dict.fromkeys((9, 3, 6), run)
    call_each_once(runs, lambda size: (example(size)[0], {"scale": 2.0}))
    assert called == [(size, False) for size in (3, 3, 6, 9)]
    call_each_once({}, example)


def test_they_end_when_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.sizes.first_calls._SECONDS", 0.0)
    call_each_once({5: linear}, lambda size: pytest.fail("it is called"))


def test_calls_that_fail_are_left_to_whoever_makes_them() -> None:
    called = list[int]()

    def run(rows: torch.Tensor) -> torch.Tensor:
        called.append(len(rows))
        return torch.zeros(1, dtype=torch.int64) // 0

    call_each_once({3: run, 6: run}, example)
    assert called == [3, 3, 6]
