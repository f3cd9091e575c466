"""Functions with their properties: what the tests and the checker take for equal is equal, and near misses are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mugraph.checker import Rejected
from mugraph.checker.bound import bound_of
from mugraph.checker.checks import _Tests
from mugraph.checker.float_errors import Floats
from mugraph.checker.form import graph_of
from mugraph.checker.function_properties import outputs
from mugraph.ir import Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.serialize import graph_to_json
from mugraph.verifier import by_random_tests, verify_graphs
from mugraph.verifier.certificate import Certificate
from mugraph.verifier.characters import Characters
from mugraph.verifier.root_semantics import evaluate_products
from mugraph.verifier.vectorized_eval import evaluate_batched

from .characters import DIFFERENT, EQUAL, SHAPES, Function, T, absolute, brain, leaky, logarithm, norm, pair, relu, top
from .graphs import program


def document(graph: Graph) -> Any:
    """The graph as the checker reads it."""
    return graph_of(dict(graph_to_json(graph)), "graph.json")


def checked(left: Graph, right: Graph) -> bool:
    """Whether the checker's own tests with properties, as many as reach 2^-40, find the graphs equal."""
    documents: tuple[Any, Any] = document(left), document(right)
    bound = bound_of(*documents, SHAPES, properties=True)
    rounds = bound.rounds_for(2**-40)
    assert rounds is not None
    try:
        _Tests(*documents, bound, random.Random(1), False, True).run(rounds, lambda line: None)
    except Rejected:
        return False
    return True


@pytest.mark.parametrize("name", EQUAL)
def test_equal_by_properties(name: str) -> None:
    left, right = pair(EQUAL[name])
    verdict = by_random_tests(left, right)
    assert verdict.equivalent
    assert verdict.error_bound is not None
    assert verdict.error_bound <= 2**-40
    assert verdict.certificate.difference is not None
    assert Certificate.from_json(verdict.certificate.to_json()) == verdict.certificate
    assert checked(left, right)


@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses(name: str) -> None:
    left, right = pair(DIFFERENT[name])
    assert verify_graphs(left, right).outcome in ("different", "undecided")
    assert not by_random_tests(left, right).equivalent
    assert not checked(left, right)


@pytest.mark.parametrize("name", [*EQUAL, *DIFFERENT])
def test_properties_hold_of_the_real_functions(name: str) -> None:
    """What is computed by way of the properties is what the functions give; in the checker too."""
    for graph in pair((EQUAL | DIFFERENT)[name]):
        compare(graph, np.random.default_rng(0))


class Extended(FloatArithmetic):
    """Floats with sqrt(|x|) and log(|x|), which are multiplicative everywhere, for roots and logarithms."""

    def sqrt(self, x: Array) -> Array:
        return super().sqrt(np.abs(x))

    def opaque(self, name: str, *xs: Array) -> Array:
        return super().opaque(name, *(np.abs(x) if name == "log" else x for x in xs))


class ExtendedFloats(Floats):
    """The same for the checker."""

    def function(self, name: str, *xs: Array) -> Array:
        return Floats.function(self, name, *(np.abs(x) if name in ("log", "sqrt") else x for x in xs))


def compare(graph: Graph, rng: np.random.Generator) -> None:
    inputs = [rng.standard_normal(shape) for shape in SHAPES]
    with np.errstate(all="ignore"):
        (wanted,) = evaluate_batched(graph, inputs, FloatArithmetic(np.float64))
        (found,) = evaluate_products(graph, inputs, Characters(Extended(np.float64)))
        (again,) = outputs(document(graph), inputs, ExtendedFloats(np.float64), True)
    defined = np.isfinite(wanted)
    for result in (found, again):
        assert result.shape == wanted.shape
        np.testing.assert_allclose(result[defined], wanted[defined], rtol=1e-7, atol=1e-7)


UNARY: tuple[Callable[[T], T], ...] = (
    relu, absolute, leaky, brain, logarithm, T.exp, T.tanh, T.sigmoid, T.sqrt, norm, lambda x: -x, lambda x: x * 3,
    lambda x: x / 7,    lambda x: x + 2, lambda x: x * 2**0.5, lambda x: 2 - x, T.square,
    lambda x: x.transpose(0, 1).transpose(0, 1),
    lambda x: x.sum(-1, keepdim=True), top, lambda x: x.amax(0, keepdim=True),
)  # fmt: skip
BINARY: tuple[Callable[[T, T], T], ...] = (lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y)


def composed(choose: random.Random) -> Function:
    """A random function of the three inputs; the last is a square matrix that others are multiplied by."""

    def function(x: T, y: T, w: T) -> T:
        values = [x, y, x * 3, (y * -2) @ w]
        for _ in range(choose.randint(3, 9)):
            if choose.random() < 0.6:
                values.append(choose.choice(UNARY)(choose.choice(values[-3:])))
            else:
                values.append(choose.choice(BINARY)(choose.choice(values), choose.choice(values)))
        return values[-1] + x * 0

    return function


@pytest.mark.parametrize("seed", range(60))
def test_properties_hold_in_random_programs(seed: int) -> None:
    compare(program(composed(random.Random(seed)), *SHAPES), np.random.default_rng(seed))


def test_what_any_function_shows_is_not_asked_of_properties() -> None:
    left, right = program(lambda x, y, w: relu(x @ w + y @ w), *SHAPES), program(lambda x, y, w: relu((x + y) @ w), *SHAPES)
    certificate = by_random_tests(left, right).certificate
    assert certificate.difference is not None
    assert not certificate.difference.properties
    assert "whatever function stands for relu" in certificate.claim


def test_the_certificate_says_which_properties_were_used() -> None:
    certificate = by_random_tests(*pair(EQUAL["a divisor taken out"])).certificate
    assert certificate.difference is not None
    assert certificate.difference.properties
    assert "function with the properties" in certificate.claim
    assert "not to be negative" in dict(certificate.semantics)["relu"]
