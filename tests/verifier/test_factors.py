"""Square roots of products are products of square roots, through data movement and broadcasting alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.ir.scalar import Scalar
from mugraph.verifier.root_semantics import Factored
from mugraph.verifier.vectorized_eval import evaluate_batched

from .graphs import program


class RootsSeen(FloatArithmetic):
    """Float arithmetic that remembers what it took roots of."""

    def __init__(self) -> None:
        super().__init__(np.float64)
        self.seen: list[Array] = []

    def sqrt(self, x: Array) -> Array:
        self.seen.append(x)
        return super().sqrt(x)


RADICANDS: dict[str, tuple[Callable[[ProgramTensor, ProgramTensor], ProgramTensor], int]] = {
    "a product": (lambda x, y: x * y, 2),
    "a quotient, scaled": (lambda x, y: x / (y * 12) / 7, 2),
    "a square": (lambda x, y: x.square(), 2),
    "a sum": (lambda x, y: x + y, 1),
    "a product of sums, moved": (lambda x, y: ((x + 1) * (y + x)).transpose(0, 1).reshape(12).reshape(3, 4), 2),
    "a product with a row": (lambda x, y: (x * y.sum(-1, keepdim=True)).transpose(0, 1), 2),
    "a sum of multiples": (lambda x, y: (x * 3 + y * 3) / 7, 1),
    "a product with a root": (lambda x, y: x * y.sqrt(), 3),
    "more factors than are told apart": (lambda x, y: (x * y).square().square(), 1),
}


@pytest.mark.parametrize("name", RADICANDS)
def test_roots_are_those_of_factors(name: str) -> None:
    radicand, roots = RADICANDS[name]
    graph = program(lambda x, y: radicand(x, y).sqrt(), (4, 3), (4, 3))
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 2, (4, 3)) for _ in range(2)]
    inner = RootsSeen()
    arith = Factored(inner)
    (result,) = evaluate_batched(graph, [arith.atom(x) for x in inputs], arith)
    np.testing.assert_allclose(result.value, evaluate_batched(graph, inputs, FloatArithmetic(np.float64))[0])
    assert len(inner.seen) == roots


def test_the_root_of_a_constant_has_its_dimensions() -> None:
    arith = Factored(FloatArithmetic(np.float64))
    constant = arith.view(arith.constant(Scalar.of(3)), lambda array: np.reshape(array, (1, 1)))
    assert arith.sqrt(constant).value.shape == (1, 1)
