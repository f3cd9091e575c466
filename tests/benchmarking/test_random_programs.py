"""Random PyTorch functions: the same for a number, right in what is compared, and found wrong where a result is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks import random_programs

import mugraph


def test_a_number_is_a_function() -> None:
    for number in range(20):
        function, again = random_programs.drawn(number), random_programs.drawn(number)
        assert str(function) == str(again)
        inputs = function.inputs(1)
        for one, other in zip(function(*inputs), again(*again.inputs(1)), strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("number", [2, 3, 7, 8])
def test_results_of_some_are_right(number: int) -> None:
    found = random_programs.outcome(number)
    assert found["outcome"] == "right"
    assert found["found"]


@pytest.mark.parametrize("fault", [1e-3, float("nan"), float("inf")])
def test_wrong_results_are_found_out(fault: float, monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = mugraph.superoptimize

    def wrong(function: Any, *given: Any, **settings: Any) -> Any:
        opt = optimize(function, *given, **settings)

        class Wrong:
            found, is_one_program, results = opt.found, opt.is_one_program, opt.results

            def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
                return tuple(output + fault for output in opt(*inputs))

        return Wrong()

    monkeypatch.setattr(mugraph, "superoptimize", wrong)
    assert random_programs.outcome(3)["outcome"] == "wrong"


def test_summaries_count_what_became_of_functions() -> None:
    found = [
        {"number": 0, "outcome": "right", "found": True, "one_program": False, "specials": "alike"},
        {"number": 1, "outcome": "wrong", "found": True, "one_program": True},
        {"number": 2, "outcome": "refused", "why": "InvalidInput: it returns nothing"},
    ]
    said = random_programs.summary(found)
    assert said["outcomes"] == {"right": 1, "wrong": 1, "refused": 1}
    assert said["wrong"] == [1]
    assert said["no_programs_as_a_whole"] == 1
    assert said["refused"] == {"InvalidInput": 1}
