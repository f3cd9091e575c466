"""A program evaluated slice by slice is the program, and few slices stand for the many they repeat in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mugraph.ir import DType, Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program
from mugraph.verifier import float_check, reference
from mugraph.verifier.exact_values import Repeating
from mugraph.verifier.float_checks import ADVERSARIAL, InputKind, arrays_for, fill, operator_by_operator, random_inputs
from mugraph.verifier.reference import Reference, spread

from .graphs import rmsnorm


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of hundreds of elements instead of ten thousands, of which two are few."""
    monkeypatch.setattr(reference, "_SMALLEST", 100)
    monkeypatch.setattr(reference, "_FEW", 900)


def attention() -> Graph:
    written = Program()
    q = written.input("q", (4, 6, 1, 8), DType.FP32)
    k, v = (written.input(name, (4, 6, 24, 8), DType.FP32) for name in "kv")
    weights = (q @ k.transpose(2, 3)).exp()
    written.output((weights / weights.sum(-1, keepdim=True)) @ v)
    return written.graph


def nothing() -> None:
    """A pulse that never ends an evaluation."""


def test_axes_are_cut_where_nothing_is_read_twice() -> None:
    found = Reference.of(attention())
    sizes = [axis.size for axis in found.cut], [axis.size for axis in found.kept]
    assert sizes == ([4, 6], [8]), "heads and sequences, but not the columns of v, for each of which k would be read again"
    assert found.unit.inputs()[1].output.shape == (1, 1, 24, 8)
    assert found.few == (2, 1, 8)
    linear = Reference.of(rmsnorm(64, 64, 64))
    assert not linear.cut
    assert [axis.size for axis in linear.kept] == [64, 64]


def test_few_slices_along_kept_axes() -> None:
    found = Reference.of(rmsnorm(4, 16, 64))
    assert [axis.size for axis in found.kept] == [64, 4], "all weights but those of one column are left out first"
    assert found.few == (32, 4)
    assert found.input_shapes(found.few)[-1] == (16, 32)


@pytest.mark.parametrize("kind", [InputKind(1.0), InputKind(1e3), *(InputKind(1.0, name) for name in ADVERSARIAL)], ids=str)
def test_slices_make_up_the_program(kind: InputKind) -> None:
    program = attention()
    found = Reference.of(program)
    whole = arrays_for(program, [node.output.shape for node in program.inputs()])
    for counts in (found.all, found.few, (4, 2, 8), (2, 3, 4)):
        different = arrays_for(program, found.input_shapes(counts))
        fill(program, different, kind, seed=0)
        found.full_inputs(different, counts, into=whole)
        (output,) = found.full_outputs(found.outputs(different, counts, nothing), counts)
        with np.errstate(all="ignore"):
            expected = evaluate(program, [array.astype(np.float64) for array in whole], FloatArithmetic())
        np.testing.assert_allclose(output.reshape(expected[0].shape), expected[0], rtol=1e-12)
        assert len({array.tobytes() for array in whole[1].reshape(24, -1)}) == np.prod(counts[:2])


def test_heads_that_share_a_mask_are_evaluated_in_turn() -> None:
    """In the same numbers; rows that share weights are not, for each of which these would be read again."""
    written = Program()
    q, k, v = (written.input(name, (6, 48, 32), DType.BF16) for name in "qkv")
    mask = written.input("mask", (48, 48), DType.BF16)
    written.output((q @ k.transpose(-2, -1) + mask).softmax(-1) @ v)
    shapes: list[list[tuple[int, ...]]] = []

    def evaluated(graph: Graph, slices: Sequence[Array]) -> Sequence[Array]:
        shapes.append([array.shape for array in slices])
        return operator_by_operator(graph)(*slices)

    for program, turns, first in ((written.graph, 6, (1, 48, 32)), (rmsnorm(64, 64, 64), 1, (64, 64))):
        shapes.clear()
        inputs = random_inputs(program, 0)
        expected, sliced = operator_by_operator(program)(*inputs), Reference.of(program)
        for found, whole in zip(sliced.in_turn(inputs, sliced.all, evaluated), expected, strict=True):
            np.testing.assert_array_equal(found, whole)
        assert len(shapes) == turns
        assert shapes[0][0] == first


def test_single_elements_are_not_evaluated_in_turn() -> None:
    """Of a gated MLP's activation rows are slices, each evaluated at once: a call for each of its numbers took minutes."""
    written = Program()
    gate, up = (written.input(name, (6, 120), DType.BF16) for name in ("gate", "up"))
    written.output(gate.silu() * up)
    program, rows = written.graph, 0
    sliced = Reference.of(program)
    assert (len(sliced.cut), len(sliced.kept)) == (1, 1)

    def evaluated(graph: Graph, slices: Sequence[Array]) -> Sequence[Array]:
        nonlocal rows
        rows += 1
        assert slices[0].shape == (1, 120)
        return operator_by_operator(graph)(*slices)

    inputs = random_inputs(program, 0)
    for found, whole in zip(sliced.in_turn(inputs, sliced.all, evaluated), operator_by_operator(program)(*inputs), strict=True):
        np.testing.assert_array_equal(found, whole)
    assert rows == 6


def test_of_slices_that_repeat_the_program_is_run_on_those_that_differ() -> None:
    program, found = attention(), Reference.of(attention())
    for counts in (found.all, found.few, (2, 3, 4)):
        different = arrays_for(program, found.input_shapes(counts))
        fill(program, different, InputKind(10.0), seed=0)
        whole = arrays_for(program, [node.output.shape for node in program.inputs()])
        found.full_inputs(different, counts, into=whole)
        columns: list[int] = []

        def evaluated(graph: Graph, slices: Sequence[Array], columns: list[int] = columns) -> Sequence[Array]:
            outputs = operator_by_operator(graph)(*slices)
            columns.append(outputs[0].size)
            return outputs

        exact = Repeating.of(found, different, counts, nothing)
        for own, expected in zip(exact.outputs_by(evaluated, whole), operator_by_operator(program)(*whole), strict=True):
            np.testing.assert_array_equal(own, expected)
        assert sum(columns) == np.prod(counts)


def test_a_mistake_in_one_slice_is_found() -> None:
    program = attention()

    def run(*inputs: Array) -> list[Array]:
        with np.errstate(all="ignore"):
            (output,) = evaluate(program, list(inputs), FloatArithmetic(np.float32))
        output[3, 5, 0, 7] = output[2, 5, 0, 7]
        return [output]

    report = float_check(run, program, scales=[1.0], graph=program)
    assert not report.stable
    assert "input scale 1" in report.reason


def test_slices_that_repeat_are_all_compared() -> None:
    program = attention()

    def run(*inputs: Array) -> list[Array]:
        with np.errstate(all="ignore"):
            (output,) = evaluate(program, list(inputs), FloatArithmetic(np.float32))
        output[3, 5] *= np.float32(1.1)
        return [output]

    report = float_check(run, program, scales=[0.1])
    assert not report.stable
    assert "input scale 0.1" in report.reason


def test_outputs_without_dimensions_are_compared() -> None:
    written = Program()
    written.output(written.input("x", (8,)).sum(0))
    assert float_check(lambda x: [x.sum(dtype=np.float32)], written.graph, graph=written.graph).stable


@pytest.mark.parametrize("other", [0, np.float32(np.nan)])
def test_slices_are_spread_to_where_they_belong(other: float) -> None:
    places = np.array([0, 2, 3, 4, 6]), np.array([5]), np.arange(3)
    array = np.arange(5 * 4 * 1 * 3, dtype=np.float32).reshape(5, 4, 1, 3)
    expected = np.full((7, 4, 6, 3), other, np.float32)
    expected[np.ix_(places[0], np.arange(4), places[1], places[2])] = array
    np.testing.assert_array_equal(spread(array, [0, 2, 3], places, (7, 4, 6, 3), other), expected)
    np.testing.assert_array_equal(spread(array, [None, 2, 3], places, (5, 4, 6, 3))[:, :, 5], array[:, :, 0])
    assert spread(array, [0, 1, None], places, array.shape) is array
