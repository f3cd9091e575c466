"""Saving and loading results: complete or not at all, and refused once anything in them was changed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.errors import InvalidInput, MugraphError, StorageError
from mugraph.folder import MANIFEST


def scores(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    weights = torch.softmax(q @ k.T, dim=-1)
    return weights, [q * 0.5]


TENSORS = (torch.linspace(-1, 1, 8 * 16).reshape(8, 16), torch.linspace(-1, 1, 4 * 16).reshape(4, 16))


@pytest.fixture(scope="module")
def opt() -> mugraph.Superoptimized:
    return mugraph.superoptimize(scores, TENSORS, profile=False)


@pytest.fixture
def saved(opt: mugraph.Superoptimized, tmp_path: Path) -> Path:
    return opt.save(tmp_path / "result")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_round_trip(opt: mugraph.Superoptimized, saved: Path) -> None:
    again = mugraph.load(saved)
    assert again.graph == opt.graph
    assert again.program == opt.program
    assert again.candidates == opt.candidates
    assert again.report == opt.report
    assert again.sources == opt.sources
    assert again.certificate == opt.certificate
    assert again.target == opt.target


def test_loaded_result_runs_and_keeps_the_structure(saved: Path) -> None:
    weights, (half,) = mugraph.load(saved)(*TENSORS)
    torch.testing.assert_close(weights, scores(*TENSORS)[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(half, TENSORS[0] * 0.5)


def test_folder_is_json_and_sources(saved: Path) -> None:
    names = {str(path.relative_to(saved)) for path in files(saved) if path.parent.name != "sources"}
    assert names == {MANIFEST, "graph.json", "program.json", "certificate.json", "report.json"}
    assert all(json.loads((saved / name).read_text()) for name in names)
    assert any(path.suffix == ".c" for path in (saved / "sources").iterdir())


def test_saving_again_replaces_the_result(opt: mugraph.Superoptimized, saved: Path) -> None:
    (saved / "sources" / "stale.c").write_text("int stale;")
    opt.save(saved)
    assert not (saved / "sources" / "stale.c").exists()
    assert [path.name for path in saved.parent.iterdir()] == ["result"]


def test_every_changed_file_is_named(saved: Path) -> None:
    for file in files(saved):
        if file.name == MANIFEST:
            continue
        original = file.read_bytes()
        file.write_bytes(original.replace(b"1", b"2", 1) + b" ")
        with pytest.raises(InvalidInput, match=file.name):
            mugraph.load(saved)
        file.write_bytes(original)
    mugraph.load(saved)


def test_what_is_saved_passes_an_independent_check(saved: Path) -> None:
    assert check_folder(saved, seed=0).reached
    (saved / "sources" / "kernels.c").write_text("int x;")
    with pytest.raises(Rejected, match=r"sources/kernels\.c: changed after it was saved"):
        check_folder(saved)


def test_missing_file_is_named(saved: Path) -> None:
    (saved / "graph.json").unlink()
    with pytest.raises(InvalidInput, match=r"graph\.json is missing"):
        mugraph.load(saved)


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"format": 99}', '{"format": 1, "files": {"../../etc/passwd": ""}}'])
def test_bad_manifests_are_refused(saved: Path, content: str) -> None:
    (saved / MANIFEST).write_text(content)
    with pytest.raises(InvalidInput, match=MANIFEST):
        mugraph.load(saved)


@pytest.mark.parametrize("content", [b"\xff", b"[" * 10**5])
def test_a_manifest_that_is_no_text_or_no_json_is_refused(saved: Path, content: bytes) -> None:
    (saved / MANIFEST).write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"{MANIFEST} is not (UTF-8 text|JSON)"):
        mugraph.load(saved)


@pytest.mark.parametrize("name", ["graph.json", "program.json", "certificate.json", "report.json", "sources/kernels.c"])
@pytest.mark.parametrize("content", [b"[]", b"{}", b"\xff"])
def test_other_content_is_refused_even_with_its_hash(saved: Path, name: str, content: bytes) -> None:
    (saved / name).write_bytes(content)
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["files"][name] = hashlib.sha256(content).hexdigest()
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(MugraphError):
        mugraph.load(saved)


FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a predicted time that is text": lambda record: record["best"].update(cost="fast"),
    "a time beyond all numbers": lambda record: record["best"].update(cost=10**400),
    "a measured time that is a list": lambda record: record["candidates"][0].update(latency=[1]),
    "an infinite size of an axis": lambda record: record["candidates"][0]["certificate"].update(seed=math.inf),
    "a search without states": lambda record: record["report"]["search"].pop("states"),
    "a search that took no number of seconds": lambda record: record["report"]["search"].update(seconds=math.nan),
    "counts of what was pruned that are objects": lambda record: record["report"]["search"].update(pruned={"a": {}}),
    "a tier without a bound": lambda record: record["report"]["search"]["tiers"][0].pop("bound"),
    "tiers that are no objects": lambda record: record["report"]["search"].update(tiers=[1]),
    "paddings that are a number": lambda record: record["report"]["search"].update(paddings=3),
    "a rejection without a reason": lambda record: record["report"].update(rejected=[{"stage": "float", "cost": None}]),
    "a rejection whose reason is none": lambda record: record["report"].update(
        rejected=[dict.fromkeys(("stage", "reason", "cost"))]
    ),
    "a report that is a list": lambda record: record.update(report=[]),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_report_that_no_result_has_is_refused_when_it_is_read(saved: Path, name: str) -> None:
    record = json.loads((saved / "report.json").read_text())
    FORGED[name](record)
    content = json.dumps(record).encode()
    (saved / "report.json").write_bytes(content)
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["files"]["report.json"] = hashlib.sha256(content).hexdigest()
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match=r"report\.json is incomplete or malformed|certificate: entry missing"):
        mugraph.load(saved)


def test_a_target_that_is_no_text_is_refused(saved: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps({**manifest, "target": 3}))
    with pytest.raises(InvalidInput, match="is not a manifest of format 1"):
        mugraph.load(saved)


def test_an_origin_that_is_no_object_is_refused(saved: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps({**manifest, "origin": 3}))
    with pytest.raises(InvalidInput, match="is not a manifest of format 1"):
        mugraph.load(saved)


def test_a_call_of_a_loaded_result_without_a_tensor_names_the_input(saved: Path) -> None:
    with pytest.raises(InvalidInput, match="input q must be a tensor, not NoneType"):
        mugraph.load(saved)(None, TENSORS[1])


def test_other_folders_are_neither_loaded_nor_overwritten(opt: mugraph.Superoptimized, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("three years of work")
    with pytest.raises(InvalidInput, match="not a saved mugraph result"):
        mugraph.load(tmp_path)
    with pytest.raises(InvalidInput, match="choose another folder"):
        opt.save(tmp_path)
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        opt.save(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "three years of work"


def test_full_disk_leaves_the_older_result(opt: mugraph.Superoptimized, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def until_full(path: Path, content: bytes) -> int:
        if path.name == "graph.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", until_full)
        with pytest.raises(StorageError, match="No space left on device"):
            opt.save(saved)
        with pytest.raises(StorageError, match="No space left on device"):
            opt.save(saved.parent / "second")
    assert [path.name for path in saved.parent.iterdir()] == ["result"]
    assert mugraph.load(saved).graph == opt.graph


def test_a_file_in_place_of_the_parent_folder(opt: mugraph.Superoptimized, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        opt.save(tmp_path / "file" / "result")
