"""Closures bounded by operators hold every derivation within the bound that whole closures hold, and go where those cannot."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest

from mugraph.algebra import Expr
from mugraph.algebra.fields import FieldArithmetic
from mugraph.devices import device_for
from mugraph.ir import Graph
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.ops import OPERATORS, Call, Operator
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search import search
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.landmarks import Landmarks
from mugraph.search.closure.loop_insertion import Fmaps, with_loop
from mugraph.search.closure.min_operators import BoundedSaturation, deepened
from mugraph.search.closure.safe_softmax import without_neutral_maxima
from mugraph.search.closure.saturation import Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.closure.tiers import Tier, distinct_tiers, tiers_to
from mugraph.search.report import SearchReport, TierReport
from mugraph.testing.programs import random_program

from .parallel.items import PATIENT
from .programs import attention, finished, lora, ntrans, rmsnorm

ARITH, INPUTS = FieldArithmetic(seed=0), TinyInputs(0)
Form = frozenset[int]
"""The steps of a sketch, each with all that it needs, whatever their order."""


def axes_of(graph: Graph) -> AxisProgram:
    return without_neutral_maxima(axis_program(graph), ARITH, INPUTS)


def whole(program: AxisProgram, tier: Tier, nodes: int = 600) -> Closure:
    return Saturation(Closure(program, Context.of(program, None), tier), ARITH, INPUTS, Limits(nodes)).run()


def bounded(program: AxisProgram, tier: Tier, operators: int) -> Closure:
    closure = Closure(program, Context.of(program, None), tier)
    return BoundedSaturation(closure, ARITH, INPUTS, Limits(), operators).run()


def looped(loopless: Closure, axis: int | None) -> Closure:
    return loopless if axis is None else with_loop(loopless, axis, Fmaps.ALIGNED)


def sketches(closure: Closure, operators: int) -> list[Sketch]:
    """The derivations that the axioms show to be the program: of goals with the program's own expressions."""
    wanted = [closure.expressions.of_terms[term] for term, _ in closure.program.outputs]
    goals = [[g for g in found if closure.nodes[g].expr == e] for found, e in zip(closure.goals, wanted, strict=True)]
    extractor = Extractor(closure, lambda edge: 1.0)
    limits = ExtractionLimits(operators, derivations=10**5, expansions=10**6)
    found = [sketch for choice in itertools.product(*goals) for _, sketch in extractor.derivations(choice, limits)]
    assert limits.complete
    return found


def bounded_size(sketch: Sketch) -> int:
    """Operators as bounded closures count them."""
    return sketch.operators + 2 * sum(step.op == "concat_contract" for step in sketch.steps)


def form(sketch: Sketch) -> Form:
    keys: list[int] = []
    for step in sketch.steps:
        keys.append(hash((step.op, step.axes, step.reduced, step.in_loop, step.leaf, step.scalar, operands(step, keys))))
    return frozenset(keys)


def operands(step: Step, keys: list[int]) -> tuple[object, ...]:
    """What a step reads, in an order of its own where the order means nothing."""
    read = [keys[i] for i in step.inputs]
    if step.op == "concat_contract":
        return tuple(sorted(tuple(sorted(pair)) for pair in zip(read[:2], read[2:], strict=True)))
    commutes = step.op == "contract" or (step.op in OPERATORS and OPERATORS[step.op].commutative)
    return tuple(sorted(read) if commutes else read)


def agree(graph: Graph, tier: Tier, sizes: range) -> int:
    """Compare all contexts of a program that can be saturated whole; the number of derivations compared."""
    program, compared = axes_of(graph), 0
    everything = whole(program, tier)
    if not everything.saturated:
        return 0
    for operators in sizes:
        part = bounded(program, tier, operators)
        for loop in (None, *range(len(program.sizes))):
            listed = sketches(looped(everything, loop), operators)
            within = {form(sketch) for sketch in listed if bounded_size(sketch) <= operators}
            found = {form(sketch) for sketch in sketches(looped(part, loop), operators)}
            assert within <= found <= {form(sketch) for sketch in listed}, (loop, operators)
            compared += len(within)
    return compared


@pytest.mark.parametrize("graph", [rmsnorm(), lora(), attention()], ids=["rmsnorm", "lora", "attention"])
def test_no_derivation_within_the_bound_is_lost(graph: Graph) -> None:
    assert agree(graph, Tier.FULL, range(8, 13)) > 10


@pytest.mark.parametrize("seed", [0, 3, 8, 10])
def test_no_derivation_of_a_random_program_is_lost(seed: int) -> None:
    assert agree(random_program(seed), Tier.FULL, range(5, 9, 3)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("seed", range(11, 41))
def test_no_derivation_of_many_random_programs_is_lost(seed: int, tier: Tier) -> None:
    agree(random_program(seed), tier, range(3, 10, 2))


def test_ntrans_under_the_full_axioms_has_no_graph_of_twelve_operators() -> None:
    program = axes_of(ntrans())
    assert not whole(program, Tier.FULL, nodes=500).saturated
    closure = bounded(program, Tier.FULL, 12)
    assert closure.saturated
    assert closure.goals == [[]]


def squares_times_sum() -> Graph:
    """(x + y)^2 z over the root of its sum: small enough to know the smallest graph."""
    p = Program()
    x, y = p.input("x", (4, 6)), p.input("y", (4, 6))
    total = (x + y).square()
    return finished(p, total / total.sum(-1, keepdim=True).sqrt())


def test_the_bound_is_exact() -> None:
    """x, y, their sum, its square, the square's sum, root, quotient: seven operators and no fewer."""
    program = axes_of(squares_times_sum())
    assert not any(bounded(program, Tier.FULL, 6).goals)
    assert [sketch.operators for sketch in sketches(bounded(program, Tier.FULL, 7), 7)] == [7]


def test_landmarks_are_what_a_tensor_does_not_show() -> None:
    """Of that program x lacks: y, the sum of x and y, its square, the reduction, the root and the division."""
    program = axes_of(squares_times_sum())
    closure = Closure(program, Context.of(program, None), Tier.FULL)
    bounds = [Landmarks(closure).outside(closure.expressions.of_terms[index]) for index in range(len(program.terms))]
    assert dict(zip([term.op for term in program.terms], bounds, strict=True)) == {
        "load": 6, "add": 4, "square": 3, "sum": 2, "sqrt": 1, "div": 0,
    }  # fmt: skip


def unit(t: ProgramTensor) -> ProgramTensor:
    return t / t.square().sum(-1, keepdim=True).sqrt()


def roots_and_sums(number: int) -> Graph:
    """Programs without constants and exponentials, in which operators of all kinds are counted in advance."""
    p = Program()
    x, y, a, w = p.input("x", (4, 6)), p.input("y", (4, 6)), p.input("a", (6,)), p.input("w", (6, 3))
    rows = x.sum(-1, keepdim=True)
    return finished(
        p,
        [
            lambda: unit(x) * a + y,
            lambda: unit(x + y) * (x + y),
            lambda: unit(unit(x) * a),
            lambda: unit(x * a) @ w,
            lambda: (unit(x) + y) @ w,
            lambda: (x + y) @ w / x.square().sum(-1, keepdim=True),
            lambda: (x * a + y) * (x + a),
            lambda: (rows + y) / (rows * rows).sqrt() * a,
            lambda: x / a / (a * y / x),
            lambda: ((x * a).square() + y * x).sqrt() / (x * a).square().sum(-1, keepdim=True),
            lambda: (x @ w).square() + (y @ w) * (x @ w),
            lambda: x * rows + y * (y * a).sum(-1, keepdim=True).sqrt(),
        ][number](),
    )


@pytest.mark.parametrize("number", range(12))
def test_landmarks_are_in_every_derivation(number: int) -> None:
    """Of each tensor of each derivation, so many operators are outside its own part as its landmarks say, or more."""
    program = axes_of(roots_and_sums(number))
    closure = whole(program, Tier.FULL, nodes=3000)
    assert closure.saturated
    wanted = [closure.expressions.of_terms[term] for term, _ in program.outputs]
    closure.goals = [[g for g in found if closure.nodes[g].expr == e] for found, e in zip(closure.goals, wanted, strict=True)]
    landmarks, extractor, compared = Landmarks(closure), Extractor(closure, lambda edge: 1.0), 0
    limits = ExtractionLimits(extractor.fewest_operators(24) + 2, derivations=400)
    for goals in extractor.goals():
        for _, sketch in extractor.derivations(goals, limits):
            compared += every_part_has_room(sketch, closure, landmarks)
    assert compared > 8


def every_part_has_room(sketch: Sketch, closure: Closure, landmarks: Landmarks) -> int:
    """Check what the landmarks say of each tensor of a derivation; their number."""
    made: list[frozenset[int]] = []
    exprs: list[Expr] = []
    for index, step in enumerate(sketch.steps):
        below = frozenset[int]().union(*(made[i] for i in step.inputs))
        made.append(below | {index} if step.op != "constant" else below)
        exprs.append(expression(step, [exprs[i] for i in step.inputs], closure, sketch))
    size = sum(1 + 2 * (step.op == "concat_contract") for step in sketch.steps)
    for mine, expr in zip(made, exprs, strict=True):
        own = sum(1 + 2 * (sketch.steps[i].op == "concat_contract") for i in mine)
        assert own + landmarks.outside(expr) <= size, closure.expressions.algebra.format(expr)
    return len(made)


def expression(step: Step, operands: list[Expr], closure: Closure, sketch: Sketch) -> Expr:
    """The abstract expression that a step computes."""
    expressions, context = closure.expressions, closure.context
    if step.leaf is not None:
        (found,) = {
            expressions.leaves[i]
            for i, term in enumerate(closure.program.terms)
            if term.op == "load" and term.source == step.leaf.source
        }
        return found
    algebra = expressions.build

    def product(left: int, right: int) -> Expr | None:
        axes = step.reduced & sketch.steps[step.inputs[left]].axes & sketch.steps[step.inputs[right]].axes
        return algebra.sum(context.reduction_factor(context.mask(axes)), algebra.mul(operands[left], operands[right]))

    match step.op:
        case "sum":
            result = algebra.sum(context.reduction_factor(context.mask(step.reduced)), operands[0])
        case "contract":
            result = product(0, 1)
        case "concat_contract":
            result = algebra.add(product(0, 2), product(1, 3))
        case op:
            result = expressions.express(algebra, op, tuple(operands))
    assert result is not None
    return result


def test_scalings_are_no_landmarks() -> None:
    """Adding and multiplying by constants is free, so a program that also adds constants has no sums to wait for."""
    p = Program()
    x, y = p.input("x", (4, 6)), p.input("y", (4, 6))
    program = axes_of(finished(p, (x + 1.0) * y + x))
    closure = Closure(program, Context.of(program, None), Tier.FULL)
    (x_expr,) = {
        e for i, e in closure.expressions.leaves.items() if program.terms[i].op == "load" and program.terms[i].source == 0
    }
    assert Landmarks(closure).outside(x_expr) == 1


class Counting:
    """An algebra that counts the constructors an operator applies."""

    def __init__(self) -> None:
        self.applied = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        def construct(*arguments: object) -> None:
            self.applied += name in ("add", "sub", "mul", "div", "exp", "sqrt", "opaque")

        return construct


@pytest.mark.parametrize("row", [row for row in OPERATORS.values() if row.elementwise], ids=lambda row: row.name)
def test_no_operator_passes_two_landmarks_at_once(row: Operator) -> None:
    algebra = Counting()
    row.express(algebra, Call(row.name, (), {}), (None,) * row.arity)
    assert algebra.applied <= 1


def test_deepening_stops_at_the_operators_asked_for_or_at_a_limit() -> None:
    program = axes_of(ntrans())
    closure = whole(program, Tier.FULL, nodes=100)
    assert deepened(closure, ARITH, INPUTS, Limits(), 11)[1] == 11
    smaller, reached = deepened(closure, ARITH, INPUTS, Limits(nodes=20), 13)
    assert 0 < reached < 13
    assert smaller.saturated
    assert deepened(closure, ARITH, INPUTS, Limits(nodes=20), 3, most=24)[1] == reached
    assert deepened(closure, ARITH, INPUTS, Limits(), 3, most=5)[1] == 5


def test_tiers_that_look_the_same_are_searched_once() -> None:
    assert distinct_tiers(axes_of(ntrans())) == [Tier.OPAQUE_SUMS, Tier.FULL]
    assert distinct_tiers(axes_of(rmsnorm())) == list(Tier)


def test_the_search_says_how_far_the_full_axioms_were_exhausted() -> None:
    report = search(ntrans(), device_for("cpu"), options=dataclasses.replace(PATIENT, block_operators=9)).report
    assert report.tiers[-1].tier == Tier.FULL
    assert report.tiers[-1].exhausted
    assert "up to 13 (full axioms)" in report.exhausted_what.split("and their cuts")[0]
    assert report.tiers[0].bound is not None
    assert report.tiers[0].bound > 9


@pytest.mark.parametrize(
    ("bound", "words"), [(7, "exhausted too: full axioms up to 7 operators"), (0, "not exhausted: full axioms")]
)
def test_a_tier_exhausted_in_part_is_reported_with_its_bound(bound: int, words: str) -> None:
    coarse = TierReport("sums opaque", closures=1, saturated=1, operators=11, bound=11)
    fine = TierReport("full axioms", closures=1, saturated=0, complete=False, bound=bound)
    report = SearchReport(tiers=[coarse, fine], block_operators=11, max_kernels=5)
    assert report.exhausted_what.endswith(words)


def test_tiers_of_what_has_no_sums_or_no_constants_are_one() -> None:
    p = Program()
    x, w = p.input("x", (4, 6)), p.input("w", (6, 5))
    assert distinct_tiers(axes_of(finished(p, x.silu() @ w))) == [Tier.FULL]
    p = Program()
    x, w = p.input("x", (4, 6)), p.input("w", (6, 5))
    scaled = axes_of(finished(p, (0.5 * x) @ w))
    assert distinct_tiers(scaled) == [Tier.OPAQUE_SCALINGS, Tier.FULL]
    assert tiers_to(scaled, Tier.OPAQUE_SCALINGS) == [Tier.OPAQUE_SUMS]
    assert tiers_to(axes_of(ntrans()), Tier.OPAQUE_SCALINGS) == [Tier.OPAQUE_SUMS, Tier.FULL]
