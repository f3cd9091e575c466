"""The paper's random test, to compare the verifier with, and the programs that the muGraphs in examples/paper are written for.

The test is that of its section 5.2: one evaluation modulo p = 227 and q = 113.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldPair, FieldValue
from mugraph.algebra.modular import Residues
from mugraph.errors import UndefinedInField
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir.graph import Graph
from mugraph.testing.mutants import PAPER_P, PAPER_Q
from mugraph.verifier.vectorized_eval import evaluate_batched

_DRAWS = 32


class _PaperPair(FieldPair):
    """113 is 1 modulo 4, which `FieldPair` refuses for the sake of square roots."""

    def __post_init__(self) -> None:
        pass


class _PaperArithmetic(FieldArithmetic):
    """The paper's Table 3; a residue without a square root, of which the table says nothing, stands for its own."""

    def __init__(self, rng: np.random.Generator) -> None:
        pair = _PaperPair(PAPER_P, PAPER_Q)
        super().__init__(pair, omega=pair.root(rng), seed=int(rng.integers(2**62)))

    def sqrt(self, x: FieldValue) -> FieldValue:
        return self._each(lambda residues, modulus: _least_roots(int(modulus))[residues], x)


def _least_roots(modulus: int) -> Residues:
    roots = np.arange(modulus)
    for root in reversed(range(1, modulus // 2 + 1)):
        roots[root * root % modulus] = root
    return roots


def accepted_by_paper(left: Graph, right: Graph, seed: int = 0) -> bool:
    """Whether one test with the paper's primes finds no difference; inputs are drawn again where a denominator vanishes."""
    for draw in range(_DRAWS):
        rng = np.random.default_rng([seed, draw, PAPER_P])
        arith = _PaperArithmetic(rng)
        inputs = [arith.random(node.output.shape, rng) for node in left.inputs()]
        try:
            ours, theirs = (evaluate_batched(graph, inputs, arith) for graph in (left, right))
        except UndefinedInField:
            continue
        return all(x.agrees_with(y) for x, y in zip(ours, theirs, strict=True))
    return False


DTYPE = "fp16"
"""Of all inputs, as in the paper's evaluation."""


@dataclass(frozen=True, slots=True)
class PaperProgram:
    """A workload with its norm, where there is a choice, and its size."""

    workload: str
    size: str = "full"
    norm: str | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The PyTorch function."""
        return WORKLOADS[self.workload].function(self.norm)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Tensors to call it with."""
        return WORKLOADS[self.workload].inputs(None, DTYPE, self.size)


WRITTEN_FOR = {
    "rmsnorm": PaperProgram("rmsnorm", "figure"),
    "gqa": PaperProgram("gqa"),
    "qknorm": PaperProgram("qknorm", norm="layer"),
    "lora": PaperProgram("lora"),
    "gated_mlp": PaperProgram("gated-mlp"),
    "ntrans": PaperProgram("ntrans"),
}
"""By the name of the file."""
