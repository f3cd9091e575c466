"""Kernels of capacities on disk: they are read, run at every size, and checked by code of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mugraph
from mugraph import Dim, DynamicSuperoptimized
from mugraph.checker import Rejected
from mugraph.checker.capacity_ranges import check_capacities
from mugraph.cli.capacities_check import check_range_of_capacities
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.sizes.loaded_capacities import LoadedCapacities
from threads import at_once

from .saved_folders import changed, unlisted, with_another

KEYS = Dim("keys", 1, 70)
WEIGHT = torch.randn(16, 16, generator=torch.Generator().manual_seed(5))

FUNCTIONS = """
import torch
import torch.nn.functional as F

WEIGHT = torch.randn(16, 16, generator=torch.Generator().manual_seed(5))


def example_inputs():
    return torch.randn(4, 1, 16), torch.randn(4, 6, 16), torch.randn(4, 6, 16), torch.randn(4, 1, 16)


def decode(q, k, v, new):
    k, v = torch.cat([k, new], 1), torch.cat([v, new * 2], 1)
    return {"y": F.scaled_dot_product_attention(q @ WEIGHT, k, v)}


def thrice(q, k, v, new):
    k, v = torch.cat([k, new], 1), torch.cat([v, new * 3], 1)
    return {"y": F.scaled_dot_product_attention(q @ WEIGHT, k, v)}


def bare(q, k, v, new):
    return decode(q, k, v, new)["y"]

"""


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> dict[str, torch.Tensor]:
    k, v = torch.cat([k, new], 1), torch.cat([v, new * 2], 1)
    return {"y": F.scaled_dot_product_attention(q @ WEIGHT, k, v)}


def keys(size: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 1, 16), torch.randn(4, size, 16), torch.randn(4, size, 16), torch.randn(4, 1, 16)


@pytest.fixture(scope="module")
def made() -> DynamicSuperoptimized:
    return mugraph.superoptimize(decode, keys(6), budget=60.0, profile=False, dynamic={1: {1: KEYS}, 2: {1: KEYS}})


@pytest.fixture(scope="module")
def folder(made: DynamicSuperoptimized, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert made.capacities is not None
    assert len(made.capacities.kernels) > 1, made.reason
    return made.save(tmp_path_factory.mktemp("capacities") / "decode")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedCapacities:
    found = DynamicSuperoptimized.load(folder)
    assert isinstance(found, LoadedCapacities)
    return found


def assert_right(loaded: LoadedCapacities, size: int) -> None:
    given = keys(size)
    torch.testing.assert_close(loaded(*given, WEIGHT)["y"], decode(*given)["y"], rtol=1e-4, atol=1e-5)


def test_what_is_read_back_runs_at_every_size(made: DynamicSuperoptimized, loaded: LoadedCapacities) -> None:
    assert made.capacities is not None
    assert loaded.capacities.in_place.keys() == made.capacities.in_place.keys()
    assert loaded.claim == made.claim
    for size in range(1, KEYS.high + 1):
        assert_right(loaded, size)
    with pytest.raises(ShapeMismatch, match="keys has size 71, declared from 1 to 70"):
        loaded(*keys(71), WEIGHT)
    with pytest.raises(ShapeMismatch, match="keys has sizes 5, 6 in one call"):
        loaded(keys(5)[0], keys(5)[1], keys(6)[2], keys(5)[3], WEIGHT)
    with pytest.raises(InvalidInput, match="call with 5 tensors"):
        loaded(*keys(5))
    with pytest.raises(ShapeMismatch, match=r"input 4 is torch\.float64"):
        loaded(*keys(5), WEIGHT.double())


def test_tensors_may_lie_in_memory_in_any_way_and_what_lies_behind_is_not_read(loaded: LoadedCapacities) -> None:
    for size in (1, 30, 31, 32, 70):
        cache = torch.full((2, 4, 90, 16), float("nan"))
        cache[:, :, :size] = torch.randn(2, 4, size, 16)
        q, _, _, new = keys(size)
        k, v = cache[0, :, :size], cache[1].transpose(1, 2).contiguous().transpose(1, 2)[:, :size]
        torch.testing.assert_close(loaded(q, k, v, new, WEIGHT)["y"], decode(q, k, v, new)["y"], rtol=1e-4, atol=1e-5)


def test_several_threads_call_at_different_sizes(loaded: LoadedCapacities) -> None:
    def calls(seed: int) -> None:
        for size in range(1 + seed, 71, 3):
            assert_right(loaded, size)

    at_once(calls, range(4))


OTHER_PROCESS = """
import sys, torch
from mugraph import DynamicSuperoptimized
sys.path.insert(0, sys.argv[2])
import functions
for threads in (1, 3):
    torch.set_num_threads(threads)
    loaded = DynamicSuperoptimized.load(sys.argv[1])
    for size in (1, 31, 32, 70):
        given = torch.randn(4, 1, 16), torch.randn(4, size, 16), torch.randn(4, size, 16), torch.randn(4, 1, 16)
        torch.testing.assert_close(loaded(*given, functions.WEIGHT)["y"], functions.decode(*given)["y"], rtol=1e-4, atol=1e-5)
"""


def test_another_process_with_other_threads_reads_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(folder), str(tmp_path)], check=True)


def test_the_checker_calls_the_programs_again(folder: Path, made: DynamicSuperoptimized) -> None:
    assert made.capacities is not None
    assert check_capacities(folder) == tuple(sorted(made.capacities.kernels))


def test_the_command_asks_whose_function_it_is(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    assert check_range_of_capacities(folder, None, None, json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["parts"]["slots"]["status"], len(told["programs"])) == ("accepted", "checked", 2)
    assert told["parts"]["function"]["status"] == "not checked"
    assert check_range_of_capacities(folder, f"{file}:decode", None, json_output=False) == 0
    assert "its masked programs are these for every size from 1 to 70 of keys" in capsys.readouterr().out
    for other in ("thrice", "bare"):
        assert check_range_of_capacities(folder, f"{file}:{other}", rounds=1, json_output=False) == 1
        assert "function  refused" in capsys.readouterr().out


def _set(name: str, value: Any) -> Any:
    return lambda document: document.update({name: value})


def test_words_that_make_another_function_of_the_programs_are_found_out(folder: Path, tmp_path: Path) -> None:
    """Where only what is appended is attended to, nothing that is not held reaches a result: nobody but the function tells."""
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    wrong = changed(folder, tmp_path / "wrong", "capacities.json", _set("slots", [[None, 1], [0, 1]]))
    assert check_range_of_capacities(wrong, f"{file}:decode", None, json_output=True) == 1


def test_what_is_said_to_be_0_behind_the_elements_is_what_the_function_asks_for(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    assert json.loads((folder / "capacities.json").read_text())["zeroed"] == [2]
    wrong = changed(folder, tmp_path / "wrong", "capacities.json", _set("zeroed", [1, 2]))
    assert check_range_of_capacities(wrong, f"{file}:decode", None, json_output=True) == 1


@pytest.mark.parametrize(
    "change",
    [
        _set("slots", [[0, 1], [None, 2]]),
        _set("slots", [[0, 1], [3, 1]]),
        _set("slots", [[1, 1], [None, 1]]),
        _set("slots", [[-1, 1], [None, 1]]),
        _set("inputs", [None, 2, 2, None, None]),
        _set("inputs", [None, None, None, None, None]),
        _set("inputs", [None, -1, 1, None, None]),
        _set("outputs", [[1, 0]]),
        _set("arguments", [1, 0, 2, 3, 5, 6, 4]),
        _set("arguments", [0, 1, 1, 3, 5, 6, 4]),
        _set("dimension", {"name": "keys", "low": 1, "high": 700}),
        _set("dimension", {"name": "keys", "low": "1", "high": 70}),
        _set("counts", [1]),
        _set("zeroed", []),
        _set("zeroed", [0]),
        _set("zeroed", [2, 9]),
        _set("zeroed", None),
    ],
)
def test_other_words_about_the_same_programs_are_refused(folder: Path, tmp_path: Path, change: Any) -> None:
    wrong = changed(folder, tmp_path / "wrong", "capacities.json", change)
    with pytest.raises(Rejected):
        check_capacities(wrong)
    with pytest.raises(InvalidInput, match=r"capacities\.json|reaches results|do not use"):
        DynamicSuperoptimized.load(wrong)
    assert check_range_of_capacities(wrong, None, None, json_output=True) == 1


def _at_capacity(q: Any, k: Any, v: Any, new: Any, last: Any, held: Any, w: Any, masks: bool, factor: float) -> Any:
    """What stands in the folder at a capacity, with or without the mask behind its keys."""
    k, v = (torch.where(last[:, None], each, cache) for each, cache in ((new, k), (new * factor, v)))
    scores = (q @ w * 0.25) @ k.mT
    scores = torch.where(held, scores, -torch.inf) if masks else torch.where(held, scores, scores * 0)
    return (torch.softmax(scores, -1) @ (torch.where(held[:, None], v, 0) if masks else v),)


@pytest.mark.parametrize(("masks", "factor", "why"), [(False, 2.0, "behind"), (True, 3.0, "differ")])
def test_a_program_of_its_own_right_is_refused_where_it_is_not_masked_or_another(
    folder: Path, tmp_path: Path, masks: bool, factor: float, why: str
) -> None:
    arguments = [torch.ones(32, dtype=torch.bool) if kind == "slots" else torch.randn(*kind) for kind in _INPUTS]
    result = mugraph.superoptimize(
        lambda q, k, v, new, last, held, w: _at_capacity(q, k, v, new, last, held, w, masks, factor),
        tuple(arguments),
        budget=20.0,
        profile=False,
    )
    assert (folder / "capacities" / "31").is_dir()
    order = json.loads((folder / "capacities.json").read_text())["arguments"]
    assert order == [0, 1, 2, 3, 5, 6, 4]
    wrong = with_another(folder, tmp_path / "wrong", "capacities/31", result.save)
    with pytest.raises(Rejected, match=why):
        check_capacities(wrong)
    with pytest.raises(InvalidInput, match=r"reaches results of capacity 31|have different results"):
        DynamicSuperoptimized.load(wrong)
    unlisted(wrong, "capacities/31")
    with pytest.raises(Rejected, match="speaks of other results"):
        check_capacities(wrong)
    with pytest.raises(InvalidInput, match="lists results of other sizes"):
        DynamicSuperoptimized.load(wrong)
    assert check_range_of_capacities(wrong, None, None, json_output=True) == 1


_INPUTS: list[Any] = [(4, 1, 16), (4, 32, 16), (4, 32, 16), (4, 1, 16), "slots", "slots", (16, 16)]


@pytest.mark.parametrize("places", [[[[1], 1]], [[None, 1]], [[1, 0.5]], [[1]], 3])
def test_places_that_are_none_are_refused_by_the_command(folder: Path, tmp_path: Path, places: Any) -> None:
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    wrong = changed(folder, tmp_path / "wrong", "capacities.json", _set("dynamic", places))
    assert check_range_of_capacities(wrong, f"{file}:decode", None, json_output=True) == 1


def test_a_maximum_with_0_in_other_slots_is_refused(tmp_path: Path) -> None:
    """Nothing that lies there reaches it, and of numbers of both signs it is the maximum of those that are held."""
    given, rows = (torch.randn(4, 24, 8), torch.randn(8, 8)), Dim("rows", 20, 60)
    made = mugraph.superoptimize(lambda x, w: (x @ w).amax(1), given, budget=60.0, profile=False, dynamic={0: {1: rows}})
    assert made.capacities is not None
    folder, less = made.save(tmp_path / "maximum"), min(made.capacities.kernels)
    assert check_capacities(folder) == (32, 60)
    other = mugraph.superoptimize(
        lambda x, w, held: (torch.where(held[:, None], x @ w, 0.0).amax(1),),
        (torch.randn(4, less, 8), given[1], torch.ones(less, dtype=torch.bool)),
        budget=20.0,
        profile=False,
    )
    wrong = with_another(folder, tmp_path / "wrong", f"capacities/{less}", other.save)
    with pytest.raises(Rejected, match="results at size 20 differ"):
        check_capacities(wrong)
    with pytest.raises(InvalidInput, match="have different results"):
        DynamicSuperoptimized.load(wrong)


def test_files_that_were_changed_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("capacities.json", "capacities/31/program.json"):
        copy = tmp_path / name.replace("/", "_")
        shutil.copytree(folder, copy)
        (copy / name).write_text((copy / name).read_text() + " ")
        with pytest.raises(Rejected, match="changed"):
            check_capacities(copy)
        with pytest.raises(InvalidInput, match="was changed"):
            DynamicSuperoptimized.load(copy)


def test_other_readers_say_which_one_to_take(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"mugraph\.DynamicSuperoptimized\.load"):
        mugraph.load(folder)
    with pytest.raises(InvalidInput, match="holds a range of sizes"):
        mugraph.rebuild(folder, "cpu")


def test_sizes_that_no_kernels_hold_are_not_saved(made: DynamicSuperoptimized, tmp_path: Path) -> None:
    assert made.capacities is not None
    largest = max(made.capacities.kernels)
    kernels = made.capacities.kernels.pop(largest)
    try:
        with pytest.raises(StorageError, match="no kernels hold keys from 32 to 70"):
            made.save(tmp_path / "less")
    finally:
        made.capacities.kernels[largest] = kernels


def test_constants_come_along(tmp_path: Path) -> None:
    def turned(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        table = (10000.0 ** (-torch.arange(16) / 16)).cos()
        return F.scaled_dot_product_attention(q * table, k * table, k)

    q, k = torch.randn(2, 1, 16), torch.randn(2, 6, 16)
    made = mugraph.superoptimize(turned, (q, k), budget=30.0, profile=False, dynamic={1: {1: Dim("keys", 1, 40)}})
    folder = made.save(tmp_path / "turned")
    loaded = DynamicSuperoptimized.load(folder)
    for size in (1, 7, 40):
        k = torch.randn(2, size, 16)
        torch.testing.assert_close(loaded(q, k), turned(q, k), rtol=1e-4, atol=1e-5)
    assert check_capacities(folder)
