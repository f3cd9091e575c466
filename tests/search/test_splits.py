"""Partial results over parts of a reduced axis: split attention with safe exponentials, split products."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import Graph
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Node
from mugraph.ir.program import Program
from mugraph.ir.validity import check
from mugraph.search import Options, search
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.partition.splits import split_of, splits_of, with_parts
from mugraph.search.partition.variants import iterations_as_parts
from mugraph.verifier import verify_graphs

from .programs import attention, finished, outputs, random_inputs

H100 = device_for("cuda:sm_90")
IDLE = dataclasses.replace(H100, launch_seconds=1e-9, iteration_seconds=1e-9, memory_bandwidth=1e9, cache_bandwidth=1e5)
"""A device on which a launch costs nothing and few blocks move their data slowly, so that tiny programs are worth splitting."""


def lengths() -> Graph:
    """Euclidean lengths of two long rows: one long reduction, few outputs."""
    p = Program()
    return finished(p, p.input("x", (2, 64)).square().sum(-1, keepdim=True).sqrt())


def short_attention() -> Graph:
    """One query row per head over 32 keys."""
    return attention(1, 32, 4)


@functools.cache
def in_two(program: Graph) -> list[Graph]:
    """The candidates of a program that are two kernels."""
    found = search(program, IDLE, options=Options(max_kernels=2), budget=60).candidates
    return [candidate.graph for candidate in found if len(candidate.graph.kernels()) == 2]


def test_iterations_of_a_loop_become_parts_of_its_axis() -> None:
    run = Search(lengths(), IDLE)
    program, inner = run.axes, run.axes.sizes.index(64)
    parts = len(program.sizes)
    sketches = run.kernels.structure(program, Tier.OPAQUE_SUMS, inner).sketches
    wholes = [whole for sketch in sketches if (whole := iterations_as_parts(sketch, program)) is not None]
    assert wholes
    for whole in wholes:
        sizes = with_parts(whole.sizes, inner, parts, 4)
        assert (sizes[inner], sizes[parts]) == (16, 4)
        assert with_parts(sizes, inner, parts, 16)[inner] == 4
        assert any(term.op == "sum" and term.reduced == {parts} for term in whole.terms)
        assert all(term.slots[1] == (parts, inner) for _, term in whole.loads())
    without = run.kernels.structure(program, Tier.OPAQUE_SUMS, None).sketches
    assert all(iterations_as_parts(sketch, program) is None for sketch in without)


def test_few_query_rows_on_many_multiprocessors_are_split_over_keys() -> None:
    p = Program()
    q, k, v = (p.input(name, shape) for name, shape in (("q", (2, 8, 128)), ("k", (2, 8192, 128)), ("v", (2, 8192, 128))))
    program = finished(p, (q @ k.transpose(-2, -1) * 128**-0.5).softmax(-1) @ v)
    best = search(program, H100).candidates[0].graph
    first, second = best.kernels()
    assert len(first.outputs) == 3  # numerator, denominator and row maximum of every part
    assert first.body is not None
    assert np.prod(first.body.grid) >= 0.9 * H100.multiprocessors
    assert second.body is not None
    assert "max" in {node.op for node in second.body.nodes}


@pytest.mark.parametrize("make", [short_attention, lengths])
def test_split_candidates_compute_the_program(make: Callable[[], Graph]) -> None:
    program = make()
    graphs = in_two(program)
    assert graphs
    (wanted,) = outputs(program)
    for graph in graphs:
        np.testing.assert_allclose(outputs(graph)[0], wanted, rtol=1e-9)
        assert verify_graphs(program, graph).equivalent


def test_split_attention_survives_large_logits() -> None:
    program = short_attention()
    inputs = [x * 100 for x in random_inputs(program)]
    (wanted,) = evaluate(program, inputs, FloatArithmetic())
    for graph in in_two(program):
        (got,) = evaluate(graph, inputs, FloatArithmetic())
        np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)


def test_sums_of_exponentials_are_not_split_when_nobody_could_rescale_them() -> None:
    p = Program()
    x = p.input("x", (2, 64))
    e = x.exp()
    program = finished(p, e.sum(-1, keepdim=True) + e.square().sum(-1, keepdim=True))
    for graph in in_two(program):
        assert "max" not in {node.op for _, node in graph.walk()}


def test_a_row_maximum_is_exported_along_the_axes_that_the_partial_results_share() -> None:
    p = Program()
    s, v, w = p.input("s", (2, 64)), p.input("v", (64, 4)), p.input("w", (64, 4))
    weights = s.exp()
    program = finished(p, (weights @ v) / (weights @ w.square()))
    graphs = in_two(program)
    assert any(len(kernel.outputs) == 3 for graph in graphs for kernel in graph.kernels())
    (wanted,) = outputs(program)
    for graph in graphs:
        np.testing.assert_allclose(outputs(graph)[0], wanted, rtol=1e-9)


def test_partial_results_of_an_unnormalised_exponential_are_not_shifted() -> None:
    """exp(x) @ y has no denominator in which a common factor of a row would cancel."""
    p = Program()
    x, y, z = p.input("x", (2, 64)), p.input("y", (64, 3)), p.input("z", (2, 3))
    program = finished(p, z - x.exp() @ y)
    graphs = in_two(program)
    assert graphs
    for graph in graphs:
        assert verify_graphs(program, graph).equivalent
        assert all(node.op != "max" for _, node in graph.walk())


def test_blocks_of_split_attention_loop_over_their_own_keys() -> None:
    program = attention(1, 128, 4)
    small = dataclasses.replace(IDLE, shared_memory_bytes=400)
    found = [candidate.graph for candidate in search(program, small, options=Options(max_kernels=2), budget=60).candidates]
    looped = [graph for graph in found if len(graph.kernels()) == 2 and _loop(graph.kernels()[0]) > 1]
    assert any("accumulate_rescaled" in {node.op for _, node in graph.walk()} for graph in looped)
    (wanted,) = outputs(program)
    large = [x * 100 for x in random_inputs(program)]
    (saturated,) = evaluate(program, large, FloatArithmetic())
    for graph in looped[:3]:
        check(graph, small)
        np.testing.assert_allclose(outputs(graph)[0], wanted, rtol=1e-9)
        np.testing.assert_allclose(evaluate(graph, large, FloatArithmetic())[0], saturated, rtol=1e-7, atol=1e-9)
        assert verify_graphs(program, graph).equivalent


def _loop(kernel: Node) -> int:
    return 1 if kernel.body is None else kernel.body.loop


def test_derivations_with_the_same_partial_results_are_one_split() -> None:
    run = Search(short_attention(), IDLE)
    structure, wholes, kept = run.axes.structure, 0, 0
    for axis in run.kernels.loop_axes(run.axes):
        sketches = run.kernels.structure(run.axes, Tier.OPAQUE_SUMS, axis).sketches
        splits = [split for sketch in sketches if (split := split_of(sketch, structure)) is not None]
        distinct = list(splits_of(sketches, structure))
        assert [split.results for split in distinct] == list(dict.fromkeys(split.results for split in splits))
        wholes, kept = wholes + len({split.whole for split in splits}), kept + len(distinct)
    assert 1 < kept < wholes


@pytest.mark.parametrize("make", [short_attention, lengths])
def test_no_candidate_is_proposed_twice(make: Callable[[], Graph]) -> None:
    graphs = in_two(make())
    assert len(set(graphs)) == len(graphs) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("gqa", "cpu"), ("gqa", "cuda:sm_80"), ("gqa", "cuda:sm_90"), ("qknorm", "cpu")])
def test_attention_comes_as_one_kernel_and_as_partial_results(name: str, target: str) -> None:
    workload = WORKLOADS[name]
    program = trace(workload.function(), workload.inputs(1)).graph
    patient = Options(cut_seconds=math.inf, closure_seconds=math.inf, finer_tier_seconds=0)
    found = search(program, device_for(target), options=patient).candidates
    assert {len(candidate.graph.kernels()) for candidate in found} == {1, 2}
