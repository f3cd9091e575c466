"""Arguments of work behind calls: they lie as those of the call do, and what is not copied is watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mugraph.integrations import own_arguments
from mugraph.integrations.own_arguments import OwnArguments, copies_of

WIDTH = 32
X = torch.randn(8, WIDTH)
ARRAY = torch.randn(8, WIDTH).numpy()


@pytest.mark.parametrize(
    "arguments",
    [
        [torch.randn(8, 2 * WIDTH)[:, ::2], torch.randn(WIDTH).expand(8, WIDTH), torch.randn(WIDTH, 8).t(), 3],
        [X, X[2:4], X[:, 1:5], X.view(-1)[7:], X.view(torch.int32)[5], X[:0]],
        [torch.randn(3, 4, dtype=torch.complex64).conj(), torch.zeros(2, 0), torch.ones(1, dtype=torch.bool), None],
        [torch.from_numpy(ARRAY[:4]), torch.from_numpy(ARRAY), torch.from_numpy(ARRAY[:2])],
    ],
)
def test_copies_lie_like_what_they_were_made_of(arguments: list[Any]) -> None:
    copies = copies_of(arguments)
    for copy_, argument in zip(copies, arguments, strict=True):
        if isinstance(argument, torch.Tensor):
            assert torch.equal(copy_, argument)
            assert (copy_.dtype, copy_.stride()) == (argument.dtype, argument.stride())
            assert not argument.numel() or copy_.data_ptr() != argument.data_ptr()
        else:
            assert copy_ is argument
    places = [
        [one.data_ptr() - other.data_ptr() for one in tensors for other in tensors if _share(one, other)]
        for tensors in ([each for each in given if isinstance(each, torch.Tensor)] for given in (copies, arguments))
    ]
    assert places[0] == places[1]


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.numel() and other.numel()) and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr()


def test_what_the_caller_writes_later_is_not_seen() -> None:
    cache = torch.zeros(4, 6)
    view, positions = cache[1:, ::2], torch.arange(3)
    given = OwnArguments.copied([view, 3, positions, cache, None]).given
    cache.add_(1)
    positions.add_(1)
    assert torch.equal(given[0], torch.zeros(3, 3))
    assert given[0].stride() == view.stride()
    assert torch.equal(given[2], torch.arange(3))
    assert shares(given[3][1:, ::2], given[0]), "they are parts of one copy"
    assert (given[1], given[4]) == (3, None)


def test_parameters_and_what_lies_in_their_memory_are_not_copied() -> None:
    weight = nn.Parameter(torch.randn(4, 6))
    row = weight.detach()[1]
    given = OwnArguments.copied([weight, row, torch.ones(2)]).given
    assert given[0] is weight
    assert given[1] is row


def test_copies_take_so_much_in_a_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_arguments, "_MOST_BYTES", 4 * 100)
    large, small = torch.zeros(80), torch.zeros(30)
    first = OwnArguments.copied([large, small])
    assert first.given[0] is large, "the smallest first"
    assert not shares(first.given[1], small)
    again = OwnArguments.copied([large])
    assert again.given[0] is large, "there is no room beside the copies of another call"
    del first
    assert not shares(OwnArguments.copied([large]).given[0], large)


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("in_place", [torch.Tensor.add_, lambda x, by: x.numpy().__iadd__(by)])
def test_what_changes_between_two_calls_is_no_contradiction(inference: bool, in_place: Any) -> None:
    """Whatever writes: PyTorch counts no versions of tensors of inference mode, nor where NumPy writes."""
    with torch.inference_mode(inference):
        x = torch.zeros(5)
    given = OwnArguments([x])

    def meanwhile(x: torch.Tensor) -> torch.Tensor:
        in_place(x, 1)
        return plus_one(x)

    with torch.inference_mode(inference):
        assert given.contradiction(plus_one, meanwhile) is None
        assert given.contradiction(plus_one, plus_one) == ""


def test_what_changes_and_is_changed_back_is_no_contradiction() -> None:
    x = torch.zeros(5)

    def meanwhile(x: torch.Tensor) -> torch.Tensor:
        result = plus_one(x.add_(1))
        x.sub_(1)
        return result

    assert OwnArguments([x]).contradiction(plus_one, meanwhile) is None


@pytest.mark.parametrize("copied", [False, True])
def test_what_returns_something_else_is_one(copied: bool) -> None:
    x = torch.zeros(5)
    given = OwnArguments.copied([x]) if copied else OwnArguments([x])
    assert "tensor 0" in str(given.contradiction(plus_one, lambda x: x + 1.01))
