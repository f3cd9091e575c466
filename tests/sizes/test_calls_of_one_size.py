"""Calls of a size that comes again: tensors are recognized at once, and whatever is not alike is looked at as ever."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mugraph
from mugraph import DynamicSuperoptimized
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.sizes.capacity_results import CapacityTable

MOST, HEADS, WIDTH = 40, 2, 16


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def tensors(size: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(HEADS, rows, WIDTH) for rows in (1, size, size))


@pytest.fixture(scope="module")
def result() -> DynamicSuperoptimized:
    """Attention over 1 to MOST keys, of which nothing was timed: the smallest capacity that holds a size runs it."""
    keys = mugraph.Dim("keys", 1, MOST)
    return mugraph.superoptimize(attention, tensors(5), profile=False, dynamic={1: {1: keys}, 2: {1: keys}})


@pytest.fixture
def table(result: DynamicSuperoptimized) -> CapacityTable:
    """Its kernels."""
    assert result.capacities is not None, result.reason
    assert result.capacities.in_place
    return result.capacities


def check(run: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> None:
    exact = attention(*(each.double() for each in given))
    torch.testing.assert_close(run(*given).double(), exact, rtol=1e-5, atol=1e-6)


def test_every_size_is_right_whenever_it_comes(result: DynamicSuperoptimized, table: CapacityTable) -> None:
    sizes = [*range(1, MOST + 1)] * 4
    random.Random(0).shuffle(sizes)
    with torch.inference_mode():
        for size in sizes:
            check(result, tensors(size))


def test_the_fourth_call_is_looked_at_no_more(table: CapacityTable, monkeypatch: pytest.MonkeyPatch) -> None:
    capacity = max(table.in_place)
    kernels = table.in_place[capacity].kernels
    with torch.inference_mode():
        one, other = (table.at_size(capacity, size) for size in (7, 8))
        for _ in range(3):
            check(one, tensors(7))
        monkeypatch.setattr(kernels, "recognized", None)
        monkeypatch.setattr(kernels, "_read", None)
        check(one, tensors(7))
        for wrong in (tensors(8), (*tensors(7)[:2], tensors(8)[2])):
            with pytest.raises(TypeError, match="NoneType"):  # they are looked at
                one(*wrong)
        with pytest.raises(TypeError, match="NoneType"):
            other(*tensors(8))


def test_tensors_that_lie_otherwise_are_right(table: CapacityTable) -> None:
    cache = torch.randn(2, MOST, HEADS, WIDTH)
    with torch.inference_mode():
        run = table.at_size(max(table.in_place), 7)
        for _ in range(4):
            q, k, v = tensors(7)
            check(run, (q, k, v))
            check(run, (q, *(each[:7].transpose(0, 1) for each in cache)))  # as a cache with heads behind keys
            check(run, (q, *(each.transpose(0, 1)[:, 3:10] for each in cache)))
            check(run, (q, k.mT.contiguous().mT, v))  # which has to be copied
            check(run, (q.transpose(0, 1).contiguous().transpose(0, 1), k, v))
            check(run, (q, k, -v))


def test_what_does_not_fit_is_refused_however_often_it_was_called(result: DynamicSuperoptimized, table: CapacityTable) -> None:
    with torch.inference_mode():
        for _ in range(4):
            q, k, v = tensors(7)
            check(result, (q, k, v))
            with pytest.raises(ShapeMismatch, match="keys is 6 in argument 2 and 7 before it"):
                result(q, k, tensors(6)[2])
            with pytest.raises(ShapeMismatch):
                result(q, k.double(), v)
            with pytest.raises((ShapeMismatch, InvalidInput)):
                result(q, k)
            with pytest.raises(ShapeMismatch):
                result(q, k, tensors(MOST + 1)[2])


def test_threads_call_at_once(table: CapacityTable) -> None:
    run, failures = table.at_size(max(table.in_place), 9), list[BaseException]()

    def work() -> None:
        try:
            with torch.inference_mode():
                for _ in range(50):
                    check(run, tensors(9))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_sizes_of_other_threads_are_not_mistaken_for_that_of_a_call(
    table: CapacityTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity = max(table.in_place)
    kernels, given, others = table.in_place[capacity].kernels, tensors(7), tensors(23)
    run_kernels = kernels._run

    def meanwhile(*call: Any) -> Any:
        returned = run_kernels(*call)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "_run", run_kernels)
            table.at(capacity)(*others)  # as another thread may, whenever kernels run
        return returned

    with torch.inference_mode():
        run = table.at_size(capacity, 7)
        monkeypatch.setattr(kernels, "_run", meanwhile)
        for _ in range(4):
            check(run, given)
