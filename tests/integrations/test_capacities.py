"""One result for all sizes of a dimension that is reduced: right at each, and nothing is compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.errors import ShapeMismatch
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes.range_search import superoptimized_for_sizes
from threads import at_once

KEYS = Dim("keys", 1, 70)
Inputs = tuple[torch.Tensor, ...]


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    k, v = torch.cat([k, new], 1), torch.cat([v, new * 2], 1)
    return F.scaled_dot_product_attention(q, k, v)


def centred(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x - x.mean(0, keepdim=True)
    return y, torch.softmax(y, 0).T @ x


def keys(size: int) -> Inputs:
    return torch.randn(4, 1, 16), torch.randn(4, size, 16), torch.randn(4, size, 16), torch.randn(4, 1, 16)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Inputs], dict[int | str, dict[int, Dim]]]] = {
    "decode": (decode, keys, {1: {1: KEYS}, 2: {1: KEYS}}),
    "centred": (centred, lambda size: (torch.randn(size, 24),), {0: {0: KEYS}}),
}
_RESULTS: dict[str, DynamicSuperoptimized] = {}


def optimized(name: str) -> DynamicSuperoptimized:
    """Kernels wherever there are any, whoever is faster."""
    if name not in _RESULTS:
        fn, inputs, dynamic = CASES[name]
        _RESULTS[name] = mugraph.superoptimize(fn, inputs(6), budget=600.0, profile=False, dynamic=dynamic)
    return _RESULTS[name]


def assert_right(name: str, given: Inputs) -> None:
    wanted = CASES[name][0](*given)
    torch.testing.assert_close(optimized(name)(*given), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_every_size_is_right_and_none_is_compiled_for(name: str) -> None:
    result = optimized(name)
    assert result.capacities is not None
    assert result.capacities.kernels, result.reason
    for size in range(1, KEYS.high + 1):
        assert result.plan(size).chunks
        assert_right(name, CASES[name][1](size))
    assert not result.specializations
    assert "for every size from 1 to 70 of keys" in result.claim
    assert result.error_bound is not None
    assert result.error_bound < 1e-9


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_act_as_in_the_function(name: str, number: float) -> None:
    given = CASES[name][1](33)
    for place in (0, 32):
        given[-1 if name == "centred" else 2].select(0 if name == "centred" else 1, place)[..., 1] = number
        assert_right(name, given)
    assert_right(name, CASES[name][1](9))  # memory that held those is used again


def test_all_sizes_of_a_capacity_share_its_memory() -> None:
    result = optimized("decode")
    assert result.capacities is not None
    for size in range(1, KEYS.high + 1):
        result(*keys(size))
    assert len({id(result.capacities.run(size)) for size in range(1, KEYS.high + 1)}) == len(result.capacities.kernels)
    called = {id(getattr(run, "_run", run)) for run in result._runs.values()}  # what recognizes tensors calls one of them
    assert called == {id(result.capacities.at(each)) for each in result.capacities.kernels}


def test_sizes_out_of_range_are_errors() -> None:
    for size in (0, 71):
        with pytest.raises(ShapeMismatch, match=f"keys has size {size}, declared from 1 to 70"):
            optimized("decode")(*keys(size))
    with pytest.raises(ShapeMismatch, match="keys"):
        optimized("decode")(keys(5)[0], keys(5)[1], keys(6)[2], keys(5)[3])


def test_several_threads_call_at_once() -> None:
    def calls(seed: int) -> None:
        for size in range(3 + seed, 60, 3):
            given = keys(size)
            torch.testing.assert_close(optimized("decode")(*given), decode(*given), rtol=1e-4, atol=1e-5)

    optimized("decode")
    at_once(calls, range(4))


def test_modes_may_change_between_calls() -> None:
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            assert_right("decode", keys(20))


def test_kernels_that_lose_at_the_capacity_are_there_for_the_sizes_at_which_they_win() -> None:
    """What is found at each capacity is called slower than the function, and times of sizes decide."""

    def lost(fn: Callable[..., Any], *args: Any, **settings: Any) -> Superoptimized:
        made = mugraph.superoptimize(fn, *args, **settings)
        given = made.program, made.best, tuple(made.candidates), replace(made.report, found=False), made.executable
        return Superoptimized(*given, made.calling, made.target, made.origin, own=fn)

    fn, inputs, dynamic = CASES["decode"]
    result = superoptimized_for_sizes(lost, fn, (inputs(6), {}), dynamic, None, 600.0, {"profile": False})
    assert result.capacities is not None
    assert result.capacities.kernels
    for size in (1, 30, 70):
        assert result.plan(size).chunks, "kernels, as nothing is measured"
        given = inputs(size)
        torch.testing.assert_close(result(*given), fn(*given), rtol=1e-4, atol=1e-5)


def test_times_at_both_ends_of_a_capacity_say_what_runs_a_size() -> None:
    table = optimized("decode").capacities
    assert table is not None
    small, large = sorted(table.kernels)
    times = {small: {1: 1.0, small: 5.0}, large: {1: 2.0, small: 4.0, small + 1: 4.0, large: 30.0}}
    with mock.patch.multiple(table, seconds=times, own={1: 3.0, KEYS.high: 20.0}):
        assert [chunk.size for chunk in table.plan(1).chunks] == [small]
        assert [chunk.size for chunk in table.plan(small).chunks] == [large], "which reads tensors where they lie"
        assert [chunk.size for chunk in table.plan(small + 1).chunks] == [large]
        assert not table.plan(KEYS.high).chunks, "the function itself"


def test_where_neither_slices_nor_capacities_serve_the_reason_says_both() -> None:
    rows = torch.randn(6, 8)
    result = mugraph.superoptimize(
        lambda x: x.exp().cumsum(0), (rows,), budget=120.0, profile=False, dynamic={0: {0: Dim("rows", 1, 8)}}
    )
    assert result.capacities is None
    assert "nor can other slots be masked: cumsum" in result.reason
