"""Long programs are what their numbers say, and what is recorded of them is what became of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks import long_programs

NUMBERS = (0, 7, 15)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_program_is_that_of_its_number(number: int) -> None:
    one, other = long_programs.Stream(number), long_programs.Stream(number)
    assert long_programs.LEAST <= one.operators <= long_programs.MOST + 50
    assert [name for name, _ in one.layers] == [name for name, _ in other.layers]
    x = one.example()
    with torch.no_grad():
        torch.testing.assert_close(one(x), other(x), rtol=0, atol=0)


def test_float64_is_computed_with_all_weights_in_it_and_leaves_them_as_they_were() -> None:
    model = long_programs.Stream(7)
    before = [parameter.clone() for parameter in model.weights]
    with torch.no_grad():
        exact = long_programs._in_float64(model)(model.example().double())
    assert exact.dtype is torch.float64
    assert all(torch.equal(one, other) for one, other in zip(before, model.weights, strict=True))


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "right"), (1.001, "wrong"), (float("nan"), "wrong")])
def test_results_are_compared_with_float64(factor: float, outcome: str) -> None:
    model = long_programs.Stream(7)
    with torch.no_grad():
        found = long_programs.compared(model, lambda x: model(x) * factor)
    assert found["outcome"] == outcome


def test_a_call_that_fails_is_recorded_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **options: object) -> None:
        raise ZeroDivisionError("no kernel")

    monkeypatch.setattr("mugraph.superoptimize", fail)
    found = long_programs.outcome(7, budget=1.0)
    assert (found["outcome"], found["why"]) == ("crashed", "ZeroDivisionError('no kernel')")
    assert found["operators"] == long_programs.Stream(7).operators


def entry(number: int, **changes: object) -> dict[str, Any]:
    made = {"number": number, "outcome": "right", "found": True, "byte_share": 1.0, "programs": 2, "with_bounds": 2}
    return {**made, "largest_bound": 1e-14, "seconds": 4.0, "processor_seconds": 2.0, "left": [], **changes}


def test_the_summary_counts_what_has_kernels_and_bounds_and_names_what_is_wrong() -> None:
    left = ["softmax: one of its 4 muGraphs was not proved", "add: one of its 16 muGraphs was not proved"]
    found = long_programs.summary(
        [
            entry(0),
            entry(1, byte_share=0.5, left=left, largest_bound=1e-13),
            entry(2, byte_share=0.3, programs=0, with_bounds=0, largest_bound=None),
            entry(3, outcome="wrong", programs=1, with_bounds=0, largest_bound=None),
            {"number": 4, "outcome": "crashed", "why": "no kernel"},
        ]
    )
    assert found["outcomes"] == {"right": 3, "wrong": 1, "crashed": 1}
    assert (found["with_kernels"], found["without_kernels"], found["run_by_kernels_alone"]) == (3, [2], 2)
    assert (found["parts"], found["parts_with_bounds"], found["largest_bound"]) == (5, 4, 1e-13)
    assert found["left_to_pytorch_for"] == {"one of its N muGraphs was not proved": 1}
    assert found["wrong"] == [3, 4]
