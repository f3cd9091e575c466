"""Safe exponentials are derived where a row factor cancels, and only there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mugraph.algebra.fields import FieldArithmetic, NestingArithmetic
from mugraph.devices import Device, device_for
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.axes import axis_program
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search import SearchResult, long_programs, search
from mugraph.search.closure.context import TinyInputs
from mugraph.search.closure.safe_softmax import without_neutral_maxima
from mugraph.search.long_programs import ProgramDivision

from .programs import attention, finished, heads_and_projection, random_inputs

CPU = device_for("cpu")
SMALL = dataclasses.replace(CPU, shared_memory_bytes=250, multiprocessors=2)
"""Two cores with too little memory for all keys at once, so that a loop over them is needed."""


def operators(graph: Graph) -> set[str]:
    """All operators of a graph, at every level."""
    return {node.op for _, node in graph.walk()}


def test_softmax_gets_a_row_maximum() -> None:
    p = Program()
    x = p.input("x", (4, 8))
    found = search(finished(p, x.softmax(-1)), CPU).candidates
    assert found
    assert any("max" in operators(candidate.graph) for candidate in found)


def test_logarithms_of_sums_that_are_nothing_or_infinite_are_infinities() -> None:
    p = Program()
    x = p.input("x", (4, 16))
    largest = x.amax(-1, keepdim=True).maximum(DType.FP32.least).minimum(DType.FP32.largest)
    program = finished(p, (x - largest).exp().sum(-1, keepdim=True).apply("log") + largest)
    scores = np.linspace(-3.0, 3.0, 64).reshape(4, 16)
    scores[1], scores[2, 5:], scores[3, 9] = -np.inf, -np.inf, np.inf
    expected = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    found = search(program, CPU).candidates
    assert found
    for candidate in found:
        (result,) = evaluate(candidate.graph, [scores], FloatArithmetic())
        np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("negated", [False, True])
def test_a_row_that_is_shifted_by_its_clamped_maximum_is_shifted_by_no_other(negated: bool) -> None:
    p = Program()
    x = p.input("x", (4, 64))
    largest = x.amax(-1, keepdim=True).maximum(DType.FP32.least).minimum(DType.FP32.largest)
    exponentials = (x + -largest if negated else x - largest).exp()
    program = finished(p, exponentials / exponentials.sum(-1, keepdim=True) + largest)
    graphs = [candidate.graph for candidate in search(program, CPU).candidates]
    assert min(sum(node.op == "max" for _, node in graph.walk()) for graph in graphs) == 1


def test_a_loop_over_keys_gets_rescaled_accumulators() -> None:
    found = search(attention(), SMALL).candidates
    online = [candidate.graph for candidate in found if "accumulate_rescaled" in operators(candidate.graph)]
    assert online
    for graph in online:
        (body,) = (node.body for node in graph.nodes if node.body is not None)
        sums = [node for node in body.nodes if node.op == "accumulate_rescaled"]
        assert len(sums) == 2
        assert len({node.inputs[1] for node in sums}) <= 2


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_shifted_attention_is_finite_and_right_for_large_logits(scale: float) -> None:
    graph = attention()
    inputs = [x * scale for x in random_inputs(graph)]
    q, k, v = inputs
    scores = q @ np.swapaxes(k, -1, -2) * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    candidates = search(graph, SMALL).candidates
    assert candidates
    for candidate in candidates:
        if "accumulate_rescaled" in operators(candidate.graph):
            (got,) = evaluate(candidate.graph, inputs, FloatArithmetic())
            np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_every_row_is_shifted_by_its_own_maximum_although_heads_are_added_later() -> None:
    program = heads_and_projection()
    x, w = random_inputs(program)
    x = x + 2000.0 * np.arange(4).reshape(4, 1, 1)
    (wanted,) = evaluate(program, [x, w], FloatArithmetic())
    for candidate in search(program, CPU).candidates:
        np.testing.assert_allclose(evaluate(candidate.graph, [x, w], FloatArithmetic())[0], wanted, rtol=1e-9)


def test_an_exponential_whose_factor_does_not_cancel_is_left_alone() -> None:
    p = Program()
    x, w = p.input("x", (4, 8)), p.input("w", (8, 3))
    for candidate in search(finished(p, x.exp() @ w), CPU).candidates:
        assert not {"max", "accumulate_rescaled"} & operators(candidate.graph)


def test_a_sum_of_a_softmax_and_an_exponential_is_left_alone() -> None:
    p = Program()
    x = p.input("x", (4, 8))
    e = x.exp()
    for candidate in search(finished(p, e / e.sum(-1, keepdim=True) + e.sum(-1, keepdim=True)), CPU).candidates:
        assert "max" not in operators(candidate.graph)


def test_a_neutral_maximum_is_dropped_and_another_is_kept() -> None:
    def axis_ops(*, neutral: bool) -> list[str]:
        p = Program()
        x = p.input("x", (4, 8))
        e = (x - x.amax(-1, keepdim=True)).exp()
        graph = finished(p, e / e.sum(-1, keepdim=True) if neutral else e)
        program = without_neutral_maxima(axis_program(graph), FieldArithmetic(seed=1), TinyInputs(1))
        return [term.op for term in program.terms]

    assert "max" not in axis_ops(neutral=True)
    assert "max" in axis_ops(neutral=False)


def test_a_product_of_two_exponentials_is_never_rescaled_by_the_maximum_of_only_one() -> None:
    p = Program()
    a, b, v = p.input("a", (2, 32)), p.input("b", (2, 32)), p.input("v", (32, 4))
    e = a.exp() * b.exp()
    program = finished(p, (e @ v) / e.sum(-1, keepdim=True))
    inputs = random_inputs(program)
    (wanted,) = evaluate(program, inputs, FloatArithmetic())
    candidates = search(program, SMALL).candidates
    assert any("accumulate_rescaled" in operators(candidate.graph) for candidate in candidates)
    for candidate in candidates:
        np.testing.assert_allclose(evaluate(candidate.graph, inputs, FloatArithmetic())[0], wanted, rtol=1e-9)


def test_the_maxima_of_nested_softmaxes_are_all_neutral() -> None:
    """The outer exponential is a random function in the field: that its rows may be scaled is what shows it."""
    p = Program()
    x, w = p.input("x", (3, 4)), p.input("w", (4, 5))
    program = axis_program(finished(p, (x.softmax(-1) @ w).softmax(-1)))
    plain = without_neutral_maxima(program, NestingArithmetic(seed=1), TinyInputs(1))
    assert not any(term.op == "max" for term in plain.terms)
    assert sum(term.op == "exp" for term in plain.terms) == 2


def test_both_of_two_nested_exponentials_are_shifted() -> None:
    p = Program()
    x, w = p.input("x", (3, 4)), p.input("w", (4, 5))
    (candidate, *_) = search(finished(p, (x.softmax(-1) @ w).softmax(-1)), CPU).candidates
    (kernel,) = candidate.graph.kernels()
    assert kernel.body is not None
    assert [node.op for node in kernel.body.nodes].count("max") == 2


def softmaxes_along_both(p: Program, x: ProgramTensor) -> Graph:
    """A confidence as matching features has it: how likely each row is for its column, and each column for its row."""
    return finished(p, x.softmax(-1) * x.softmax(-2))


def test_softmaxes_along_two_axes_have_an_exponential_each() -> None:
    """The greatest of all elements keeps one for both in range, but rows of much smaller ones would sum up to nothing."""
    p = Program()
    program = softmaxes_along_both(p, p.input("x", (12, 8)))
    x = random_inputs(program)[0] + 1e4 * np.arange(12).reshape(12, 1) - 1e3 * np.arange(8)
    (wanted,) = evaluate(program, [x], FloatArithmetic())
    found = search(program, CPU)
    assert found.report.segments == 0
    for graph in [candidate.graph for candidate in found.candidates]:
        np.testing.assert_allclose(evaluate(graph, [x], FloatArithmetic())[0], wanted, rtol=1e-9)


def scores_and_small_kernels() -> tuple[Graph, Device]:
    """Scores along the rows and columns of which softmax is taken, and a device with kernels too small for all of them."""
    p = Program()
    q, k = p.input("q", (96, 16)), p.input("k", (80, 16))
    return softmaxes_along_both(p, q @ k.transpose(-1, -2)), dataclasses.replace(CPU, shared_memory_bytes=20_000)


def test_a_program_whose_kernels_would_all_overflow_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was searched of the whole before is in the report."""
    states: list[int] = []
    searched = long_programs._searched

    def noted(*asked: Any) -> SearchResult:
        result = searched(*asked)
        states.append(result.report.states)
        return result

    monkeypatch.setattr(long_programs, "_searched", noted)
    program, device = scores_and_small_kernels()
    x, y = random_inputs(program)
    (wanted,) = evaluate(program, [200 * x, y], FloatArithmetic())
    found = search(program, device, budget=40)
    assert found.report.segments > 1
    assert found.report.states == sum(states) > states[0] > 0
    np.testing.assert_allclose(evaluate(found.candidates[0].graph, [200 * x, y], FloatArithmetic())[0], wanted, rtol=1e-9)


def test_kernels_that_overflow_are_what_an_interrupted_division_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    program, device = scores_and_small_kernels()

    def stop(self: ProgramDivision, longest: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgramDivision, "segments", stop)
    found = search(program, device, budget=8)
    assert found.report.interrupted
    assert found.report.states > 0
    assert found.candidates


def test_maxima_over_some_axes_that_nobody_reads_are_one() -> None:
    def maxima(kept: bool) -> list[frozenset[int]]:
        builder = GraphBuilder(Level.KERNEL)
        rows = builder.add("max", builder.input("x", (4, 6, 8), DType.FP32), dim=2, size=8)
        both = builder.add("max", rows, dim=1, size=6)
        program = axis_program(builder.build([both, rows] if kept else [both]))
        return [term.reduced for term in program.terms if term.op == "max"]

    assert maxima(kept=False) == [frozenset({1, 2})]
    assert maxima(kept=True) == [frozenset({2}), frozenset({1})]
