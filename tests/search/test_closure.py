"""Closures and derivations: what they find, what the expression check prunes, what the limits mean."""

from __future__ import annotations

import pytest

from mugraph.algebra.fields import FieldArithmetic
from mugraph.ir import Graph
from mugraph.ir.axes import axis_program
from mugraph.ir.program import Program
from mugraph.search.closure.context import Context, TinyInputs, bits, primes
from mugraph.search.closure.extraction import ExtractionLimits, Extractor
from mugraph.search.closure.loop_insertion import Fmaps, with_loop
from mugraph.search.closure.safe_softmax import without_neutral_maxima
from mugraph.search.closure.saturation import AFTER, LOOP, Closure, Limits, Saturation
from mugraph.search.closure.sketch import Sketch
from mugraph.search.closure.tiers import Tier

from .programs import attention, finished, gated_mlp, lora, ntrans, rmsnorm


def close(graph: Graph, loop_size: int | None = None, tier: Tier = Tier.OPAQUE_SUMS, limits: Limits | None = None) -> Closure:
    """The closure of a program, with loops over its axis of size `loop_size` put in."""
    arith, inputs = FieldArithmetic(seed=3), TinyInputs(3)
    program = without_neutral_maxima(axis_program(graph), arith, inputs)
    closure = Saturation(Closure(program, Context.of(program, None), tier), arith, inputs, limits or Limits()).run()
    return closure if loop_size is None else with_loop(closure, program.sizes.index(loop_size), Fmaps.ALIGNED)


def sketches(closure: Closure, operators: int) -> list[Sketch]:
    """All derivations of the first goal with at most `operators` operators."""
    extractor = Extractor(closure, lambda edge: 1.0)
    limits = ExtractionLimits(operators, derivations=10**6, expansions=10**6)
    return [sketch for _, sketch in extractor.derivations((closure.goals[0][0],), limits)]


def ops(sketch: Sketch, in_loop: bool | None = None) -> list[str]:
    """The operators of a sketch, sorted; of one phase on demand."""
    return sorted(step.op for step in sketch.steps if in_loop is None or step.in_loop == in_loop)


def test_parts_are_named_by_distinct_primes() -> None:
    assert primes(5) == [2, 3, 5, 7, 11]
    assert bits(0b10110) == [1, 2, 4]


def test_rmsnorm_over_its_hidden_axis_is_the_papers_graph() -> None:
    found = sketches(close(rmsnorm(batch=4, hidden=16, out=8), loop_size=16), operators=11)
    fused = [sketch for sketch in found if ops(sketch).count("accumulate") == 2]
    assert any("div" in ops(sketch, in_loop=False) and "contract" in ops(sketch, in_loop=True) for sketch in fused)


def test_gated_mlp_keeps_both_matmuls_in_the_loop() -> None:
    (sketch,) = sketches(close(gated_mlp(hidden=8), loop_size=8), operators=9)
    assert ops(sketch, in_loop=True).count("contract") == 2
    assert {"silu", "mul", "accumulate"} <= set(ops(sketch, in_loop=False))


def test_lora_becomes_one_concat_matmul() -> None:
    found = sketches(close(lora(hidden=12), loop_size=12, tier=Tier.FULL), operators=7)
    assert any(
        ops(sketch, in_loop=True).count("concat_contract") == 1 and ops(sketch).count("accumulate") == 1 for sketch in found
    )


def test_attention_is_flash_attention_when_it_loops_over_keys() -> None:
    found = sketches(close(attention(queries=3, keys=8, width=4), loop_size=8), operators=10)
    assert any(ops(sketch, in_loop=True).count("contract") == 2 and "div" in ops(sketch, in_loop=False) for sketch in found)


def test_ntrans_is_one_kernel_when_its_sums_are_opaque() -> None:
    assert sketches(close(ntrans()), operators=14)


def test_every_derivation_is_listed_once() -> None:
    found = sketches(close(rmsnorm(), loop_size=16), operators=12)
    assert len(found) == len(set(found)) > 1


def test_the_operator_limit_is_exact() -> None:
    closure = close(rmsnorm(), loop_size=16)
    least = min(sketch.operators for sketch in sketches(closure, operators=12))
    assert not sketches(closure, operators=least - 1)
    assert all(sketch.operators == least for sketch in sketches(closure, operators=least))


def test_no_derivation_within_the_operator_limit_is_lost() -> None:
    """Tensors that a scaling makes count nothing: they must not make a derivation look longer than it is."""
    closure = close(rmsnorm(), tier=Tier.FULL)
    unlimited = sketches(closure, operators=40)
    for operators in range(9, 13):
        assert set(sketches(closure, operators)) == {sketch for sketch in unlimited if sketch.operators <= operators}


def test_derivations_come_cheapest_first() -> None:
    closure = close(rmsnorm(), loop_size=16)
    prices = {"load": 1.0, "mul": 5.0, "div": 3.0}
    limits = ExtractionLimits(operators=13)
    costs = [
        cost for cost, _ in Extractor(closure, lambda edge: prices.get(edge.op, 2.0)).derivations((closure.goals[0][0],), limits)
    ]
    assert costs == sorted(costs)


def test_useless_products_are_pruned() -> None:
    p = Program()
    x, y, z = (p.input(name, (4, 4)) for name in "xyz")
    closure = close(finished(p, x * z + y * z), tier=Tier.FULL)
    x_expr, y_expr = (closure.expressions.algebra.variable(name) for name in ("x0", "x1"))
    expressions = {node.expr for node in closure.nodes}
    assert closure.expressions.algebra.mul(x_expr, y_expr) not in expressions
    assert closure.expressions.algebra.add(x_expr, y_expr) in expressions


def test_algebra_is_observed_not_written() -> None:
    """(x + y) * z is found for x * z + y * z although no rule says so."""
    p = Program()
    x, y, z = (p.input(name, (4, 4)) for name in "xyz")
    found = sketches(close(finished(p, x * z + y * z), tier=Tier.FULL), operators=5)
    assert [ops(sketch) for sketch in found] == [["add", "load", "load", "load", "mul"]]


def test_phases_do_not_mix() -> None:
    closure = close(rmsnorm(), loop_size=16)
    for node in closure.nodes:
        for edge in node.edges:
            phases = {closure.nodes[i].phase for i in edge.inputs}
            leaving = edge.op in ("accumulate", "concat", "carry")
            assert phases <= ({LOOP} if leaving else {node.phase})
    assert {closure.nodes[goal].phase for goal in closure.goals[0]} == {AFTER}


@pytest.mark.parametrize("limit", [5, 10])
def test_limits_stop_a_closure_and_say_so(limit: int) -> None:
    closure = close(rmsnorm(), loop_size=16, limits=Limits(nodes=limit))
    assert not closure.saturated
    assert close(rmsnorm(), loop_size=16).saturated


def masked_shares() -> Graph:
    program = Program()
    x, mask, w = program.input("x", (8, 16)), program.input("m", (16,), "bool"), program.input("w", (16, 4))
    shown = mask.apply("select", x, program.constant(0)).exp()
    program.output((shown / shown.sum(-1, keepdim=True)) @ w)
    return program.graph


def test_work_moves_around_a_choice_of_the_program() -> None:
    """The choice is made of the program's own operands; what follows it is rearranged like anything else."""
    closure = close(masked_shares())
    assert closure.saturated
    found = sketches(closure, operators=8)
    orders = [[step.op for step in sketch.steps] for sketch in found]
    assert all("select" in order for order in orders)
    assert any(order.index("contract") < order.index("div") for order in orders if "contract" in order and "div" in order)


def test_a_choice_with_exchanged_operands_is_no_tensor_of_the_closure() -> None:
    closure = close(masked_shares())
    made = [edge for node in closure.nodes for edge in node.edges if edge.op == "select"]
    assert len({edge.inputs for edge in made}) == 1
