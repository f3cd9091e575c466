"""The command line with functions of which only parts are programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mugraph.cli import main

SOURCE = """
import torch

def example_inputs():
    torch.manual_seed(0)
    return (torch.randn(8, 64), torch.randn(64, 96))

def shifted(x, w):
    return torch.softmax(torch.nn.functional.rms_norm(x.logcumsumexp(0), (64,)) @ w, -1)

def reversed_rows(x, w):
    return torch.softmax(torch.nn.functional.rms_norm(x.logcumsumexp(0).flip(0), (64,)) @ w, -1)

def integers(x, w):
    return x.argmax(1) * 2

def mutating(x, w):
    x.mul_(2)
    return x.logcumsumexp(0)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("functions") / "functions.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture(scope="module")
def saved(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "shifted"
    assert main(["optimize", f"{source}:shifted", "--no-profile", "-o", str(folder), "--cache", "off"]) == 0
    return folder


def test_the_whole_is_printed(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", f"{source}:shifted", "--no-profile", "--cache", "off"]) == 0
    printed = capsys.readouterr().out
    assert "found kernels for 2 programs in the function; PyTorch runs the rest" in printed
    assert "1 × logcumsumexp" in printed
    assert "functions.py:9" in printed
    assert "kernel_graph {" in printed


def test_the_whole_as_json(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", f"{source}:shifted", "--no-profile", "--cache", "off", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["found"] is True
    assert answer["programs"][0]["verified"] is True
    assert "logcumsumexp" in {left["operator"] for left in answer["coverage"]["left"]}
    assert 0.3 < answer["coverage"]["in_kernels"]["bytes"] < 1


@pytest.mark.parametrize(("function", "operators"), [("integers", ["argmax", "mul"]), ("mutating", ["mul", "logcumsumexp"])])
def test_coverage_of_what_pytorch_runs(
    function: str, operators: list[str], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coverage", f"{source}:{function}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["found"] is False
    assert answer["in_kernels"]["bytes"] == 0
    assert {left["operator"] for left in answer["left"]} == set(operators)
    assert main(["coverage", f"{source}:{function}"]) == 0
    assert "kernels run 0% of the bytes" in " ".join(capsys.readouterr().out.split())


def test_saved_folders_are_shown_explained_and_timed(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved), "--sources", "--no-open"]) == 0
    assert "--- 0/kernels.c" in capsys.readouterr().out
    assert main(["show", str(saved), "--html", str(tmp_path / "page.html")]) == 0
    assert "What runs the function" in (tmp_path / "page.html").read_text()
    assert main(["explain", str(saved)]) == 0
    assert "after lower" in capsys.readouterr().out
    assert main(["bench", str(saved), "--rounds", "2", "--trust-origin"]) == 0
    assert "torch eager" in capsys.readouterr().out


def test_certificates_of_all_programs_are_checked(source: Path, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--certificate", str(saved), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["outcome"] == "accepted"
    assert answer["programs"]["programs/0"]["outcome"] == "accepted"
    assert main(["verify", "--certificate", str(saved), f"{source}:shifted"]) == 0
    assert "PyTorch records the same calls" in capsys.readouterr().out
    assert main(["verify", "--certificate", str(saved), f"{source}:reversed_rows"]) == 1
    assert "PyTorch records other calls" in capsys.readouterr().out
