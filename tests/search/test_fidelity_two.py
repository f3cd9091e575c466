"""Theorem 1 for two kernels: what Algorithm 1 finds, cuts of the closures' derivations find, and nothing else.

Each of the two kernels is compared by the values on its edges, the device tensor between them included; how one kernel is
scheduled is compared in test_fidelity.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mugraph.ir import Graph
from mugraph.ir.program import ProgramTensor

from .fidelity import Exclusion
from .fidelity_two import plans_of_algorithm_1, plans_of_closures
from .test_fidelity import norm, program

B, D, N, M = 4, 6, 10, 14


def softmax(x: ProgramTensor) -> ProgramTensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


@dataclass(frozen=True)
class Case:
    """A program, the limit of operators of each kernel, and how many plans of two kernels it has."""

    graph: Graph
    operators: int
    plans: int


CASES = {
    "root of an exponential": Case(program(lambda a, b: (a @ b).exp().sqrt(), (B, D), (D, N)), 5, 2),
    "chain": Case(program(lambda a, b, c: (a @ b) @ c, (B, D), (D, N), (N, M)), 5, 2),
    "softmax": Case(program(softmax, (B, D)), 6, 2),
    "norm": Case(program(norm, (B, D)), 6, 3),
    "norm and product": Case(program(lambda x, w: norm(x) @ w, (B, D), (D, N)), 6, 6),
    "attention without scores": Case(program(lambda x, v: softmax(x) @ v, (B, D), (D, N)), 6, 6),
    "gated product": Case(program(lambda x, a, b: (x @ a).silu() * (x @ b), (B, D), (D, N), (D, N)), 6, 3),
}


LONG_CASES = {
    "norm and two products": Case(program(lambda x, w, v: norm(x) @ w @ v, (B, D), (D, N), (N, M)), 7, 13),
}


@pytest.mark.parametrize("name", CASES)
def test_plans_of_two_kernels(name: str) -> None:
    compare(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_CASES)
def test_plans_of_two_kernels_of_longer_programs(name: str) -> None:
    compare(LONG_CASES[name])


def compare(case: Case) -> None:
    """Algorithm 1's plans without excluded constructs are those of the closures."""
    reference = plans_of_algorithm_1(case.graph, case.operators)
    plain = {plan for plan, exclusions in reference.items() if not exclusions}
    assert plans_of_closures(case.graph, case.operators) == plain
    assert len(plain) == case.plans
    assert frozenset[Exclusion]().union(*reference.values()) <= {Exclusion.RECOMPUTATION, Exclusion.OUTER_PRODUCT}
