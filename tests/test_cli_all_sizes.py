"""`mugraph verify --dynamic`: the question for all sizes on the command line, its certificate, and the check of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mugraph.cli import main
from mugraph.cli.arguments import declaration_of
from mugraph.errors import InvalidInput
from mugraph.sizes.dims import Dim

SOURCE = """
import torch

def example_inputs():
    return torch.randn(3, 2), torch.randn(2)

def total(x, w):
    return (2 * x * w).sum(0)

def total_last(x, w):
    return 2 * (x.sum(0) * w)

def total_of_three(x, w):
    return 6 * (x.mean(0) * w)

def largest(x, w):
    return (2 * x * w).amax(0)

def twice_the_largest(x, w):
    return 2 * (x * w).amax(0)
"""
ROWS = ["--dynamic", "x:0=rows:1:4096"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "functions.py"
    path.write_text(SOURCE)
    return path


def test_a_question_for_all_sizes_is_answered_and_its_certificate_checked(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, file = [f"{source}:total", f"{source}:total_last"], tmp_path / "totals.json"
    assert main(["verify", *pair, *ROWS, "-o", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["outcome"] == "equivalent"
    assert answer["claim"] == "for every size from 1 to 4096 of rows, by tests at 1, 2, 3"
    assert {"rows": 2} in answer["sizes"]
    assert answer["saved"] == str(file)
    assert main(["verify", "--certificate", str(file), *pair, "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["accepted"]
    assert checked["claim"].startswith("for all sizes within the declared ranges, rows from 1 to 4096,")
    assert {part["status"] for part in checked["parts"].values()} == {"checked"}
    assert main(["verify", "--certificate", str(file)]) == 0
    assert "functions not checked" in capsys.readouterr().out
    assert main(["verify", "--certificate", str(file), pair[0], f"{source}:total_of_three"]) == 1
    assert "rejected" in capsys.readouterr().out
    file.write_text(file.read_text().replace("4096", "8192"))
    assert main(["verify", "--certificate", str(file), *pair]) == 0, "a theorem for all sizes holds for more of them"
    file.write_text(file.read_text().replace('"high": 8192', '"high": 9000'))
    assert main(["verify", "--certificate", str(file)]) == 1
    assert main(["verify", "--certificate", str(file), pair[0]]) == 2


def test_functions_that_differ_at_some_size_have_no_certificate(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none.json"
    assert main(["verify", f"{source}:total", f"{source}:total_of_three", *ROWS, "-o", str(file)]) == 1
    assert "different" in capsys.readouterr().out
    assert main(["verify", f"{source}:largest", f"{source}:twice_the_largest", *ROWS, "-o", str(file)]) == 3
    assert "no certificate" in capsys.readouterr().out
    assert not file.exists()


def test_dimensions_are_declared_by_position_or_name() -> None:
    def function(x: object, w: object) -> None: ...

    rows, columns = Dim("rows", 1, 64), Dim("columns", 8, 64, multiple_of=8)
    given = ["x:0=rows:1:64", "1:-1=rows", "w:0=columns:8:64:8", "x:1=columns"]
    assert declaration_of(given, function) == {0: {0: rows, 1: columns}, 1: {-1: rows, 0: columns}}


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["x=rows:1:64"], "write argument, dimension"),
        (["x:0=rows:1"], "write argument, dimension"),
        (["x:0=rows"], "give the range of rows"),
        (["z:0=rows:1:64"], "no argument z; it has x, w"),
        (["x:0=rows:1:64", "w:0=rows:1:65"], "another range before"),
        (["x:0=rows:1:64", "x:0=others:1:64"], "another name before"),
        (["x:0=rows:5:4"], "ranges from 5 to 4"),
    ],
)
def test_what_declares_nothing_is_refused(texts: list[str], reason: str) -> None:
    def function(x: object, w: object) -> None: ...

    with pytest.raises(InvalidInput, match=reason):
        declaration_of(texts, function)


def test_an_output_needs_ranges(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{source}:total", f"{source}:total", "-o", str(tmp_path / "file.json")]) == 2
    assert "--dynamic" in capsys.readouterr().err
