"""Programs in normal form: what users spell in many ways is decided, what differs is not, and no rule changes a value."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from mugraph.frontend import trace
from mugraph.ir import DType, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Value
from mugraph.ir.program import Program
from mugraph.ir.scalar import Scalar
from mugraph.verifier import prove, verify_graphs
from mugraph.verifier.identities import RULES, signs, simplified
from mugraph.verifier.prover import verify

from .spelled import graph_of
from .spellings import FAMILIES, Family

_DIGITS = 200
_SCALES = (1.0, 3.0, 1e-3, 0.3, 8.0)

families = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


class Precise(FloatArithmetic):
    """Numbers of 200 digits; raises ValueError where a real function is not defined."""

    def __init__(self) -> None:
        super().__init__(object)
        self.context = mpmath.MPContext()
        self.context.dps = _DIGITS

    def each(self, function: Callable[..., Any], x: Array) -> Array:
        return np.asarray(np.vectorize(function, otypes=[object])(x))

    def constant(self, value: Scalar) -> Array:
        number = self.context.mpf(abs(value.value.numerator)) / value.value.denominator
        magnitude = self.context.sqrt(number) if value.root else number
        return np.asarray(magnitude if value.value >= 0 else -magnitude, object)

    def exp(self, x: Array) -> Array:
        return self.each(self.context.exp, x)

    def sqrt(self, x: Array) -> Array:
        if np.any(x < 0):
            raise ValueError("the root of a negative number")
        return self.each(self.context.sqrt, x)

    def opaque(self, name: str, *xs: Array) -> Array:
        (x,) = xs
        mp = self.context
        if name == "log" and np.any(x <= 0):
            raise ValueError("the logarithm of a number that is not positive")
        functions = {
            "relu": lambda v: max(v, mp.mpf(0)),
            "abs": abs,
            "sigmoid": lambda v: 1 / (1 + mp.exp(-v)),
            "silu": lambda v: v / (1 + mp.exp(-v)),
            "tanh": mp.tanh,
            "gelu": lambda v: v * (1 + mp.erf(v / mp.sqrt(2))) / 2,
            "log": mp.log,
            "log1p": lambda v: mp.log(1 + v),
            "expm1": lambda v: mp.exp(v) - 1,
        }
        return self.each(functions[name], x)


def points(graph: Graph, count: int) -> list[list[Array]]:
    rng = np.random.default_rng(len(graph.nodes))
    found = []
    for number in range(count):
        arrays = [rng.standard_normal(node.output.shape) * _SCALES[number % len(_SCALES)] for node in graph.inputs()]
        found.append([np.abs(array) for array in arrays] if number % 3 == 2 else arrays)
    return found


def assert_same_values(graph: Graph, other: Graph, count: int) -> int:
    """Compare at random points; how many there were at which the first graph is defined."""
    arith = Precise()
    defined = 0
    for inputs in points(graph, count):
        precise = [arith.each(lambda number: arith.context.mpf(float(number)), array) for array in inputs]
        try:
            ours = evaluate(graph, precise, arith)
        except (ValueError, ZeroDivisionError):
            continue
        defined += 1
        for x, y in zip(ours, evaluate(other, precise, arith), strict=True):
            assert x.shape == y.shape
            assert np.all(np.abs(x - y) <= arith.context.mpf(10) ** -40 * (1 + np.abs(x)))
    return defined


@families
def test_all_spellings_are_equal(family: Family) -> None:
    first, *others = (simplified(graph_of(function, family.shapes))[0] for function in family.equal)
    for number, other in enumerate(others, start=1):
        verdict = verify_graphs(first, other, seed=number)
        assert verdict.equivalent, f"spelling {number}: {verdict.reason}"
        assert verdict.error_bound is not None
        assert verdict.error_bound <= 2**-40


@families
def test_no_near_miss_is_equal(family: Family) -> None:
    first = simplified(graph_of(family.equal[0], family.shapes))[0]
    for number, function in enumerate(family.different):
        other = simplified(graph_of(function, family.shapes))[0]
        assert not verify_graphs(first, other, seed=number).equivalent, f"near miss {number} was accepted"


@families
def test_values_stay(family: Family) -> None:
    compared = 0
    for function in (*family.equal, *family.different):
        graph = graph_of(function, family.shapes)
        compared += assert_same_values(graph, simplified(graph)[0], 5)
    assert compared > len(family.equal)


def test_every_rule_is_used() -> None:
    functions = ((f, family.shapes) for family in FAMILIES.values() for f in (*family.equal, *family.different))
    used = {name for function, shapes in functions for name in simplified(graph_of(function, shapes))[1]}
    assert {rule.name for rules in RULES.values() for rule in rules if rule.name} <= used


def test_as_traced() -> None:
    x = torch.randn(4, 6)
    left, right = trace(lambda x: torch.logsumexp(x, -1), (x,)).graph, trace(lambda x: x.exp().sum(-1).log(), (x,)).graph
    assert not verify_graphs(left, right).equivalent
    assert verify_graphs(simplified(left)[0], simplified(right)[0]).equivalent


def test_long_rows_take_little_time_and_keep_the_bound() -> None:
    shapes = ((32, 4096),)
    begun = time.process_time()
    first = simplified(graph_of(lambda x: torch.log_softmax(x, -1), shapes))[0]
    second = simplified(graph_of(lambda x: torch.log(torch.softmax(x, -1)), shapes))[0]
    verdict = verify_graphs(first, second)
    assert verdict.equivalent
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40
    assert time.process_time() - begun < 5  # hundredths of a second; the number of terms in a long row must not matter


def test_sums_of_many_gates_keep_the_bound() -> None:
    shapes = ((2, 64), (64, 1024), (1024, 8))
    spelled = simplified(graph_of(lambda x, w, u: (lambda h: h / (1 + torch.exp(-h)))(x @ w) @ u, shapes))[0]
    known = simplified(graph_of(lambda x, w, u: (x @ w * torch.sigmoid(x @ w)) @ u, shapes))[0]
    verdict = verify_graphs(spelled, known)
    assert verdict.equivalent
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40


def test_what_cannot_be_read_is_left_alone() -> None:
    program = Program()
    x = program.input("x", (4, 6))
    program.output(x.reshape(6, 4).amax(0))
    assert simplified(program.graph) == (program.graph, ())


def test_a_zero_denominator_is_left_alone() -> None:
    program = Program()
    x = program.input("x", (4,))
    program.output(x / (x - x))
    assert simplified(program.graph) == (program.graph, ())


def test_signs() -> None:
    program = Program()
    x, y = program.input("x", (4, 6)), program.input("y", (4, 6))
    positive = [x.exp(), x.square() + 1, x.sigmoid(), x.exp().sum(-1), 1 / x.square(), 1 / x.relu(), (1 + x.exp()).amax(-1)]
    nonnegative = [
        x.square(),
        x.apply("abs"),
        x.relu(),
        x.sqrt(),
        x.relu() * y.square(),
        (x + y.apply("abs") - y).relu(),
        x.apply("abs") + x,
    ]
    unknown = [
        x,
        x * y,
        x - y,
        x.apply("log"),
        x.silu(),
        x.tanh(),
        x.square() - y.square(),
        x.sum(-1),
        x * x * x,
        x.apply("abs") + y,
    ]
    program.output(*positive, *nonnegative, *unknown)
    graph = program.graph
    known = signs(graph)
    found = [known[Value(value.node)] for value in graph.outputs]
    assert all(sign.always_positive for sign in found[: len(positive)])
    assert all(sign.never_negative for sign in found[len(positive) : -len(unknown)])
    assert all(sign.negative for sign in found[-len(unknown) :])


def test_a_maximum_over_a_number_besides_its_elements_is_not_the_maximum() -> None:
    """It is another function below that number, whatever identity the rest takes; nor do properties of operators say so."""

    def graph(least: dict[str, str]) -> Graph:
        builder = GraphBuilder(Level.KERNEL)
        best = builder.add("max", builder.input("x", (4, 8), DType.FP32), dim=1, size=8, **least)
        return builder.build([builder.add("add", best, builder.add("tanh", builder.add("relu", builder.add("relu", best))))])

    left, right = graph({"least": "lowest"}), graph({})
    assert not verify(left, right).equivalent
    assert not prove(left, right).equivalent
