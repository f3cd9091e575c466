"""What a compiled call writes into a part of what it is given is written there: a static cache takes a row, and is not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from mugraph.frontend.calls.in_place import Changes, changes_written
from mugraph.integrations import torch_compile
from pieces.caches import attention, by_index, by_index_copy, by_slice, returned

Function = Callable[..., Any]
OPTIONS: dict[str, str | int | bool | Function] = {"profile": False, "cache": "off", "strict": True}


def a_copy_of_a_part(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """It stays as it is, whatever later calls write."""
    cache[:, -2:] = new * 2
    return attention(query, cache), cache[:, -1].clone()


def a_view_of_a_part(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """It is what later calls write."""
    cache[:, -2:] = new * 2
    return attention(query, cache), cache[:, -1]


def read_before(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    before = attention(query, cache)
    cache[:, -2:] = new * 2
    return before + attention(query, cache)


def changed_as_a_whole(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache.mul_(0.5)
    return attention(query, cache)


def changed_and_returned(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache += attention(cache, query)
    return cache


def written_and_returned(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """In place, which the result of the call shows in the graph."""
    return cache.index_copy_(1, torch.tensor([2, 4]), attention(new, query))


def swapped(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    kept = new.clone()
    new[:, :] = cache[:, :2]
    cache[:, :2] = kept
    return attention(query, cache)


IN_PLACE = [by_slice, by_index, by_index_copy, returned, a_copy_of_a_part, a_view_of_a_part, written_and_returned]
COPIED = [read_before, changed_as_a_whole, changed_and_returned, swapped]


def tensors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, 4, 8), torch.randn(2, 6, 8), torch.randn(2, 2, 8)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each argument that a call changes, whether what it holds afterwards was computed elsewhere."""
    found: list[bool] = []

    def spied(run: Callable[..., Sequence[Any]], changes: Changes) -> Callable[..., Sequence[Any]]:
        changed = changes.changed

        def seen(*arguments: Any) -> Sequence[Any]:
            results = run(*arguments)
            values = results[len(results) - len(changed) :]
            found.extend(value is not arguments[number] for number, value in zip(changed, values, strict=True))
            return results

        return changes_written(seen, changes)

    monkeypatch.setattr(torch_compile, "changes_written", spied)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def same_calls(fast: Function, function: Function, ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    """Calls one after the other give the same, change the same, and so do results of earlier calls."""
    given: list[Any] = []
    with torch.no_grad():
        for number in range(3):
            given.append((fast(*ours), function(*theirs)))
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
            for tensors in (ours, theirs):
                tensors[2].add_(number)
        for got, wanted in given:
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [*IN_PLACE, *COPIED])
def test_calls_change_what_the_function_changes(function: Function, copied: list[bool]) -> None:
    fast = torch.compile(function, backend="mugraph", options=OPTIONS)
    same_calls(fast, function, tensors(), tensors())
    assert any(copied) == (function in COPIED)
    assert len(copied) >= 3


def test_a_cache_that_shares_memory_with_another_argument_is_right(copied: list[bool]) -> None:
    def beside(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        cache[:, -2:] = new * 2
        return attention(query, cache) + other.sum()

    def with_views(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (*tensors, tensors[1][:, 4:])

    fast = torch.compile(beside, backend="mugraph", options=OPTIONS)
    same_calls(fast, beside, with_views(tensors()), with_views(tensors()))
