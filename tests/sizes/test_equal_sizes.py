"""Dimensions of one name have one size in a call, whoever answers it: the function itself would take others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.errors import ShapeMismatch
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes.chunk_plans import Costs

pytestmark = pytest.mark.usefixtures("first_found")

BATCH, LENGTH, KEYS = Dim("batch", 1, 6), Dim("length", 1, 5), Dim("keys", 1, 40)
Inputs = tuple[torch.Tensor, ...]
Declaration = Mapping[int | str, Mapping[int, Dim]]


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + y, -1)


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum(1)


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v


def slices_left_alone(result: DynamicSuperoptimized) -> None:
    assert result.sliced is not None, result.reason
    result.costs = Costs({})


def rows_left_alone(result: DynamicSuperoptimized) -> None:
    assert result.rows is not None, result.reason
    result.rows.result.costs = Costs({})


def capacities_left_alone(result: DynamicSuperoptimized) -> None:
    assert result.capacities is not None, result.reason
    result.capacities.own = {1: 0.0}


def batches_left_alone(result: DynamicSuperoptimized) -> None:
    assert result.batches is not None, result.reason
    for table in result.batches.tables.values():
        table.own = {1: 0.0}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def cache(batch: int, keys: int) -> Inputs:
    return drawn(batch, 2, 1, 16), drawn(batch, 2, keys, 16), drawn(batch, 2, keys, 16)


Leave = Callable[[DynamicSuperoptimized], None]
RANGES: dict[str, tuple[Callable[..., torch.Tensor], Inputs, Declaration, Leave, list[Inputs], str]] = {
    "slices": (
        added,
        (drawn(4, 16), drawn(4, 16)),
        {0: {0: BATCH}, 1: {0: BATCH}},
        slices_left_alone,
        [(drawn(4, 16), drawn(1, 16)), (drawn(1, 16), drawn(4, 16))],
        r"batch is \d in argument 1 and \d before it; calls have one size from 1 to 6 of batch",
    ),
    "rows": (
        added,
        (drawn(4, 3, 16), drawn(4, 3, 16)),
        {0: {0: BATCH, 1: LENGTH}, 1: {0: BATCH, 1: LENGTH}},
        rows_left_alone,
        [(drawn(4, 3, 16), drawn(4, 1, 16)), (drawn(1, 3, 16), drawn(4, 3, 16))],
        r"(batch|length) is \d in argument 1 and \d before it; calls have one size from 1 to [56] of",
    ),
    "capacities": (
        summed,
        (drawn(2, 7, 16), drawn(2, 7, 16)),
        {0: {1: KEYS}, 1: {1: KEYS}},
        capacities_left_alone,
        [(drawn(2, 7, 16), drawn(2, 1, 16)), (drawn(2, 1, 16), drawn(2, 7, 16))],
        r"keys is \d in argument 1 and \d before it; calls have one size from 1 to 40 of keys",
    ),
    "batches": (
        decode,
        cache(2, 7),
        {0: {0: BATCH}, 1: {0: BATCH, 2: KEYS}, 2: {0: BATCH, 2: KEYS}},
        batches_left_alone,
        [(*cache(4, 7)[:2], cache(1, 7)[2]), (cache(1, 7)[0], *cache(4, 7)[1:])],
        r"batch is \d in argument \d and \d before it; calls have one size from 1 to 6 of batch",
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_sizes_that_disagree_are_named_where_the_function_itself_answers(name: str) -> None:
    fn, inputs, dynamic, leave_alone, wrong, match = RANGES[name]
    result = mugraph.superoptimize(fn, inputs, budget=600.0, profile=False, dynamic=dynamic)
    assert isinstance(result, DynamicSuperoptimized)
    leave_alone(result)
    result.prepare()
    assert fn in result._runs.values(), "which broadcasts"
    torch.testing.assert_close(result(*inputs), fn(*inputs))
    for given in wrong:
        fn(*given)
        with pytest.raises(ShapeMismatch, match=match):
            result(*given)


def sliced(low: int) -> DynamicSuperoptimized:
    dim = Dim("batch", low, 6)
    inputs = drawn(4, 16), drawn(4, 16)
    result = mugraph.superoptimize(added, inputs, budget=600.0, profile=False, dynamic={0: {0: dim}, 1: {0: dim}})
    assert isinstance(result, DynamicSuperoptimized)
    return result


def test_nothing_and_something_disagree() -> None:
    result = sliced(0)
    nothing = drawn(0, 16)
    assert result(nothing, nothing).shape == (0, 16)
    with pytest.raises(ShapeMismatch, match="batch is 1 in argument 1 and 0 before it; calls have one size from 0 to 6 of batch"):
        result(nothing, drawn(1, 16))


def test_a_size_whose_result_is_the_function_itself_looks_at_all_arguments() -> None:
    result = sliced(1)
    made = result.table[6,]
    given = made.program, made.best, tuple(made.candidates), made.report, made.executable, made.calling, made.target, made.origin
    result.specializations[6,] = Superoptimized(*given, added)
    result.prepare()
    assert added(drawn(6, 16), drawn(1, 16)).shape == (6, 16)
    with pytest.raises(ShapeMismatch, match="batch is 1 in argument 1 and 6 before it"):
        result(drawn(6, 16), drawn(1, 16))
