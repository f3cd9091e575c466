"""Plans are told apart by what rounding does to them, and differences are taken twice where that helps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from mugraph.algebra.fields import FieldArithmetic
from mugraph.devices import Device, device_for
from mugraph.ir import Graph
from mugraph.ir.arithmetic import Array
from mugraph.ir.axes import AxisProgram, axis_program
from mugraph.ir.dtypes import DType
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import Program, ProgramTensor
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.safe_softmax import Stabilizer, without_neutral_maxima
from mugraph.search.closure.saturation import Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier
from mugraph.search.driver import Search
from mugraph.search.kernels import ScheduledSketch
from mugraph.search.partition.plan import Plan, Stage
from mugraph.search.partition.rounding_model import Rehearsal
from mugraph.search.partition.selection import most_promising, orders_lost
from mugraph.search.scheduling.emission import KernelOutput, Schedule
from mugraph.search.tasks import Options

from .programs import attention, finished, lora, rmsnorm

CPU = device_for("cpu")
SMALL = dataclasses.replace(CPU, shared_memory_bytes=250)
HASTY = Options(finer_tier_seconds=0.0)
"""The coarsest tier has plans enough."""


def layer_norm(x: ProgramTensor, eps: float = 1e-5) -> ProgramTensor:
    rest = x - x.mean(-1, keepdim=True)
    return rest / (rest.square().mean(-1, keepdim=True) + eps).sqrt()


def normalised_linear(batch: int = 4, hidden: int = 12) -> Graph:
    p = Program()
    x, w = p.input("x", (batch, hidden)), p.input("w", (hidden, 8))
    return finished(p, layer_norm(x) @ w)


def variance(*, of_squares: bool) -> tuple[AxisProgram, Plan]:
    """E[x^2] - E[x]^2 or E[(x - E[x])^2] of rows of 12, as a plan of one launch."""
    p = Program()
    x = p.input("x", (4, 12))
    mean = x.mean(-1, keepdim=True)
    result = x.square().mean(-1, keepdim=True) - mean.square() if of_squares else (x - mean).square().mean(-1, keepdim=True)
    program = axis_program(finished(p, result))
    return program, as_plan(program, cheapest_sketch(program))


def cheapest_sketch(program: AxisProgram) -> Sketch:
    closure = Closure(program, Context.of(program, None), Tier.OPAQUE_SUMS)
    Saturation(closure, FieldArithmetic(seed=1), TinyInputs(1), Limits()).run()
    _, sketch = next(Extractor(closure, lambda edge: 1.0).derivations((closure.goals[0][0],), ExtractionLimits()))
    return sketch


def as_plan(program: AxisProgram, sketch: Sketch, seconds: float = 1.0) -> Plan:
    outputs = tuple(KernelOutput(slots, DType.FP32) for _, slots in program.outputs)
    return Plan((Stage((-1,), ScheduledSketch(sketch, Schedule((), 1), outputs, program.sizes, seconds)),))


def searched(graph: Graph, device: Device = CPU) -> tuple[Search, Rehearsal]:
    search = Search(graph, device, options=HASTY)
    search.run()
    return search, Rehearsal(search.axes, len(graph.inputs()), search.plans.read_as)


def test_a_difference_of_squares_loses_more_than_squares_of_differences() -> None:
    program, stable = variance(of_squares=False)
    _, unstable = variance(of_squares=True)
    rehearsal = Rehearsal(program, 1, {})
    errors = [rehearsal.errors(plan) for plan in (unstable, stable)]
    unstable_order, stable_order = orders_lost(errors)
    assert stable_order == 0
    assert unstable_order is not None
    assert unstable_order >= 2


def test_plans_that_all_leave_the_range_of_numbers_are_alike() -> None:
    assert orders_lost([(math.inf, math.inf), (math.inf, math.inf)]) == [0, 0]
    assert orders_lost([(math.inf, 1.0), (math.inf, 1e-7)]) == [4, 0]


def test_what_only_adds_and_multiplies_has_no_errors() -> None:
    search, rehearsal = searched(lora())
    assert {rehearsal.errors(plan) for plan in search.best} == {(0.0,) * (2 + 4)}


@pytest.mark.parametrize(
    ("graph", "device"),
    [(attention(), CPU), (attention(), SMALL), (attention(keys=32), device_for("cuda:sm_90")), (normalised_linear(), CPU)],
    ids=["attention", "looped", "split", "layer norm"],
)
def test_all_plans_of_a_program_are_equal_on_samples(graph: Graph, device: Device) -> None:
    search, rehearsal = searched(graph, device)
    first, *others = [rehearsal.outputs(rehearsal.launches(plan))[1] for plan in search.best]
    assert others
    for found in others:
        for x, y in zip(first, found, strict=True):
            np.testing.assert_allclose(x[..., 0], y[..., 0], rtol=1e-9, atol=1e-12)
    for plan in search.best:
        errors = rehearsal.errors(plan)
        assert all(map(math.isfinite, errors))


def softmax_sketches() -> tuple[AxisProgram, Sketch, Sketch]:
    """A softmax in axis form, its cheapest sketch, and that with its exponentials shifted."""
    p = Program()
    x = p.input("x", (4, 8))
    arith, inputs = FieldArithmetic(seed=1), TinyInputs(1)
    program = without_neutral_maxima(axis_program(finished(p, x.softmax(-1))), arith, inputs)
    plain = cheapest_sketch(program)
    return program, plain, Stabilizer(program, Context.of(program, None), arith, inputs).stabilize(plain)


def test_unshifted_exponentials_take_no_place_where_others_are_shifted() -> None:
    program, plain, shifted = softmax_sketches()
    errors = Rehearsal(program, 1, {}).errors
    fast, slow = as_plan(program, plain, 1.0), as_plan(program, shifted, 2.0)
    assert most_promising([fast, slow], errors) == [slow]
    assert most_promising([fast], errors) == [fast]


def test_the_most_precise_plan_of_a_kind_is_chosen_although_others_are_faster() -> None:
    program, stable = variance(of_squares=False)
    _, unstable = variance(of_squares=True)

    def lasting(plan: Plan, seconds: float) -> Plan:
        (stage,) = plan.stages
        assert isinstance(stage.kernel, ScheduledSketch)
        return Plan((dataclasses.replace(stage, kernel=dataclasses.replace(stage.kernel, seconds=seconds)),))

    fast, slow = [lasting(unstable, 1 + n / 100) for n in range(40)], lasting(stable, 1.9)
    chosen = most_promising([*fast, slow], Rehearsal(program, 1, {}).errors, 8)
    assert chosen[0] == fast[0]
    assert slow in chosen


def largest_of_equal_rows(graph: Graph) -> float:
    """The largest output in float32 for rows of equal elements, of which layer normalisation makes zeros."""
    rng = np.random.default_rng(0)
    inputs: list[Array] = [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]
    inputs[0] = np.broadcast_to(inputs[0][:, :1], inputs[0].shape)
    (output,) = evaluate(graph, inputs, FloatArithmetic(np.float32))
    return float(np.abs(output).max())


def test_layer_norm_has_candidates_that_make_zeros_of_equal_rows() -> None:
    graph = normalised_linear(hidden=96)
    candidates = Search(graph, CPU, options=HASTY).run().candidates
    assert largest_of_equal_rows(graph) > 1e-5
    assert min(largest_of_equal_rows(candidate.graph) for candidate in candidates) < 1e-9


def test_programs_without_such_differences_are_left_as_they_are() -> None:
    search, rehearsal = searched(rmsnorm())
    for plan in search.best:
        assert rehearsal.centred(plan) == tuple(launch.sketch for launch in rehearsal.launches(plan))


def test_programs_for_positive_numbers_are_not_judged_by_normal_ones() -> None:
    p = Program()
    x = p.input("x", (4, 12))
    search, rehearsal = searched(finished(p, x.sqrt().softmax(-1)))
    assert search.best
    assert all(set(rehearsal.errors(plan)) <= {0.0, math.inf} for plan in search.best)
    assert any(rehearsal.errors(plan) == (0.0,) * 3 for plan in search.best)
