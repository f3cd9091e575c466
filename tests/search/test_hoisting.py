"""Factors taken out of functions: programs for which that gives a better muGraph, and those it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mugraph
from mugraph.checker import check_folder
from mugraph.devices import device_for
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.scalar import Scalar
from mugraph.search import Options, search
from mugraph.search.closure.hoisting import hoisted
from mugraph.search.driver import Search
from mugraph.verifier import by_random_tests

Function = Callable[..., ProgramTensor | tuple[ProgramTensor, ...]]
T = ProgramTensor


def relu(x: T) -> T:
    return x.relu()


def norm(x: T) -> T:
    return (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def written(function: Function, *shapes: tuple[int, ...]) -> Graph:
    program = Program()
    results = function(*(program.input(f"x{i}", shape) for i, shape in enumerate(shapes)))
    program.output(*(results if isinstance(results, tuple) else (results,)))
    return program.graph


TAKEN_OUT: dict[str, tuple[Function, Function]] = {
    "a constant": (lambda x, w: relu(x * 3) @ w, lambda x, w: (relu(x) * 3) @ w),
    "a divisor": (lambda x, w: relu(x / 7) @ w, lambda x, w: (relu(x) / 7) @ w),
    "a constant of a product": (lambda x, w: relu((x * 3) @ w), lambda x, w: relu(x @ w) * 3),
    "a constant of a sum, with its sign": (lambda x, w: relu((x * -3).sum(-1)), lambda x, w: relu(-x.sum(-1)) * 3),
    "a norm": (lambda x, w: relu(x / norm(x)) @ w, lambda x, w: (relu(x) / norm(x)) @ w),
    "an exponential": (lambda x, w: relu(x * w.exp()), lambda x, w: relu(x) * w.exp()),
    "the magnitude of a constant": (lambda x, w: (x * -3).apply("abs") @ w, lambda x, w: (x.apply("abs") * 3) @ w),
    "a constant out of a maximum": (lambda x, w: (x * 3).amax(-1), lambda x, w: x.amax(-1) * 3),
    "a summand out of a maximum": (lambda x, w: (x + 3).amax(-1), lambda x, w: x.amax(-1) + 3),
    "a function out of a maximum": (lambda x, w: relu(x * 3).amax(-1), lambda x, w: relu(x.amax(-1)) * 3),
}

LEFT_ALONE: dict[str, Function] = {
    "a negative constant has its sign inside": lambda x, w: relu(-x) @ w,
    "what may be negative": lambda x, w: relu(x * w),
    "a sum that may be negative": lambda x, w: relu(x / x.sum(-1, keepdim=True)),
    "functions that are not homogeneous": lambda x, w: (x * 3).tanh() @ w,
    "functions that do not increase": lambda x, w: x.silu().amax(-1),
    "a summand that varies": lambda x, w: (x + w).amax(-1),
    "what is subtracted from a constant": lambda x, w: (3 - x).amax(-1),
    "zero": lambda x, w: relu(x * 0) @ w,
}


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_what_is_taken_out(name: str) -> None:
    before, after = (axis_program(written(function, (4, 4), (4, 4))) for function in TAKEN_OUT[name])
    found = hoisted(before)
    assert sorted(map(str, kinds(found))) == sorted(map(str, kinds(after)))
    assert hoisted(found) is found


UNITS: dict[str, Function] = {
    "a product and a multiple of it": lambda x, w: (x @ w) * x + x @ w,
    "the multiple second, and subtracted": lambda x, w: x - w * x,
    "a quotient": lambda x, w: x / w * x + x / w,
    "a product of more": lambda x, w: x * w * (x + w) + w * x,
}
NO_UNITS: dict[str, Function] = {
    "nothing in common": lambda x, w: x + w,
    "a multiple by a number": lambda x, w: x * 3 + x * w,
    "the same twice": lambda x, w: x + x,
    "under a division": lambda x, w: x + w / x,
}


@pytest.mark.parametrize("name", UNITS)
def test_ones_are_put_in_beside_multiples(name: str) -> None:
    before = axis_program(written(UNITS[name], (4, 4), (4, 4)))
    found = hoisted(before)
    ones = [index for index, term in enumerate(found.terms) if term.op == "constant" and term.scalar == Scalar.of(1)]
    assert any(term.op == "mul" and not set(ones).isdisjoint(term.inputs) for term in found.terms)
    assert hoisted(found) is found


@pytest.mark.parametrize("name", NO_UNITS)
def test_ones_are_put_in_nowhere_else(name: str) -> None:
    program = axis_program(written(NO_UNITS[name], (4, 4), (4, 4)))
    assert hoisted(program) is program


def kinds(program: AxisProgram) -> list[tuple[str, list[int]]]:
    """The operators of a program that are no products, with the axes of their results."""
    return [(term.op, sorted(term.axes)) for term in program.terms if term.op not in ("mul", "div", "constant")]


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(name: str) -> None:
    program = axis_program(written(LEFT_ALONE[name], (4, 4), (4, 4)))
    assert hoisted(program) is program


BETTER: dict[str, tuple[Function, tuple[tuple[int, ...], ...], str, float]] = {
    "two scales share a product": (
        lambda x, w: (relu(x * 2) @ w, relu(x) @ w),
        ((512, 512), (512, 512)),
        "cpu",
        0.6,
    ),
    "a maximum comes before a function": (lambda x: x.tanh().amax(-1), ((512, 512),), "cpu", 0.7),
    "scales that cancel leave one kernel": (lambda x, w: relu(x / 7) @ w * 7, ((4096, 4096), (4096, 64)), "cuda:sm_90", 0.99),
    "a multiple and the thing itself share a product": (
        lambda x, w, s: (x @ w) * s + x @ w,
        ((512, 512), (512, 512), (512, 1)),
        "cuda:sm_90",
        0.9999,
    ),
    "a norm waits for the product": (lambda x, w: relu(x / norm(x)) @ w, ((16, 1024), (1024, 4096)), "cuda:sm_90", 0.96),
}


@pytest.mark.parametrize("name", BETTER)
def test_programs_for_which_it_buys_something(name: str) -> None:
    function, shapes, target, at_most = BETTER[name]
    graph, device = written(function, *shapes), device_for(target)
    as_written = Search(graph, device).run().candidates[0]
    best = search(graph, device).candidates[0]
    assert best.cost <= at_most * as_written.cost
    assert by_random_tests(graph, best.graph).equivalent


def test_both_forms_are_searched_and_reported() -> None:
    graph, device = written(lambda x, w: relu(x * 3) @ w, (32, 16), (16, 8)), device_for("cpu")
    found, as_written = search(graph, device), Search(graph, device).run()
    assert found.report.exhausted
    assert found.report.states > as_written.report.states
    assert {candidate.graph for candidate in as_written.candidates} <= {candidate.graph for candidate in found.candidates}
    assert [candidate.cost for candidate in found.candidates] == sorted(candidate.cost for candidate in found.candidates)


def test_what_is_found_so_is_proved_and_passes_the_checker(tmp_path: Path) -> None:
    graph = written(lambda x, w: (relu(x * 2) @ w, relu(x) @ w), (96, 64), (64, 32))
    inputs = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((96, 64), (64, 32))]
    result = mugraph.superoptimize(graph, inputs, target="cpu", budget=30)
    assert result.graph != graph
    result.save(tmp_path / "saved")
    report = check_folder(tmp_path / "saved")
    assert report.reached


def test_a_result_that_one_kernel_writes_and_another_stores_has_two_places() -> None:
    """`relu(x) @ w` is the result, as the scales cancel, and also what a launch before the last might store."""
    graph = written(lambda x, w: (relu(x) * (1 / 7)) @ w * 7, (64, 64), (64, 16))
    assert search(graph, device_for("cpu")).candidates


def test_the_program_as_written_is_not_searched_where_its_other_form_leaves_nothing_to_win() -> None:
    graph = written(lambda x, w: relu(x * 3) + w, (512, 512), (512, 512))
    both, one = (search(graph, device_for("cpu"), budget=20, options=Options(least_gain=gain)) for gain in (0.0, 0.1))
    assert one.report.settled
    assert one.report.tiers[0].closures == both.report.tiers[0].closures / 2
    assert one.candidates[0].cost == both.candidates[0].cost
