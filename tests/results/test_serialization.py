"""Saving and loading results: complete or not at all, and refused once anything in them was changed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.checker.saved_files import graph_digest
from mugraph.cli import main
from mugraph.errors import InvalidInput, MugraphError, StorageError, UntrustedSources
from mugraph.results.coverage import of_program
from mugraph.results.places import MANIFEST
from mugraph.results.proof_bindings import PLACEMENT
from mugraph.selection.qualification import KEPT
from mugraph.selection.whole_programs import OptimizationSettings
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.machine import Cpu


def scores(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    weights = torch.softmax(q @ k.T, dim=-1)
    return weights, [q * 0.5]


TENSORS = (torch.linspace(-1, 1, 8 * 16).reshape(8, 16), torch.linspace(-1, 1, 4 * 16).reshape(4, 16))


@pytest.fixture(scope="module")
def opt() -> mugraph.Superoptimized:
    """With several muGraphs, of which none was timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OptimizationSettings, "most", KEPT)
        return mugraph.superoptimize(scores, TENSORS, profile=False)


@pytest.fixture
def saved(opt: mugraph.Superoptimized, tmp_path: Path) -> Path:
    return opt.save(tmp_path / "result")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_another_candidate_as_the_best_one_is_the_first_of_all(opt: mugraph.Superoptimized, tmp_path: Path) -> None:
    last = opt.candidates[-1]
    assert last.graph != opt.graph
    other = opt.with_best(last)
    assert other.best is other.candidates[0] is last
    assert {*map(id, other.candidates)} == {*map(id, opt.candidates)}
    assert other.report.coverage == of_program(opt.program, last.graph)
    torch.testing.assert_close(other(*TENSORS), opt(*TENSORS))
    assert mugraph.load(other.save(tmp_path / "other")).graph == last.graph


def test_round_trip(opt: mugraph.Superoptimized, saved: Path) -> None:
    again = mugraph.load(saved)
    assert again.graph == opt.graph
    assert again.program == opt.program
    assert again.candidates == opt.candidates
    assert again.report == opt.report
    assert again.sources == opt.sources
    assert again.executable.placement.to_json() == json.loads((saved / "placement.json").read_text())
    assert str(again.executable.placement) == str(opt.executable.placement)
    assert again.certificate == opt.certificate
    assert again.target == opt.target


def test_loaded_result_runs_and_keeps_the_structure(saved: Path) -> None:
    weights, (half,) = mugraph.load(saved)(*TENSORS)
    torch.testing.assert_close(weights, scores(*TENSORS)[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(half, TENSORS[0] * 0.5)


def test_folder_is_json_and_sources(saved: Path) -> None:
    names = {str(path.relative_to(saved)) for path in files(saved) if path.parent.name != "sources"}
    assert names == {MANIFEST, "graph.json", "program.json", "certificate.json", "report.json", "placement.json"}
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


def edit_manifest(folder: Path, **entries: Any) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **entries}))


def change_sources(folder: Path, text: bytes) -> None:
    """Other sources, with the hashes that they have."""
    (folder / "sources" / "kernels.c").write_bytes(text)
    files = json.loads((folder / MANIFEST).read_text())["files"]
    edit_manifest(folder, files={**files, "sources/kernels.c": hashlib.sha256(text).hexdigest()})


def test_sources_that_are_not_those_of_the_graph_are_not_compiled(saved: Path) -> None:
    text = (saved / "sources" / "kernels.c").read_bytes()
    evil = text + b"\n__attribute__((constructor)) static void run(void) { __builtin_trap(); }\n"
    for changed in (evil, text + b"\n", text.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + text, b"", text[:-1]):
        change_sources(saved, changed)
        with (
            mock.patch.object(subprocess, "run", side_effect=AssertionError("something was compiled")),
            pytest.raises(UntrustedSources, match=r"sources/kernels\.c in .* is not what mugraph .* prints of graph\.json"),
        ):
            mugraph.load(saved)


@pytest.mark.parametrize("key", ["workspace", "tensors", "kernels"])
def test_a_placement_that_is_not_that_of_the_graph_is_refused(saved: Path, key: str) -> None:
    """All hashes made anew."""
    document = json.loads((saved / "placement.json").read_text())
    del document[key]
    replace_documents(saved, {"placement.json": document})
    with pytest.raises(UntrustedSources, match=r"placement\.json in .* is not what mugraph .* prints of graph\.json"):
        mugraph.load(saved)


def test_sources_of_another_version_are_run_only_when_they_are_trusted(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(saved, version="0.0.1")
    text = (saved / "sources" / "kernels.c").read_bytes() + b"/* as it was */\n"
    change_sources(saved, text)
    with pytest.raises(UntrustedSources, match=r"printed by mugraph 0\.0\.1, cannot be compared .* --trust-sources"):
        mugraph.load(saved)
    trusted = mugraph.load(saved, trust_sources=True)
    assert trusted.sources == {"kernels.c": text.decode()}
    torch.testing.assert_close(trusted(*TENSORS)[0], scores(*TENSORS)[0], rtol=1e-5, atol=1e-6)
    assert main(["show", str(saved)]) == 2
    assert "cannot be compared" in capsys.readouterr().err
    assert main(["show", str(saved), "--trust-sources", "--sources"]) == 0
    assert "as it was" in capsys.readouterr().out


def test_sources_from_another_host_are_compared_with_its_text_and_printed_anew(opt: mugraph.Superoptimized, saved: Path) -> None:
    here = Cpu().parameters
    there = Cpu(Vectors(lanes=4, registers=32) if here["lanes"] != 4 else Vectors(lanes=16, registers=32))
    text = there.print([launch.kernel for launch in there.lower(opt.graph).values()])["kernels.c"]
    assert {"kernels.c": text} != opt.sources
    edit_manifest(saved, printer=dict(there.parameters))
    with pytest.raises(UntrustedSources):
        mugraph.load(saved)
    change_sources(saved, text.encode())
    again = mugraph.load(saved)
    assert again.sources == opt.sources
    torch.testing.assert_close(again(*TENSORS)[0], scores(*TENSORS)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "printer",
    [{}, {"lanes": 3, "registers": 16, "bf16_pairs": False, "tiles": False}, {"lanes": True}, {"lanes": 8, "registers": "16"}],
)
def test_a_machine_that_is_none_is_refused(saved: Path, printer: dict[str, Any]) -> None:
    edit_manifest(saved, printer=printer)
    with pytest.raises(InvalidInput, match="describes no vector unit"):
        mugraph.load(saved)


def test_sources_are_printed_the_same_whatever_the_order_of_hashes(saved: Path) -> None:
    script = f"import mugraph; mugraph.load({str(saved)!r})"
    for seed in ("1", "2", "3"):
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, check=True)


def test_a_wrong_graph_is_refused_though_its_certificate_accepts_it(saved: Path) -> None:
    """All hashes made anew, also those in the certificate."""
    graph = json.loads((saved / "program.json").read_text())
    for node in graph["graph"]["nodes"]:
        if node["op"] == "constant":
            node["attributes"]["value"]["exact"] = "1/3"
    certificate = json.loads((saved / "certificate.json").read_text())
    certificate["right"] = graph_digest(graph)
    replace_documents(saved, {"graph.json": graph, "certificate.json": certificate})
    with pytest.raises(InvalidInput, match=r"graph\.json does not compute program\.json"):
        mugraph.load(saved)


def test_a_certificate_that_accepts_nothing_is_no_evidence(saved: Path) -> None:
    certificate = json.loads((saved / "certificate.json").read_text())
    replace_documents(
        saved, {"certificate.json": {**certificate, "accepted": False, "outcome": "undecided", "tests": "differed"}}
    )
    with pytest.raises(InvalidInput, match=r"certificate\.json does not accept graph\.json"):
        mugraph.load(saved)
    replace_documents(saved, {"certificate.json": {**certificate, "accepted": False}})
    with pytest.raises(InvalidInput, match="accepted is False, and its outcome 'equivalent'"):
        mugraph.load(saved)


def replace_documents(folder: Path, documents: dict[str, Any]) -> None:
    """Other documents, with the hashes that they have."""
    files = json.loads((folder / MANIFEST).read_text())["files"]
    for name, document in documents.items():
        content = json.dumps(document).encode()
        (folder / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    edit_manifest(folder, files=files)


@pytest.mark.parametrize(("number", "age"), [(2, "an older"), (5, "a newer")])
def test_another_format_is_named_as_older_or_newer(saved: Path, number: int, age: str) -> None:
    edit_manifest(saved, format=number)
    with pytest.raises(InvalidInput, match=rf"was written by {age} mugraph \({mugraph.__version__}, format {number}, here 4\)"):
        mugraph.load(saved)


def test_what_is_saved_can_be_read_by_whom_the_umask_says(opt: mugraph.Superoptimized, tmp_path: Path) -> None:
    usual = os.umask(0o027)
    try:
        folder = opt.save(tmp_path / "result")
    finally:
        os.umask(usual)
    assert {path.stat().st_mode & 0o777 for path in files(folder)} == {0o640}
    assert folder.stat().st_mode & 0o777 == 0o750


FUNCTIONS = """
import torch

def example_inputs():
    return torch.linspace(-1, 1, 8 * 16).reshape(8, 16), torch.linspace(-1, 1, 4 * 16).reshape(4, 16)

def same(q, k):
    return torch.softmax(q @ k.T, dim=-1), [q * 0.5]

def equal(a, b):
    scores = (a @ b.T).exp()
    return scores / scores.sum(-1, keepdim=True), [a / 2]

def other(q, k):
    return torch.softmax(2 * q @ k.T, dim=-1), [q * 0.5]

def arranged(q, k):
    return [torch.softmax(q @ k.T, dim=-1), q * 0.5]

def fewer(q, k):
    return torch.softmax(q @ k.T, dim=-1)
"""


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [
        ("same", 0, "checked"),
        ("equal", 0, "checked"),
        ("other", 1, "refused"),
        ("arranged", 1, "refused"),
        ("fewer", 1, "refused"),
    ],
)
def test_a_result_is_tied_to_a_function(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, status: str
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    assert main(["verify", "--certificate", str(saved), f"{tmp_path / 'functions.py'}:{name}", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["parts"]["function"]["status"] == status


def test_missing_file_is_named(saved: Path) -> None:
    (saved / "graph.json").unlink()
    with pytest.raises(InvalidInput, match=r"graph\.json is missing"):
        mugraph.load(saved)


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"format": 99}', '{"format": 4, "files": {"../../etc/passwd": ""}}'])
def test_bad_manifests_are_refused(saved: Path, content: str) -> None:
    (saved / MANIFEST).write_text(content)
    with pytest.raises(InvalidInput, match=MANIFEST):
        mugraph.load(saved)


@pytest.mark.parametrize("content", [b"\xff", b"[" * 10**5])
def test_a_manifest_that_is_no_text_or_no_json_is_refused(saved: Path, content: bytes) -> None:
    (saved / MANIFEST).write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"{MANIFEST} is not (UTF-8 text|JSON)"):
        mugraph.load(saved)


@pytest.mark.parametrize(
    "name", ["graph.json", "program.json", "certificate.json", "report.json", PLACEMENT, "sources/kernels.c"]
)
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
    with pytest.raises(InvalidInput, match="is not a manifest of format 4"):
        mugraph.load(saved)


def test_an_origin_that_is_no_object_is_refused(saved: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps({**manifest, "origin": 3}))
    with pytest.raises(InvalidInput, match="is not a manifest of format 4"):
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


KILLED_WHILE_REPLACING = """
import os, signal, sys
from pathlib import Path
import mugraph

opt = mugraph.load(sys.argv[1])
rename = os.rename

def killed(old, new):
    if Path(old).name == "new":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(old, new)

os.rename = killed
opt.save(sys.argv[1])
"""


def test_a_save_that_is_killed_between_its_two_steps_loses_nothing(saved: Path) -> None:
    before = {path.name for path in saved.iterdir()}
    subprocess.run([sys.executable, "-c", KILLED_WHILE_REPLACING, str(saved)], check=False)
    assert not saved.exists()
    mugraph.load(saved).save(saved)
    assert {path.name for path in saved.iterdir()} == before
