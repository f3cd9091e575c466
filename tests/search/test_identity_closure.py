"""A program whose closure cannot be saturated still has kernels: those of its own derivation, found at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from mugraph.algebra.fields import NestingArithmetic
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.axes import AxisProgram, Term, axis_program
from mugraph.ir.dtypes import DType
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search import Options, Progress, driver, search, tasks
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.safe_softmax import exponentials, without_neutral_maxima
from mugraph.search.closure.saturation import Closure, Limits, Saturation, Transcription
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import SearchResult
from mugraph.search.partition.variants import as_program
from mugraph.search.structures import KNOWN
from mugraph.search.tasks import Item, canonical
from mugraph.search.work_model import WorkModel
from mugraph.testing import random_program
from mugraph.verifier import verify_graphs

from .programs import PAPER, finished, outputs

CPU = device_for("cpu")
UNSATURATED = Options(max_nodes=3, max_finer_nodes=3)
"""With limits that no closure of these tests is saturated within."""


def written(program: AxisProgram) -> Closure:
    """The closure of a program as it is written."""
    closure = Closure(program, Context.of(program, None), Tier.OPAQUE_SUMS)
    return Transcription(closure, NestingArithmetic(seed=0), TinyInputs(0), Limits()).run()


def item(graph: Graph, loop_axis: int | None = None, options: Options = UNSATURATED) -> Item:
    """The item of a context of a program in the coarsest tier."""
    program = without_neutral_maxima(axis_program(graph), NestingArithmetic(seed=0), TinyInputs(0))
    form, sources = canonical(program)
    work = WorkModel.of(program.sizes, [4] * len(sources), CPU, DType.FP32)
    return Item(form, Tier.OPAQUE_SUMS, loop_axis, options, work)


def squares(count: int) -> Graph:
    """A sum of squares of matrix products, each of its own operands: four operators for each."""
    p = Program()
    total: ProgramTensor | None = None
    for index in range(count):
        x, w = p.input(f"x{index}", (4, 6)), p.input(f"w{index}", (6, 5))
        square = (x @ w).square()
        total = square if total is None else total + square
    assert total is not None
    return finished(p, total)


def dot_products() -> Graph:
    """Sums of products whose operands have the same axes: x @ y of one row and one column."""
    p = Program()
    x, y = p.input("x", (1, 6)), p.input("y", (6, 1))
    return finished(p, (x @ y).square() + 1.0)


@pytest.mark.parametrize("seed", range(40))
def test_every_operator_makes_something_larger(seed: int) -> None:
    """Which is what derivations are listed by."""
    closure = written(axis_program(random_program(seed)))
    size = closure.expressions.algebra.size
    made = [edge for node in closure.nodes for edge in node.edges]
    assert len(made) >= len(closure.program.terms) - 1
    for edge in made:
        assert all(size(closure.nodes[i].expr) < size(closure.nodes[edge.target].expr) for i in edge.inputs)


GRAPHS = {**{name: make() for name, make in PAPER.items()}, "dot product": dot_products(), "squares": squares(3)}


@pytest.mark.parametrize("name", GRAPHS)
def test_one_derivation_is_the_program(name: str) -> None:
    """All others only join products whose results are added."""
    asked = item(GRAPHS[name])
    derived = {as_program(sketch, asked.program) for sketch in asked.search().sketches}
    dots = replace(asked.program, terms=tuple(_products_and_sums(asked.program)))
    assert Counter(term.op for term in dots.terms) in [Counter(term.op for term in each.terms) for each in derived]
    assert len({len(each.terms) for each in derived}) == 1


def _products_and_sums(program: AxisProgram) -> Iterator[Term]:
    """Terms of a program, products of tensors with the same axes as what they are: elementwise, and summed."""
    for term in program.terms:
        left, *right = (program.terms[i] for i in term.inputs) if term.inputs else (term,)
        if term.op == "contract" and right and left.axes == right[0].axes:
            yield replace(term, op="mul", axes=left.axes, reduced=frozenset())
            yield replace(term, op="sum")
        else:
            yield term


def assert_all_equal(program: Graph, result: SearchResult) -> None:
    assert result.candidates
    wanted = outputs(program)
    for candidate in result.candidates:
        assert verify_graphs(program, candidate.graph).equivalent
        for got, expected in zip(outputs(candidate.graph), wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", PAPER)
def test_kernels_of_a_program_whose_closure_is_not_saturated(name: str) -> None:
    program = PAPER[name]()
    result = search(program, CPU, options=UNSATURATED)
    assert not result.report.exhausted
    assert any(len(candidate.graph.kernels()) == 1 for candidate in result.candidates)
    assert_all_equal(program, result)


def test_a_derivation_of_more_operators_than_are_enumerated() -> None:
    program = squares(8)
    (sketch,) = item(program).search().sketches
    assert sketch.operators == 39 > UNSATURATED.most_block_operators
    assert_all_equal(program, search(program, CPU, options=UNSATURATED))


def test_its_exponentials_are_safe_in_every_loop() -> None:
    p = Program()
    x, v = p.input("x", (4, 6)), p.input("v", (6, 5))
    program = finished(p, x.exp() @ v / x.exp().sum(-1, keepdim=True))
    found = [item(program, axis).search() for axis in (None, *range(len(axis_program(program).sizes)))]
    sketches: list[Sketch] = [sketch for structure in found for sketch in structure.safe_sketches]
    assert any(sketch.loop_axis is not None and "rescale" in {step.op for step in sketch.steps} for sketch in sketches)
    assert not any(exponentials(sketch) for sketch in sketches)


@pytest.mark.parametrize("seed", [31, 42, 81, 123, 130, 134, 156])
def test_random_programs_with_squares_of_sums_of_products(seed: int) -> None:
    """Nothing of them was found in 20 seconds before their own derivation was."""
    program = random_program(seed)
    KNOWN.clear()

    def stop(progress: Progress) -> None:
        if progress.found:
            raise KeyboardInterrupt

    begun = time.thread_time()
    result = search(program, CPU, budget=120, progress=stop)
    assert time.thread_time() - begun < 10, "of the processor, which others may have meanwhile; most take tenths"
    assert result.candidates
    assert all(node.op == "graph_defined" for candidate in result.candidates for node in candidate.graph.kernels())
    assert all(verify_graphs(program, candidate.graph).equivalent for candidate in result.candidates[:2])


@pytest.mark.parametrize("name", ["rmsnorm", "lora", "gqa"])
def test_what_is_offered_early_changes_nothing_where_the_closure_is_saturated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the closure is saturated by then depends on the machine. Of the saturated closure too few sketches are scheduled to
    have the program's own among them."""
    options = Options(scheduled_sketches=1, closure_seconds=60, cut_seconds=60, finer_tier_seconds=60)
    found, early = [], list[bool]()
    offer = driver.Search._offer_early

    def noted(self: driver.Search, tier: Tier) -> None:
        offer(self, tier)
        early.append(bool(self.early))

    monkeypatch.setattr(driver.Search, "_offer_early", noted)
    for share in (1.0, 1e-9):
        monkeypatch.setattr(driver, "_AT_ONCE", share)
        KNOWN.clear()
        tasks._LOOPLESS.clear()
        run = driver.Search(PAPER[name](), CPU, options=options)
        found.append([(candidate.graph, candidate.cost) for candidate in run.run().candidates])
    assert early == [False, True]
    assert found[0] == found[1]


def test_a_closure_that_was_cut_short_is_not_begun_again_for_every_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Saturation] = []
    run = Saturation.run

    def counted(saturation: Saturation) -> Closure:
        begun.append(saturation)
        return run(saturation)

    monkeypatch.setattr(Saturation, "run", counted)
    tasks._LOOPLESS.clear()
    first, *looped = (replace(item(random_program(81), axis, Options()), seconds=0.1) for axis in (None, 0, 1, 2))
    assert all(each.search().timed_out for each in (first, *looped))
    assert sum(type(saturation) is Saturation for saturation in begun) == 1
    assert replace(first, seconds=0.3).search().timed_out
    assert sum(type(saturation) is Saturation for saturation in begun) == 2


def test_loops_of_a_program_as_it_is_written_are_looked_for_as_long_as_its_closure_has() -> None:
    """Most of them come to nothing in long programs; the derivation without a loop is there however little time there was."""
    loop, no_loop = item(squares(4), loop_axis=0), item(squares(4))
    assert loop.search().sketches
    assert not loop.search().timed_out
    hurried = replace(loop, seconds=0.0).search()
    assert not hurried.sketches
    assert hurried.timed_out
    assert replace(no_loop, seconds=0.0).search().sketches
