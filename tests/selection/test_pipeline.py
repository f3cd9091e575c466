"""Which proposals are compiled at all, and what is begun as a budget comes to its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from mugraph.errors import BudgetExceeded
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.results.data import Rejection
from mugraph.runtime import Executable, build
from mugraph.selection import qualification
from mugraph.selection.contestants import Contestant, Proved
from mugraph.selection.inputs import random_tensors
from mugraph.selection.qualification import Qualifier
from mugraph.support import deadline
from mugraph.support.deadline import Deadline
from mugraph.support.progress import silent
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Machine
from mugraph.verifier import FloatReport, verify_graphs


def lengths(*, of_factors: bool) -> Graph:
    """sqrt(x * x) in one kernel, as such or as sqrt(x) * sqrt(x)."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 64), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    tile = block.iterator(0, kernel.tensor(x), (0,), None)
    if of_factors:
        root = block.add("sqrt", tile)
        result = block.add("mul", root, root)
    else:
        result = block.add("sqrt", block.add("square", tile))
    saved = block.add("output_saver", result, omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x]))


def test_undefined_proposals_take_no_place_among_those_compiled() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 64), DType.FP32)
    program = kernel.build([kernel.add("sqrt", kernel.add("square", x))])
    qualifier = Qualifier(program, "cpu", Deadline(None), silent, 0, 2**-40, "bounded", None)
    undefined, sound = lengths(of_factors=True), lengths(of_factors=False)
    compiled = qualifier.compile([*[(undefined, 1.0)] * 20, (sound, 2.0)])
    assert [entry.cost for entry in compiled] == [2.0]
    (rejection,) = qualifier.rejected
    assert rejection.stage == "float"
    assert "sqrt of shape" in rejection.reason
    assert "has no result" in rejection.reason


def scaled(*, rows_first: bool, by_parts: bool = False) -> Graph:
    """x * gain * scale in one kernel of four blocks or two, by the scale of each row first or by the gain of each column."""
    kernel = GraphBuilder(Level.KERNEL)
    shapes = {"x": (8, 64), "gain": (64,), "scale": (8, 1)}
    x, gain, scale = (kernel.input(name, shape, DType.FP32) for name, shape in shapes.items())
    block = GraphBuilder(Level.BLOCK, grid=(2 if by_parts else 4,))
    operands = [x, scale, gain] if rows_first else [x, gain, scale]
    tiles = [
        block.iterator(number, kernel.tensor(each), (None if each is gain else 0,), None) for number, each in enumerate(operands)
    ]
    product = block.add("mul", block.add("mul", tiles[0], tiles[1]), tiles[2])
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", product, omap=(0,))]), operands))


@pytest.mark.parametrize(("other", "seconds", "compiled"), [(False, 1.0, 1), (False, 1.5, 2), (True, 1.0, 2)])
def test_of_the_first_proposals_those_that_do_the_same_work_are_compiled_once(other: bool, seconds: float, compiled: int) -> None:
    """Factors in another order are, under the same schedule and as long as they are predicted to take as long."""
    first, second = scaled(rows_first=False), scaled(rows_first=True, by_parts=other)
    qualifier = qualifier_for(first, None)
    proposals = [(first, 1.0), (second, seconds)]
    assert [entry.cost for entry in qualifier.compile(proposals, most=2)] == [1.0, seconds][:compiled]
    assert len(qualifier.compile(proposals)) == 2, "where there is time all are"


def test_where_nothing_is_measured_no_more_is_compiled_than_is_kept() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 64), DType.FP32)
    program = kernel.build([kernel.add("sqrt", kernel.add("square", x))])
    qualifier = Qualifier(program, "cpu", Deadline(None), silent, 0, 2**-40, "bounded", None)
    wrong, sound, never = kernel.build([kernel.add("sqrt", x)]), lengths(of_factors=False), lengths(of_factors=True)
    kept = qualifier.compile_and_prove([(wrong, 0.5), *((sound, cost) for cost in (1.0, 2.0, 3.0)), (never, 4.0), (sound, 5.0)])
    assert [proved.entry.cost for proved in kept] == [1.0, 2.0, 3.0]
    assert [rejection.cost for rejection in qualifier.rejected] == [0.5]


class Clock:
    """A clock that goes on only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(qualification, "Deadline", lambda seconds: Deadline(seconds, started=made.now))
    monkeypatch.setattr(deadline, "time", made)
    return made


def qualifier_for(program: Graph, budget: float | None) -> Qualifier:
    return Qualifier(program, "cpu", Deadline(budget, started=0.0), silent, 0, 2**-40, "bounded", None)


@pytest.mark.parametrize(("budget", "begun"), [(1.4, 1), (3.6, 2), (None, 5)])
def test_no_compilation_is_begun_that_would_end_late(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, budget: float | None, begun: int
) -> None:
    """Each takes a second; of what is left, compilation has three tenths, and its last one ends within the budget."""
    monkeypatch.setattr(qualification, "available_cores", lambda: 1)
    program = lengths(of_factors=False)
    qualifier = qualifier_for(program, budget)

    def built(proposal: tuple[Graph, float], unpacked: bool) -> Rejection:
        clock.now += 1.0
        return Rejection("compile", "not needed", proposal[1])

    monkeypatch.setattr(qualifier, "_built", built)
    qualifier.compile([(program, float(number)) for number in range(5)])
    assert budget is None or clock.now <= budget
    assert len(qualifier.rejected) >= begun


@pytest.mark.parametrize(("proved", "begun"), [(True, 2), (False, 3)])
def test_no_compilation_is_begun_for_a_proof_that_would_end_late(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, proved: bool, begun: int
) -> None:
    """Each takes two seconds, and proofs took three: the third one would be compiled at 6 of 10 seconds, and proved by 11."""
    monkeypatch.setattr(qualification, "available_cores", lambda: 1)
    program, asked = lengths(of_factors=False), []
    qualifier = qualifier_for(program, 10.0)
    entry = Contestant(program, 1.0, build(program, "cpu"))

    def built(proposal: tuple[Graph, float], unpacked: bool) -> Contestant:
        asked.append(proposal)
        clock.now += 2.0
        return entry

    monkeypatch.setattr(qualifier, "_built", built)
    qualifier.compile([(program, 0.0)])
    qualifier.longest_proof = 3.0
    qualifier.tried[program] = Proved(entry, verify_graphs(program, program).certificate, None) if proved else None
    for now in (4.0, 6.0):
        clock.now = now
        qualifier.compile([(program, now)])
    assert len(asked) == begun


@pytest.mark.parametrize(("budget", "measured"), [(1.0, False), (4.0, True)])
def test_the_original_is_measured_only_where_a_hopeless_one_would_end_in_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, budget: float, measured: bool
) -> None:
    program = lengths(of_factors=False)
    entry = Contestant(program, 1.0, build(program, "cpu"), latency=1.0, least=1.0)
    proved = Proved(entry, verify_graphs(program, program).certificate, None)
    asked: list[int] = []

    def measured_as_before(entries: Sequence[Contestant], *_: object, **__: object) -> list[Contestant]:
        asked.append(len(entries))
        return list(entries)

    monkeypatch.setattr(qualification, "measured", measured_as_before)
    monkeypatch.setattr(qualification, "called_once", lambda entry, _: measured_as_before([entry])[0])
    kept, _ = qualifier_for(program, budget).settle([proved], entry, random_tensors(program, seed=0))
    assert bool(asked) is measured
    assert kept == [proved]


@pytest.mark.parametrize(("budget", "stages"), [(20.0, "pmp"), (100.0, "mp"), (None, "mp")])
def test_late_in_a_budget_one_is_proved_before_the_careful_measurement(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, budget: float | None, stages: str
) -> None:
    """The rough measurement takes three seconds a candidate, and the careful one puts them into another order."""
    program, slower = lengths(of_factors=False), lengths(of_factors=True)
    entries = [Contestant(graph, 1.0, build(graph, "cpu")) for graph in (slower, program)]
    qualifier, done = qualifier_for(program, budget), []

    def measured(entries: Sequence[Contestant], inputs: object, rounds: int, **_: object) -> list[Contestant]:
        careful = rounds > 2
        if careful:
            done.append("m")
        clock.now += 0.0 if careful else 3.0
        seconds = {slower: 2e-3 if careful else 1e-3, program: 1.5e-3}
        return [replace(entry, latency=seconds[entry.graph], least=seconds[entry.graph]) for entry in entries]

    def proved(entry: Contestant, name: str) -> Proved:
        if not done or done[-1] != "p":
            done.append("p")
        return Proved(entry, verify_graphs(program, program).certificate, None)

    monkeypatch.setattr(qualification, "measured", measured)
    monkeypatch.setattr(qualifier, "_proved", proved)
    kept = qualifier.rank_and_prove(entries, random_tensors(program, seed=0))
    assert "".join(done) == stages
    assert [(each.entry.graph, each.entry.latency) for each in kept] == [(program, 1.5e-3), (slower, 2e-3)]


@pytest.mark.parametrize(
    ("least", "other", "asked"),
    [(0.1, 2.0, True), (math.inf, math.inf, True), (math.inf, 0.1, True), (2.0, 0.1, False), (math.inf, 2.0, False)],
)
def test_no_comparison_with_float64_begins_whose_calls_take_longer_than_there_is(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, least: float, other: float, asked: bool
) -> None:
    """There are eight kinds of inputs, and the original is called for one. Who was not measured is as quick as the quickest."""
    program = lengths(of_factors=False)
    qualifier, begun = qualifier_for(program, 10.0), []

    def floats(entry: Contestant, **_: object) -> FloatReport:
        begun.append(entry)
        raise BudgetExceeded("the budget ended")

    monkeypatch.setattr(qualifier, "floats", floats)
    entry = Contestant(program, 1.0, build(program, "cpu"), latency=least, least=least)
    behind = Contestant(lengths(of_factors=True), 1.0, entry.executable, latency=other, least=other)
    qualifier.tried[behind.graph] = None
    assert qualifier.prove([entry, behind]) == []
    assert bool(begun) is asked
    assert [rejection.unfinished for rejection in qualifier.rejected] == [True]
    assert ("calls take 18.0 s" in qualifier.rejected[0].reason) is not asked


@pytest.mark.parametrize(("compiling", "left"), [(3.0, 6.0), (9.0, 0.0)])
def test_a_comparison_with_float64_has_what_the_compiler_of_its_stand_in_leaves(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, compiling: float, left: float
) -> None:
    program = lengths(of_factors=False)
    qualifier = Qualifier(program, "cuda:sm_90", Deadline(10.0, started=0.0), silent, 0, 2**-40, "bounded", None)
    compiled: list[Machine] = []
    asked: list[float] = []

    def stand_in(graph: Graph, machine: Machine) -> Executable:
        compiled.append(machine)
        clock.now += compiling
        return build(graph, "cpu")

    def float_check(*_: object, budget: float, **__: object) -> FloatReport:
        asked.append(budget)
        return FloatReport(True, "", (), ())

    absent = Contestant(program, 1.0, cast("Executable", SimpleNamespace(machine=Cuda("sm_90", 1 << 17))))
    monkeypatch.setattr(Cuda, "available", False)
    monkeypatch.setattr(qualification, "Executable", stand_in)
    monkeypatch.setattr(qualification, "float_check", float_check)
    clock.now = 1.0
    qualifier.floats(absent)
    assert asked == [left]
    clock.now = 10.0
    with pytest.raises(BudgetExceeded, match="before the comparison with float64"):
        qualifier.floats(absent)
    assert len(compiled) == 1


def test_what_was_proved_early_is_kept_where_time_is_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    program, other = lengths(of_factors=False), lengths(of_factors=True)
    entries = [Contestant(graph, 1.0, build(graph, "cpu"), latency=1.0) for graph in (program, other)]
    qualifier = qualifier_for(program, 10.0)
    asked: list[str] = []

    def proved(entry: Contestant, name: str) -> Proved:
        asked.append(name)
        clock.now += 6.0
        return Proved(entry, verify_graphs(program, program).certificate, None)

    monkeypatch.setattr(qualifier, "_proved", proved)
    assert [each.entry for each in qualifier.prove(entries, most=1)] == entries[:1]
    assert [each.entry for each in qualifier.prove(entries[::-1])] == entries[:1]
    clock.now = 20.0
    assert [each.entry for each in qualifier.prove(entries[::-1])] == entries[:1]
    assert asked == ["candidate 1"]


def test_no_search_goes_on_behind_which_no_proof_would_end_in_time(clock: Clock) -> None:
    """Half of what is left is the search's."""
    program = lengths(of_factors=False)
    qualifier = qualifier_for(program, 10.0)
    clock.now, qualifier.longest_proof = 4.0, 4.0
    assert qualifier.may_prove_another  # nothing is proved, and others may take less time
    entry = Contestant(program, 1.0, build(program, "cpu"))
    qualifier.tried[program] = Proved(entry, verify_graphs(program, program).certificate, None)
    assert not qualifier.may_prove_another
    clock.now = 2.0
    assert qualifier.may_prove_another
    qualifier.seconds |= {"compile": 0.5, "measure": 0.5, "verify": 4.0}  # which are to be done again, too
    assert not qualifier.may_prove_another
    qualifier.longest_proof = 3.0
    assert qualifier.may_prove_another
    qualifier.interrupted = True
    assert not qualifier.may_prove_another


def test_what_is_proved_may_be_enough_before_the_time_is_over(clock: Clock) -> None:
    program = lengths(of_factors=False)
    qualifier = qualifier_for(program, 10.0)
    clock.now = 6.0
    qualifier.end_after(5.0)
    assert not qualifier.deadline.passed  # nothing is proved
    qualifier.tried[program] = Proved(
        Contestant(program, 1.0, build(program, "cpu")), verify_graphs(program, program).certificate, None
    )
    qualifier.end_after(15.0)
    assert qualifier.deadline.remaining == 4.0
    qualifier.end_after(5.0)
    assert qualifier.deadline.passed


def product() -> Graph:
    """x @ weight in one kernel."""
    kernel = GraphBuilder(Level.KERNEL)
    factors = [kernel.input("x", (8, 64), DType.FP32), kernel.input("weight", (64, 64), DType.FP32)]
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    left, right = (block.iterator(at, kernel.tensor(each), (at or None,), None) for at, each in enumerate(factors))
    return kernel.build(
        kernel.graph_defined(block.build([block.add("output_saver", block.add("matmul", left, right), omap=(1,))]), factors)
    )


@pytest.mark.parametrize(("lasting", "proofs"), [(6.0, 1), (2.0, 2)])
def test_what_was_proved_early_stands_where_unpacked_weights_are_faster(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, lasting: float, proofs: int
) -> None:
    """These are a muGraph of their own, for whose proof there may be no time."""
    graph = product()
    packed, unpacked = graph.with_constants(["weight"]), graph
    qualifier = qualifier_for(graph, 10.0)
    asked: list[Graph] = []

    def measured(entries: Sequence[Contestant], *_: object, **__: object) -> list[Contestant]:
        return [replace(entry, latency=2e-3 if entry.graph == packed else 1e-3, least=1e-3) for entry in entries]

    def proved(entry: Contestant, name: str) -> Proved:
        asked.append(entry.graph)
        clock.now += lasting
        return Proved(entry, verify_graphs(graph, graph).certificate, None)

    monkeypatch.setattr(qualification, "measured", measured)
    monkeypatch.setattr(qualifier, "_proved", proved)
    clock.now = 3.0
    (kept,) = qualifier.rank_and_prove([Contestant(packed, 1.0, build(packed, "cpu"))], random_tensors(graph, seed=0))
    assert asked == [packed, unpacked][:proofs]
    assert kept.entry.graph == asked[-1]
    assert kept.entry.latency == (2e-3 if kept.entry.graph == packed else 1e-3)


@pytest.mark.parametrize("interrupted", [False, True])
def test_nothing_is_compiled_or_measured_carefully_where_time_is_over(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """Nor after Ctrl-C in the rough measurement: what it has found until then stands."""
    graph = product()
    packed = graph.with_constants(["weight"])
    entry = Contestant(packed, 1.0, build(packed, "cpu"))
    qualifier, asked = qualifier_for(graph, 10.0), list[int]()

    def measured(entries: Sequence[Contestant], _inputs: object, rounds: int, **_: object) -> list[Contestant]:
        asked.append(rounds)
        if interrupted:
            raise KeyboardInterrupt
        clock.now = 10.0
        return [replace(each, latency=1e-3, least=1e-3) for each in entries]

    def never(entry: Contestant) -> Contestant:
        raise AssertionError("compiled late")

    monkeypatch.setattr(qualification, "measured", measured)
    monkeypatch.setattr(qualifier, "_unpacked", never)
    assert [each.graph for each in qualifier.rank([entry], random_tensors(graph, seed=0))] == [packed]
    assert len(asked) == 1


@pytest.mark.parametrize(("seconds", "rival", "proved"), [(0.06, 0.1, 2), (0.12, 0.1, 1), (0.2, 0.1, 0), (0.002, 0.001, 2)])
def test_what_was_measured_to_be_far_slower_than_its_rival_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rival: float, proved: int
) -> None:
    """Calls of milliseconds are proved as before, without a look at the rival, which is timed again before one is dropped."""
    program, slower = lengths(of_factors=False), lengths(of_factors=True)
    entries = [Contestant(graph, 1.0, build(graph, "cpu")) for graph in (slower, program)]
    qualifier, timed, measured = qualifier_for(program, None), list[float](), list[Graph]()
    qualifier.rival = lambda: timed.append(rival) or rival  # type: ignore[func-returns-value]  # notes that it was asked

    def measure(entries: Sequence[Contestant], *_: object, **__: object) -> list[Contestant]:
        measured.extend(entry.graph for entry in entries)
        taken = {program: seconds, slower: 1.5 * seconds}
        return [replace(entry, latency=taken[entry.graph], least=taken[entry.graph]) for entry in entries]

    def passed(entry: Contestant, _name: str) -> Proved:
        return Proved(entry, verify_graphs(program, program).certificate, None)

    monkeypatch.setattr(qualification, "measured", measure)
    monkeypatch.setattr(qualifier, "_proved", passed)
    inputs = random_tensors(program, seed=0)
    assert len(qualifier.rank_and_prove(entries, inputs)) == proved
    assert timed == [rival] * (3 - proved) * (seconds > 0.01)
    assert [each.stage for each in qualifier.rejected] == ["measure"] * (2 - proved)
    measured.clear()
    qualifier.rank_and_prove(entries, inputs)
    assert {*measured} == {entry.graph for entry in entries if qualifier.tried[entry.graph] is not None}


@pytest.mark.parametrize("before", [False, True])
def test_a_call_that_a_stall_delayed_loses_no_candidate(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """It is timed again before it is dropped, unless it is proved: nothing is saved then."""
    program = lengths(of_factors=False)
    entry = Contestant(program, 1.0, build(program, "cpu"))
    qualifier, calls = qualifier_for(program, None), list[float]()
    qualifier.rival = lambda: 0.1

    def measure(entries: Sequence[Contestant], *_: object, **__: object) -> list[Contestant]:
        calls.append(0.05 if calls and not before else 0.5)
        return [replace(entry, latency=calls[-1], least=calls[-1]) for entry in entries]

    def passed(entry: Contestant, _name: str) -> Proved:
        return Proved(entry, verify_graphs(program, program).certificate, None)

    monkeypatch.setattr(qualification, "measured", measure)
    monkeypatch.setattr(qualifier, "_proved", passed)
    if before:
        qualifier.prove([entry])
    (kept,) = qualifier.rank_and_prove([entry], random_tensors(program, seed=0))
    assert kept.entry.latency == (0.5 if before else 0.05)
    assert qualifier.rejected == []


def test_the_rival_is_not_timed_once_the_budget_is_spent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    program = lengths(of_factors=False)
    qualifier, asked = qualifier_for(program, 1.0), list[Contestant]()

    def never() -> float:
        raise AssertionError("nothing is left to save")

    def measure(entries: Sequence[Contestant], *_: object, **__: object) -> list[Contestant]:
        asked.extend(entries)
        clock.now = 2.0
        return [replace(entry, latency=0.5, least=0.5) for entry in entries]

    qualifier.rival = never
    monkeypatch.setattr(qualification, "measured", measure)
    assert qualifier.rank_and_prove([Contestant(program, 1.0, build(program, "cpu"))], random_tensors(program, seed=0)) == []
    assert len(asked) == 1


def test_no_proof_is_begun_after_one_that_was_interrupted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = product()
    qualifier, asked = qualifier_for(graph, 10.0), list[Graph]()

    def proved(entry: Contestant, name: str) -> Proved:
        asked.append(entry.graph)
        raise KeyboardInterrupt

    monkeypatch.setattr(qualification, "measured", lambda entries, *_, **__: [replace(each, latency=1e-3) for each in entries])
    monkeypatch.setattr(qualifier, "_proved", proved)
    clock.now = 3.0
    assert not qualifier.rank_and_prove([Contestant(graph, 1.0, build(graph, "cpu"))], random_tensors(graph, seed=0))
    assert asked == [graph]
    assert qualifier.interrupted
