"""Functions of which only parts are programs: which act on slices, and that results for a few sizes serve all others."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from counted_calls import more_in_the_first
from mugraph import Dim, DynamicSuperoptimized
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend import trace
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.pieces.data import PartitionedResult
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.sizes.dims import Declared
from mugraph.sizes.pieced_functions import PiecedFunction, _lies, axes_between, pieced_function
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.size_table import SizeTable
from mugraph.sizes.sliced_functions import NoProgram, sliced_function
from mugraph.sizes.sliced_programs import outputs_of_slices
from mugraph.support.deadline import Deadline
from mugraph.verifier.slice_walk import NotParallel
from threads import at_once

from .test_sliced_functions import PLANTED

HIGH = 40
BATCH = Dim("batch", 1, HIGH)
GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


W, V = drawn(16, 24), drawn(24, 16)


def mixed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two programs around a call that is none, a result of two rows a slice, and one that is the same for all."""
    y = F.silu(x @ W.to(x.dtype)).logcumsumexp(-1)
    z = (y * y.sigmoid()) @ V.to(x.dtype)
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2, W.to(x.dtype).exp()


def asked(fn: Callable[..., Any], *inputs: torch.Tensor) -> object:
    """What sizes of the function are put together of."""
    declared = Declared.of({0: {0: BATCH}})
    try:
        return sliced_function(fn, declared, inputs, {})
    except NoProgram:
        return pieced_function(fn, declared, inputs, {}, None)


def pieced(fn: Callable[..., Any], *inputs: torch.Tensor, dim: Dim = BATCH) -> PiecedFunction:
    """The function, which is no program, with a first dimension of its first argument that varies."""
    declared = Declared.of({0: {0: dim}})
    with pytest.raises(NoProgram):
        sliced_function(fn, declared, inputs, {})
    return pieced_function(fn, declared, inputs, {}, None)


@functools.cache
def optimized() -> DynamicSuperoptimized:
    """Kernels wherever there are any, whoever is faster."""
    table = [{"batch": size} for size in (1, 8, HIGH)]
    return superoptimized_for_sizes(
        mugraph.superoptimize, mixed, ((drawn(5, 16),), {}), {0: {0: BATCH}}, table, None, {"profile": False}
    )


def check(result: Any, reference: Any) -> None:
    for got, wanted in zip(result, reference, strict=True):
        torch.testing.assert_close(got, wanted.float(), rtol=0, atol=1e-5 * float(wanted.abs().max()))
        assert got.is_contiguous()


def test_calls_say_where_the_axis_is() -> None:
    found = pieced(mixed, drawn(5, 16))
    assert (found.outputs, found.widths) == ((0, 0, None), (1, 2, 0))
    assert found.least == 2
    assert found.inputs[0] == 0
    assert {*found.inputs[1:]} == {None}


def test_a_hundred_sizes_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    opt = optimized()
    assert opt.sliced is None
    assert opt.pieced is not None, opt.reason
    assert not any(result.is_one_program for result in opt.table.values())
    assert sorted(opt.costs.kernels) == [8, HIGH]
    compiled: list[Any] = []
    for where in ("mugraph.runtime.executable.Executable.__init__", "torch.export.export", "mugraph.search.tasks.Saturation"):
        monkeypatch.setattr(where, lambda *args, **kwargs: compiled.append(args))
    for size in (1, 2, HIGH, *random.Random(0).choices(range(1, HIGH + 1), k=100)):
        x = drawn(size, 16)
        check(opt(x), mixed(x.double()))
    assert compiled == []
    assert {*opt.specializations} == {*opt.table}


def test_every_plan_is_carried_out() -> None:
    opt, size = optimized(), 8
    for plan in ([Chunk(0, size), Chunk(size, size)], [Chunk(0, size), Chunk(size // 2, size)], [Chunk(0, size)]):
        reached = plan[-1].start + size
        for rows in {reached, reached - 1} if len(plan) == 1 else {reached}:
            x = drawn(rows, 16)
            check(opt.covering(rows, plan)(x), mixed(x.double()))


def test_a_first_call_at_a_size_does_what_a_later_one_does() -> None:
    opt = optimized()
    opt.prepare()  # whoever called it before
    for sizes in ((9, 11), (23, 11)):
        x, y = (drawn(size, 16) for size in sizes)
        assert not more_in_the_first(lambda x=x: opt(x), lambda y=y: opt(y))  # type: ignore[misc]


def test_what_holds_is_said_in_words_and_one_is_no_chunk_of_others() -> None:
    opt = optimized()
    assert opt.claim.startswith("for every size from 2 to 40 of batch: the function, as PyTorch records it with a symbol")
    assert "At sizes 8, 40 kernels run parts of it" in opt.claim
    assert "(1 by a result of its own, or by the function itself)" in opt.claim
    assert opt.error_bound is not None
    assert 0 < opt.error_bound < 2**-35
    assert opt.plan(1).chunks == (Chunk(0, 1),)
    assert opt.plan(2).chunks == (Chunk(0, 8),)
    assert "which cover all others" in repr(opt)


def test_rows_that_are_no_numbers_disturb_no_others() -> None:
    opt = optimized()
    for size in (2, 7, 11):
        x = drawn(size, 16)
        x[size // 2] = torch.nan
        for got, wanted in zip(opt(x), mixed(x.double()), strict=True):
            torch.testing.assert_close(got, wanted.float(), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_inputs_are_views_that_nobody_writes_to() -> None:
    opt, whole = optimized(), drawn(HIGH, 40)
    before = whole.clone()
    for size in (5, 23):
        for x in (whole[:size, 3:35:2], whole.reshape(-1)[1 : 1 + size * 16].reshape(size, 16), whole.T[:size, :16]):
            check(opt(x), mixed(x.double()))
    assert torch.equal(whole, before)


def test_wrong_arguments_are_named() -> None:
    opt = optimized()
    for size in (7, 8):
        with pytest.raises(
            ShapeMismatch, match=r"argument x is torch.float32 \[\d, 24\], optimized for torch.float32 \[\d, 16\]"
        ):
            opt(drawn(size, 24))
        with pytest.raises(ShapeMismatch, match="float64"):
            opt(drawn(size, 16).double())
    with pytest.raises(ShapeMismatch, match="batch has size 41, declared from 1 to 40"):
        opt(drawn(41, 16))


def test_threads_may_call_it() -> None:
    inputs = [drawn(size, 16) for size in (3, 30, 3, 21, 30, 9)]
    for made, x in zip(at_once(optimized(), inputs), inputs, strict=True):
        check(made, mixed(x.double()))


def test_results_of_the_table_are_saved_one_by_one(tmp_path: Path) -> None:
    loaded = mugraph.load(optimized().table[8,].save(tmp_path / "eight"))
    x = drawn(8, 16)
    check(loaded.bound_to(mixed)(x), mixed(x.double()))


def test_a_size_of_one_may_be_something_else() -> None:
    def squeezed(x: torch.Tensor) -> torch.Tensor:
        return x.logcumsumexp(-1) * (2 if x.shape[0] == 1 else 3)

    opt = mugraph.superoptimize(squeezed, (drawn(4, 8),), budget=0.0, profile=False, dynamic={0: {0: Dim("n", 1, 9)}})
    for size in (1, 2, 9):
        x = drawn(size, 8)
        torch.testing.assert_close(opt(x), squeezed(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["at 7", "len", "cumsum", "flip", "softmax", "mean", "positions", "batch norm in training", "noise", "products of rows"],
)
def test_what_depends_on_the_size_is_refused(name: str) -> None:
    declared = Declared.of({0: {0: BATCH}})
    with pytest.raises(SizeMatters) as refused:
        sliced_function(lambda x: (PLANTED[name](x), x.logcumsumexp(-1)), declared, (drawn(6, 8),), {})
    assert not isinstance(refused.value, NoProgram)


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda x: (x.logcumsumexp(-1), x), "returns views|shares memory"),
        (lambda x: (y := x.logcumsumexp(-1), y), "shares memory|returns views"),
        (lambda x: x.add_(1).logcumsumexp(-1), "changes|mutat|return"),
    ],
)
def test_what_shares_memory_is_not_put_together(fn: Callable[..., Any], match: str) -> None:
    with pytest.raises(SizeMatters, match=match):
        asked(fn, drawn(6, 8))


def test_a_mugraph_that_mixes_slices_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    opt = optimized()
    assert opt.pieced is not None
    assert opt.is_of_slices(8, opt.table[8,])
    monkeypatch.setattr("mugraph.sizes.pieced_functions._outputs_of", lambda graph, inputs: None)
    assert not opt.is_of_slices(8, opt.table[8,])


def test_other_calls_at_another_size_are_not_put_together() -> None:
    opt = optimized()
    assert opt.pieced is not None
    one, eight = opt.table[1,], opt.table[8,]
    assert isinstance(one, PartitionedResult)
    assert isinstance(eight, PartitionedResult)
    assert not opt.pieced.is_put_together_of(eight, 9)  # what is no multiple of nine
    assert not opt.pieced.is_put_together_of(one, 1)


def wide(x: torch.Tensor) -> torch.Tensor:
    """A program whose input has two rows of each slice, and whose output has one."""
    rows = x.reshape(-1, 8).logcumsumexp(-1)
    return torch.softmax((rows * rows.sigmoid()).view(-1, 16), -1)


def test_slices_may_have_several_rows_where_pieces_begin() -> None:
    dim, settings = Dim("batch", 2, HIGH), {"profile": False}
    opt = superoptimized_for_sizes(
        mugraph.superoptimize, wide, ((drawn(5, 16),), {}), {0: {0: dim}}, [{"batch": 8}], None, settings
    )
    assert sorted(opt.costs.kernels) == [8]
    for size in (2, 9, 23):
        x = drawn(size, 16)
        x[1] = torch.nan
        torch.testing.assert_close(opt(x), wide(x.double()).float(), rtol=1e-5, atol=1e-6, equal_nan=True)


def crossed(x: torch.Tensor) -> torch.Tensor:
    """Rows of all slices, position by position, and back."""
    rows = x.transpose(0, 1).reshape(-1, 16).logcumsumexp(-1)
    return torch.softmax((rows * rows.sigmoid()).view(4, -1, 16).transpose(0, 1) + x, -1)


def test_where_slices_lie_is_followed_through_views() -> None:
    found = pieced(crossed, drawn(5, 4, 16))
    size = found.sizes[0]
    lies = _lies(found.graphs[0], axes_between(found.graphs[0], size, found.graphs[1], found.sizes[1]), size)
    lying = {(tuple(node.meta["val"].shape), lie) for node, lie in lies.items() if isinstance(node.meta.get("val"), torch.Tensor)}
    assert ((4 * size, 16), (0, (1,) * 4)) in lying
    assert {lie for shape, lie in lying if shape == (4, size, 16)} == {(1, (1,))}
    assert {lie for shape, lie in lying if shape == (size, 4, 16)} == {(0, (1,))}


def test_a_mugraph_that_mixes_slices_which_lie_in_stretches_is_known() -> None:
    def added(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(8, 4, 16).sum(1)

    graph = trace(added, (drawn(32, 16),)).graph
    assert outputs_of_slices(graph, (0,), ((4,),)) == ((0,), ((1,),))
    with pytest.raises(NotParallel):
        outputs_of_slices(graph, (0,), ((1,) * 4,))


def test_one_slice_is_put_together_of_whatever_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.silu(x @ W), -1)

    declared, x = Declared.of({0: {0: BATCH}}), drawn(5, 16)
    found = pieced_function(whole, declared, (x,), {}, sliced_function(whole, declared, (x,), {}))
    like = optimized().table[8,]
    one, three = (mugraph.superoptimize(whole, (drawn(size, 16),), profile=False, like=like) for size in (1, 3))
    assert isinstance(one, PartitionedResult)
    assert isinstance(three, PartitionedResult)
    monkeypatch.setattr("mugraph.sizes.pieced_functions._outputs_of", lambda graph, inputs: None)
    assert found.is_put_together_of(one, 1)
    assert not found.is_put_together_of(three, 3)


def test_without_mugraphs_nothing_is_said_to_be_proved_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    opt = optimized()
    assert "wrong with probability at most" in opt.claim
    monkeypatch.setattr(opt, "table", {(8,): SimpleNamespace(results=())})
    monkeypatch.setattr(opt, "costs", Costs({8: 1.0}))
    assert "At sizes 8 a library runs products of it, no muGraphs do, and PyTorch" in opt.claim
    assert "wrong" not in opt.claim


def test_like_is_a_mugraph_or_a_result_in_pieces() -> None:
    with pytest.raises(InvalidInput, match="like is a muGraph"):
        mugraph.superoptimize(mixed, (drawn(5, 16),), like=3)  # type: ignore[call-overload]


def test_pieces_that_kernels_run_as_a_whole_compute_first_slices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.pieces.whole_or_pieces._mostly_as_it_is", lambda whole: True)

    def several(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.silu(x @ W) @ V, -1)

    made = superoptimized_for_sizes(
        mugraph.superoptimize, several, ((drawn(5, 16),), {}), {0: {0: BATCH}}, [{"batch": HIGH}], None, {"profile": False}
    )
    assert made.pieced is not None, made.reason
    result = made.table[HIGH,]
    assert isinstance(result, PartitionedResult)
    assert len(result.pieces) > 1
    assert [*made.in_part] == [HIGH]
    for where in ("_padded", "_written"):
        monkeypatch.delattr(f"mugraph.sizes.covering._Chunks.{where}")
    memory = torch.full((2 * HIGH, 16), torch.nan)
    for size in (1, 2, 3, 7, 23, HIGH - 1):
        x = memory[:size].normal_()
        run = made.covering(size, [Chunk(0, HIGH)])
        for _ in range(3):  # later calls are recognized
            torch.testing.assert_close(run(x).double(), several_in_float64(x), rtol=1e-5, atol=1e-6)
        with pytest.raises(ShapeMismatch):
            run(memory[: size + 1])


def several_in_float64(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.silu(x.double() @ W.double()) @ V.double(), -1)


def test_without_time_to_ask_other_sizes_are_the_function_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mugraph.pieces.whole_or_pieces._mostly_as_it_is", lambda whole: True)
    x = drawn(5, 16)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.silu(x @ W), -1)

    made = DynamicSuperoptimized(whole, {0: {0: BATCH}}, {"profile": False}, mugraph.superoptimize)
    made.sliced = sliced_function(whole, made.declared, (x,), {})
    made.fill((8,), (x,), {})
    SizeTable(made, (x,), {}, Deadline(0.0)).settle()
    assert made.pieced is None
    assert made.sliced is not None
    assert "ended before it was asked" in made.reason
    assert made.plan(8).chunks == (Chunk(0, 8),), "its own kernels"
    assert made.plan(7).chunks == ()
    assert "Kernels for 8 run these sizes alone" in made.claim
    for size in (7, 8):
        x = drawn(size, 16)
        torch.testing.assert_close(made(x), whole(x), rtol=1e-5, atol=1e-6)
    assert [*made.specializations] == [(8,)], "nothing was compiled for 7"
    assert "1 sizes measured, with kernels for themselves alone" in repr(made)
    with pytest.raises(StorageError, match="no muGraph of the table acts on slices"):
        made.save(tmp_path / "range")
