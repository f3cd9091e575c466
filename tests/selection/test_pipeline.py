"""Which proposals are compiled at all, and what is begun as a budget comes to its end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.results.data import Rejection
from mugraph.runtime import build
from mugraph.selection import qualification
from mugraph.selection.inputs import random_tensors
from mugraph.selection.qualification import Contestant, Proved, Qualifier
from mugraph.support import deadline
from mugraph.support.deadline import Deadline
from mugraph.support.progress import silent
from mugraph.verifier import verify_graphs


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

    monkeypatch.setattr(qualification, "_measured", measured_as_before)
    kept, _ = qualifier_for(program, budget).settle([proved], entry, random_tensors(program, seed=0))
    assert bool(asked) is measured
    assert kept == [proved]
