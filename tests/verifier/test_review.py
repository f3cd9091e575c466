"""Attempts to fool the verifier: degenerate shapes, repeated and unused inputs, outputs that are inputs, huge constants."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.program import Program, ProgramTensor
from mugraph.verifier import verify_graphs

from .graphs import program

Function = Callable[..., ProgramTensor]
VECTOR, MATRIX, ONE = (4,), (4, 4), (1, 1)


def outputs(*order: int) -> Graph:
    written = Program()
    x, y = written.input("x", VECTOR), written.input("y", VECTOR)
    values = (x + y, x - y, x, y)
    written.output(*(values[index] for index in order))
    return written.graph


def grid_of_ones(omap: tuple[int, int]) -> Graph:
    """Two blocks along one axis, one along the other: the map of the second cannot matter."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", MATRIX, DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2, 1))
    tile = block.iterator(0, kernel.tensor(x), (0, 1), None)
    saved = block.add("output_saver", block.add("square", tile), omap=omap)
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


ACCEPTED: dict[str, tuple[Graph, Graph]] = {
    "sizes of one": (program(lambda x, y: x @ y, ONE, ONE), program(lambda x, y: y * x, ONE, ONE)),
    "an input used twice": (program(lambda x: x @ x, MATRIX), program(lambda x: (x * 2) @ x * Fraction(1, 2), MATRIX)),
    "an unused input": (program(lambda x, y: x + x, VECTOR, VECTOR), program(lambda x, y: 2 * x, VECTOR, VECTOR)),
    "an output that is an input": (program(lambda x: x, VECTOR), program(lambda x: x * 3 / 3, VECTOR)),
    "one output twice": (outputs(0, 0), outputs(0, 0)),
    "a constant output": (program(lambda x: x - x, VECTOR), program(lambda x: x * 0, VECTOR)),
    "broadcasting both ways": (
        program(lambda x, y: x + y, (4, 1), (1, 3)),
        program(lambda x, y: (y.transpose(0, 1) + x.transpose(0, 1)).transpose(0, 1), (4, 1), (1, 3)),
    ),
    "maps of a single block": (grid_of_ones((0, 1)), grid_of_ones((0, 0))),
}

REFUSED: dict[str, tuple[Graph, Graph]] = {
    "sizes of one, and a constant": (program(lambda x, y: x @ y, ONE, ONE), program(lambda x, y: x @ y + 1, ONE, ONE)),
    "inputs exchanged": (program(lambda x, y: x - y, VECTOR, VECTOR), program(lambda x, y: y - x, VECTOR, VECTOR)),
    "another input of the same shape": (program(lambda x, y: x, VECTOR, VECTOR), program(lambda x, y: y, VECTOR, VECTOR)),
    "one output twice for two": (outputs(0, 1), outputs(0, 0)),
    "outputs exchanged": (outputs(0, 1), outputs(1, 0)),
    "inputs as outputs, exchanged": (outputs(2, 3), outputs(3, 2)),
    "one row for all": (
        program(lambda x: x, MATRIX),
        program(lambda x: x.sum(0, keepdim=True).expand(4, 4) * Fraction(1, 4), MATRIX),
    ),
    "a transposed symmetric product": (
        program(lambda x: x @ x.transpose(0, 1), MATRIX),
        program(lambda x: x.transpose(0, 1) @ x, MATRIX),
    ),
    "a constant beyond 64 bits": (
        program(lambda x: x * 2**200, VECTOR),
        program(lambda x: x * (2**200 + 1), VECTOR),
    ),
    "a constant with a huge denominator": (
        program(lambda x: x * Fraction(1, 3**150), VECTOR),
        program(lambda x: x * Fraction(1, 3**150 + 1), VECTOR),
    ),
    "a difference in one element of many": (
        program(lambda x: x.amax(-1), (2, 64)),
        program(lambda x: x.sum(-1), (2, 64)),
    ),
    "roots of opposite numbers": (
        program(lambda x, y: (x - y).sqrt(), VECTOR, VECTOR),
        program(lambda x, y: (y - x).sqrt(), VECTOR, VECTOR),
    ),
    "an absolute value by roots": (program(lambda x: x.square().sqrt(), VECTOR), program(lambda x: x, VECTOR)),
    "an exponential of an exponential": (
        program(lambda x: x.exp().exp(), VECTOR),
        program(lambda x: (2 * x).exp().exp(), VECTOR),
    ),
    "an exponential of what depends on one": (
        program(lambda x, y: (x.exp() * y).amax(-1, keepdim=True).exp(), MATRIX, MATRIX),
        program(lambda x, y: (x.exp() + y).amax(-1, keepdim=True).exp(), MATRIX, MATRIX),
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_equal_programs_of_odd_form_pass(name: str) -> None:
    left, right = ACCEPTED[name]
    verdict = verify_graphs(left, right)
    assert verdict.equivalent, verdict.reason


@pytest.mark.parametrize("name", REFUSED)
def test_no_odd_form_hides_a_difference(name: str) -> None:
    left, right = REFUSED[name]
    verdict = verify_graphs(left, right)
    assert not verdict.equivalent
    assert not verdict.certificate.accepted
