"""What is said of signs holds in float64, and is enough for the roots of norms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.verifier.signs import total

from .graphs import attention, fused_rmsnorm, online_attention, program, rmsnorm

Function = Callable[[ProgramTensor], ProgramTensor]
DEFINED: dict[str, Function] = {
    "a square": lambda x: x.square().sqrt(),
    "a product with itself": lambda x: (x * x).sqrt(),
    "even powers": lambda x: (x**4 + x * x * x * x + (x * x * x) * x**5).sqrt(),
    "a sum of squares and a constant": lambda x: ((x * x).sum(-1, keepdim=True) / 8 + 1).sqrt(),
    "an exponential": lambda x: (x.exp() * 2).apply("log"),
    "a root of a root": lambda x: x.square().sqrt().sqrt(),
    "a maximum": lambda x: (x * x).amax(-1, keepdim=True).sqrt(),
}
DOUBTFUL: dict[str, Function] = {
    "an input": lambda x: x.sqrt(),
    "a difference": lambda x: ((x * x) - (x * x).sum(-1, keepdim=True)).sqrt(),
    "a negative multiple": lambda x: (x * x * -2).sqrt(),
    "a product of two": lambda x: (x * (x + 1)).sqrt(),
    "a product with itself in another order": lambda x: (x * x.reshape(8, 4).transpose(0, 1)).sqrt(),
    "a quotient": lambda x: (x / (x * x)).sqrt(),
    "a logarithm": lambda x: x.exp().apply("log").sqrt(),
    "a logarithm of an input": lambda x: x.apply("log"),
}


@pytest.mark.parametrize("name", DEFINED)
def test_roots_of_what_is_never_negative_are_known(name: str) -> None:
    graph = program(DEFINED[name], (4, 8))
    assert total(graph)
    numbers = np.random.default_rng(0).standard_normal((4, 8))
    (result,) = evaluate(graph, [numbers], FloatArithmetic())
    assert np.isfinite(result).all()


@pytest.mark.parametrize("name", DOUBTFUL)
def test_everything_else_is_doubted(name: str) -> None:
    graph = program(DOUBTFUL[name], (4, 8))
    assert not total(graph)
    numbers = np.random.default_rng(0).standard_normal((4, 8))
    with np.errstate(invalid="ignore"):
        (result,) = evaluate(graph, [numbers], FloatArithmetic())
    assert np.isnan(result).any(), "the example is one with a reason"


def test_kernels_and_their_loops_take_part() -> None:
    for graph in (rmsnorm(), fused_rmsnorm(), fused_rmsnorm(blocks=4, loop=2), attention(), online_attention(loop=4)):
        assert total(graph)
