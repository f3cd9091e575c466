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
        return torch.logcumsumexp(torch.relu(self.linear(x)) * 2 + 1, dim=1)

batch, features = 1024, 256

def get_inputs():
    return [torch.rand(batch, features)]

def get_init_inputs():
    return [features]
"""
PAIRED = SUM.replace("return torch.logcumsumexp", "assert x.shape[1] % 32 == 0\n        return torch.logcumsumexp")
BROKEN = SUM.replace("self.linear(x)", "self.nothing(x)")
ENDING = SUM.replace("return torch.logcumsumexp", "__import__('os')._exit(7)\n        return torch.logcumsumexp")
SOFTMAX = SUM.replace("torch.logcumsumexp(torch.relu(self.linear(x)) * 2 + 1, dim=1)", "torch.softmax(self.linear(x) * 2, dim=1)")


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


@pytest.mark.slow
def test_records_say_what_became_of_tasks_and_are_made_once(tasks: Path) -> None:
    first = ran(tasks, "--levels", "1", "--coverage", "--budget", "5")
    assert first.returncode == 0, first.stderr
    written = json.loads((tasks / "record.json").read_text())
    by_name = {entry["task"]: entry for entry in written["records"]}
    assert by_name["level1/2_Broken.py"]["outcome"] == "not run by PyTorch"
    done = by_name["level1/1_Sum.py"]
    assert done["outcome"] == "right"
    assert not done["one_program"]
    assert "logcumsumexp" in {calls["operator"] for calls in done["left"]}
    assert written["summary"]["outcomes"] == {"right": 2, "not run by PyTorch": 1}
    assert {"byte_share", "flop_share", "time_share"} <= done.keys()
    again = ran(tasks, "--levels", "1", "--coverage", "--budget", "5")
    assert "3 of 3 records are there already" in again.stderr


@pytest.mark.slow
def test_a_task_that_ends_its_process_loses_no_other(tasks: Path) -> None:
    (tasks / "level2" / "2_Ending.py").write_text(ENDING)
    done = ran(tasks, "--levels", "2", "--coverage", "--budget", "5")
    assert done.returncode == 1
    outcomes = {entry["task"]: entry["outcome"] for entry in json.loads((tasks / "record.json").read_text())["records"]}
    assert outcomes == {"level2/1_Other.py": "right", "level2/2_Ending.py": "failed"}
    assert "exit code 7" in done.stdout


def test_the_smallest_factor_is_taken_that_leaves_so_many_bytes(tasks: Path) -> None:
    file = tasks / "level1" / "1_Sum.py"
    _, inputs, factor = kernelbench.task(file, 16, 400_000)
    assert (factor, tuple(inputs()[0].shape)) == (2, (512, 128))
    assert kernelbench.size(kernelbench.definition(file, 2)) == 4 * (512 * 128 + 128 * 128 + 128)
    with pytest.raises(RuntimeError, match="too large"):
        kernelbench.task(file, 16, 100)


def test_a_model_that_needs_values_is_measured_by_its_inputs(tasks: Path) -> None:
    file = tasks / "level1" / "3_Values.py"
    file.write_text(
        SUM.replace("super().__init__()", "super().__init__()\n        self.rate = torch.linspace(0, 1, 3)[1].item()")
    )
    assert kernelbench.size(kernelbench.definition(file, 16)) == 4 * 64 * 16
    assert kernelbench.task(file, 16)[2] == 16


@pytest.mark.slow
def test_parts_of_the_tasks_make_up_all(tasks: Path) -> None:
    (tasks / "level1" / "2_Broken.py").unlink()
    parts = [ran(tasks, "--shard", part, "--coverage", "--budget", "1", "--limit", "1") for part in ("1/2", "2/2")]
    assert [done.returncode for done in parts] == [0, 0]
    names = [entry["task"] for entry in json.loads((tasks / "record.json").read_text())["records"]]
    assert sorted(names) == ["level1/1_Sum.py", "level2/1_Other.py"]
    assert ran(tasks, "--shard", "3/2").returncode == 2


@pytest.mark.slow
def test_results_are_timed_beside_eager_and_inductor(tasks: Path) -> None:
    (tasks / "level2" / "2_Softmax.py").write_text(SOFTMAX)
    done = ran(tasks, "--levels", "2", "--budget", "5")
    assert done.returncode == 0, done.stderr
    written = json.loads((tasks / "record.json").read_text())
    for entry in written["records"]:
        assert entry["ratios"].keys() == {"eager", "inductor"} or "inductor_failed" in entry
    assert written["summary"]["timed"] == sum("inductor" in entry["ratios"] for entry in written["records"])


def test_wrong_results_are_called_wrong(tasks: Path) -> None:
    model, inputs, _ = kernelbench.task(tasks / "level1" / "1_Sum.py", 16)
    given = inputs()
    right, own, equal = kernelbench.errors(model, model, given)
    assert right == own
    assert equal
    wrong, own, _ = kernelbench.errors(lambda x: model(x) * 1.001, model, given)
    assert wrong > kernelbench.ERRORS * own
    assert not kernelbench.errors(lambda x: x.argmin(1), _argmax(), given)[2]
    nothing = torch.nn.Threshold(2.0, 0.0)
    assert kernelbench.errors(lambda x: nothing(x) + 0.5, nothing, given)[:2] == (0.5, 0.0)


def test_a_function_that_is_called_itself_is_not_run_by_kernels() -> None:
    left = [{"operator": "the function", "reason": "nothing clearly faster was found", "calls": 1, "bytes": 8}]
    own = {"task": "own", "outcome": "right", "found": False, "one_program": True, "byte_share": 0.0, "left": left}
    said = kernelbench.summary([own])
    assert said["share_with_0.8_of_the_bytes"] == 0.0
    assert said["one_program_or_0.8_of_the_bytes"] == 1.0
    assert said["tasks_below_by_what_is_left"] == {"the function: nothing clearly faster was found": 1}


def _argmax() -> torch.nn.Module:
    class Largest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    return Largest()


def test_no_tasks_is_an_error_in_a_line(tmp_path: Path) -> None:
    done = ran(tmp_path)
    assert done.returncode == 1
    assert "has no tasks of levels 1,2,3" in done.stderr


def test_calls_within_noise_are_counted_apart_from_those_that_are_as_fast() -> None:
    made = {"outcome": "right", "byte_share": 1.0, "one_program": True, "found": True, "left": []}
    ratios = [(1.2, 1.1), (0.98, 1.5), (1.0, 0.5), (2.0, 1.0)]
    records = [{**made, "task": f"level1/{i}.py", "ratios": {"eager": a, "inductor": b}} for i, (a, b) in enumerate(ratios)]
    found = kernelbench.summary(records)
    assert (found["fast_1"], found["at_least_0.97_times_both"]) == (0.5, 0.75)
    assert found["fast_1_with_the_function_as_fast_as_itself"] == 0.5
    for record in records:  # each result calls the function, as nothing was found
        record["found"] = False
    assert kernelbench.summary(records)["fast_1_with_the_function_as_fast_as_itself"] == 0.75
    assert [line.partition(":")[0] for line in found["losing"]] == ["level1/1.py", "level1/2.py"]
