"""Algorithm 1: what it generates is valid, equal to the program and generated once; its switches do what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from mugraph.algebra import Algebra, Oracle
from mugraph.devices import device_for
from mugraph.ir import Graph, Level
from mugraph.ir.program import Program
from mugraph.ir.validity import check
from mugraph.lower.thread_graphs import construct
from mugraph.search.algorithm1 import EnumerationOptions, EnumerationResult, enumerate_graphs
from mugraph.search.algorithm1.block import BlockPlan
from mugraph.search.algorithm1.candidates import BlockLaunch
from mugraph.search.algorithm1.construct import LOWEST, Constructor, ExpressionCheck, Rules, TensorPhase, TensorType, Types
from mugraph.search.algorithm1.kernel import KernelGenerator
from mugraph.search.algorithm1.options import block_schedules, operators_for
from mugraph.testing import ProgramSpace, random_program
from mugraph.verifier import verify_graphs

from .programs import chain, finished, outputs

CPU = device_for("cpu")
HALVES = EnumerationOptions(max_block_operators=6, grids=((2,),), loops=(1, 2))


def matmul() -> Graph:
    """x @ y."""
    p = Program()
    return finished(p, p.input("x", (4, 12)) @ p.input("y", (12, 10)))


def softmax() -> Graph:
    """exp(x) / sum(exp(x))."""
    p = Program()
    x = p.input("x", (4, 12)).exp()
    return finished(p, x / x.sum(-1, keepdim=True))


def graphs(result: EnumerationResult) -> set[Graph]:
    """The graphs of a result."""
    return {candidate.graph for candidate in result.candidates}


@pytest.mark.parametrize("program", [matmul(), softmax()], ids=["matmul", "softmax"])
def test_every_graph_is_valid_and_computes_the_program(program: Graph) -> None:
    result = enumerate_graphs(program, CPU, HALVES)
    assert result.candidates
    assert result.report.exhausted
    for graph in graphs(result):
        check(graph, CPU)
        for form in (graph, construct(graph)):
            for got, wanted in zip(outputs(form), outputs(program), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-9)


def test_best_predicted_graph_comes_first() -> None:
    costs = [candidate.cost for candidate in enumerate_graphs(softmax(), CPU, HALVES).candidates]
    assert costs == sorted(costs)
    assert costs[0] > 0


def test_no_graph_is_generated_twice() -> None:
    found: list[Graph] = []
    generator = KernelGenerator(softmax(), CPU, HALVES, found.append)
    for item in generator.items():
        generator.run(item)
    assert len(found) == len(set(found)) > 10


def test_operators_are_added_in_increasing_rank() -> None:
    """A graph in which the newest operand has the largest index is in canonical form in exactly one order."""
    plans: list[BlockPlan] = []
    generator = KernelGenerator(softmax(), CPU, HALVES, lambda graph: plans.extend(_plans(generator)))
    for item in generator.items():
        generator.run(item)
    assert len({plan.schedule.loop for plan in plans}) == 2
    for plan in plans:
        ranks = [application.rank for application in plan.applications]
        assert ranks == sorted(set(ranks))
        assert all(rank[0][0] == max(application.inputs) for rank, application in zip(ranks, plan.applications, strict=True))


def _plans(generator: KernelGenerator) -> list[BlockPlan]:
    return [added.plan for added in generator.operators if isinstance(added, BlockLaunch)]


def test_without_the_expression_check_more_is_visited_and_nothing_is_lost() -> None:
    options = dataclasses.replace(HALVES, max_block_operators=4, loops=(1,))
    checked = enumerate_graphs(softmax(), CPU, options)
    unchecked = enumerate_graphs(softmax(), CPU, dataclasses.replace(options, expression_check=False))
    assert unchecked.report.states > 5 * checked.report.states
    assert unchecked.report.candidates > checked.report.candidates > 0
    assert graphs(checked) <= graphs(unchecked)


NO_BOUNDS = dataclasses.replace(HALVES, dead_tensor_bound=False, completion_bound=False)
BOUNDS = {
    "dead tensors": dataclasses.replace(HALVES, completion_bound=False),
    "completion": dataclasses.replace(HALVES, dead_tensor_bound=False),
    "both": HALVES,
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_visit_less_and_lose_nothing(bound: str) -> None:
    bounded, unbounded = (enumerate_graphs(softmax(), CPU, options) for options in (BOUNDS[bound], NO_BOUNDS))
    assert unbounded.report.states > 2 * bounded.report.states
    assert graphs(bounded) == graphs(unbounded)


SMALL_SPACES = {
    "one kernel": EnumerationOptions(max_block_operators=5, grids=((), (2,)), loops=(1, 2)),
    "two kernels": EnumerationOptions(max_block_operators=4, max_kernel_operators=2, grids=((),), loops=(1,)),
    "two outputs": EnumerationOptions(max_block_operators=4, max_block_outputs=2, grids=((2,),), loops=(1, 2)),
    "grids of three dimensions": EnumerationOptions(max_block_operators=4, grids=((2, 1, 2),), loops=(1, 2)),
    "views": EnumerationOptions(
        max_block_operators=4, grids=((2,),), loops=(1, 2), operators=("matmul", "sum", "reshape", "transpose")
    ),
    "an operator of four operands": EnumerationOptions(
        max_block_operators=6, grids=((2,),), loops=(1,), operators=("concat_matmul",)
    ),
}


@pytest.mark.parametrize("seed", [0, 1, 3, *(pytest.param(other, marks=pytest.mark.slow) for other in (2, 4, 5))])
@pytest.mark.parametrize("space", SMALL_SPACES)
def test_bounds_lose_nothing_of_random_programs(space: str, seed: int) -> None:
    """In little memory, which has a part in what can be completed."""
    program = random_program(seed, ProgramSpace(operators=(2, 2), sizes=(2, 4, 6)))
    device = dataclasses.replace(CPU, operands_in_place=False, shared_memory_bytes=600)
    bare = dataclasses.replace(SMALL_SPACES[space], dead_tensor_bound=False, completion_bound=False)
    found = [enumerate_graphs(program, device, options) for options in (SMALL_SPACES[space], bare)]
    assert [result.report.exhausted for result in found] == [True, True]
    assert graphs(found[0]) == graphs(found[1])


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    alone = enumerate_graphs(matmul(), CPU, HALVES)
    together = enumerate_graphs(matmul(), CPU, dataclasses.replace(HALVES, processes=2))
    assert [c.graph for c in alone.candidates] == [c.graph for c in together.candidates]
    assert (alone.report.states, alone.report.candidates) == (together.report.states, together.report.candidates)


def test_shared_memory_bounds_the_tiles() -> None:
    needed = 4 * (2 * 12 + 12 * 10 + 2 * 10)  # the tiles of x, y and x @ y where the grid cuts rows, in fp32
    one_block = dataclasses.replace(HALVES, max_block_operators=3, loops=(1,))
    memory = dataclasses.replace(CPU, operands_in_place=False)

    def rows_cut(bytes_of_memory: int) -> bool:
        found = enumerate_graphs(matmul(), dataclasses.replace(memory, shared_memory_bytes=bytes_of_memory), one_block)
        bodies = [node.body for graph in graphs(found) for node in graph.kernels() if node.body is not None]
        return any(node.get("omap") == (0,) for body in bodies for node in body.nodes)

    assert rows_cut(needed)
    assert not rows_cut(needed - 1)


def test_a_grid_may_have_three_dimensions() -> None:
    options = EnumerationOptions(max_block_operators=3, grids=((2, 2, 2),), loops=(1,))
    found = graphs(enumerate_graphs(matmul(), CPU, options))
    bodies = [kernel.body for graph in found for kernel in graph.kernels() if kernel.body is not None]
    two_of_three_cut_rows = {((0, 0, None), (None, None, 1)), ((0, None, 0), (None, 1, None)), ((None, 0, 0), (1, None, None))}
    assert {tuple(node.get("imap") for node in body.inputs()) for body in bodies} == two_of_three_cut_rows
    for graph in found:
        check(graph, CPU)


def test_block_graphs_are_generated_once_for_the_same_tiles_and_counted_for_each() -> None:
    """With two grid dimensions, either may cut the rows, and blocks see the same."""
    options = EnumerationOptions(max_block_operators=4, grids=((2, 2),), loops=(1, 2))

    def run(generator: KernelGenerator, items: Sequence[int]) -> int:
        every = generator.items()
        for item in items:
            generator.run(every[item])
        return generator.states

    together: list[Graph] = []
    generator = KernelGenerator(matmul(), CPU, options, together.append)
    items = range(len(generator.items()))
    apart: list[Graph] = []
    states = [run(KernelGenerator(matmul(), CPU, options, apart.append), [item]) for item in items]
    assert run(generator, items) == sum(states)
    assert together == apart
    assert len(generator._known_blocks) < len(items) - 1


def test_two_kernels_by_nested_generation() -> None:
    program = chain(rows=2, inner=4, middle=6, out=10)
    options = EnumerationOptions(max_block_operators=3, max_kernel_operators=2, grids=((2,),), loops=(1,))
    found = graphs(enumerate_graphs(program, CPU, options))
    kinds = {tuple(sorted(node.op for node in graph.kernels())) for graph in found}
    assert kinds == {("matmul", "matmul"), ("graph_defined", "matmul"), ("graph_defined", "graph_defined")}
    assert {len(graph.kernels()) for graph in found} == {2}


def test_a_kernel_may_save_several_tensors_even_one_it_also_reads() -> None:
    p = Program()
    x = p.input("x", (4, 12)).exp()
    program = finished(p, x, x.sum(-1, keepdim=True))
    options = dataclasses.replace(HALVES, max_block_operators=3, loops=(1,))
    (graph,) = graphs(enumerate_graphs(program, CPU, options))
    assert not graphs(enumerate_graphs(program, CPU, dataclasses.replace(options, max_block_outputs=1)))
    (kernel,) = graph.kernels()
    assert kernel.body is not None
    assert [node.op for node in kernel.body.nodes].count("exp") == 1
    assert [tensor.shape for tensor in kernel.outputs] == [(4, 12), (4, 1)]


def test_two_kernels_on_the_same_operand_have_distinct_schedules() -> None:
    p = Program()
    x = p.input("x", (4, 12))
    program = finished(p, x.sum(0, keepdim=True), x.sum(1, keepdim=True))
    options = EnumerationOptions(max_block_operators=2, max_kernel_operators=2, grids=((2,),), loops=(1,))
    bodies = [
        [node.body for node in graph.kernels() if node.body is not None]
        for graph in graphs(enumerate_graphs(program, CPU, options))
    ]
    (pair,) = [pair for pair in bodies if len(pair) == 2]
    assert {node.get("imap") for body in pair for node in body.inputs()} == {(0,), (1,)}


def test_a_run_over_its_time_limit_says_so() -> None:
    report = enumerate_graphs(chain(), CPU, EnumerationOptions(max_block_operators=9, time_limit=0.05)).report
    assert not report.exhausted
    assert report.items_finished < report.items
    assert "over the time limit" in report.exhausted_what
    assert report.to_json()["exhausted"] is False


def test_schedules_cut_evenly_and_leave_no_part_idle() -> None:
    schedules = list(block_schedules([(4, 6)], [(2,)], [1, 3]))
    assert {(s.loop, s.imaps, s.fmaps) for s in schedules} == {
        (1, ((0,),), (None,)),
        (1, ((1,),), (None,)),
        (3, ((0,),), (1,)),
        (3, ((1,),), (1,)),
    }
    assert schedules[-1].tile(0, (4, 6)) == (4, 1)


def test_prefixes_grow_only_into_subexpressions_of_the_program() -> None:
    """For x * z + y * z, the paper's example: x + y may be added, x * y may not."""
    algebra = Algebra()
    x, y, z = map(algebra.variable, "xyz")
    target = algebra.add(algebra.mul(x, z), algebra.mul(y, z))
    types = Types()
    prefix = [types.intern(TensorType((4, 4), expr, TensorPhase.AFTER)) for expr in (x, y)]
    pruned = Oracle(algebra, [target]).compose
    constructor = Constructor(types, Rules(ExpressionCheck(pruned, operators_for(matmul(), EnumerationOptions())), Level.BLOCK))
    assert [(found.op, found.inputs) for found in constructor.extensions(prefix, LOWEST)] == [("add", (0, 1))]


@pytest.mark.parametrize("transposed", ["result", "operand"])
def test_views_between_kernels_are_tested_like_any_graph(transposed: str) -> None:
    program = Program()
    x, y = program.input("x", (2, 4) if transposed == "result" else (4, 2)), program.input("y", (4, 2))
    program.output((x @ y).transpose(1, 0) if transposed == "result" else x.transpose(1, 0) @ y)
    options = EnumerationOptions(
        max_kernel_operators=2, max_block_operators=4, grids=((2,),), loops=(1,), operators=("matmul", "transpose")
    )
    found = enumerate_graphs(program.graph, device_for("cpu"), options).candidates
    assert found
    assert all(verify_graphs(program.graph, candidate.graph).equivalent for candidate in found)
    assert any(node.op == "transpose" for candidate in found for node in candidate.graph.nodes)
