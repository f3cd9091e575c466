"""The calls of PyTorch's operators: torch's core has one each, some are right here, and wrong ones are found out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import operators

import mugraph
from operator_cases import CALLS


def test_every_core_operator_has_a_call() -> None:
    assert operators.core() <= set(CALLS)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("dist", "kernels"),
        ("cdist_1", "kernels"),
        ("glu", "kernels"),
        ("lgamma", "torch"),
        ("_local_scalar_dense", "partly"),
        ("inverse", "torch"),
        ("randn", "torch"),
        ("of_its_argument", "torch"),
    ],
)
def test_some_are_right(name: str, where: str) -> None:
    found = operators.outcome(name)
    assert (found["outcome"], found["where"]) == ("right", where), found


@pytest.mark.parametrize(
    ("name", "fault", "said"),
    [("relu", 1e-3, "errs by"), ("argmax", 1, "errs by"), ("var_mean", float("nan"), "errs by inf"), ("aminmax", None, "for")],
)
def test_wrong_results_are_found_out(name: str, fault: float | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        found, report = True, SimpleNamespace(coverage=None)

        def __init__(self, function: Any, *given: Any, **settings: Any) -> None:
            self.function = function

        def __call__(self, *inputs: torch.Tensor) -> Any:
            value = self.function(*inputs)
            if fault is None:
                return [part.double() for part in value]
            return value + fault if isinstance(value, torch.Tensor) else [part + fault for part in value]

    monkeypatch.setattr(mugraph, "superoptimize", Wrong)
    found = operators.outcome(name)
    assert found["outcome"] == "wrong"
    assert said in found["why"]


def test_crashes_and_refusals_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(error: Exception) -> Any:
        def run(*given: Any, **settings: Any) -> Any:
            raise error

        return run

    monkeypatch.setattr(mugraph, "superoptimize", raising(ZeroDivisionError("here")))
    assert operators.outcome("add") == {"outcome": "crashed", "why": "optimizing: ZeroDivisionError('here')"}
    monkeypatch.setattr(mugraph, "superoptimize", raising(mugraph.errors.UnsupportedOperator("there")))
    assert operators.outcome("add") == {"outcome": "refused", "why": "UnsupportedOperator: there"}
    record = {"name": "add", "outcome": "refused", "why": "UnsupportedOperator: there"}
    said = operators.summary([record, record | {"name": "mul", "outcome": "crashed", "why": "calling: here"}])
    assert (said["refused"], said["wrong"]) == (["add: UnsupportedOperator: there"], ["mul: calling: here"])
