"""Graphs that divide by zero whatever their inputs are: nothing is equal to them, however rounding hides the zero."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.program import ProgramTensor
from mugraph.verifier import Verdict, random_tests, recheck, separate_inputs, verify_graphs
from mugraph.verifier.prover import prove, verify
from mugraph.verifier.random_tests import by_random_tests
from mugraph.verifier.zero_divisors import nowhere_defined

from .graphs import FP32, attention, fused_rmsnorm, online_attention, program, rmsnorm
from .test_separate_inputs import cut

SHAPES = ((3, 4), (3, 4))
Zero = Callable[[ProgramTensor, ProgramTensor], ProgramTensor]


def pair(zero: Zero) -> tuple[Graph, Graph]:
    """Both cancel what they divide, of which the right has the square of `zero` in a divisor."""

    def left(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        z = zero(x, y)
        cancels = x * x / (z * z + 2)
        return z - cancels + cancels

    def right(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        z = zero(x, y)
        cancels = x * x / (2 / (z * z))
        return z - cancels + cancels

    return program(left, *SHAPES), program(right, *SHAPES)


ZEROS: dict[str, Zero] = {
    "the same": lambda x, y: x - x,
    "rounded apart": lambda x, y: x + y - x - y,
    "a sum": lambda x, y: (x + y).sum(-1, keepdim=True) - x.sum(-1, keepdim=True) - y.sum(-1, keepdim=True) + y - y,
    "a quotient": lambda x, y: x * y / y - x,
    "an exponential": lambda x, y: (x + y).exp() / x.exp() - y.exp(),
    "a root's square": lambda x, y: x.sqrt() * x.sqrt() - x,
    "a product of roots": lambda x, y: (4 * x * y).sqrt() - x.sqrt() * y.sqrt() * 2,
    "a function": lambda x, y: (3 * x).relu() - x.relu() * 3,
}


@pytest.mark.parametrize("name", ZEROS)
@pytest.mark.parametrize("ask", [by_random_tests, verify_graphs, verify])
def test_what_divides_by_zero_is_equal_to_nothing(name: str, ask: Callable[..., Verdict]) -> None:
    left, right = pair(ZEROS[name])
    assert "the right graph divides by zero" in nowhere_defined(left, right)
    assert "the left graph divides by zero" in nowhere_defined(right, left)
    assert nowhere_defined(left, left) == ""
    assert not ask(left, right).equivalent
    assert not ask(right, left).equivalent


NOT_ZERO: dict[str, Zero] = {
    "a sum": lambda x, y: x + y - x,
    "nearly zero": lambda x, y: x + y * Fraction(1, 10**9) - x,
    "a root of a square": lambda x, y: (x * x * y).sqrt(),
    "roots of opposites": lambda x, y: x.sqrt() * (-x).sqrt() + y,
    "a function": lambda x, y: (-3 * x).relu() - x.relu() * 3,
}


@pytest.mark.parametrize("name", NOT_ZERO)
def test_what_has_a_value_somewhere_may_be_equal(name: str) -> None:
    left, right = pair(NOT_ZERO[name])
    other = program(lambda x, y: NOT_ZERO[name](x, y) + 0 * x, *SHAPES)
    assert nowhere_defined(left, right) == ""
    once, twice = (program(lambda x, y, f=f: f * x / (f * NOT_ZERO[name](x, y)), *SHAPES) for f in (1, 2))
    assert nowhere_defined(once, twice) == ""
    assert by_random_tests(once, twice).equivalent
    assert not by_random_tests(once, other).equivalent


def test_what_z3_proves_equal_is_no_variable_to_divide_by() -> None:
    pytest.importorskip("z3")
    left, right = pair(lambda x, y: (x + y).relu() - (y + x).relu().relu())
    assert not prove(left, right).equivalent
    assert "divides by zero" in prove(left, right).reason
    assert prove(left, program(lambda x, y: 0 * x * y, *SHAPES)).equivalent


def test_a_single_root_is_looked_at_where_it_is_of_a_square() -> None:
    """Of half of all numbers there is none in a field, and what is taken for it has another square."""
    zero, both = (program(lambda x, s=s: x / (x.sqrt() * (s * x).sqrt() - x), (1,)) for s in (1, -1))
    assert nowhere_defined(zero, zero)
    assert nowhere_defined(both, both), "only zero has both roots"


def beside_roots(others: int = 9) -> Graph:
    """s / (sqrt(s)^2 - s), over so many other roots of sums."""

    def function(x: ProgramTensor, y: ProgramTensor) -> ProgramTensor:
        total = y.sum(-1, keepdim=True)
        roots, s = (y + total).sqrt().sum(-1, keepdim=True), x + total
        return s / ((s.sqrt() * s.sqrt() - s) * roots)

    return program(function, (1, 1), (1, others))


@pytest.mark.parametrize("others", range(7, 14))
def test_a_zero_is_found_beside_roots_of_no_squares(others: int) -> None:
    assert nowhere_defined(beside_roots(others), beside_roots(others))


SIGNED: dict[str, Callable[[ProgramTensor], ProgramTensor]] = {
    "twice a number that has a root": lambda x: x.sqrt() * x.sqrt() + x,
    "a number and its absolute value": lambda x: (x * x).sqrt() + x,
    "a number less its absolute value": lambda x: (x * x).sqrt() - x,
}


@pytest.mark.parametrize("name", SIGNED)
def test_what_is_zero_for_half_of_all_signs_is_not_zero(name: str) -> None:
    """Of so many elements some are, in each draw of numbers that may be squares or not."""
    whole = program(lambda x: (x / SIGNED[name](x)).sum(-1), (1, 32))
    assert nowhere_defined(whole, whole) == ""


def test_slices_without_known_values_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Graph] = []

    def has_a_value(graph: Graph, known: Any) -> bool:
        looked_at.append(graph)
        return True

    monkeypatch.setattr("mugraph.verifier.zero_divisors._has_a_value", has_a_value)
    whole = program(lambda x, y: x / (x + y), (8, 3), (1, 3))
    assert nowhere_defined(whole, whole, {1: np.ones((1, 3))}) == ""
    assert [[node.output.shape for node in graph.inputs()] for graph in looked_at[:1]] == [[(1, 3), (1, 3)]]


def test_a_certificate_by_pieces_of_what_divides_by_zero_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = pair(ZEROS["rounded apart"])
    with monkeypatch.context() as broken:
        broken.setattr(random_tests, "nowhere_defined", lambda *_: "")
        wrong = by_random_tests(left, right).certificate
    assert wrong.accepted
    assert wrong.pieces
    with pytest.raises(InvalidInput, match="the right graph divides by zero"):
        recheck(wrong, left, right)


def test_rows_and_a_whole_that_rounding_keeps_apart_have_a_difference_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row, and the same row computed otherwise among all of them; of rows and another tensor's there is no such pair."""
    monkeypatch.setattr(separate_inputs, "LARGE", 0)

    def differences(x: ProgramTensor, factor: int) -> ProgramTensor:
        same = ((x * 3 + Fraction(1, 3)) * 7 - Fraction(7, 3)) / 21
        return (factor / (factor * x.reshape(2, 1, 1) - factor * same.reshape(1, 2, 1))).sum(1)

    left, right = (program(lambda x, factor=factor: differences(x, factor), (2, 1)) for factor in (1, 3))
    assert not any(axis.apart for axis in cut(left, right).axes)
    assert not by_random_tests(left, right).equivalent
    assert not verify_graphs(left, right).equivalent


def test_an_input_that_is_known_to_be_zero_is_one() -> None:
    left, right = (program(lambda x, y, f=f: f * x / (f * y), *SHAPES) for f in (1, 2))
    ones = np.ones(SHAPES[1])
    ones[0, 0] = 0.0
    assert nowhere_defined(left, right, {1: ones})
    assert nowhere_defined(left, right, {0: ones}) == ""
    assert not by_random_tests(left, right, known={1: ones}).equivalent
    assert by_random_tests(left, right, known={0: ones}).equivalent


def in_blocks(zero: bool) -> Graph:
    """x / (x + y - x - y), or x / (x + y), in blocks of rows."""
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(f"x{number}", (4, 2), FP32) for number in range(2)]
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    x, y = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(inputs))
    divisor = block.add("add", x, y)
    if zero:
        divisor = block.add("sub", block.add("sub", divisor, x), y)
    saved = block.add("output_saver", block.add("div", x, divisor), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), inputs))


def test_blocks_divide_by_zero_too() -> None:
    assert nowhere_defined(in_blocks(zero=True), in_blocks(zero=True))
    assert nowhere_defined(in_blocks(zero=False), in_blocks(zero=False)) == ""


def test_what_no_output_needs_may_divide_by_zero() -> None:
    whole = program(lambda x, y: x / (x - x), *SHAPES)
    assert nowhere_defined(whole, whole)
    part = whole.with_nodes(whole.nodes, (whole.nodes[whole.outputs[0].node].inputs[0],))
    assert nowhere_defined(part, part) == ""


def test_signs_alone_show_that_softmax_divides_by_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms take roots of squares, which may be zero: these are evaluated, on a slice."""
    looked_at: list[Graph] = []

    def has_a_value(graph: Graph, known: Any) -> bool:
        looked_at.append(graph)
        return True

    monkeypatch.setattr("mugraph.verifier.zero_divisors._has_a_value", has_a_value)
    assert nowhere_defined(attention(), online_attention(loop=4)) == ""
    assert not looked_at
    left, right = rmsnorm(), fused_rmsnorm()
    assert nowhere_defined(left, right) == ""
    assert looked_at
    assert all(
        sum(tensor.elements for node in found.nodes for tensor in node.outputs)
        < sum(tensor.elements for node in left.nodes for tensor in node.outputs)
        for found in looked_at
    )
