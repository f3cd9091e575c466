"""Programs of several hundred operators: divided into segments that have kernels, and found again in a row."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from mugraph.devices import device_for
from mugraph.errors import BudgetExceeded, UndefinedInField, UnsupportedOperator
from mugraph.ir import Graph
from mugraph.ir.axes import axis_program
from mugraph.ir.program import Program, ProgramTensor
from mugraph.ir.validity import check
from mugraph.search import Options, Progress, SearchReport, SearchResult, driver, long_programs, search, tasks
from mugraph.search.closure.context import TinyInputs
from mugraph.search.driver import Search
from mugraph.search.long_programs import ProgramDivision
from mugraph.search.partition.plans import PlanSearch
from mugraph.search.structures import KNOWN
from mugraph.verifier import verify_graphs

from .programs import finished, outputs, rmsnorm

CPU = device_for("cpu")
R = TypeVar("R")


def total(tensors: list[ProgramTensor]) -> ProgramTensor:
    """The sum of some tensors, the first two first."""
    first, *others = tensors
    for tensor in others:
        first = first + tensor
    return first


def squares(count: int) -> Graph:
    """A sum of squares of matrix products, each of its own operands."""
    p = Program()
    pairs = [(p.input(f"x{i}", (4, 6)), p.input(f"w{i}", (6, 5))) for i in range(count)]
    return finished(p, total([(x @ w).square() for x, w in pairs]))


def chain(count: int) -> Graph:
    """One operator behind another, small of value."""
    p = Program()
    x = p.input("x", (4, 6))
    for index in range(count):
        x = (x * 0.5).silu() if index % 2 else x + 1.0
    return finished(p, x)


def diamonds(count: int) -> Graph:
    """Every tensor is read twice by what makes the next."""
    p = Program()
    x = p.input("x", (4, 6))
    for _ in range(count):
        x = (x.square() + x) * 0.5
    return finished(p, x)


def products(count: int) -> Graph:
    """A chain of matrix products, each along an axis of its own."""
    p = Program()
    x = p.input("x", (4, 6))
    for index in range(count):
        x = (x @ p.input(f"w{index}", (6, 6))).silu()
    return finished(p, x)


def wide(count: int) -> Graph:
    """Many functions of one tensor, all of them written before they are added."""
    p = Program()
    x = p.input("x", (64, 64))
    return finished(p, total([(x * float(index + 1)).silu() for index in range(count)]))


LONG = {"squares": squares(40), "chain": chain(300), "diamonds": diamonds(150), "products": products(70), "wide": wide(60)}


@pytest.mark.parametrize("name", LONG)
def test_long_programs_have_kernels(name: str) -> None:
    program = LONG[name]
    budget = 30 if name == "wide" else 60  # which it uses up, but has kernels soon
    result = search(program, CPU, budget=budget, options=Options(max_kernels=1))
    assert result.candidates
    for candidate in result.candidates[:2]:
        check(candidate.graph, None)
        assert len(candidate.graph.kernels()) < len(program.kernels()) / 4
        for got, expected in zip(outputs(candidate.graph), outputs(program), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-10)
    assert not result.report.exhausted
    assert f"{result.report.segments} segments" in result.report.exhausted_what


@pytest.mark.parametrize("count", [50, 60])
def test_longer_programs_than_are_enumerated_have_one_kernel(count: int) -> None:
    """Their closures are saturated, but no derivation has few enough operators to be listed with others."""
    program = chain(count)
    result = search(program, CPU, options=Options(closure_seconds=60, finer_tier_seconds=0.1))
    assert result.report.tiers[0].exhausted
    assert any(len(candidate.graph.kernels()) == 1 for candidate in result.candidates)


@pytest.mark.parametrize("longest", [1, 3, 7, 48])
@pytest.mark.parametrize("name", LONG)
def test_segments_in_a_row_are_the_program(name: str, longest: int) -> None:
    program = LONG[name]
    division = ProgramDivision(program, CPU)
    segments = division.segments(longest)
    assert max(len(segment.graph.kernels()) for segment in segments) <= longest
    assert sum(len(segment.graph.kernels()) for segment in segments) == len(program.kernels())
    row = division.in_a_row(segments, [segment.graph for segment in segments])
    assert row.input_names == program.input_names
    for got, expected in zip(outputs(row), outputs(program), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_segments_with_several_outputs_views_and_inputs_that_are_outputs() -> None:
    p = Program()
    x, y, unread = p.input("x", (4, 6)), p.input("y", (6, 4)), p.input("z", (2,))
    turned = y.transpose(-1, -2)
    first = (x + turned).silu()
    second = (first * turned).exp()
    program = finished(p, first, second.transpose(-1, -2) @ turned, turned, x)
    division = ProgramDivision(program, CPU)
    segments = division.segments(2)
    assert len(segments) > 1
    row = division.in_a_row(segments, [segment.graph for segment in segments])
    assert row.input_names == ("x", "y", "z")
    assert unread.shape == (2,)
    assert verify_graphs(program, row).equivalent
    for got, expected in zip(outputs(row), outputs(program), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_segments_are_cut_where_the_least_is_stored() -> None:
    """Behind the sums over columns, whatever the number of operators on both sides: 4 elements instead of 4096."""
    p = Program()
    x = p.input("x", (4, 1024))
    for _ in range(6):
        x = x.silu()
    rows = x.sum(-1, keepdim=True)
    for _ in range(6):
        rows = rows.silu()
    first, second = ProgramDivision(finished(p, rows), CPU).segments(8)
    assert [tensor.shape for tensor in first.graph.output_tensors] == [(4, 1)]
    assert len(second.graph.kernels()) < 7


def test_what_is_written_far_apart_is_brought_together() -> None:
    """As it is written, all of the summands would be stored."""
    segments = ProgramDivision(wide(60), CPU).segments()
    assert all(len(segment.makes) == 1 for segment in segments)


def test_a_program_of_more_kernels_than_cuts_have_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clipping by the norm of all: sums over tensors of three shapes meet in one number, which each of them is multiplied by."""
    p = Program()
    tensors = [p.input("x", (512, 512)), p.input("y", (512,)), p.input("z", (256, 2048))]
    norm = total([x.square().sum() for x in tensors]).sqrt() + 1e-6
    program = finished(p, *[x / norm for x in tensors])
    monkeypatch.setattr(long_programs, "_PATIENCE", 0.1)
    result = search(program, CPU, budget=20, options=Options(max_kernels=3))
    assert result.report.segments > 1
    assert any(node.body is not None for node in result.candidates[0].graph.nodes)
    assert verify_graphs(program, result.candidates[0].graph).equivalent


def test_equal_segments_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Graph] = []
    run = Search.run

    def counted(self: Search) -> SearchResult:
        searched.append(self.program)
        return run(self)

    monkeypatch.setattr(Search, "run", counted)
    result = search(chain(900), CPU, budget=60)
    assert len(searched) == len(set(searched)) <= 3 < result.report.segments
    assert len(result.candidates[0].graph.kernels()) < 225


def test_an_axis_form_may_be_had_of_parts_only() -> None:
    """A program of few operators that reshapes what no axes fit, and kernels for the rest of it."""
    p = Program()
    x = p.input("x", (4, 6))
    y = (x.silu() + 1.0).exp()
    program = finished(p, ((y.reshape((6, 4)) @ y).silu() * 0.5).exp())
    with pytest.raises(UnsupportedOperator, match="regroup"):
        axis_program(program)
    result = search(program, CPU, budget=60)
    assert len(result.candidates[0].graph.kernels()) == 2 < len(program.kernels())
    for got, expected in zip(outputs(result.candidates[0].graph), outputs(program), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_an_interrupted_search_of_segments_keeps_what_was_found() -> None:
    KNOWN.clear()

    def stop(progress: Progress) -> None:
        if progress.found:
            raise KeyboardInterrupt

    result = search(chain(900), CPU, budget=60, progress=stop)
    assert result.report.interrupted
    assert result.candidates


def test_ctrl_c_between_the_searches_of_segments_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search begins with work that is no search yet, and so does the division into segments."""
    searches: list[Search] = []
    begin = Search.__post_init__

    def stop_at_the_second(self: Search) -> None:
        searches.append(self)
        if len(searches) == 2:
            raise KeyboardInterrupt
        begin(self)

    def stop(self: ProgramDivision, longest: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Search, "__post_init__", stop_at_the_second)
        result = search(chain(900), CPU, budget=120)
    assert len(searches) == 2
    assert result.report.interrupted
    assert result.candidates
    monkeypatch.setattr(ProgramDivision, "segments", stop)
    result = search(chain(150), CPU, budget=120)
    assert result.report.interrupted
    assert result.candidates


def test_little_time_is_spent_on_some_segments_instead_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def noted(self: long_programs._LongSearch, graph: Graph, seconds: float) -> SearchResult:
        given.append(seconds)
        return SearchResult([], SearchReport())

    monkeypatch.setattr(long_programs._LongSearch, "_of_segment", noted)
    monkeypatch.setattr(long_programs, "_LEAST_STRETCH_SECONDS", 10.0)
    search(wide(250), CPU, budget=60)
    assert len(given) > 4
    assert given[0] == 10.0


def test_no_search_of_a_segment_is_prepared_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    prepare = Search.__post_init__

    def noted(self: Search) -> None:
        prepared.append(len(self.program.kernels()))
        prepare(self)

    monkeypatch.setattr(Search, "__post_init__", noted)
    with pytest.raises(BudgetExceeded):
        search(chain(900), CPU, budget=0.0)
    assert prepared == []


# what is nested deeply ------------------------------------------------------------------------------------------------


def at_depth(frames: int, call: Callable[[], R]) -> R:
    """The result of a call that has so many frames of Python's stack to itself."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + frames)
    try:
        return call()
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", ["chain", "diamonds"])
def test_axis_forms_of_long_chains_need_no_stack(name: str) -> None:
    """Axes that a tensor depends on are not counted for each way from it to the inputs: 2 ** 150 of them."""
    assert at_depth(60, lambda: len(axis_program(LONG[name]).terms)) >= 300


def test_what_is_found_of_an_item_needs_little_stack() -> None:
    KNOWN.clear()
    tasks._LOOPLESS.clear()
    program = chain(60)
    assert at_depth(130, lambda: Search(program, CPU, options=Options(finer_tier_seconds=0.1)).run()).candidates


def test_running_out_of_stack_loses_nothing_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(*args: object) -> None:
        raise RecursionError

    monkeypatch.setattr(PlanSearch, "partial_plans", deep)
    monkeypatch.setattr(PlanSearch, "cut_plans", deep)
    result = search(rmsnorm(), CPU, budget=60)
    assert result.candidates
    assert not result.report.exhausted


def test_an_item_that_runs_out_of_stack_is_one_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the finer tiers; the coarsest one's kernels are still there."""
    KNOWN.clear()
    searched = tasks.Item._searched

    def deep(self: tasks.Item, *args: object) -> object:
        if self.loop_axis is not None:
            raise RecursionError
        return searched(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(tasks.Item, "_searched", deep)
    result = search(rmsnorm(), CPU, budget=60)
    assert result.candidates
    assert not result.report.exhausted


# what has no value in the field ---------------------------------------------------------------------------------------


def test_other_inputs_are_drawn_where_the_first_have_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    program, seeds = rmsnorm(), []
    evaluate = TinyInputs.evaluate

    def undefined_at_first(self: TinyInputs, *args: object) -> object:
        seeds.append(self.seed)
        if self.seed == 0:
            raise UndefinedInField("division by zero")
        return evaluate(self, *args)  # type: ignore[arg-type]

    KNOWN.clear()
    driver._plain.cache_clear()
    monkeypatch.setattr(TinyInputs, "evaluate", undefined_at_first)
    run = Search(program, CPU, budget=60)
    assert run.options.seed == 1
    found = run.run()
    driver._plain.cache_clear()
    assert seeds[0] == 0
    assert verify_graphs(program, found.candidates[0].graph).equivalent


def test_a_program_that_always_divides_by_zero_is_refused() -> None:
    """Some element of a row is its maximum."""
    p = Program()
    x = p.input("x", (4, 6))
    rest = x - x.amax(-1, keepdim=True)
    program = finished(p, x / rest.square())
    assert search(replace(program, outputs=program.nodes[-1].inputs[1:]), CPU, budget=60).candidates
    with pytest.raises(UndefinedInField, match="draws of its inputs"):
        search(program, CPU, budget=60)
