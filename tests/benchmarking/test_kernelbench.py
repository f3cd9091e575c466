"""The harness of KernelBench's tasks, on tasks of our own in their form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import kernelbench

SUM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return torch.cumsum(torch.relu(self.linear(x)) * 2 + 1, dim=1)

batch, features = 1024, 256

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return [features]
"""
PAIRED = SUM.replace("return torch.cumsum", "assert x.shape[1] % 32 == 0\n        return torch.cumsum")
BROKEN = SUM.replace("self.linear(x)", "self.nothing(x)")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for level, name, text in ((1, "1_Sum", SUM), (1, "10_Paired", PAIRED), (1, "2_Broken", BROKEN), (2, "1_Other", SUM)):
        (tmp_path / f"level{level}").mkdir(exist_ok=True)
        (tmp_path / f"level{level}" / f"{name}.py").write_text(text)
    return tmp_path


def ran(tasks: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, kernelbench.__file__, "--tasks", str(tasks), "--record", str(tasks / "record.json"), *options]
    return subprocess.run(words, capture_output=True, text=True)


def test_tasks_are_in_their_order_and_as_many_as_wanted(tasks: Path) -> None:
    names = [name.partition("/")[2] for name in kernelbench.files(tasks, ["1"])]
    assert names == ["1_Sum.py", "2_Broken.py", "10_Paired.py"]


def test_sizes_are_divided_by_a_factor_that_the_model_takes(tasks: Path) -> None:
    model, inputs, factor = kernelbench.task(tasks / "level1" / "1_Sum.py", 16)
    assert (factor, tuple(inputs()[0].shape)) == (16, (64, 16))
    assert not model.training
    _, inputs, factor = kernelbench.task(tasks / "level1" / "10_Paired.py", 16)
    assert (factor, tuple(inputs()[0].shape)) == (8, (128, 32))
    with pytest.raises(RuntimeError, match="nothing"):
        kernelbench.task(tasks / "level1" / "2_Broken.py", 16)


def test_records_say_what_became_of_tasks_and_are_made_once(tasks: Path) -> None:
    first = ran(tasks, "--levels", "1", "--coverage", "--budget", "5")
    assert first.returncode == 0, first.stderr
    written = json.loads((tasks / "record.json").read_text())
    by_name = {entry["task"]: entry for entry in written["records"]}
    assert by_name["level1/2_Broken.py"]["outcome"] == "not run by PyTorch"
    done = by_name["level1/1_Sum.py"]
    assert done["outcome"] == "right"
    assert not done["one_program"]
    assert "cumsum" in {calls["operator"] for calls in done["left"]}
    assert written["summary"]["outcomes"] == {"right": 2, "not run by PyTorch": 1}
    again = ran(tasks, "--levels", "1", "--coverage", "--budget", "5")
    assert "3 of 3 records are there already" in again.stderr


def test_wrong_results_are_called_wrong(tasks: Path) -> None:
    model, inputs, _ = kernelbench.task(tasks / "level1" / "1_Sum.py", 16)
    given = inputs()
    right, own, equal = kernelbench.errors(model, model, given)
    assert right == own
    assert equal
    wrong, own, _ = kernelbench.errors(lambda x: model(x) * 1.001, model, given)
    assert wrong > kernelbench.ERRORS * own
    assert not kernelbench.errors(lambda x: x.argmin(1), _argmax(), given)[2]


def _argmax() -> torch.nn.Module:
    class Largest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    return Largest()


def test_no_tasks_is_an_error_in_a_line(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert done.returncode == 1
    assert "has no tasks of levels 1,2,3" in done.stderr
