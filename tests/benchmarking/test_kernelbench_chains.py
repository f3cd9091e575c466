"""The comparison of both ways on KernelBench's linear chains, on tasks of our own in their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from benchmarks import kernelbench_chains as chains

from .test_kernelbench import SOFTMAX, SUM

CONVOLUTION = SUM.replace("nn.Linear(features, features)", "nn.Conv2d(features, features, 3)")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "level2").mkdir()
    for name, text in (("2_Softmax", SOFTMAX), ("1_Sum", SUM), ("3_Convolution", CONVOLUTION)):
        (tmp_path / "level2" / f"{name}.py").write_text(text)
    return tmp_path


def test_chains_are_the_tasks_without_convolutions(tasks: Path) -> None:
    assert chains.chains(tasks) == ["level2/1_Sum.py", "level2/2_Softmax.py"]


def test_the_ratio_is_that_of_the_rounds_with_and_without_what_dynamo_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {
        (1, 2, 3): [[1.0, 2.0, 4.0], [2.0, 4.0, 2.0], [3.0, 3.0, 3.0]],
        (4, 3): [[3.5, 3.5, 9.0], [3.0, 3.0, 3.0]],
    }

    def rounds(sides: Sequence[Callable[[], object]], *limits: object, **options: Any) -> list[list[float]]:
        return taken[tuple(cast(int, side()) for side in sides)]

    monkeypatch.setattr(chains, "in_turns", rounds)
    monkeypatch.setattr("torch.compile", lambda model, backend: partial(int.__add__, 4))
    ways: dict[str, chains.Call] = dict(zip(chains.WAYS, (partial(int.__add__, 1), partial(int.__add__, 2)), strict=True))
    found = chains.timed(ways, partial(int.__add__, 3), (0,), threads=1)
    assert (found["ratio"], found["dynamo"]) == (2.0, 0.5)
    assert found["ratio_without_dynamo"] == pytest.approx(4.0 / 1.5)
    assert found["over_eager"] == {"torch.compile": 1.5, "superoptimize": 1.5}


def test_tasks_in_which_torch_compile_is_slower_are_named() -> None:
    over = {"torch.compile": 2.0, "superoptimize": 2.0}
    found = [{"task": str(ratio), "outcome": "right", "ratio": ratio, "over_eager": over} for ratio in (0.5, 0.98, 2.0)]
    said = chains.summary([*found, {"task": "4", "outcome": "not run by PyTorch", "why": "no"}])
    assert (said["tasks"], said["no_slower"], said["slower"]) == (4, 2, {"0.5": 0.5})
    assert said["no_slower_without_dynamo"] == 2
    assert chains.summary([found[0] | {"ratio_without_dynamo": 0.98}])["no_slower_without_dynamo"] == 1
    assert said["geometric_means_over_eager"] == {"torch.compile": pytest.approx(2.0), "superoptimize": pytest.approx(2.0)}


@pytest.mark.slow
def test_both_ways_are_compared_and_timed(tasks: Path) -> None:
    found = chains.record(tasks / "level2" / "2_Softmax.py", 1 << 20, budget=5.0, threads=1)
    assert found["outcome"] == "right", found
    assert {found[way]["outcome"] for way in chains.WAYS} == {"right"}
    assert found["call_seconds"].keys() == {*chains.WAYS, "eager"}
