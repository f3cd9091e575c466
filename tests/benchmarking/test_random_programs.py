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


def steps(*functions: Any) -> random_programs.Function:
    """A function of a vector whose steps follow one another."""

    def step(function: Any) -> random_programs.Step:
        return random_programs.Step("", lambda tensors: function(tensors[-1]), "")

    made = [step(function) for function in functions]
    return random_programs.Function(((40,),), tuple(made), 1, torch.float32, ("contiguous",))


def test_what_rounding_decides_is_left_out_and_counted() -> None:
    third = steps(lambda x: x / 3, lambda x: x * 3, torch.floor)
    below = torch.arange(2, 500).float() * (1 - 1e-7)
    as_in_double = below[(third(below)[0] == third(below.double())[0]) & (torch.floor(below + 1e-4) > torch.floor(below))]
    near = torch.linspace(-3.95, 3.95, 40)
    near[::5] = as_in_double[:8]

    def moved(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.floor(x * (1 + 2e-7)),)

    found = random_programs._compared(third, moved, [near])
    assert found["outcome"] == "right"
    assert 0 < found["in_doubt"] <= 8
    assert random_programs._compared(third, lambda x: (torch.ceil(x),), [near])["outcome"] == "wrong"
    assert random_programs._compared(third, lambda x: (torch.floor(x + 0.2),), [near])["outcome"] == "wrong"
    exact = steps(torch.floor)
    assert random_programs._compared(exact, moved, [torch.arange(40) - 1e-7 * torch.arange(40)])["outcome"] == "wrong"


def test_crashes_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashing(*given: Any, **settings: Any) -> Any:
        raise ZeroDivisionError("here")

    monkeypatch.setattr(mugraph, "superoptimize", crashing)
    found = random_programs.outcome(3)
    assert (found["outcome"], found["why"]) == ("crashed", "optimizing: ZeroDivisionError('here')")
    assert random_programs.summary([{"number": 3, **found}])["wrong"] == [3]


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
