"""What a call writes into a part of what it is given is written there; whoever reads what was there before still does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mugraph
from mugraph.frontend import record
from mugraph.frontend.calls.in_place import ways_in_place
from mugraph.frontend.recording.recorded_graph import RecordedGraph, recorded_graph
from mugraph.pieces.data import PartitionedResult

from .caches import PLACES, attention, by_index, by_index_copy, by_slice, returned


def by_stepped_slice(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache[:, 1:5:3] = new * 2
    return attention(query, cache)


def by_place(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache[:, 3] = new[:, 0] * 2
    return attention(query, cache)


def read_before(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = attention(query, cache)
    cache[:, -2:] = new * 2
    return before, attention(query, cache)


def made_of_what_was_there(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache[:, -2:] = cache[:, :2] + new
    return attention(query, cache)


def changed_again(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    cache[:, -2:] = new * 2
    between = attention(query, cache)
    cache.mul_(0.5)
    return between + attention(query, cache)


def swapped(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    kept = new.clone()
    new[:, :] = cache[:, :2]
    cache[:, :2] = kept
    return attention(query, cache)


IN_PLACE = [by_slice, by_stepped_slice, by_place, by_index, by_index_copy, returned]
COPIED = [read_before, made_of_what_was_there, changed_again, swapped]


def tensors() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, 4, 8), torch.randn(2, 6, 8), torch.randn(2, 2, 8)


def recorded(function: Callable[..., Any]) -> RecordedGraph:
    return recorded_graph(record(function, tensors()))


def both(run: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Calls one after the other change and give the same, and what is given is an argument where the function gives that."""
    ours, theirs = tensors(), tensors()
    for _ in range(3):
        got, wanted = run(*ours), function(*theirs)
        torch.testing.assert_close((got, ours), (wanted, theirs), rtol=1e-5, atol=1e-5)


def written_where_it_lies(opt: PartitionedResult) -> bool:
    """Whether the value that the cache has afterwards is the cache."""
    inputs = opt.calling.flatten(tensors(), {})
    return opt.outputs(inputs)[-1] is inputs[1]


@pytest.mark.parametrize("function", IN_PLACE)
def test_a_part_is_written_where_it_lies(function: Callable[..., Any]) -> None:
    opt = mugraph.superoptimize(function, tensors(), profile=False, budget=60)
    assert isinstance(opt, PartitionedResult)
    assert opt.pieces
    both(opt, function)
    assert written_where_it_lies(opt)


@pytest.mark.parametrize("function", COPIED)
def test_a_tensor_that_is_read_before_is_not_written_until_then(function: Callable[..., Any]) -> None:
    graph = recorded(function)
    assert not ways_in_place(graph.module.graph, graph.written)
    both(mugraph.superoptimize(function, tensors(), profile=False, budget=60), function)


def test_a_tensor_that_lies_otherwise_is_changed_too() -> None:
    """As the graph was recorded for contiguous ones, it computes with a copy, whose values the tensor gets."""
    opt = mugraph.superoptimize(by_slice, tensors(), profile=False, budget=60)
    query, cache, new = tensors()
    other, wanted = cache.transpose(0, 1).contiguous().transpose(0, 1), cache.clone()
    torch.testing.assert_close(opt(query, other, new), by_slice(query, wanted, new), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other, wanted)


def test_a_value_that_lies_otherwise_than_the_tensor_is_computed_apart() -> None:
    """That of `index_copy` is contiguous, however the tensor lies: views were recorded of the one that the other has not."""

    def flattened(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, PLACES, new)
        return cache.clone().reshape(4, -1)

    ours, theirs = ([query, cache.mT.contiguous().mT, new] for query, cache, new in (tensors(), tensors()))
    graph = recorded_graph(record(flattened, ours))
    assert not ways_in_place(graph.module.graph, graph.written)
    opt = mugraph.superoptimize(flattened, ours, profile=False, budget=60)
    torch.testing.assert_close(opt(*ours), flattened(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_an_argument_that_is_returned_is_the_argument() -> None:
    ours = tensors()
    _, cache = mugraph.superoptimize(returned, tensors(), profile=False, budget=60)(*ours)
    assert cache is ours[1]


def test_a_saved_result_writes_where_it_lies(tmp_path: Any) -> None:
    opt = mugraph.superoptimize(by_slice, tensors(), profile=False, budget=60)
    again = mugraph.load(opt.save(tmp_path / "result"))
    both(again, by_slice)
    assert isinstance(again, PartitionedResult)
    assert written_where_it_lies(again)


def test_nothing_is_written_before_what_raises() -> None:
    """A root comes behind the write, of a matrix that takes longer to be there than what is written."""

    def with_root(query: torch.Tensor, cache: torch.Tensor, new: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache[:, -2:] = new * 2
        ordered = (torch.sinh(scales.sort().values) + 1).sort().values - 1
        return attention(query, cache), torch.linalg.cholesky(torch.diag_embed(ordered))

    opt = mugraph.superoptimize(with_root, (*tensors(), torch.ones(3)), profile=False, budget=60)
    ours = tensors()
    with pytest.raises(RuntimeError, match="positive-definite"):
        opt(*ours, -torch.ones(3))
    torch.testing.assert_close(ours, tensors())
    assert isinstance(opt, PartitionedResult)
    assert opt.outputs([*ours, torch.ones(3)])[-1] is ours[1]


@pytest.mark.parametrize("function", [*IN_PLACE, *COPIED])
def test_under_torch_compile_arguments_are_changed_alike(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        options: dict[str, Any] = {"keep": "all", "strict": True}
        both(torch.compile(function, backend="mugraph", options=options), function)
