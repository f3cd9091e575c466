"""Functions of two dynamic dimensions that do the same to every row: found out, run at every pair of sizes, saved and checked."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.checker import Rejected
from mugraph.checker.size_ranges import check_sizes
from mugraph.cli.sizes_check import check_range
from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, StorageError
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.dims import Declared, Dynamic
from mugraph.sizes.row_functions import RowFunction, pairs_of_sizes, row_function
from mugraph.sizes.saved_sizes import LoadedRows
from mugraph.sizes.sliced_functions import SlicedFunction
from threads import at_once

from .saved_folders import changed

BATCH, LENGTH = Dim("batch", 1, 6), Dim("length", 1, 24)
DYNAMIC: Dynamic = {0: {0: BATCH, 1: LENGTH}}


def rows_of(fn: Callable[..., Any], *inputs: torch.Tensor) -> RowFunction:
    """The function on examples, all of which begin with both dimensions where these are of sizes 2 and 3."""
    dynamic: Dynamic = {number: {0: BATCH, 1: LENGTH} for number, each in enumerate(inputs) if each.shape[:2] == (2, 3)}
    return row_function(fn, Declared.of(dynamic), inputs, {})


def x(*shape: int) -> torch.Tensor:
    return torch.randn(2, 3, *shape)


@pytest.mark.parametrize(
    ("fn", "inputs", "results"),
    [
        (lambda x, w: F.rms_norm(x, (16,)) @ w, (x(16), torch.randn(16, 8)), (0,)),
        (nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval(), (x(16),), (0,)),
        (lambda x, w: (x.reshape(-1, 16) @ w, x.exp(), w.exp()), (x(16), torch.randn(16, 8)), (None, 0, None)),
        (lambda x, y: x * y.exp(), (x(16), x(16)), (0,)),
        (lambda i, t: F.embedding(i, t).relu(), (torch.randint(0, 5, (2, 3)), torch.randn(5, 8)), (0,)),
        (lambda x: x[..., :8] * x[..., 8:], (x(16),), (0,)),
    ],
)  # fmt: skip
def test_these_do_the_same_to_every_row(
    fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], results: tuple[int | None, ...]
) -> None:
    found = rows_of(fn, *inputs)
    assert found.rows.results == results
    assert (found.rows.dim.low, found.rows.dim.high) == (1, 144)


def branches(at: Callable[[int, int], bool]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.exp() if at(*x.shape[:2]) else x.exp() * 2


PLANTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a softmax along the length": lambda x: x.softmax(1),
    "a sum over the batch": lambda x: x - x.mean(0),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "sizes as numbers": lambda x: x * (x.shape[0] * x.shape[1]),
    "rows as a number": lambda x: x / x.flatten(0, 1).shape[0],
    "transposed": lambda x: x.transpose(0, 1).exp(),
    "positions": lambda x: x + torch.arange(x.shape[1])[:, None],
    "neighbouring rows": lambda x: x + x.flatten(0, 1).roll(1, 0).view(x.shape),
    "one sample": branches(lambda batch, length: batch == 1),
    "one token": branches(lambda batch, length: length == 1),
    "one token of several samples": branches(lambda batch, length: length == 1 and batch > 1),
    "one sample of several tokens": branches(lambda batch, length: batch == 1 and length > 1),
    "seven tokens": branches(lambda batch, length: length == 7),
    "more samples than tokens": branches(lambda batch, length: batch > length > 1),
    "tokens by sevens": branches(lambda batch, length: batch > 1 and length > 1 and batch * length % 7 == 0),
    "twice as many tokens": branches(lambda batch, length: length == 2 * batch > 2),
    "as many as samples": branches(lambda batch, length: batch == length),
    "twelve rows": branches(lambda batch, length: batch * length == 12),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_tells_rows_apart_is_refused(name: str) -> None:
    with pytest.raises(SizeMatters) as refused:
        rows_of(PLANTED[name], x(16))
    assert str(refused.value)


def test_two_small_ranges_are_told_apart() -> None:
    declared = Declared.of({0: {0: Dim("batch", 1, 2), 1: Dim("length", 1, 2)}})
    assert row_function(lambda x: x.exp(), declared, (x(4),), {}).pairs == ((2, 2),)
    with pytest.raises(SizeMatters):
        row_function(branches(lambda batch, length: batch == length > 1), declared, (x(4),), {})


def test_programs_of_large_rows_are_compared_at_few_rows() -> None:
    wide = Dim("batch", 1, 64), Dim("length", 1, 64)
    assert pairs_of_sizes(*wide, 4) == ((11, 13), (13, 11))
    assert pairs_of_sizes(*wide, 1 << 23) == ((3, 5), (5, 3))
    assert pairs_of_sizes(*wide, 1 << 30) == ((2, 3), (3, 2))


def test_dimensions_in_two_orders_are_refused() -> None:
    declared = Declared.of({0: {0: BATCH, 1: LENGTH}, 1: {0: LENGTH, 1: BATCH}})
    with pytest.raises(SizeMatters, match="side by side"):
        row_function(lambda x, y: x.exp() + y.transpose(0, 1), declared, (x(4), torch.randn(3, 2, 4)), {})
    apart = Declared.of({0: {0: BATCH, 2: LENGTH}})
    with pytest.raises(SizeMatters, match="side by side"):
        row_function(lambda x: x.exp(), apart, (torch.randn(2, 4, 3),), {})


FUNCTIONS = """
import torch
import torch.nn.functional as F


def example_inputs():
    return torch.randn(2, 3, 32), torch.randn(32, 64)


def normed(x, w):
    return {"y": F.rms_norm(x, (32,)) @ w, "flat": x.flatten(0, 1).exp()}


def other(x, w):
    return {"y": F.rms_norm(x, (32,)) @ w + 1, "flat": x.flatten(0, 1).exp()}


def other_places(x, w):
    return {"y": (F.rms_norm(x, (32,)) @ w).flatten(0, 1), "flat": x.exp()}


def one_token(x, w):
    y = F.rms_norm(x, (32,)) @ w
    return {"y": y * 2 if x.shape[1] == 1 and x.shape[0] > 1 else y, "flat": x.flatten(0, 1).exp()}
"""


def normed(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": F.rms_norm(x, (32,)) @ w, "flat": x.flatten(0, 1).exp()}


@pytest.fixture(scope="module")
def opt() -> DynamicSuperoptimized:
    inputs = torch.randn(2, 3, 32), torch.randn(32, 64)
    return mugraph.superoptimize(normed, inputs, dynamic=DYNAMIC, profile=False, cache="off")


@pytest.fixture(scope="module")
def folder(opt: DynamicSuperoptimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opt.save(tmp_path_factory.mktemp("rows") / "normed")


def assert_right(run: Callable[..., Any], given: torch.Tensor) -> None:
    w = torch.randn(32, 64)
    with torch.inference_mode():
        found, exact = run(given, w), normed(given.double(), w.double())
    assert found.keys() == exact.keys()
    for name in exact:
        torch.testing.assert_close(found[name], exact[name].float(), rtol=1e-4, atol=1e-5)


def pairs(count: int) -> list[tuple[int, int]]:
    draw = random.Random(0)
    corners = [(1, 1), (1, 24), (6, 1), (6, 24), (2, 13), (5, 23), (3, 7)]
    return corners + [(draw.randint(1, 6), draw.randint(1, 24)) for _ in range(count)]


def test_every_pair_of_sizes_is_right_and_nothing_is_compiled(
    opt: DynamicSuperoptimized, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opt.rows is not None
    assert opt.rows.result.costs.kernels, "kernels were found"
    assert opt.claim.startswith("for every size from 1 to 6 of batch and from 1 to 24 of length: ")
    monkeypatch.setattr("mugraph.runtime.executable.Executable.__init__", None)
    for batch, length in pairs(100):
        assert_right(opt, torch.randn(batch, length, 32))
        assert_right(opt, torch.randn(length, batch, 32).transpose(0, 1))


def test_rows_that_are_no_numbers_stay_alone(opt: DynamicSuperoptimized) -> None:
    given, w = torch.randn(5, 7, 32), torch.randn(32, 64)
    wanted = opt(given, w)["y"].clone()
    given[2, 3] = torch.nan
    found = opt(given, w)["y"]
    assert found[2, 3].isnan().all()
    found[2, 3] = wanted[2, 3]
    torch.testing.assert_close(found, wanted)


def test_threads_call_at_different_sizes(opt: DynamicSuperoptimized) -> None:
    def calls(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(20):
            assert_right(opt, torch.randn(draw.randint(1, 6), draw.randint(1, 24), 32))

    at_once(calls, range(4))


def test_sizes_out_of_range_are_refused(opt: DynamicSuperoptimized, folder: Path) -> None:
    loaded, w = DynamicSuperoptimized.load(folder), torch.randn(32, 64)
    for run in (opt, loaded):
        with pytest.raises(ShapeMismatch, match="batch has size 7, declared from 1 to 6"):
            run(torch.randn(7, 3, 32), w)
        with pytest.raises(ShapeMismatch, match="length has size 25, declared from 1 to 24"):
            run(torch.randn(3, 25, 32), w)
        with pytest.raises(MugraphError):
            run(torch.randn(3, 5, 31), w)
        with pytest.raises(MugraphError):
            run(torch.randn(3), w)
    assert opt.rows is not None
    assert isinstance(loaded, LoadedRows)
    for plan in (opt.rows.plan, loaded.plan):
        assert plan((6, 24)).chunks
        with pytest.raises(ShapeMismatch, match="batch has size 24, declared from 1 to 6"):
            plan((24, 6))
    with pytest.raises(InvalidInput, match=r"batch and length are run as rows; `rows\.plan`"):
        opt.plan(5)


def test_a_table_without_mugraphs_of_slices_is_not_saved(
    opt: DynamicSuperoptimized, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SlicedFunction, "is_acted_on_by", lambda *graph: False)
    with pytest.raises(StorageError, match="no muGraph"):
        opt.save(tmp_path / "none")


def test_arguments_that_are_not_in_the_call_are_named() -> None:
    rows = rows_of(lambda x, y: x * y.exp(), x(16), x(16)).rows
    with pytest.raises(InvalidInput, match="argument 1 has batch and length, and is not in the call"):
        rows.merged((2, 3), (x(16),), {})


def test_what_is_read_back_has_the_same_results(opt: DynamicSuperoptimized, folder: Path) -> None:
    loaded = DynamicSuperoptimized.load(folder)
    assert loaded.claim == opt.claim
    for batch, length in pairs(20):
        assert_right(loaded, torch.randn(batch, length, 32))


def test_the_command_asks_whose_function_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    assert check_range(folder, f"{file}:normed", None, json_output=False) == 0
    assert "of batch and from 1 to 24 of length" in capsys.readouterr().out
    for name in ("other", "other_places", "one_token"):
        assert check_range(folder, f"{file}:{name}", None, json_output=False) != 0, name


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda said: said["rows"]["first"].update(high=7), "do not make up|are the rows"),
        (lambda said: said["rows"].update(results=[-1, None]), "two dimensions"),
        (lambda said: said.update(inputs=[0, None]), "two dimensions|does not take|side by side"),
        (lambda said: said.update(rows=None), "saved range is malformed|sizes.json is malformed"),
        (lambda said: said["rows"].update(results=[None, None]), "rows in other places"),
        (lambda said: said["rows"].update(results=[0, 0]), "rows in other places"),
        (lambda said: said["rows"].update(results=[None, 0]), "rows in other places"),
    ],
)  # fmt: skip
def test_other_dimensions_than_were_saved_are_refused(
    folder: Path, tmp_path: Path, change: Callable[[Any], None], match: str
) -> None:
    planted = changed(folder, tmp_path / "planted", "sizes.json", change)
    with pytest.raises(Rejected, match=match):
        check_sizes(planted)
    with pytest.raises(InvalidInput, match=match):
        DynamicSuperoptimized.load(planted)


def test_results_with_other_places_than_there_are_tensors_are_refused(folder: Path, tmp_path: Path) -> None:
    planted = changed(folder, tmp_path / "planted", "sizes.json", lambda said: said["rows"].update(results=[0]))
    with pytest.raises(InvalidInput):
        DynamicSuperoptimized.load(planted)


def test_without_kernels_the_function_answers_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inputs = torch.randn(2, 3, 32), torch.randn(32, 64)
    for asking in ("row_functions", "sliced_functions"):
        monkeypatch.setattr(f"mugraph.sizes.{asking}.check_time", lambda *question: None)
    bare = mugraph.superoptimize(normed, inputs, dynamic=DYNAMIC, budget=0.01, profile=False, cache="off")
    assert bare.rows is not None
    assert not bare.rows.result.costs.kernels
    assert "the function itself answers" in bare.claim
    monkeypatch.setattr(mugraph, "superoptimize", None)
    monkeypatch.setattr("mugraph.sizes.dynamic_results.DynamicSuperoptimized.at", None)
    for batch, length in pairs(5):
        assert_right(bare, torch.randn(batch, length, 32))
    assert_right(DynamicSuperoptimized.load(bare.save(tmp_path / "bare")), torch.randn(5, 7, 32))
