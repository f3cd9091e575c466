"""The common domain of two programs is named, and an empty one is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.ir.graph import Graph
from mugraph.verifier.domain import common_domain

from .graphs import attention, fused_rmsnorm, online_attention, program, rmsnorm

V = (4,)
IDENTITY = program(lambda x: x * 1, V)


def test_programs_that_are_defined_everywhere_need_no_words() -> None:
    found = common_domain(attention(), online_attention(loop=4), seed=0)
    assert (found.text, found.same, found.empty, found.witness) == ("", True, False, None)


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (program(lambda x: x.sqrt() * x.sqrt(), V), "defined where x0 >= 0 (a square root, left only)"),
        (program(lambda x: x.apply("log").exp(), V), "defined where x0 > 0 (a logarithm, left only)"),
        (program(lambda x: 1 / (1 / x), V), "defined where x0 != 0 (a division, left only)"),
    ],
)
def test_what_one_side_needs_is_named_and_seen(left: Graph, text: str) -> None:
    found = common_domain(left, IDENTITY, seed=0)
    assert (found.text, found.same, found.empty) == (text, False, False)
    assert found.witness is not None
    assert found.witness.left_text == "undefined"
    assert found.witness.replay(left, IDENTITY)


def test_the_same_conditions_are_named_once() -> None:
    found = common_domain(rmsnorm(), fused_rmsnorm(), seed=0)
    assert (found.text, found.same, found.empty) == ("defined where sum(x0 · x0) != 0 (a division)", True, False)


def test_other_conditions_are_compared_at_points() -> None:
    left = program(lambda x, y: x / y / y, V, V)
    right = program(lambda x, y: x / (y.apply("abs") * y), V, V)
    found = common_domain(left, right, seed=0)
    assert found.same
    assert found.witness is None
    assert found.text.count("only") == 2


def test_what_is_undefined_everywhere_is_known_by_signs() -> None:
    found = common_domain(program(lambda x: x + 0 * (0 - x.exp()).apply("log"), V), IDENTITY, seed=0)
    assert found.empty
    assert found.text == "the left is undefined everywhere: a logarithm of 0 - exp(x0), which is never > 0"


def test_or_because_no_input_was_found() -> None:
    found = common_domain(program(lambda x: x.apply("log") + (0 - x).apply("log"), V), IDENTITY, seed=0)
    assert found.empty
    assert found.text.endswith("no input was found where both are")


def test_given_values_need_no_conditions() -> None:
    left, right = program(lambda x, v: x / v.sqrt(), V, V), program(lambda x, v: x, V, V)
    assert common_domain(left, right, seed=0, fixed={1: np.ones(4)}).text == ""
    assert common_domain(left, right, seed=0, fixed={1: -np.ones(4)}).empty
    assert (
        common_domain(left, right, seed=0).text
        == "defined where x1 >= 0 (a square root, left only) and x1 != 0 (a division, left only)"
    )
