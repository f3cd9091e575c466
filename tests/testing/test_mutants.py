"""Mutants are valid and near; none that computes something else is accepted, though the paper's own test accepts many."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.graph import Tensor
from mugraph.ir.program import Program
from mugraph.ir.validity import check
from mugraph.lower.thread_graphs import construct
from mugraph.testing import Mutant, ProgramSpace, accepted_by_paper, agree, mutants, random_program
from mugraph.testing.mutants import _MISTAKES as KINDS
from mugraph.verifier import verify_graphs
from search.programs import PAPER
from verifier.graphs import fused_rmsnorm, linear_with_bias, online_attention, program

SPACE = ProgramSpace(sizes=(2, 3, 4))
KERNELS = (fused_rmsnorm(4, 6, 4), online_attention(3, 4, 2), linear_with_bias(3))


def two_sums() -> Graph:
    written = Program()
    x = written.input("x", (3, 3))
    written.output(x.sum(0), x.sum(1))
    return written.graph


def exchanged() -> Graph:
    """Halves of the columns in another order, and every other row."""
    written = Program()
    x = written.input("x", (4, 6))
    written.output(written.concat([x.slice(1, 3, 3), x.slice(1, 0, 3) * 2], 1).slice(0, 3, 2, -2))
    return written.graph


def chosen() -> Graph:
    """Whole parts or logarithms, by a comparison."""
    return program(lambda x, y: (x * y).apply("less", y).apply("select", x.apply("floor"), y.apply("log2")), (2, 3), (2, 3))


def graphs(count: int = 6) -> list[Graph]:
    return [*KERNELS, two_sums(), exchanged(), chosen(), *(random_program(seed, SPACE) for seed in range(count))]


def changes(graph: Graph, kind: str) -> list[Mutant]:
    return [mutant for mutant in mutants(graph) if mutant.kind == kind]


def test_every_kind_of_mistake_occurs() -> None:
    found = {mutant.kind for graph in graphs() for mutant in mutants(graph)}
    assert found == {*KINDS, "outputs reordered"}


def test_mutants_are_valid_different_graphs_of_the_same_signature() -> None:
    for graph in graphs():
        for mutant in mutants(graph):
            check(mutant.graph)
            assert mutant.graph != graph
            assert mutant.graph.inputs() == graph.inputs()
            assert [t.shape for t in mutant.graph.output_tensors] == [t.shape for t in graph.output_tensors]


def test_kernels_of_several_outputs_keep_them() -> None:
    x, y = (Tensor((4, 4), DType.FP32, Level.KERNEL) for _ in range(2))
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(2,))
    inputs = [kernel.input(name, tensor.shape, tensor.dtype) for name, tensor in (("x", x), ("y", y))]
    tiles = [block.iterator(index, tensor, (0,), None) for index, tensor in enumerate((x, y))]
    made = [block.add(op, *tiles) for op in ("add", "mul")]
    body = block.build([block.add("output_saver", value, omap=(0,)) for value in made])
    graph = kernel.build(kernel.graph_defined(body, inputs))
    found = list(mutants(graph))
    assert {"outputs reordered", "operator swapped"} <= {mutant.kind for mutant in found}
    assert all(not verify_graphs(graph, mutant.graph).equivalent for mutant in found if not agree(graph, mutant.graph))


def test_parts_are_mistaken_for_others() -> None:
    found = {mutant.change.split(": ")[1] for mutant in changes(exchanged(), "wrong part")}
    assert {"from 2 on in steps of 1", "from 1 on in steps of 1", "from 1 on in steps of 2", "in steps of -1"} <= found
    assert "parts 0 and 1 exchanged" in found


def test_conditions_and_functions_are_mistaken_for_others() -> None:
    graph = chosen()
    assert {mutant.change.split(": ")[1] for mutant in changes(graph, "wrong condition")} == {"negated", "or equal"}
    swapped = {mutant.change.split(": ")[1] for mutant in changes(graph, "operator swapped")}
    assert {"equal", "atan2", "ceil", "round", "trunc", "log", "log1p"} <= swapped
    assert not any(verify_graphs(graph, mutant.graph).equivalent for mutant in changes(graph, "wrong condition"))


def test_kernels_are_mutated_inside() -> None:
    kinds = {mutant.kind for graph in KERNELS for mutant in mutants(graph) if mutant.change.count("%") >= 2}
    assert {"wrong map", "wrong accumulator", "wrong length", "operator swapped", "power"} <= kinds


def refused(pairs: list[tuple[Graph, Graph]]) -> int:
    """How many pairs the verifier refuses, when it accepts none whose members differ."""
    count = 0
    for original, changed in pairs:
        if verify_graphs(original, changed).equivalent:
            assert agree(original, changed), f"accepted:\n{original}\n{changed}"
        else:
            count += 1
    return count


def tried(graph: Graph, step: int) -> list[tuple[Graph, Graph]]:
    """Every so manieth mutant of a graph."""
    return [(graph, mutant.graph) for mutant in itertools.islice(mutants(graph), 0, None, step)]


def test_no_mutant_that_differs_is_accepted() -> None:
    pairs = [pair for graph in graphs() for pair in tried(graph, 5)]
    assert len(pairs) > 80
    assert refused(pairs) > 0.9 * len(pairs)
    assert refused([(graph, construct(graph)) for graph in KERNELS]) == 0, "one that refuses whatever differs is no better"


@pytest.mark.slow
def test_none_of_many_mutants_that_differ_is_accepted() -> None:
    pairs = [pair for graph in [*graphs(20), *(build() for build in PAPER.values())] for pair in tried(graph, 1)]
    assert len(pairs) > 1200
    assert refused(pairs) > 0.95 * len(pairs)


@pytest.mark.parametrize("name", PAPER)
def test_no_mutant_of_a_workload_that_differs_is_accepted(name: str) -> None:
    assert refused(tried(PAPER[name](), 8)) >= 2


@pytest.mark.slow
def test_two_mistakes_are_no_safer_than_one() -> None:
    graph = KERNELS[0]
    first = changes(graph, "wrong constant")[:3]
    assert refused([(graph, second.graph) for mutant in first for second in mutants(mutant.graph)]) > 100


def test_the_papers_primes_accept_what_they_cannot_see() -> None:
    graph = program(lambda x, w: x @ w * 3, (2, 3), (3, 2))
    accepted = Counter(m.kind for m in mutants(graph) if accepted_by_paper(graph, m.graph) and not agree(graph, m.graph))
    assert accepted == {"power": 2, "wrong constant": 1}, "x**12657 for either input, and 3 plus the product of the primes"
