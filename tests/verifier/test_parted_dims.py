"""Axes that lie in a dimension with wide slices, as heads in rows of all heads: parted, a few heads stand for many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mugraph import Program
from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.verifier import float_check, float_checks
from mugraph.verifier.float_checks import operator_by_operator, random_inputs
from mugraph.verifier.parted_dims import PartedDims
from mugraph.verifier.reference import Reference
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

HEADS, WIDTH, ROWS = 6, 8, 5


def heads(*, shared: int = 1) -> Graph:
    """Attention of heads that lie in rows of all, `shared` of the queries for each of the keys, turned by their places."""
    written = Program()
    q = written.input("q", (ROWS, HEADS * WIDTH), DType.FP32)
    k, v = (written.input(name, (ROWS, HEADS // shared * WIDTH), DType.FP32) for name in "kv")
    turn = written.input("turn", (ROWS, WIDTH), DType.FP32)
    groups = HEADS // shared
    q = q.reshape(ROWS, groups, shared, WIDTH) * turn.reshape(ROWS, 1, 1, WIDTH)
    q = q.transpose(0, 1).reshape(groups, ROWS * shared, WIDTH)
    k, v = ((each.reshape(ROWS, groups, WIDTH) * turn.reshape(ROWS, 1, WIDTH)).transpose(0, 1) for each in (k, v))
    attended = (q @ k.transpose(1, 2)).softmax(-1) @ v
    written.output(attended.reshape(groups, ROWS, shared, WIDTH).transpose(0, 1).reshape(ROWS, HEADS * WIDTH))
    return written.graph


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program is taken for one of which a slice takes long, and slices are worth a call."""
    monkeypatch.setattr(float_checks, "_WHOLE", 1.0)
    monkeypatch.setattr("mugraph.verifier.reference._SMALLEST", 1)
    monkeypatch.setattr("mugraph.verifier.reference._FEW_WORK", 1.0)
    float_checks._known.cache_clear()


@pytest.mark.parametrize("shared", [1, 3])
def test_heads_are_a_dimension_of_parted_inputs(shared: int) -> None:
    program = heads(shared=shared)
    parted, groups = PartedDims.of(program), HEADS // shared
    assert Reference.of(program).axes == ()
    assert [axis.size for axis in Reference.of(parted.program).axes] == [groups]
    assert [node.output.shape for node in parted.program.inputs()] == [
        (ROWS, groups, shared * WIDTH),
        *[(ROWS, groups, WIDTH)] * 2,
        (ROWS, WIDTH),
    ]
    inputs = random_inputs(program, 0)
    whole, found = operator_by_operator(program)(*inputs), operator_by_operator(parted.program)(*parted.inputs(inputs))
    for expected, got in zip(parted.outputs(whole), found, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert all(np.shares_memory(view, array) for view, array in zip(parted.inputs(inputs), inputs, strict=True))


def test_a_program_without_heads_stays_as_it_is() -> None:
    written = Program()
    x, w = written.input("x", (4, 6), DType.FP32), written.input("w", (6, 8), DType.FP32)
    written.output((x @ w).softmax(-1))
    parted = PartedDims.of(written.graph)
    assert parted.program is parted.original
    assert parted.index_of(0, (3, 7)) == (3, 7)


def test_elements_of_parted_outputs_are_found_in_the_outputs() -> None:
    parted = PartedDims.of(heads())
    numbers = np.arange(ROWS * HEADS * WIDTH).reshape(ROWS, HEADS * WIDTH)
    (view,) = parted.outputs([numbers])
    for index in np.ndindex(*view.shape):
        assert numbers[parted.index_of(0, index)] == view[index]


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.usefixtures("dear")
def test_few_heads_stand_for_all_and_a_fault_of_one_shows(monkeypatch: pytest.MonkeyPatch, shared: int) -> None:
    """In the exact outputs of inputs whose slices repeat one head is evaluated; results of all are compared."""
    program, evaluated = heads(shared=shared), list[tuple[int, ...]]()
    outputs = Reference.outputs

    def noted(self: Reference, inputs: Sequence[Array], counts: tuple[int, ...], pulse: Pulse) -> tuple[Array, ...]:
        evaluated.append(counts)
        return outputs(self, inputs, counts, pulse)

    monkeypatch.setattr(Reference, "outputs", noted)
    right = operator_by_operator(program)
    report = float_check(right, program, seed=1)
    assert report.stable
    assert evaluated.count((1,)) == len(report.scales) - 1
    for row, column in ((0, 0), (2, WIDTH + 3), (ROWS - 1, HEADS * WIDTH - 1)):

        def wrong(*inputs: Array, row: int = row, column: int = column) -> list[Array]:
            (result,) = (np.array(array) for array in right(*inputs))
            result[row, column] += np.abs(result).max()
            return [result]

        found = float_check(wrong, program, seed=1)
        assert all(entry.errors[0] > 0.1 for entry in found.scales)


@pytest.mark.usefixtures("dear")
def test_exact_outputs_are_those_of_the_whole() -> None:
    """Kind by kind: each with one head, repeated, is what float64 gives for the inputs that candidates are run on."""
    program = heads(shared=3)
    known = float_checks._known(program, 3)
    made = float_checks._Inputs(program, 3, (), lambda: None, operator_by_operator(program), 1e3)
    for kind in float_checks.kinds():
        exact = made.fill(kind, known)
        whole = evaluate_batched(program, [array.astype(np.float64) for array in made.inputs], FloatArithmetic())
        assert exact.errors(known.parted.outputs(whole)) == pytest.approx([0.0], abs=1e-12)
