"""Partitioned results as folders: they come back as they were, and what was changed or names something else is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mugraph
from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.pieces.partitioned import Partitioned
from pieces.programs import EXAMPLES
from pieces.test_cutting import called, optimized, same

SAVED = [name for name in EXAMPLES if name != "top"]


@pytest.mark.parametrize("name", SAVED)
def test_results_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    inputs = example.inputs()
    opt = optimized(example, inputs)
    opt.save(tmp_path / "saved")
    back = mugraph.load(tmp_path / "saved")
    assert isinstance(back, Partitioned)
    assert back.report.to_json() == opt.report.to_json()
    assert [piece.operators for piece in back.pieces] == [piece.operators for piece in opt.pieces]
    assert [piece.lines for piece in back.pieces] == [piece.lines for piece in opt.pieces]
    tensors = tuple(tensor.clone() for tensor in opt.calling.flatten(inputs, {}))
    again = tuple(tensor.clone() for tensor in tensors)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(5)
        wanted = opt.cut.recorded.calling.unflatten(opt.outputs(list(tensors)))
    given = again[: len(again) - len(back.calling.constants)]
    same([*called(back, given), *again[len(given) :]], [*torch.utils._pytree.tree_leaves(wanted), *tensors])
    back.save(tmp_path / "again")
    for file in ("torch.json", "mugraph.json"):
        assert (tmp_path / "again" / file).read_text() == (tmp_path / "saved" / file).read_text()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    example = EXAMPLES["slices"]
    return optimized(example, example.inputs()).save(tmp_path_factory.mktemp("pieces") / "saved")


def changed(saved: Path, place: Path, change: Callable[[Any], None], sign: bool = True) -> Path:
    """A copy of a folder with another torch.json and, if `sign`, a manifest that lists it."""
    folder = place / "changed"
    for file in saved.rglob("*"):
        if file.is_file():
            copy = folder / file.relative_to(saved)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    document = json.loads((folder / "torch.json").read_text())
    change(document)
    (folder / "torch.json").write_text(json.dumps(document))
    if sign:
        manifest = json.loads((folder / "mugraph.json").read_text())
        manifest["files"]["torch.json"] = hashlib.sha256((folder / "torch.json").read_bytes()).hexdigest()
        (folder / "mugraph.json").write_text(json.dumps(manifest))
    return folder


def calls(operator: str) -> Callable[[Any], None]:
    """A change of the first call's operator."""

    def change(document: Any) -> None:
        document["calls"][0]["calls"] = operator

    return change


def first_piece_without_its_last_call(document: Any) -> None:
    document["pieces"][0]["calls"].pop()
    document["pieces"][0]["calls"].pop()


def another_number(document: Any) -> None:
    call = next(call for call in document["calls"] if call["name"] in document["pieces"][0]["calls"] and "norm" in call["name"])
    call["args"] += [None, 0.5]


def without_fitting_operands(document: Any) -> None:
    call = next(call for call in document["calls"] if call.get("calls") == "aten.logcumsumexp.default")
    call["args"][1] = 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (calls("aten.from_file.default"), "does more than to compute tensors"),
        (calls("aten.add_.Tensor"), "does more than to compute tensors"),
        (calls("aten._sparse_coo_tensor_unsafe.default"), "an operator of PyTorch's own use"),
        (calls("os.system"), "no operator of ATen"),
        (calls("aten.slice"), "no operator of ATen"),
        (calls("aten.slice.__class__"), "no operator of ATen"),
        (calls("prim.device.default"), "no operator of ATen"),
        (calls("aten.no_such_operator.default"), "no operator of ATen"),
        (lambda document: document.pop("calls"), "malformed"),
        (lambda document: document["outputs"].append("nobody"), "malformed"),
        (lambda document: document["inputs"][0].update(dtype="save"), "malformed"),
        (lambda document: document["calls"][0]["args"].append({"dtype": "save"}), "malformed"),
        (lambda document: document["calls"][0]["args"].append({"eval": "1"}), "malformed"),
        (without_fitting_operands, r"malformed .*calls aten\.logcumsumexp\.default with what does not fit: .*\); optimize"),
        (lambda document: document["pieces"][0].update(program=7), "mugraph.json|7"),
        (another_number, "not what its calls of PyTorch compute"),
        (first_piece_without_its_last_call, "not what its calls|malformed|"),
    ],
)
def test_what_names_something_else_is_refused(
    change: Callable[[Any], None], words: str, saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput, match=words):
        mugraph.load(changed(saved, tmp_path, change))
    assert capfd.readouterr() == ("", "")


def test_changed_files_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"torch\.json was changed after it was saved"):
        mugraph.load(changed(saved, tmp_path, another_number, sign=False))
    folder = changed(saved, tmp_path, lambda document: None)
    (folder / "programs" / "0" / "graph.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"graph\.json was changed after it was saved"):
        mugraph.load(folder)


def test_calls_with_other_tensors_are_refused(saved: Path) -> None:
    back = mugraph.load(saved)
    x, w = EXAMPLES["slices"].inputs()
    with pytest.raises(InvalidInput, match="call with 2 tensors in this order: x, w"):
        back(x)
    with pytest.raises(ShapeMismatch, match=r"input w is torch\.float64"):
        back(x, w.double())
    with pytest.raises(InvalidInput, match="input x must be a torch tensor, not ndarray"):
        back(x.numpy(), w)


def test_values_that_json_cannot_describe_are_named(tmp_path: Path) -> None:
    example = EXAMPLES["top"]  # whose outputs are a named tuple of PyTorch
    opt = optimized(example, example.inputs())
    with pytest.raises(InvalidInput, match="an output of type topk cannot be saved"):
        opt.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_pages_say_what_runs_what(saved: Path) -> None:
    back = mugraph.load(saved)
    page = back.to_html()
    assert "PyTorch: 1 × logcumsumexp" in page
    assert "Program 0" in page
    assert page.count("<iframe") == 2
    assert back._repr_html_().count("&lt;iframe") == 2
