"""Ranges of sizes on disk: they are read, run at every size and checked by code of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.checker import Rejected, Undecided
from mugraph.checker.size_ranges import check_sizes
from mugraph.cli.sizes_check import check_range
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.sizes.chunk_plans import Chunk
from mugraph.sizes.range_search import superoptimized_for_sizes
from mugraph.sizes.saved_sizes import LoadedSizes

from .saved_folders import changed, unlisted, with_another

BATCH = Dim("batch", 1, 20)


def made(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...], *sizes: int) -> DynamicSuperoptimized:
    table = [{"batch": size} for size in sizes]
    return superoptimized_for_sizes(mugraph.superoptimize, fn, (inputs, {}), {0: {0: BATCH}}, table, None, {"profile": False})


FUNCTIONS = """
import torch
from mugraph import Dim


def example_inputs():
    return torch.randn(4, 16), torch.randn(16, 24)


def scores(x, w):
    return {"y": torch.softmax(x @ w, -1), "n": 2}


def others(x, w):
    return {"y": torch.softmax(x @ w + 1, -1) + 1, "n": 2}


def at_seven(x, w):
    return {"y": torch.softmax(x @ w, -1) * (2 if x.shape[0] == 7 else 1), "n": 2}
"""


def scores(x: torch.Tensor, w: torch.Tensor) -> dict[str, Any]:
    return {"y": torch.softmax(x @ w, -1), "n": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opt = made(scores, (torch.randn(4, 16), torch.randn(16, 24)), 2, 8, 20)
    assert any(result.found for result in opt.table.values())
    return opt.save(tmp_path_factory.mktemp("sizes") / "scores")


def test_a_size_that_runs_in_parts_takes_the_form_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def in_parts(whole: mugraph.Superoptimized) -> bool:
        asked.append(whole.program.output_tensors[0].shape[0])
        return bool(asked[-1] == 2)

    monkeypatch.setattr("mugraph.pieces.whole_or_pieces._mostly_as_it_is", in_parts)
    x, w = torch.randn(4, 16), torch.randn(16, 24)
    assert not mugraph.superoptimize(scores, (x[:2], w), profile=False).is_one_program
    opt = made(scores, (x, w), 2, 8)
    assert 2 in asked[1:]
    assert opt.sliced is not None
    assert all(result.is_one_program for result in opt.table.values())
    torch.testing.assert_close(opt(x[:2], w)["y"], scores(x[:2], w)["y"], rtol=1e-4, atol=1e-5)


def test_first_slices_are_computed_alone_when_read_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = DynamicSuperoptimized.load(folder)
    assert isinstance(loaded, LoadedSizes)
    assert loaded.plan(19).chunks == (Chunk(0, 20),)
    monkeypatch.delattr("mugraph.sizes.covering._Chunks._padded")
    memory, w = torch.full((40, 16), torch.nan), torch.randn(16, 24)
    x = memory[:19].normal_()
    torch.testing.assert_close(loaded(x, w)["y"], scores(x, w)["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parts", [{"3": {"1": 1.0}}, {"20": {}}, {"20": {"1": -1.0}}, {"20": {"1": "much"}}, []])
def test_parts_of_sizes_are_well_formed(folder: Path, tmp_path: Path, parts: Any) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        DynamicSuperoptimized.load(changed(folder, tmp_path / "changed", "sizes.json", lambda said: said.update(parts=parts)))


def test_what_is_read_back_runs_at_every_size(folder: Path) -> None:
    loaded = DynamicSuperoptimized.load(folder)
    assert loaded.claim.startswith("for every size from 1 to 20 of batch")
    w = torch.randn(16, 24)
    for size in range(1, 21):
        x = torch.randn(size, 16)
        found, reference = loaded(x, w), scores(x.double(), w.double())
        torch.testing.assert_close(found["y"], reference["y"].float(), rtol=1e-4, atol=1e-5)
        assert found["n"] == 2
    with pytest.raises(ShapeMismatch, match="declared from 1 to 20"):
        loaded(torch.randn(21, 16), w)
    with pytest.raises(ShapeMismatch, match="input 1 has shape"):
        loaded(torch.randn(3, 16), torch.randn(16, 25))
    with pytest.raises(InvalidInput, match="call with 2 tensors"):
        loaded()


def test_the_checker_repeats_the_premise(folder: Path) -> None:
    assert check_sizes(folder) == (2, 8, 20)


def test_the_command_asks_whose_function_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    assert check_range(folder, None, None, json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["parts"]["slices"]["status"], len(told["programs"])) == ("accepted", "checked", 3)
    assert told["parts"]["function"]["status"] == "not checked"
    assert check_range(folder, f"{file}:scores", None, json_output=False) == 0
    assert "acts on slices for every size from 1 to 20 of batch" in capsys.readouterr().out
    for other in ("others", "at_seven"):
        assert check_range(folder, f"{file}:{other}", rounds=1, json_output=False) == 1
        assert "function  refused" in capsys.readouterr().out
    wrong = changed(
        folder, tmp_path / "w", "sizes.json", lambda document: document["structure"]["dict"].update(n={"constant": 3})
    )
    assert check_range(wrong, f"{file}:scores", None, json_output=False) == 1
    assert "another structure than is saved" in capsys.readouterr().out


def test_a_function_has_the_dimension_where_the_folder_says(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(
        "import torch\n\ndef example_inputs():\n    return (torch.randn(16, 16),)\n\n"
        "def f(x):\n    return x.exp() * x if x.shape[1] == 16 else x\n"
    )
    saved = made(lambda x: x.exp() * x, (torch.randn(16, 16),), 16).save(tmp_path / "saved")
    assert check_range(saved, f"{file}:f", None, json_output=False) == 0
    planted = changed(saved, tmp_path / "planted", "sizes.json", lambda said: said.update(inputs=[1]))
    assert check_range(planted, f"{file}:f", None, json_output=False) == 1


def test_another_axis_is_rejected(folder: Path, tmp_path: Path) -> None:
    wrong = changed(folder, tmp_path / "w", "sizes.json", lambda document: document.update(inputs=[None, 0]))
    with pytest.raises(Rejected, match="does not take inputs of that size where"):
        check_sizes(wrong)
    narrow = changed(folder, tmp_path / "n", "sizes.json", lambda document: document["dimension"].update(high=9))
    with pytest.raises(Rejected, match="outside of its range"):
        check_sizes(narrow)


@pytest.mark.parametrize("place", [-1, -2, 2, True, 1.0])
def test_dimensions_are_counted_from_the_first(tmp_path: Path, place: Any) -> None:
    """Rules that say where an axis goes had never met the last dimension, of which -1 is another name."""
    saved = made(lambda x: torch.softmax(x, -1), (torch.randn(16, 16),), 16).save(tmp_path / "saved")
    wrong = changed(saved, tmp_path / "wrong", "sizes.json", lambda said: said.update(inputs=[place]))
    with pytest.raises(Rejected, match="does not take inputs of that size where"):
        check_sizes(wrong)


def test_results_that_the_manifest_does_not_list_are_not_among_the_others(folder: Path, tmp_path: Path) -> None:
    """The checker would not look at them."""
    shutil.copytree(folder, tmp_path / "w")
    wrong = unlisted(tmp_path / "w", "sizes/8")
    with pytest.raises(Rejected, match="speaks of other results"):
        check_sizes(wrong)
    with pytest.raises(InvalidInput, match="lists results of other sizes"):
        DynamicSuperoptimized.load(wrong)
    assert check_range(wrong, None, None, json_output=True) == 1


@pytest.mark.parametrize("places", [[[[0], 0]], [[None, 0]], [[0, 0.5]], [[0]], 3])
def test_places_that_are_none_are_refused_by_the_command(folder: Path, tmp_path: Path, places: Any) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    wrong = changed(folder, tmp_path / "w", "sizes.json", lambda document: document.update(dynamic=places))
    assert check_range(wrong, f"{file}:scores", None, json_output=True) == 1


def test_a_program_of_another_function_is_rejected(folder: Path, tmp_path: Path) -> None:
    """At one size of the table there is a result of its own right, of another function."""
    other = made(lambda x, w: {"y": torch.softmax(x @ w, -1) * 2, "n": 2}, (torch.randn(4, 16), torch.randn(16, 24)), 8)
    mixed = with_another(folder, tmp_path / "mixed", "sizes/8", other.table[8,].save)
    with pytest.raises(Undecided, match=r"sizes (2|8) and 20"):
        check_sizes(mixed)
    with pytest.raises(InvalidInput, match="size 8 is not that of the others"):
        DynamicSuperoptimized.load(mixed)


def test_files_that_were_changed_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("sizes.json", "sizes/8/program.json"):
        copy = tmp_path / name.replace("/", "_")
        shutil.copytree(folder, copy)
        (copy / name).write_text((copy / name).read_text() + " ")
        with pytest.raises(Rejected, match="changed"):
            check_sizes(copy)
        with pytest.raises(InvalidInput, match="was changed"):
            DynamicSuperoptimized.load(copy)


def test_lookups_and_wide_slices_are_saved_too(tmp_path: Path) -> None:
    table = torch.randn(9, 16)
    found = made(lambda i, t: F.embedding(i, t).softmax(-1), (torch.randint(0, 9, (4, 3)), table), 2, 16)
    place = found.save(tmp_path / "lookups")
    assert check_sizes(place) == (2, 16)
    index = torch.randint(0, 9, (7, 3))
    torch.testing.assert_close(DynamicSuperoptimized.load(place)(index, table), F.embedding(index, table).softmax(-1))


def test_other_readers_say_which_one_to_take(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"mugraph\.DynamicSuperoptimized\.load"):
        mugraph.load(folder)
    with pytest.raises(InvalidInput, match="holds a range of sizes"):
        mugraph.rebuild(folder, "cpu")
    divided = made(lambda x: x.exp() / x.shape[0], (torch.randn(4, 16),), 4)
    with pytest.raises(StorageError, match="each size has kernels of its own"):
        divided.save(tmp_path / "divided")
    with pytest.raises(InvalidInput, match=r"holds no range of sizes"):
        DynamicSuperoptimized.load(divided.table[4,].save(tmp_path / "one"))


def test_constants_come_along_and_are_the_same_at_every_size(tmp_path: Path) -> None:
    def placed(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + torch.arange(16) * 0.1, -1)

    folder = made(placed, (torch.randn(4, 16),), 4, 9).save(tmp_path / "placed")
    loaded = DynamicSuperoptimized.load(folder)
    for size in (1, 9, 13, 20):
        x = torch.randn(size, 16)
        torch.testing.assert_close(loaded(x), placed(x))
    assert check_sizes(folder) == (4, 9)

    def others(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + torch.arange(16) * 0.2, -1)

    def save(place: Path) -> None:
        mugraph.superoptimize(others, (torch.randn(9, 16),), profile=False).save(place)

    with pytest.raises(InvalidInput, match="size 4 has other constants than 9"):
        DynamicSuperoptimized.load(with_another(folder, tmp_path / "others", "sizes/9", save))
