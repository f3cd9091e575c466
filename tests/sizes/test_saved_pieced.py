"""Ranges of sizes of functions that run in pieces, on disk: read back they answer as before, and what was changed is refused."""

from __future__ import annotations

import itertools
import json
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.cli.certificate_check import EXIT_CODES
from mugraph.cli.verify import verify
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.pieces.partitioned import Partitioned, with_report
from mugraph.runtime.packed_operands import Kept
from mugraph.sizes.chunk_plans import Costs
from mugraph.sizes.dims import Declared
from mugraph.sizes.loaded_pieced import LoadedPieced
from mugraph.sizes.pieced_functions import pieced_function
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.saved_sizes import LoadedRows
from mugraph.sizes.symbolic_calls import check_calls
from mugraph.verifier.slice_walk import NotParallel
from threads import at_once

from .saved_folders import changed, listed_again, unlisted, with_another
from .test_pieced_functions import BATCH, HIGH, V, W, check, drawn, mixed, optimized


def made(fn: Callable[..., Any], x: torch.Tensor, *sizes: int, dim: Dim = BATCH) -> DynamicSuperoptimized:
    table = [{dim.name: size} for size in sizes]
    settings = {"profile": False}
    return superoptimized_for_sizes(mugraph.superoptimize, fn, ((x,), {}), {0: {0: dim}}, table, None, settings)


def read(folder: Path) -> LoadedPieced:
    loaded = DynamicSuperoptimized.load(folder)
    assert isinstance(loaded, LoadedPieced)
    return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return optimized().save(tmp_path_factory.mktemp("pieced") / "mixed")


def test_what_is_read_back_answers_as_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, opt = read(folder), optimized()
    assert loaded.claim == opt.claim
    assert "2 sizes in pieces, which cover all others, and 1 alone" in repr(loaded)
    compiled: list[Any] = []
    for where in ("mugraph.runtime.executable.Executable.__init__", "torch.export.export", "mugraph.search.tasks.Saturation"):
        monkeypatch.setattr(where, lambda *args, **kwargs: compiled.append(args))
    inputs = [drawn(size, 16) for size in range(1, HIGH + 1)]
    inputs[6][3] = torch.nan
    inputs[20][:2] = torch.inf
    for x in inputs:
        found = loaded(x, W, V)
        for ours, theirs in zip(found, opt(x), strict=True):
            assert torch.equal(torch.nan_to_num(ours, nan=7.0), torch.nan_to_num(theirs, nan=7.0))
        assert [chunk.size for chunk in loaded.plan(len(x)).chunks] == [chunk.size for chunk in opt.plan(len(x)).chunks]
        if x.isfinite().all():
            check(found, mixed(x.double()))
    strided = drawn(16, 30).t()[:23]
    check(loaded(strided, W, V), mixed(strided.double()))
    for x, found in zip(inputs[8:12], at_once(lambda x: loaded(x, W, V), inputs[8:12]), strict=True):
        check(found, mixed(x.double()))
    assert compiled == []


def test_sizes_are_called_when_they_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, sizes = set[int](), list[int]()

    def noted(runs: Mapping[int, Callable[..., Any]], arguments: Callable[[int], Any]) -> None:
        for size, run in runs.items():
            args, kwargs = arguments(size)
            sizes.append(len(args[0]))
            weights.update(map(id, args[1:]))
            run(*args, **kwargs)

    monkeypatch.setattr("mugraph.sizes.loaded_pieced.call_each_once", noted)
    read(folder)
    assert sizes == [*range(1, HIGH + 1)]
    assert len(weights) == 2, "they come again, and are packed"


def test_nothing_is_kept_of_weights_that_were_made_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, made, weight = Kept(torch.clone, "weights"), list[weakref.ref[torch.Tensor]](), drawn(3)
    monkeypatch.setattr("mugraph.sizes.loaded_pieced.call_each_once", lambda *_: made.append(weakref.ref(kept.of(weight))))
    read(folder)
    assert made[0]() is None


def test_what_refuses_made_up_numbers_is_read_back(tmp_path: Path) -> None:
    def divided(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *mixed(x), torch.div(60, x.long(), rounding_mode="floor")

    opt = made(divided, drawn(5, 16).abs() + 1, 1, 8, HIGH)
    loaded = read(opt.save(tmp_path / "divided"))
    for size in (1, 3, 8, 23, HIGH):
        x = drawn(size, 16).abs() + 1
        for ours, theirs in zip(loaded(x, W, V), opt(x), strict=True):
            assert torch.equal(ours, theirs)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        loaded(torch.zeros(8, 16), W, V)


def test_wrong_arguments_are_named(folder: Path) -> None:
    loaded = read(folder)
    with pytest.raises(ShapeMismatch, match="declared from 1 to 40"):
        loaded(drawn(HIGH + 1, 16), W, V)
    for size in (1, 7, 40):
        with pytest.raises(ShapeMismatch, match="W"):
            loaded(drawn(size, 16), V, V)
        with pytest.raises((ShapeMismatch, InvalidInput), match="float64"):
            loaded(drawn(size, 16).double(), W, V)
    with pytest.raises(InvalidInput, match="call with 3 tensors"):
        loaded(drawn(7, 16))


FUNCTIONS = """
import torch
import torch.nn.functional as F

W, V = torch.zeros(16, 24), torch.zeros(24, 16)


def example_inputs():
    return (torch.randn(5, 16),)


def mixed(x):
    y = F.silu(x @ W.to(x.dtype)).logcumsumexp(-1)
    z = (y * y.sigmoid()) @ V.to(x.dtype)
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2, W.to(x.dtype).exp()


def at_one(x):
    y = F.silu(x @ W.to(x.dtype)).logcumsumexp(-1)
    z = (y * y.sigmoid()) @ V.to(x.dtype)
    z = z + 1 if x.shape[0] == 1 else z
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2, W.to(x.dtype).exp()


def other(x):
    y = F.silu(x @ W.to(x.dtype)).cumsum(-1)
    z = (y * y.sigmoid()) @ V.to(x.dtype)
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2, W.to(x.dtype).exp()


def over_slices(x):
    return mixed(x - x.mean(0))
"""


@pytest.mark.parametrize(
    ("word", "outcome", "why"),
    [
        ("", "accepted", "nothing in a folder says whose function it is"),
        ("mixed", "accepted", "for every size from 2 on"),
        ("at_one", "rejected", "at size 1"),
        ("other", "rejected", "other calls"),
        ("over_slices", "rejected", "not what it is of each slice"),
    ],
)
def test_the_command_checks_it_and_asks_whose_function_it_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, outcome: str, why: str
) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    rounds = None if outcome == "accepted" else 1
    code = verify(f"{file}:{word}" if word else None, certificate=folder, rounds=rounds, json_output=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], code) == (outcome, EXIT_CODES[outcome])
    assert told["parts"]["slices"]["status"] == "checked"
    assert why in told["parts"]["function"]["reason"]
    assert {name.split("/")[1] for name in told["programs"]} == {"1", "8", "40"}


Change = Callable[[Any], None]


def put(**more: Any) -> Change:
    return lambda said: said.update(more)


def along_the_batch(said: Any) -> None:
    """The calls of both sizes, of which one acts along the dimension."""
    for document in said["calls"].values():
        (call,) = (call for call in document["calls"] if call.get("calls") == "aten.logcumsumexp.default")
        call["args"][1] = 0


def other_at_one_size(said: Any) -> None:
    call = next(call for call in said["calls"]["37"]["calls"] if call.get("calls") == "aten.logcumsumexp.default")
    call["calls"] = "aten.cumsum.default"


def one_together(said: Any) -> None:
    """Size 1 as one that others are put together of."""
    said["seconds"]["1"] = said["alone"].pop("1")


def eight_alone(said: Any) -> None:
    said["alone"]["1"], said["seconds"]["1"] = said["seconds"].pop("8"), said["alone"]["1"]
    said["parts"].pop("8")


FAULTS: list[tuple[Change, str]] = [
    (put(chunk=-1.0), "malformed.*no seconds"),
    (put(padding=float("nan")), "malformed"),
    (put(seconds={"8": -1e-6, "40": 1.0}), "malformed.*no seconds"),
    (put(seconds={}), "malformed"),
    (put(alone={}), "sizes below 2"),
    (put(alone={"1": 1.0, "9": 1.0}), "other sizes than pieced.json"),
    (put(parts={"8": {}}), "malformed"),
    (put(calls={}), "malformed"),
    (put(given=0), "malformed"),
    (put(given=2), "takes other tensors"),
    (put(given=True), "malformed"),
    (put(structure={"tuple": []}), "malformed|another structure|another function"),
    (put(dimension={"name": "batch", "low": 0, "high": 40}), "pieced.json"),
    (put(dimension={"name": "batch", "low": 1, "high": 39}), "malformed"),
    (along_the_batch, "pieced.json: its calls are not those of slices: logcumsumexp: it acts along the axis"),
    (other_at_one_size, "pieced.json: its calls are not those of slices: .*other calls"),
    (one_together, "sizes below 2"),
    (eight_alone, "not those of results"),
    (lambda said: said["calls"]["37"].update(writes={"0": 0}), "malformed"),
    (lambda said: said["calls"]["37"]["inputs"][0].update(shape=[37, 17]), "pieced.json"),
    (lambda said: said["calls"]["37"]["calls"][0].update(calls="aten.save.default"), "malformed.*more than to compute tensors"),
    (lambda said: said["calls"].update({"1": said["calls"].pop("37")}), "malformed.*two sizes"),
    (lambda said: said["calls"].update({"29": said["calls"].pop("37")}), "pieced.json: its calls are not those of slices"),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_changed_document_is_refused(folder: Path, tmp_path: Path, number: int) -> None:
    change, match = FAULTS[number]
    refused(changed(folder, tmp_path / "planted", "pieced.json", change), match)


def refused(planted: Path, match: str) -> None:
    """It is neither loaded nor accepted."""
    with pytest.raises(InvalidInput, match=match):
        DynamicSuperoptimized.load(planted)
    assert verify(certificate=planted, rounds=1, json_output=True) == 1


def test_swapped_results_are_refused(folder: Path, tmp_path: Path) -> None:
    def copied(name: str, place: str, to: str) -> Path:
        return with_another(folder, tmp_path / name, to, lambda path: shutil.copytree(folder / place, path))

    refused(copied("another size", "pieced/40", "pieced/8"), r"pieced/8 takes other tensors than size 8 has")
    refused(copied("another size alone", "pieced/8", "pieced/1"), r"pieced/1 takes other tensors than size 1 has")
    swapped = copied("another piece", "pieced/8/programs/1", "pieced/8/programs/0")
    listed_again(swapped / "pieced" / "8")
    refused(listed_again(swapped), "program 0 is not what its calls")


def whole(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One program, which takes and returns tensors as `mixed` does."""
    z = F.silu(x @ W) @ V
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2, W.exp()


def summed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pieces of which one call is another than that of `mixed`."""
    y = F.silu(x @ W).cumsum(-1)
    z = (y * y.sigmoid()) @ V
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2, W.exp()


def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`mixed`, of which one result is another by a number that no shape tells."""
    y = F.silu(x @ W).logcumsumexp(-1)
    z = (y * y.sigmoid()) @ V
    return torch.softmax(z, -1), z.reshape(-1, 8) * 2.02, W.exp()


@pytest.mark.parametrize("fn", [whole, summed, turned])
def test_a_result_of_another_function_for_size_1_is_refused(fn: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    another = mugraph.superoptimize(fn, (drawn(1, 16),), budget=20.0, profile=False)
    planted = with_another(folder, tmp_path / "planted", "pieced/1", lambda path: another.save(path))
    refused(planted, "pieced/1 is another function than pieced.json says at size 1; do not use it, optimize and save again")


def test_a_result_of_the_function_for_size_1_is_read_whatever_it_runs(folder: Path, tmp_path: Path) -> None:
    """Also one whose calls are recorded otherwise: what they return counts then."""

    def as_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.silu(x.reshape(1, 16) @ W).logcumsumexp(-1)
        z = (y.sigmoid() * y) @ V
        return torch.softmax(z, -1), z.reshape(2, 8) + z.reshape(2, 8), W.exp()

    another = mugraph.superoptimize(as_rows, (drawn(1, 16),), budget=20.0, profile=False)
    loaded = read(with_another(folder, tmp_path / "planted", "pieced/1", lambda path: another.save(path)))
    x = drawn(1, 16)
    check(loaded(x, W, V), mixed(x.double()))


def test_a_function_that_is_another_one_at_size_1_is_not_saved(tmp_path: Path) -> None:
    def at_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return mixed(x + 1 if x.shape[0] == 1 else x)

    opt = made(at_one, drawn(5, 16), 1, 8)
    assert opt.pieced is not None
    with pytest.raises(StorageError, match=r"at size 1 the function is another one .*declare batch from 2 on"):
        opt.save(tmp_path / "at one")
    assert not [*tmp_path.iterdir()]


def test_a_result_with_another_call_is_refused(folder: Path, tmp_path: Path) -> None:
    def another_call(said: Any) -> None:
        call = next(call for call in said["calls"] if call.get("calls") == "aten.logcumsumexp.default")
        call["calls"] = "aten.cumsum.default"

    planted = changed(folder / "pieced" / "8", tmp_path / "eight", "torch.json", another_call)
    planted = with_another(folder, tmp_path / "call", "pieced/8", lambda path: shutil.copytree(planted, path))
    refused(planted, "pieced/8 is not the calls of pieced.json at size 8")


def test_missing_and_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "unlisted")
    refused(unlisted(tmp_path / "unlisted", "pieced/8"), "lists results of other sizes")
    shutil.copytree(folder, tmp_path / "missing")
    (tmp_path / "missing" / "pieced" / "8" / "torch.json").unlink()
    refused(tmp_path / "missing", r"torch\.json is missing")
    shutil.copytree(folder, tmp_path / "damaged")
    with (tmp_path / "damaged" / "pieced.json").open("a") as file:
        file.write(" ")
    refused(tmp_path / "damaged", r"pieced\.json was changed after it was saved")


def test_a_mugraph_that_mixes_slices_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixing(*args: Any) -> None:
        raise NotParallel("planted")

    monkeypatch.setattr("mugraph.sizes.pieced_functions.outputs_of_slices", mixing)
    with pytest.raises(InvalidInput, match=r"pieced/\d+ is not the calls .* slice by slice"):
        DynamicSuperoptimized.load(folder)


def test_each_way_to_read_another_kind_names_the_right_one(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"read it with mugraph\.DynamicSuperoptimized\.load"):
        mugraph.load(folder)
    with pytest.raises(InvalidInput, match=r"mugraph\.rebuild each folder in pieced"):
        mugraph.rebuild(folder, "cpu")


def test_what_a_function_computes_of_no_tensor_is_in_the_folder(tmp_path: Path) -> None:
    def placed(x: torch.Tensor) -> dict[str, Any]:
        places = torch.arange(16, dtype=x.dtype).sin()
        return {"y": torch.softmax(x.logcumsumexp(-1) * places + places, -1), "n": 2}

    opt = made(placed, drawn(5, 16), 1, 8)
    one = opt.table[1,]
    assert isinstance(one, Partitioned)
    assert one.pieces
    opt.table[1,] = with_report(one, placed, found=False)  # as where the function itself is faster there
    saved = opt.save(tmp_path / "placed")
    loaded = read(saved)
    alone = loaded.alone[1]
    assert isinstance(alone, Partitioned)
    assert alone.pieces == (), "PyTorch makes all of its calls, as the function does"
    for size in (1, 2, 8, 11, 40):
        x = drawn(size, 16)
        found = loaded(x)
        assert found["n"] == 2
        torch.testing.assert_close(found["y"], placed(x.double())["y"].float(), rtol=1e-4, atol=1e-6)

    def others(said: list[Any]) -> None:
        said.clear()

    planted = changed(saved / "pieced" / "8", tmp_path / "eight", "constants.json", others)
    planted = with_another(saved, tmp_path / "planted", "pieced/8", lambda path: shutil.copytree(planted, path))
    with pytest.raises(InvalidInput, match=r"takes other tensors|constants"):
        DynamicSuperoptimized.load(planted)


def test_first_slices_are_computed_alone_when_read_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mugraph.pieces.whole_or_pieces._mostly_as_it_is", lambda whole: True)

    def several(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.silu(x @ W) @ V, -1)

    opt = made(several, drawn(5, 16), 20, dim=Dim("batch", 2, 20))
    assert opt.pieced is not None
    loaded = read(opt.save(tmp_path / "several"))
    assert [*loaded.costs.parts] == [20]
    for where in ("_padded", "_written"):
        monkeypatch.delattr(f"mugraph.sizes.covering._Chunks.{where}")
    memory = torch.full((40, 16), torch.nan)
    for size in (2, 3, 7, 19):
        x = memory[:size].normal_()
        assert torch.equal(loaded(x, W, V), opt(x))


ROWS = """
import torch
import torch.nn.functional as F

W, V = torch.zeros(16, 24), torch.zeros(24, 16)


def example_inputs():
    return (torch.randn(2, 3, 16),)


def several(x):
    return torch.softmax(F.silu(x @ W.to(x.dtype)) @ V.to(x.dtype), -1)


def otherwise(x):
    return torch.softmax(F.gelu(x @ W.to(x.dtype)) @ V.to(x.dtype), -1)


def mixed(x):
    return several(x - x.mean(1, keepdim=True))
"""


def test_rows_of_two_dimensions_are_read_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mugraph.pieces.whole_or_pieces._mostly_as_it_is", lambda whole: True)

    def several(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.silu(x @ W.to(x.dtype)) @ V.to(x.dtype), -1)

    batch, length = Dim("batch", 2, 3), Dim("length", 2, 3)
    opt = mugraph.superoptimize(several, (torch.randn(2, 3, 16),), budget=30.0, profile=False, dynamic={0: {0: batch, 1: length}})
    assert isinstance(opt, DynamicSuperoptimized)
    assert opt.rows is not None
    assert opt.rows.result.pieced is not None
    folder = opt.save(tmp_path / "rows")
    loaded = DynamicSuperoptimized.load(folder)
    assert isinstance(loaded, LoadedRows)
    assert isinstance(loaded.result, LoadedPieced)
    for sizes in itertools.product((2, 3), (2, 3)):
        x = torch.randn(*sizes, 16)
        torch.testing.assert_close(loaded(x, W, V), several(x.double()).float(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeMismatch):
        loaded(torch.randn(4, 4, 16), W, V)

    def elsewhere(said: Any) -> None:
        said["rows"]["results"] = [1]

    def other_range(said: Any) -> None:
        said["rows"]["first"]["high"] = 4

    def nowhere(said: Any) -> None:
        said["rows"]["results"] = [None]

    def no_rows(said: Any) -> None:
        said["rows"] = None

    refused(changed(folder, tmp_path / "elsewhere", "pieced.json", elsewhere), "rows in other places")
    refused(changed(folder, tmp_path / "nowhere", "pieced.json", nowhere), "rows in other places")
    refused(changed(folder, tmp_path / "no rows", "pieced.json", no_rows), "pieced.json is malformed.*optimize and save again")
    refused(changed(folder, tmp_path / "range", "pieced.json", other_range), "malformed.*are the rows")
    file = tmp_path / "functions.py"
    file.write_text(ROWS)
    for word, outcome in (("several", "accepted"), ("otherwise", "rejected"), ("mixed", "rejected")):
        capsys.readouterr()
        rounds = None if outcome == "accepted" else 1
        verify(f"{file}:{word}", certificate=folder, rounds=rounds, json_output=True)
        told = json.loads(capsys.readouterr().out)
        assert told["outcome"] == outcome, (word, told["parts"])
        assert "rows of batch and length" in told["parts"]["slices"]["reason"]


def test_where_the_function_itself_answers_nothing_is_saved(tmp_path: Path) -> None:
    opt = made(mixed, drawn(5, 16), 8)
    with pytest.raises(StorageError, match="nothing was made for batch 1"):
        opt.save(tmp_path / "without one")
    opt.costs = Costs({})
    with pytest.raises(StorageError, match="no kernels run parts of the function"):
        opt.save(tmp_path / "without kernels")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "mixing", [lambda x: x - x.mean(0, keepdim=True), lambda x: x.softmax(0), lambda x: x.flip(0), lambda x: x.cumsum(0)]
)
def test_the_same_calls_at_two_sizes_need_not_act_on_slices(mixing: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = pieced_function(mixing, Declared.of({0: {0: BATCH}}), (drawn(5, 16),), {}, None)
    (one, other), (size, other_size) = found.graphs, found.sizes
    with pytest.raises(SizeMatters, match="acts along the axis"):
        check_calls(one, size, other, other_size)


def test_images_normalized_as_in_inference_act_on_slices() -> None:
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten()).eval()
    found = pieced_function(layers, Declared.of({0: {0: BATCH}}), (torch.randn(5, 3, 6, 6),), {}, None)
    axes = check_calls(found.graphs[0], found.sizes[0], found.graphs[1], found.sizes[1])
    assert next(axes[node] for node in found.graphs[0].graph.nodes if node.op == "placeholder") == 0
