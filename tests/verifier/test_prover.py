"""Proofs from properties of operators: what random functions cannot decide, and nothing that is false."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

import mugraph
from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.program import Program, ProgramTensor
from mugraph.testing import ProgramSpace, agree, mutants, random_program
from mugraph.verifier import Outcome, prove, prover
from mugraph.verifier.bounds import difference_of
from mugraph.verifier.semantics import Semantics
from mugraph.verifier.trials import Trials

from .graphs import attention, fused_rmsnorm, online_attention, program, rmsnorm

pytest.importorskip("z3")

Function = Callable[..., ProgramTensor]
VECTOR, MATRIX, COLUMN = (4,), (4, 4), (4, 1)
RELU = "relu(x) is x where x > 0 and 0 elsewhere"
ABS = "abs(x) is x where x > 0 and -x elsewhere"


def absolute(x: ProgramTensor) -> ProgramTensor:
    return x.apply("abs")


PROVED: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...], set[str]]] = {
    "idempotence": (lambda x: x.relu().relu(), lambda x: x.relu(), (VECTOR,), {RELU}),
    "positive factors": (lambda x: (x * 2).relu(), lambda x: x.relu() * 2, (VECTOR,), {RELU}),
    "an output that is an input": (lambda x: x.relu() - (-x).relu(), lambda x: x, (VECTOR,), {RELU}),
    "cases": (absolute, lambda x: x.relu() + (-x).relu(), (VECTOR,), {RELU, ABS}),
    "a definition": (lambda x: x.silu(), lambda x: x * x.sigmoid(), (VECTOR,), {"silu(x) == x * sigmoid(x)"}),
    "two definitions": (
        lambda x: x.silu(),
        lambda x: x / (1 + (-x).exp()),
        (VECTOR,),
        {"silu(x) == x * sigmoid(x)", "sigmoid(x) == 1 / (1 + exp(-x))"},
    ),
    "an inverse": (lambda x: x.exp().apply("log"), lambda x: x, (VECTOR,), {"log(exp(x)) == x"}),
    "maxima of monotone functions": (
        lambda x: x.relu().amax(-1),
        lambda x: x.amax(-1).relu(),
        (MATRIX,),
        {"max(relu(x)) == relu(max(x))"},
    ),
    "maxima of shifted rows": (
        lambda x, y: (x + y).amax(-1, keepdim=True),
        lambda x, y: x.amax(-1, keepdim=True) + y,
        (MATRIX, COLUMN),
        {"max(x + y) == max(x) + y"},
    ),
    "both fragments in one program": (
        lambda x, w, v: ((x @ w).relu().relu() @ v) @ w,
        lambda x, w, v: (x @ w).relu() @ (v @ w),
        (MATRIX, MATRIX, MATRIX),
        {RELU},
    ),
    "a gate": (
        lambda x, w, v: (x @ w).silu() * (x @ v),
        lambda x, w, v: (x @ w) * ((x @ w).sigmoid() * (x @ v)),
        (MATRIX, MATRIX, MATRIX),
        {"silu(x) == x * sigmoid(x)"},
    ),
}

FALSE: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "another function": (lambda x: x.relu(), lambda x: x.silu(), (VECTOR,)),
    "negative factors": (lambda x: (x * -2).relu(), lambda x: x.relu() * -2, (VECTOR,)),
    "maxima of decreasing functions": (lambda x: (-x).amax(-1), lambda x: -x.amax(-1), (MATRIX,)),
    "maxima with a term that varies": (
        lambda x, y: (x + y).amax(-1),
        lambda x, y: x.amax(-1) + y.amax(-1),
        (MATRIX, MATRIX),
    ),
    "sums of functions": (lambda x: x.relu().sum(-1), lambda x: x.sum(-1).relu(), (MATRIX,)),
    "another axis": (lambda x: x.relu().amax(-1), lambda x: x.amax(0).relu(), (MATRIX,)),
    "transposition": (lambda x: x.relu().relu(), lambda x: x.transpose(0, 1).relu(), (MATRIX,)),
}


def told_apart(left: Graph, right: Graph) -> bool:
    """Whether any functions in the place of those outside LAX show a difference."""
    difference = difference_of(left, right)
    assert difference is not None
    return Trials(left, right, Semantics.FREE, difference.family, seed=0).test() is not None


@pytest.mark.parametrize("name", PROVED)
def test_programs_that_random_functions_tell_apart_are_proved_equal(name: str) -> None:
    left, right, shapes, used = PROVED[name]
    pair = program(left, *shapes), program(right, *shapes)
    assert told_apart(*pair)
    proof = prove(*pair)
    assert proof.equivalent, proof.reason
    assert set(proof.used) == used
    assert proof.rest is not None
    assert proof.rest.certificate.accepted


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_stays_undecided(name: str) -> None:
    left, right, shapes = FALSE[name]
    proof = prove(program(left, *shapes), program(right, *shapes))
    assert not proof.equivalent
    assert "undecided" in proof.reason


def proved_of_mutants(seeds: range, step: int) -> int:
    """How many mutants were tried; none that differs from its program may be proved."""
    space = ProgramSpace(operators=(2, 5), sizes=(2, 3), opaque=True)
    tried = 0
    for seed in seeds:
        graph = random_program(seed, space)
        for mutant in list(mutants(graph))[::step]:
            tried += 1
            assert not prove(graph, mutant.graph).equivalent or agree(graph, mutant.graph), mutant.change
    return tried


def test_nothing_is_proved_of_mutants_that_differ() -> None:
    assert proved_of_mutants(range(4), 12) > 8


@pytest.mark.slow
def test_nothing_is_proved_of_many_mutants_that_differ() -> None:
    assert proved_of_mutants(range(4, 20), 3) > 150


def relu_twice_in_tiles(loop: int = 2, columns: int = 4) -> Graph:
    """relu(relu(x @ w)) in one kernel that loops over the inner dimension."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (3, 4), DType.FP32), kernel.input("w", (4, columns), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    xs = block.iterator(0, kernel.tensor(x), (None,), 1)
    ws = block.iterator(1, kernel.tensor(w), (1,), 0)
    product = block.add("accumulate", block.add("matmul", xs, ws), combine="sum")
    saved = block.add("output_saver", block.add("relu", block.add("relu", product)), omap=(1,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, w]))


def test_kernels_are_proved_too() -> None:
    proof = prove(program(lambda x, w: (x @ w).relu(), (3, 4), (4, 4)), relu_twice_in_tiles())
    assert proof.equivalent, proof.reason
    assert RELU in proof.used


def test_kernels_whose_tiles_do_not_add_up_are_not() -> None:
    proof = prove(attention(), online_attention())
    assert proof.equivalent, "the rescaled accumulators of one tile are plain ones"
    wrong = prove(rmsnorm(), fused_rmsnorm(squares="max"))
    assert not wrong.equivalent


def test_given_properties_are_used() -> None:
    pair = program(lambda x: x.gelu().amax(-1), MATRIX), program(lambda x: ((-x).gelu() + x).amax(-1), MATRIX)
    assert not prove(*pair).equivalent
    with pytest.raises(InvalidInput, match="does not hold"):
        prove(*pair, properties=["gelu(x) == x - gelu(-x)"])
    assert not prove(*pair, properties=["gelu(0 * x) == 0 * x"]).equivalent
    proof = prove(*pair, properties=["gelu(x) == x + gelu(-x)"])
    assert proof.equivalent, proof.reason
    assert "gelu(x) == x + gelu(-x)" in proof.used


ODD = program(lambda x: x.tanh().relu(), VECTOR), program(lambda x: x.relu().tanh(), VECTOR)
"""Equal, since tanh is increasing and zero at zero: no test and no identity knows that."""
ODD_PROPERTY = "relu(tanh(x)) == tanh(relu(x))"


def test_verify_asks_the_prover_where_tests_cannot_decide() -> None:
    left, right = ODD
    assert prover.verify(left, right).outcome is Outcome.UNDECIDED
    verdict = prover.verify(left, right, properties=[ODD_PROPERTY])
    assert verdict.equivalent
    assert verdict.properties == (ODD_PROPERTY,)
    other = prover.verify(left, program(lambda x: x.tanh(), VECTOR), properties=[ODD_PROPERTY])
    assert other.outcome is Outcome.DIFFERENT


def test_the_public_verify_takes_properties() -> None:
    def written(function: Function) -> Program:
        result = Program()
        result.output(function(result.input("x", (3, 4))))
        return result

    pair = written(lambda x: x.tanh().relu()), written(lambda x: x.relu().tanh())
    verdict = mugraph.verify(*pair, properties=[ODD_PROPERTY])
    assert verdict.equivalent
    assert verdict.properties == (ODD_PROPERTY,)


def test_without_z3_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> Any:
        return None if name == "z3" else real(name, package)

    monkeypatch.setitem(__import__("sys").modules, "z3", None)
    monkeypatch.setattr("mugraph.verifier.theories.find_spec", hidden)
    with pytest.raises(TargetUnavailable, match=r"mugraph\[prover\]"):
        prove(*ODD)
    assert prover.verify(*ODD).outcome is Outcome.UNDECIDED
