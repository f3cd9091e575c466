"""A batch beside a length: kernels of a few batches and capacities run both, in chunks of samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from counted_calls import more_in_the_first
from mugraph import Dim, DynamicSuperoptimized
from mugraph.checker import Rejected
from mugraph.checker.batch_ranges import check_batches
from mugraph.cli.batches_check import check_range_of_batches
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.sizes.batched_functions import batched_function
from mugraph.sizes.batched_results import BatchTable
from mugraph.sizes.chunk_plans import Chunk
from mugraph.sizes.dims import Declared, Dynamic
from mugraph.sizes.saved_batches import LoadedBatches
from threads import at_once

from .saved_folders import changed, with_another

pytestmark = pytest.mark.usefixtures("first_found")

BATCH, KEYS = Dim("batch", 1, 9), Dim("keys", 1, 70)
HEADS, WIDTH = 2, 16
WEIGHT = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 61, 69, 70)
CACHE: Dynamic = {0: {0: BATCH}, 1: {0: BATCH, 2: KEYS}, 2: {0: BATCH, 2: KEYS}, 3: {0: BATCH}}

FUNCTIONS = """
import torch
import torch.nn.functional as F

WEIGHT = torch.randn(16, 16, generator=torch.Generator().manual_seed(5))


def example_inputs():
    return torch.randn(3, 2, 1, 16), torch.randn(3, 2, 6, 16), torch.randn(3, 2, 6, 16), torch.randn(3, 2, 1, 16)


def decode(q, k, v, new):
    k, v = torch.cat([k, new], 2), torch.cat([v, new * 2], 2)
    return {"y": F.scaled_dot_product_attention(q @ WEIGHT, k, v)}


def thrice(q, k, v, new):
    return decode(q, k, v, new * 3)


def mixed(q, k, v, new):
    return decode(q, k, v, new - new.mean(0))

"""


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> dict[str, torch.Tensor]:
    k, v = torch.cat([k, new], 2), torch.cat([v, new * 2], 2)
    return {"y": F.scaled_dot_product_attention(q @ WEIGHT, k, v)}


def given(batch: int, keys: int) -> tuple[torch.Tensor, ...]:
    """A call with caches that lie in memory in different ways, with NaN wherever they have no element."""
    k = torch.full((batch, 80, HEADS, WIDTH), torch.nan)[:, :keys].normal_().transpose(1, 2)
    v = torch.full((2 * batch, HEADS, 80, WIDTH), torch.nan)[::2, :, :keys].normal_()
    return torch.randn(batch, HEADS, 1, WIDTH), k, v, torch.randn(batch, HEADS, 1, WIDTH)


def assert_right(run: Callable[..., Any], inputs: tuple[torch.Tensor, ...], *more: torch.Tensor) -> None:
    torch.testing.assert_close(run(*inputs, *more)["y"], decode(*inputs)["y"], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def made() -> DynamicSuperoptimized:
    return mugraph.superoptimize(decode, given(3, 6), budget=600.0, profile=False, dynamic=CACHE)


@pytest.fixture(scope="module")
def table(made: DynamicSuperoptimized) -> BatchTable:
    assert made.batches is not None, made.reason
    assert sorted(made.batches.tables) == [1, 2, 9]
    return made.batches


@pytest.fixture(scope="module")
def folder(made: DynamicSuperoptimized, table: BatchTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(tmp_path_factory.mktemp("batches") / "decode")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedBatches:
    found = DynamicSuperoptimized.load(folder)
    assert isinstance(found, LoadedBatches)
    return found


def test_every_batch_at_every_kind_of_length_is_right(made: DynamicSuperoptimized, table: BatchTable) -> None:
    for batch in range(1, 10):
        for keys in LENGTHS:
            assert_right(made, given(batch, keys))
    assert all(each.in_place.keys() == each.kernels.keys() for each in table.tables.values())
    assert "from 1 to 9 of batch and from 1 to 70 of keys" in made.claim
    assert made.error_bound is not None
    assert made.error_bound < 1e-9


def test_chunks_of_any_kind_are_right(table: BatchTable) -> None:
    for sizes in ([1, 1, 1], [2, 1], [2, 2], [1, 2]):
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        chunks = tuple(Chunk(min(start, 3 - size), size) for start, size in zip(starts, sizes, strict=True))
        for keys in (1, 17, 70):
            assert_right(table.chunked(3, keys, chunks), given(3, keys))


def test_where_nothing_was_timed_chunks_are_few(table: BatchTable) -> None:
    assert [chunk.size for chunk in table.plan(5, 7).chunks] == [2, 2, 1]
    assert [chunk.size for chunk in table.plan(9, 7).chunks] == [9]


def test_lengths_that_run_alike_share_what_runs_them(table: BatchTable) -> None:
    chunks = table.plan(5, 7).chunks
    assert table.chunked(5, 7, chunks) is table.chunked(5, 70, chunks)


def test_what_is_no_number_in_a_sample_stays_in_it(made: DynamicSuperoptimized) -> None:
    inputs = given(9, 20)
    for sample, number in ((0, torch.nan), (4, torch.inf), (8, -torch.inf)):
        inputs[1][sample, 0, 7] = inputs[2][sample, -1, 3] = number
    torch.testing.assert_close(made(*inputs)["y"], decode(*inputs)["y"], rtol=1e-4, atol=1e-5, equal_nan=True)


def test_threads_call_with_different_sizes(made: DynamicSuperoptimized) -> None:
    def calls(seed: int) -> None:
        for number in range(20):
            assert_right(made, given(1 + (seed + 2 * number) % 9, LENGTHS[(seed + number) % len(LENGTHS)]))

    at_once(calls, range(4))


def test_sizes_outside_of_either_range_are_refused(made: DynamicSuperoptimized, loaded: LoadedBatches) -> None:
    for run, more in ((made, ()), (loaded, (WEIGHT,))):
        with pytest.raises(ShapeMismatch, match="batch has size 10, declared from 1 to 9"):
            run(*given(10, 5), *more)
        with pytest.raises(ShapeMismatch, match="keys has size 71, declared from 1 to 70"):
            run(*given(3, 71), *more)
        q, k, v, new = given(3, 5)
        with pytest.raises(ShapeMismatch, match="batch"):
            run(q, k[:2], v, new, *more)
        with pytest.raises(ShapeMismatch, match="keys"):
            run(q, k, v[:, :, :4], new, *more)
        with pytest.raises((ShapeMismatch, InvalidInput), match="float64"):
            run(q.double(), k, v, new, *more)
    with pytest.raises(InvalidInput, match=r"batches\.plan"):
        made.plan(3)


def test_what_is_read_back_runs_all_sizes(made: DynamicSuperoptimized, loaded: LoadedBatches) -> None:
    assert loaded.claim == made.claim
    for batch in (1, 2, 3, 5, 8, 9):
        for keys in LENGTHS:
            assert_right(loaded, given(batch, keys), WEIGHT)
    with pytest.raises(InvalidInput, match="call with 5 tensors"):
        loaded(*given(2, 5))


def test_a_first_call_of_what_is_read_back_does_what_a_later_one_does(folder: Path) -> None:
    again = DynamicSuperoptimized.load(folder)
    first, other = (*given(8, 61), WEIGHT), (*given(8, 60), WEIGHT)
    more = more_in_the_first(lambda: again(*first), lambda: again(*other))
    assert not {name for name in more if name.startswith(("sizes/chunk_plans.py", "sizes/batches.py:BatchCalls"))}, more


def test_the_command_asks_whose_function_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    assert check_batches(folder) == (1, 2, 9)
    assert check_range_of_batches(folder, f"{file}:decode", None, json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["parts"]["samples"]["status"]) == ("accepted", "checked")
    for other in ("thrice", "mixed"):
        assert check_range_of_batches(folder, f"{file}:{other}", rounds=1, json_output=False) == 1
        assert "function  refused" in capsys.readouterr().out


def _set(name: str, value: Any) -> Any:
    return lambda document: document.update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        _set("inputs", [0, 0, 0, None]),
        _set("inputs", [1, 1, 1, 1]),
        _set("inputs", [0, 0, 0, -1]),
        _set("outputs", [None]),
        _set("outputs", [1]),
        _set("dimension", {"name": "batch", "low": 1, "high": 8}),
        _set("dimension", {"name": "batch", "low": "1", "high": 9}),
        _set("seconds", {"1": None, "2": None}),
        _set("inputs", None),
    ],
)
def test_other_words_about_the_same_programs_are_refused(folder: Path, tmp_path: Path, change: Any) -> None:
    wrong = changed(folder, tmp_path / "wrong", "batches.json", change)
    with pytest.raises(Rejected):
        check_batches(wrong)
    with pytest.raises(InvalidInput):
        DynamicSuperoptimized.load(wrong)
    assert check_range_of_batches(wrong, None, None, json_output=True) == 1


@pytest.mark.parametrize("chunk", [float("nan"), float("inf"), -1.0])
def test_costs_by_which_nothing_can_be_planned_are_refused(folder: Path, tmp_path: Path, chunk: float) -> None:
    wrong = changed(folder, tmp_path / "wrong", "batches.json", _set("chunk", chunk))
    with pytest.raises(InvalidInput, match="are no seconds"):
        DynamicSuperoptimized.load(wrong)


def test_a_batch_of_another_function_is_refused(folder: Path, tmp_path: Path) -> None:
    def thrice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> dict[str, torch.Tensor]:
        return decode(q, k, v, new * 3)

    of_two: Dynamic = {1: {2: KEYS}, 2: {2: KEYS}}
    other = mugraph.superoptimize(thrice, given(2, 6), budget=600.0, profile=False, dynamic=of_two)
    wrong = with_another(folder, tmp_path / "wrong", "batches/2", other.save)
    with pytest.raises(Rejected):
        check_batches(wrong)
    with pytest.raises(InvalidInput):
        DynamicSuperoptimized.load(wrong)


def test_what_is_rebuilt_of_a_batch_is_one_program_at_a_time(folder: Path) -> None:
    for place, programs in ((folder, r"batches/\*/capacities"), (folder / "batches" / "2", "capacities")):
        with pytest.raises(InvalidInput, match=f"rebuild each folder in {programs}, or optimize the function for triton"):
            mugraph.rebuild(place, "triton:sm_80")
    one = next((folder / "batches" / "1" / "capacities").iterdir())
    assert mugraph.rebuild(one, "cpu", profile=False).found


def test_tables_without_the_smallest_batch_are_not_saved(made: DynamicSuperoptimized, table: BatchTable, tmp_path: Path) -> None:
    one = table.tables.pop(1)
    try:
        assert "the function itself answers below 2" in repr(made)
        with pytest.raises(StorageError, match="no kernels run batch from 1 to 1"):
            made.save(tmp_path / "less")
    finally:
        table.tables[1] = one


def test_ranges_of_which_both_ends_together_fit_no_memory_are_looked_at() -> None:
    declared = Declared.of({0: {0: Dim("batch", 1, 1 << 40), 1: Dim("keys", 1, 1 << 12)}})
    found = batched_function(lambda x: x.softmax(1).sum(1), declared, (torch.randn(3, 5, 64),), {})
    assert sorted(found.masked) == [1, 4, 16, 64]


def test_either_dimension_may_be_the_batch() -> None:
    declared = Declared.of({0: {0: KEYS, 1: BATCH}})
    assert batched_function(lambda x: x.softmax(0).sum(0), declared, (torch.randn(5, 3),), {}).samples.inputs == (1,)
    assert batched_function(
        lambda x: (x.sum(1), x.T.exp().sum(0)), Declared.of({0: {0: BATCH, 1: KEYS}}), (torch.randn(3, 5),), {}
    )


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda x: x.sum(1) - x.sum(), "acts along the axis|sums over"),
        (lambda x: x.softmax(1).flip(0).sum(1), "acts along the axis"),
        (lambda x: x.sum(1) * torch.arange(x.shape[0]), "depends on the size|varies|positions|axis"),
        (lambda x: x.sum(1) * (2 if x.shape[0] > x.shape[1] else 1), "recorded|several sizes"),
        (lambda x: x.sum(1) * (2 if x.shape[0] == 7 else 1), "recorded"),
        (lambda x: x.sum(1) * (2 if x.shape[0] == 1 else 1), "."),
        (lambda x: x.sum(1) * (2 if x.shape[1] == 1 else 1), "."),
        (lambda x: x.sum(1) / x.shape[0], "depends on the size"),
        (lambda x: x.sum(1) / x.shape[1], "depends on the size"),
        (lambda x: x.T.reshape(x.shape[0], x.shape[1]).softmax(1).sum(1), "."),
        (lambda x: x.reshape(-1).softmax(0).view(x.shape).sum(1), "."),
        (lambda x: x.exp(), "."),
        (lambda x: x.sum(1) + torch.rand_like(x).sum(1), "random"),
    ],
)
def test_what_mixes_samples_or_depends_on_sizes_is_refused(fn: Callable[..., Any], match: str) -> None:
    with pytest.raises(SizeMatters, match=match):
        batched_function(fn, Declared.of({0: {0: BATCH, 1: KEYS}}), (torch.randn(3, 5),), {})


def test_heads_may_stand_in_one_dimension_with_the_batch() -> None:
    def merged(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
        return torch.bmm(scores.softmax(-1), k.flatten(0, 1)).view(q.shape)

    declared = Declared.of({0: {0: BATCH}, 1: {0: BATCH, 2: KEYS}})
    found = batched_function(merged, declared, (torch.randn(3, 2, 1, WIDTH), torch.randn(3, 2, 5, WIDTH)), {})
    assert (found.samples.inputs, found.samples.outputs) == ((0, 0), (0,))


def test_keys_that_take_turns_with_samples_are_no_samples() -> None:
    """In memory a length before a batch is not one behind it, also where both have a size in common."""
    declared = Declared.of({0: {0: BATCH, 1: KEYS}, 1: {0: KEYS, 1: BATCH}})
    tensors = torch.randn(3, 5, 4), torch.randn(5, 3, 4)
    with pytest.raises(SizeMatters):
        batched_function(lambda x, y: (x + y.reshape(x.shape)).softmax(1).sum(1), declared, tensors, {})
    found = batched_function(lambda x, y: (x + y.transpose(0, 1)).softmax(1).sum(1), declared, tensors, {})
    assert found.samples.inputs == (0, 1)
