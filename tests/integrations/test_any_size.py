"""One result for all sizes of a dimension along which slices are independent: right at each, and nothing is compiled for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from counted_calls import more_in_the_first
from mugraph import Dim, DynamicSuperoptimized
from mugraph.errors import GradientsDropped, IndexOutOfRange, InvalidInput, ShapeMismatch
from mugraph.frontend import trace
from mugraph.selection.structure_key import form_of
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.size_table import SizeTable
from mugraph.support.deadline import Deadline
from threads import at_once

HIGH = 96
_LOOKS = 10
"""Calls of functions in which arguments of first slices are recognized, where a later call finds them by its own sizes."""
BATCH = Dim("batch", 1, HIGH)
Inputs = tuple[torch.Tensor, ...]
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


W, V, TABLE = drawn(24, 40), drawn(24, 40), drawn(30, 24)


def norm_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)) @ w


def swiglu(x: torch.Tensor) -> torch.Tensor:
    return (F.silu(x @ W.to(x.dtype)) * (x @ V.to(x.dtype))) @ V.to(x.dtype).T


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ k


def across(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w @ x.exp()).relu()


def wide(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.reshape(-1, 8), -1) * 2


def several(x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
    return {"y": (x @ w).sigmoid(), "largest": x.amax(-1), "w": w.exp(), "seven": 7}


def looked_up(i: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return norm_linear(F.embedding(i, t), W.to(t.dtype))


CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Inputs], dict[int | str, dict[int, Dim]]]] = {
    "norm_linear": (norm_linear, lambda n: (drawn(n, 24), W), {0: {0: BATCH}}),
    "swiglu": (swiglu, lambda n: (drawn(n, 24),), {0: {0: BATCH}}),
    "attention": (attention, lambda n: (drawn(n, 2, 3, 8), drawn(n, 2, 5, 8)), {0: {0: BATCH}, 1: {0: BATCH}}),
    "across": (across, lambda n: (W.T, drawn(24, n)), {1: {-1: BATCH}}),
    "wide": (wide, lambda n: (drawn(n, 24),), {0: {0: BATCH}}),
    "several": (several, lambda n: (drawn(n, 24), W), {0: {0: BATCH}}),
    "looked up": (looked_up, lambda n: (torch.randint(0, 30, (n, 3), generator=GENERATOR), TABLE), {0: {0: BATCH}}),
}  # fmt: skip
_RESULTS: dict[str, DynamicSuperoptimized] = {}


def optimized(name: str) -> DynamicSuperoptimized:
    """Kernels wherever there are any, whoever is faster."""
    if name not in _RESULTS:
        fn, inputs, dynamic = CASES[name]
        table = [{"batch": size} for size in (1, 3, 8, 40, HIGH)]
        settings = {"profile": False}
        _RESULTS[name] = superoptimized_for_sizes(mugraph.superoptimize, fn, (inputs(5), {}), dynamic, table, None, settings)
    return _RESULTS[name]


def exact(fn: Callable[..., Any], inputs: Inputs) -> Any:
    return fn(*(each.double() if each.is_floating_point() else each for each in inputs))


def check(result: Any, reference: Any) -> None:
    if isinstance(reference, dict):
        assert result.keys() == reference.keys()
        for name in reference:
            check(result[name], reference[name])
    elif isinstance(reference, torch.Tensor):
        torch.testing.assert_close(result, reference.float(), rtol=0, atol=1e-5 * float(reference.abs().max()))
        assert result.is_contiguous()
    else:
        assert result == reference


@pytest.mark.parametrize("name", CASES)
def test_two_hundred_sizes_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opt = optimized(name)
    assert opt.sliced is not None, opt.reason
    assert any(result.found for result in opt.table.values())
    fn, inputs, _ = CASES[name]
    compiled: list[Any] = []
    for where in ("mugraph.runtime.executable.Executable.__init__", "torch.export.export", "mugraph.search.tasks.Saturation"):
        monkeypatch.setattr(where, lambda *args, **kwargs: compiled.append(args))
    for size in random.Random(name).choices(range(1, HIGH + 1), k=200):
        given = inputs(size)
        check(opt(*given), exact(fn, given))
    assert compiled == []
    assert set(opt.specializations) == set(opt.table)


@pytest.mark.parametrize("name", CASES)
def test_every_plan_is_carried_out(name: str) -> None:
    opt = optimized(name)
    fn, inputs, _ = CASES[name]
    found = sorted(size for (size,), result in opt.table.items() if result.found)
    assert found
    for size in {*found[:3], found[-1]}:
        for plan in ([Chunk(0, size), Chunk(size, size)], [Chunk(0, size), Chunk(size // 2, size)], [Chunk(0, size)]):
            reached = max(start + length for start, length in plan)
            for rows in {reached, max(1, reached - 1)} if len(plan) == 1 else {reached}:
                given = inputs(rows)
                check(opt.covering(rows, plan)(*given), exact(fn, given))


def test_a_table_has_neighbours_and_says_what_sizes_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.sizes.size_table._TIMES", float("inf"))
    opt = mugraph.superoptimize(norm_linear, (drawn(4, 24), W), profile=False, dynamic={0: {0: Dim("batch", 2, 40)}})
    sizes = sorted(size for (size,) in opt.table)
    assert (sizes[0], sizes[-1]) == (2, 40)
    assert all(high <= (32 if high in opt.costs.parts else 4) * low for low, high in pairwise(sizes))
    assert all(opt.costs.ratio(size) >= 0.85 for size in range(2, 41)) or len(sizes) == 16
    for size in (2, 3, 7, 39):
        assert opt.plan(size).seconds <= opt.plan(40).seconds + opt.costs.padding
        x = drawn(size, 24)
        check(opt(x, W), exact(norm_linear, (x, W)))


def test_what_holds_is_said_in_words() -> None:
    opt = optimized("norm_linear")
    assert opt.claim.startswith("for every size from 1 to 96 of batch: the function, as PyTorch records it with a symbol")
    assert "are proved to compute it there and act on slices, too" in opt.claim
    assert opt.error_bound is not None
    assert 0 < opt.error_bound < 2**-35
    assert "which cover all others" in repr(opt)


def test_rows_that_are_no_numbers_disturb_no_others() -> None:
    opt = optimized("norm_linear")
    for size in (3, 7, 33, 95):
        x, w = CASES["norm_linear"][1](size)
        x[size // 2] = torch.nan
        y, reference = opt(x, w), exact(norm_linear, (x, w)).float()
        assert y[size // 2].isnan().all()
        torch.testing.assert_close(y, reference, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_integers_out_of_range_are_refused_at_any_size() -> None:
    opt = optimized("looked up")
    for size in (3, 61):
        index, table = CASES["looked up"][1](size)
        index[-1, -1] = 30
        with pytest.raises(IndexOutOfRange):
            opt(index, table)


def test_inputs_are_views_and_outputs_lie_where_kernels_wrote_them() -> None:
    opt = optimized("norm_linear")
    whole = drawn(HIGH, 48)
    for size in (5, 37):
        x = whole[:size, ::2]
        check(opt(x, W), exact(norm_linear, (x, W)))
        shifted = whole.reshape(-1)[1 : 1 + size * 24].reshape(size, 24)  # at an odd address
        check(opt(shifted, W), exact(norm_linear, (shifted, W)))


def test_wrong_arguments_are_named() -> None:
    opt = optimized("attention")
    with pytest.raises(ShapeMismatch, match="batch is 4 in argument 1 and 3 before it"):
        opt(drawn(3, 2, 3, 8), drawn(4, 2, 5, 8))
    with pytest.raises(
        ShapeMismatch, match=r"argument k is torch.float32 \[3, 2, 6, 8\], optimized for torch.float32 \[3, 2, 5, 8\]"
    ):
        opt(drawn(3, 2, 3, 8), drawn(3, 2, 6, 8))
    with pytest.raises(ShapeMismatch, match="batch has size 97, declared from 1 to 96"):
        opt(drawn(97, 2, 3, 8), drawn(97, 2, 5, 8))
    with pytest.raises(ShapeMismatch, match="float64"):
        opt(drawn(3, 2, 3, 8).double(), drawn(3, 2, 5, 8))


def test_threads_may_call_it() -> None:
    opt = optimized("swiglu")
    inputs = [CASES["swiglu"][1](size) for size in (3, 50, 3, 71, 50, 9)]
    for found, given in zip(at_once(lambda given: opt(*given), inputs), inputs, strict=True):
        check(found, exact(swiglu, given))


def test_arguments_may_be_named() -> None:
    opt = mugraph.superoptimize(
        norm_linear, {"x": drawn(4, 24), "w": W}, profile=False, dynamic={"x": {0: Dim("rows", 2, 9)}}, budget=60.0
    )
    for size in (2, 5, 9):
        x = drawn(size, 24)
        check(opt(x=x, w=W), exact(norm_linear, (x, W)))
        check(opt(w=W, x=x), exact(norm_linear, (x, W)))


def test_a_table_that_is_given_is_kept_to() -> None:
    opt = mugraph.superoptimize_dynamic(norm_linear, (drawn(4, 24), W), {0: {0: BATCH}}, table=[{"batch": 8}, {"batch": 64}])
    assert set(opt.table) == {(8,), (64,)}
    for size in (1, 7, 9, 96):
        x = drawn(size, 24)
        check(opt(x, W), exact(norm_linear, (x, W)))
    assert set(opt.specializations) <= {(8,), (64,)} or opt.sliced is None


def test_what_depends_on_the_size_gets_kernels_of_its_own() -> None:
    def divided(x: torch.Tensor) -> torch.Tensor:
        return x.exp() / x.shape[0]

    opt = mugraph.superoptimize_dynamic(divided, (drawn(4, 24),), {0: {0: BATCH}}, table=[{"batch": 8}])
    assert opt.sliced is None
    assert "depends on the size" in opt.reason
    assert "for each size by a certificate of its own" in opt.claim
    for size in (3, 8):
        x = drawn(size, 24)
        check(opt(x), exact(divided, (x,)))
    with pytest.raises(InvalidInput, match="each size has kernels of its own"):
        opt.plan(3)


def test_a_claim_names_sizes_that_their_own_kernels_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opt = optimized("norm_linear")
    monkeypatch.setattr(opt, "costs", replace(opt.costs, alone={}))
    assert "alone" not in opt.claim
    monkeypatch.setattr(opt, "costs", replace(opt.costs, kernels={8: 1.0, HIGH: 2.0}, alone={3: 1.0, 40: 1.0}))
    assert "The muGraphs for 8, 96 are proved" in opt.claim
    assert opt.claim.endswith(". Kernels for 3, 40 run these sizes alone, by certificates of their own")


def test_the_decorator_takes_any_size_too() -> None:
    @mugraph.optimize(dynamic={0: {0: BATCH}}, budget=60.0)
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return norm_linear(x, w)

    for size in (4, 5, 77):
        x = drawn(size, 24)
        check(fn(x, W), exact(norm_linear, (x, W)))
    (result,) = fn.results
    assert isinstance(result, DynamicSuperoptimized)
    assert result.sliced is not None


def test_one_size_needs_one_entry() -> None:
    opt = mugraph.superoptimize(norm_linear, (drawn(4, 24), W), profile=False, dynamic={0: {0: Dim("batch", 4, 4)}})
    assert set(opt.table) == {(4,)}
    x = drawn(4, 24)
    check(opt(x, W), exact(norm_linear, (x, W)))


@pytest.mark.parametrize(
    ("inputs", "settings", "match"),
    [
        (None, {}, "a program has fixed sizes"),
        ((drawn(4, 24), W), {"like": trace(swiglu, (drawn(4, 24),)).graph}, "like= is for one size"),
    ],
)
def test_what_has_no_sizes_is_refused(inputs: Any, settings: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        mugraph.superoptimize(norm_linear, inputs, dynamic={0: {0: BATCH}}, **settings)


def test_a_size_for_which_nothing_was_found_takes_over_the_nearest_form() -> None:
    dynamic: dict[int | str, dict[int, Dim]] = {0: {0: BATCH}}
    inputs = (drawn(4, 24), W)
    opt = superoptimized_for_sizes(
        mugraph.superoptimize, norm_linear, (inputs, {}), dynamic, [{"batch": 4}], None, {"profile": False}
    )
    assert opt.table[4,].found
    table = SizeTable(opt, inputs, {}, Deadline(None))
    opt.fill((16,), inputs, {}, budget=1e-3)
    table.settle()
    assert not opt.table[16,].found
    assert opt.plan(15).chunks[0].size == 4
    table._improve_all()
    assert opt.table[16,].found
    assert form_of(opt.table[16,].graph) == form_of(opt.table[4,].graph)
    assert opt.plan(15).chunks == (Chunk(0, 16),)  # the first slices alone
    x = drawn(15, 24)
    check(opt(x, W), exact(norm_linear, (x, W)))


@pytest.mark.parametrize(
    ("costs", "chunks"),
    [
        (Costs({HIGH: 1.0}, parts={HIGH: {1: 1.0}}), {1}),
        (Costs({size: 1.0 + size / 100 for size in (1, 3, 8, 40)}), {2, 3}),
        (Costs({HIGH: 1.0}), {1}),
        (Costs({HIGH: 1.0}, own={1: 0.0}), {0}),
    ],
    ids=["first slices", "several", "padded", "the function itself"],
)
def test_a_first_call_at_a_size_does_what_a_later_one_does(
    monkeypatch: pytest.MonkeyPatch, costs: Costs, chunks: set[int]
) -> None:
    opt = optimized("norm_linear")
    for name, value in (("costs", costs), ("in_part", opt.in_part if costs.parts else {}), ("_runs", {})):
        monkeypatch.setattr(opt, name, value)
    opt.prepare()
    x = drawn(HIGH, 24)
    sizes = [size for size in range(41, HIGH) if (size,) not in opt.table and len(opt.plan(size).chunks) in chunks]
    more = more_in_the_first(lambda: opt(x[: sizes[-1]], W), lambda: opt(x[: sizes[0]], W))
    assert {name.split(":")[0] for name in more} <= {"sizes/sliced_kernels.py", "host/arrays.py"}, "which look at arguments"
    assert sum(more.values()) <= _LOOKS, more


def test_a_first_call_at_a_size_writes_no_shapes_down_and_reads_no_input_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    opt = optimized("norm_linear")
    opt.prepare()
    size = next(size for size in range(95, 40, -1) if (size,) not in opt.table and opt.plan(size).chunks[0].size > size)
    for where in ("sliced_functions.SlicedFunction.exact_calling_at", "sliced_kernels.SlicedKernels._read"):
        monkeypatch.setattr(f"mugraph.sizes.{where}", None)
    x = drawn(size, 24)
    check(opt(x, W), exact(norm_linear, (x, W)))


def test_without_time_nothing_is_compiled_compared_or_timed_but_the_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (drawn(4, 24), W)
    dynamic: dict[int | str, dict[int, Dim]] = {0: {0: BATCH}}
    opt = superoptimized_for_sizes(
        mugraph.superoptimize, norm_linear, (inputs, {}), dynamic, [{"batch": HIGH}], None, {"profile": False}
    )
    assert opt.in_part[HIGH].kernels is not None
    opt.in_part = {}
    for where in ("mugraph.sizes.sliced_kernels.SlicedKernels", "mugraph.sizes.sliced_kernels.medians"):
        monkeypatch.setattr(where, None)
    SizeTable(opt, inputs, {}, Deadline(0.0)).settle()
    assert opt.in_part == {}
    x = drawn(HIGH - 1, 24)
    check(opt(x, W), exact(norm_linear, (x, W)))  # padded
    opt.table.clear()
    SizeTable(opt, inputs, {}, Deadline(0.0)).fill()
    assert set(opt.table) == {(HIGH,)}


def test_sizes_are_added_while_there_is_time_for_what_the_last_one_took() -> None:
    opt = optimized("norm_linear")
    table = SizeTable(opt, CASES["norm_linear"][1](4), {}, Deadline(1e6))
    assert table._may_grow
    table._taking_over, table._settling = 6e5, 5e5
    assert not table._may_grow


def test_nobody_is_warned_of_gradients_where_a_table_is_made(recwarn: pytest.WarningsRecorder) -> None:
    layer = torch.nn.Sequential(torch.nn.RMSNorm(24), torch.nn.Linear(24, 32))
    opt = superoptimized_for_sizes(
        mugraph.superoptimize, layer, ((drawn(4, 24),), {}), {0: {0: BATCH}}, [{"batch": 8}], None, {"profile": False}
    )
    assert opt.in_part[8].kernels is not None
    assert not [warning for warning in recwarn if warning.category is GradientsDropped]
