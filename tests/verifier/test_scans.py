"""Running sums and products tell positions apart: along them no axis is parallel, and near misses are told apart."""

from __future__ import annotations

import itertools
from operator import itemgetter

import numpy as np
import pytest

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.ir import Graph
from mugraph.ir.ops import OPERATORS, Call
from mugraph.ir.scans import SCANS
from mugraph.testing import agree, mutants
from mugraph.verifier import verify_graphs
from mugraph.verifier.bounds import difference_of
from mugraph.verifier.parallel_axes import shared_slice, take_slice
from mugraph.verifier.slice_walk import NotParallel

from .graphs import assert_proved_equal, assert_told_apart, program
from .scans import DIFFERENT, EQUAL, graphs, running


@pytest.mark.parametrize("name", EQUAL)
def test_scans_written_in_other_ways_are_equal(name: str) -> None:
    assert_proved_equal(graphs(EQUAL[name]))


@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses_are_told_apart(name: str) -> None:
    assert_told_apart(graphs(DIFFERENT[name]))


@pytest.mark.parametrize("op", SCANS)
@pytest.mark.parametrize("size", [1, 2, 7, 16])
def test_in_a_field_they_are_one_step_after_the_other(op: str, size: int) -> None:
    arith = FieldArithmetic(seed=0)
    x = arith.random((3, size, 2), np.random.default_rng(size))
    found = OPERATORS[op].compute(arith, Call(op, ((3, size, 2),), {"dim": 1}), [x])
    positions = range(size)[::-1] if SCANS[op].back else range(size)
    total: FieldValue | None = None
    for position in positions:
        element, result = (arith.view(value, itemgetter((slice(None), position))) for value in (x, found))
        combined = arith.add if SCANS[op].combine == "add" else arith.mul
        total = element if total is None else combined(total, element)
        assert total.agrees_with(result)


CUT: dict[str, tuple[Graph, tuple[int | None, ...]]] = {
    "along it": (program(running, (4, 3)), (1,)),
    "along it, backwards": (program(lambda x: running(x, 0, "cumsum_back"), (4, 3)), (0,)),
    "along a product": (program(lambda x: running(x, 1, "cumprod"), (4, 3)), (1,)),
    "along it before a sum": (program(lambda x: running(x).sum(1), (4, 3)), (1,)),
    "along it after a sum of another": (program(lambda x: running(x.sum(0, keepdim=True)), (4, 3)), (1,)),
    "what is added up before it": (program(lambda x: running(x.sum(1, keepdim=True), 1), (4, 3)), (1,)),
    "the inner part of what was one dimension": (program(lambda x: running(x.reshape(12), 0), (4, 3)), (1,)),
    "the outer part of what was one dimension": (program(lambda x: running(x.reshape(12), 0), (4, 3)), (0,)),
}


@pytest.mark.parametrize("name", CUT)
def test_an_axis_that_is_scanned_is_not_parallel(name: str) -> None:
    graph, axis = CUT[name]
    with pytest.raises(NotParallel):
        take_slice(graph, axis)
    for simple in (True, False):
        assert axis not in [found.inputs for found in shared_slice(graph, graph, simple=simple).axes]


def test_an_axis_beside_the_one_that_is_scanned_is_parallel() -> None:
    graph = program(lambda x, y: running(x * y, 1).exp(), (8, 4), (8, 4))
    cut, dims = take_slice(graph, (0, 0))
    assert dims == (0,)
    assert [node.output.shape for node in cut.inputs()] == [(1, 4), (1, 4)]
    assert shared_slice(graph, graph).axes[0].inputs == (0, 0)


def test_a_running_product_has_the_degree_of_all_its_factors() -> None:
    sums, products = (difference_of(*[program(lambda x, op=op: running(x, 1, op), (2, 16))] * 2) for op in ("cumsum", "cumprod"))
    assert sums is not None
    assert products is not None
    assert products.output.degree >= 16 > sums.output.degree


@pytest.mark.parametrize("name", ["sums of sums", "backwards is what is left of all", "products of products"])
def test_no_mutant_that_differs_is_accepted(name: str) -> None:
    left, right = graphs(EQUAL[name])
    assert verify_graphs(left, right).equivalent
    wrong = [mutant.graph for mutant in itertools.islice(mutants(right), 80) if not agree(left, mutant.graph)]
    assert len(wrong) > 8
    assert not any(verify_graphs(left, graph).equivalent for graph in wrong)
