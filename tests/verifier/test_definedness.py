"""Graphs that are undefined where their program is not are seen on a slice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mugraph.ir.program import ProgramTensor
from mugraph.verifier import verify_graphs
from mugraph.verifier.definedness import undefined_operator

from .graphs import fused_rmsnorm, program, rmsnorm

Function = Callable[[ProgramTensor], ProgramTensor]
UNDEFINED: dict[str, tuple[Function, Function, str]] = {
    "a root of each factor": (lambda x: (x * x).sqrt(), lambda x: x.sqrt() * x.sqrt(), "sqrt"),
    "a square of a root": (lambda x: x + 1, lambda x: x.sqrt() * x.sqrt() + 1, "sqrt"),
    "a logarithm": (lambda x: (x * x).apply("log"), lambda x: x.apply("log") + x.apply("log"), "log"),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_has_no_result_is_named(name: str) -> None:
    left, right, op = UNDEFINED[name]
    pair = program(left, (64,)), program(right, (64,))
    assert undefined_operator(*pair, seed=1) == f"{op} of shape [1] has no result for some of its operands"
    assert undefined_operator(pair[1], pair[0], seed=1) == "", "nothing is asked where the program itself has no result"


def test_what_is_equal_wherever_the_program_is_defined_is_not_blamed() -> None:
    assert undefined_operator(rmsnorm(), fused_rmsnorm()) == ""
    pair = program(lambda x: (x * x).sqrt(), (64,)), program(lambda x: x.sqrt() * x.sqrt(), (64,))
    assert verify_graphs(*pair).equivalent, "a proof alone does not see it"
