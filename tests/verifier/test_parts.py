"""Slices and concatenations tell positions apart: an axis that they cut is not parallel, and near misses are told apart."""

from __future__ import annotations

import itertools

import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.program import Program
from mugraph.testing import agree, mutants
from mugraph.verifier import verify_graphs
from mugraph.verifier.parallel_axes import shared_slice, take_slice
from mugraph.verifier.prover import verify
from mugraph.verifier.slice_walk import NotParallel

from .graphs import assert_proved_equal, assert_told_apart, program
from .parts import DIFFERENT, EQUAL, flipped, graphs, halves, joined


@pytest.mark.parametrize("name", EQUAL)
def test_parts_written_in_other_ways_are_equal(name: str) -> None:
    assert_proved_equal(graphs(EQUAL[name]))


@pytest.mark.parametrize("name", DIFFERENT)
def test_near_misses_are_told_apart(name: str) -> None:
    assert_told_apart(graphs(DIFFERENT[name]))


CUT: dict[str, tuple[Graph, tuple[int | None, ...]]] = {
    "a slice of the axis": (program(lambda x: x.slice(0, 1, 2), (4, 3)), (0,)),
    "all of the axis, backwards": (program(flipped, (3, 4)), (1,)),
    "two tensors along the axis of one": (program(lambda x, y: joined(x, y, dim=0), (4, 3), (4, 3)), (0, None)),
    "an operand without the axis": (program(lambda x, y: joined(x, y), (4, 3), (4, 3)), (0, None)),
    "a slice beside all of it": (program(lambda z, x: z + x.slice(0, 0, 1), (4, 3), (4, 3)), (0, 0)),
    "a slice of one position": (program(lambda x: x.slice(0, 0, 1) * 2, (4, 3)), (0,)),
    "a slice after a reshape": (program(lambda x: x.reshape(12).slice(0, 0, 6), (4, 3)), (0,)),
    "a slice of a sum over another axis": (program(lambda x: x.sum(1).slice(0, 0, 2), (4, 3)), (0,)),
    "a part of a product's rows": (program(lambda x, w: (x @ w).slice(0, 0, 2), (4, 3), (3, 5)), (0, None)),
    "a part of what is added up": (program(lambda x: x.slice(0, 0, 2).sum(0), (4, 3)), (0,)),
}


@pytest.mark.parametrize("name", CUT)
def test_an_axis_that_is_cut_is_not_parallel(name: str) -> None:
    graph, axis = CUT[name]
    with pytest.raises(NotParallel):
        take_slice(graph, axis)
    for simple in (True, False):
        assert axis not in [found.inputs for found in shared_slice(graph, graph, simple=simple).axes]


def test_an_axis_beside_the_one_that_is_cut_is_parallel() -> None:
    graph = program(lambda x, y: joined(*reversed(halves(x)), y.slice(1, 3, 2, -1)).exp(), (8, 4), (8, 4))
    cut, dims = take_slice(graph, (0, 0))
    assert dims == (0,)
    assert [node.output.shape for node in cut.inputs()] == [(1, 4), (1, 4)]
    assert shared_slice(graph, graph).axes[0].inputs == (0, 0)


def test_sums_of_parts_of_an_axis_are_no_sums_of_slices() -> None:
    """As many slices are added up on both sides, but others."""
    left = program(lambda x: x.slice(0, 0, 2).sum(0), (4, 3))
    right = program(lambda x: x.slice(0, 2, 2).sum(0), (4, 3))
    assert all(axis.inputs != (0,) for axis in shared_slice(left, right, simple=False).axes)
    assert verify_graphs(left, right).equivalent is False


def test_one_tensor_along_a_concatenation_is_itself() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (2, 3), DType.FP32)
    graph = builder.build([builder.add("concat", x, dim=1)])
    assert verify_graphs(graph, program(lambda x: x * 1, (2, 3))).equivalent


def test_scalars_without_dimensions_are_looked_at_with_high_precision() -> None:
    """Where a member of a batch is one number, moving it gives an array, too."""
    written = [Program(), Program()]
    for number, each in enumerate(written):
        x = each.input("x", ())
        each.output((x.relu() + (x + 2**-40 * number).relu()).reshape(1))
    left, right = (each.graph for each in written)
    assert verify(left, right).equivalent is False


@pytest.mark.parametrize("name", ["a softmax over two tensors", "a product in two parts", "heads, and positions in heads"])
def test_no_mutant_that_differs_is_accepted(name: str) -> None:
    left, right = graphs(EQUAL[name])
    assert verify_graphs(left, right).equivalent
    wrong = [mutant.graph for mutant in itertools.islice(mutants(right), 80) if not agree(left, mutant.graph)]
    assert len(wrong) > 8
    assert not any(verify_graphs(left, graph).equivalent for graph in wrong)
