"""Axes that several outputs have, each of its own weights, and axes that lie in stretches of a dimension."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mugraph.errors import ShapeMismatch
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.program import ProgramTensor
from mugraph.ir.validity import check
from mugraph.lower.thread_graphs import construct
from mugraph.testing import agree
from mugraph.verifier import by_random_tests, verify_graphs
from mugraph.verifier.axis_marks import ONE, Widths, stretches_between
from mugraph.verifier.certificate import Certificate
from mugraph.verifier.parallel_axes import Cut, ParallelAxis, shared_slice
from mugraph.verifier.random_tests import recheck
from mugraph.verifier.slice_walk import NotParallel

from .graphs import FP32, mutants
from .graphs import program as program_of_one
from .joint_graphs import (
    INNER,
    PAIRS,
    ROWS,
    crossed_in_blocks,
    crossed_rows,
    packed_attention,
    packed_in_blocks,
    program,
    projections,
    projections_in_blocks,
)
from .test_slices import assert_slices_stand_for_all


def described(axis: ParallelAxis) -> tuple[object, ...]:
    return axis.size, axis.inputs, axis.input_widths, axis.outputs, axis.output_widths


@pytest.mark.parametrize("name", PAIRS)
def test_axes_of_several_outputs_and_stretches_are_cut(name: str) -> None:
    left, right = (make() for make in PAIRS[name][:2])
    check(right)
    for kernels in (right, construct(right)):
        found = shared_slice(left, kernels, simple=False)
        assert PAIRS[name][2] in [described(axis) for axis in found.axes]
        for graph in (found.left, found.right):
            check(graph)
        verdict = verify_graphs(left, kernels)
        assert verdict.equivalent
        read = Certificate.from_json(verdict.certificate.to_json())
        assert read == verdict.certificate
        recheck(read, left, kernels)


@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_may_have_whole_stretches(blocks: int) -> None:
    widths = (ONE * 4, ONE)
    for graph in (crossed_rows(4), made := crossed_in_blocks(4, blocks=blocks), construct(made)):
        cut = Cut.of(graph, (0, 0), widths)
        assert (cut.slices, cut.dims, cut.widths) == (4, (0,), (ONE,))
        assert_slices_stand_for_all(graph, (0, 0), *widths)


def layouts(size: int, slices: int) -> Iterator[Widths]:
    """Ways in which so many slices may lie in a dimension: in up to three stretches."""
    width, rest = divmod(size, slices)
    for stretches in range(1, 4 if not rest else 1):
        yield from (cut for cut in itertools.product(range(1, width + 1), repeat=stretches) if sum(cut) == width)


def axes(graph: Graph, slices: int) -> Iterator[tuple[tuple[int | None, ...], tuple[Widths, ...]]]:
    """All that may be an axis of so many slices."""
    places: list[list[tuple[int | None, Widths]]] = [
        [(None, ONE), *((dim, widths) for dim, size in enumerate(node.output.shape) for widths in layouts(size, slices))]
        for node in graph.inputs()
    ]
    for chosen in itertools.product(*places):
        if any(dim is not None for dim, _ in chosen):
            yield tuple(dim for dim, _ in chosen), tuple(widths for _, widths in chosen)


@pytest.mark.parametrize("name", PAIRS)
def test_whatever_is_taken_for_a_joint_axis_is(name: str) -> None:
    """Changed maps, operators, slices and concatenations, and every way to lie in stretches: numbers must say the same."""
    left, right = (make() for make in PAIRS[name][:2])
    proved = 0
    for graph in (left, right, construct(right)):
        tried = list(axes(graph, 2))
        for changed in itertools.islice(itertools.chain([graph], mutants(graph)), 60):
            for axis, widths in tried[:: 1 + len(tried) // 200]:
                with contextlib.suppress(NotParallel, ShapeMismatch):
                    assert_slices_stand_for_all(changed, axis, *widths)
                    proved += 1
    assert proved > 10


def faulty(change: Callable[[list[ProgramTensor]], list[ProgramTensor]], *columns: int) -> Graph:
    """Projections of which something is changed afterwards."""
    return program(
        lambda x, *weights: tuple(change([x.exp() @ w for w in weights])), (ROWS, INNER), *((INNER, n) for n in columns)
    )


def changed_column(number: int, column: int) -> Callable[[list[ProgramTensor]], list[ProgramTensor]]:
    """One column of one result is doubled."""

    def change(results: list[ProgramTensor]) -> list[ProgramTensor]:
        wrong = results[number]
        ends = [0, column, column + 1, wrong.shape[1]]
        parts = [wrong.slice(1, start, end - start) for start, end in itertools.pairwise(ends) if start < end]
        parts[column > 0] *= 2
        results[number] = wrong.program.concat(parts, 1)
        return results

    return change


COLUMNS = (8, 4, 4)


@pytest.mark.parametrize(
    ("number", "column"), [(number, column) for number, count in enumerate(COLUMNS) for column in (0, count // 2, count - 1)]
)
def test_a_fault_in_one_slice_of_one_output_is_found(number: int, column: int) -> None:
    wrong = faulty(changed_column(number, column), *COLUMNS)
    right = projections_in_blocks(*COLUMNS)
    assert not agree(wrong, right)
    assert not by_random_tests(wrong, right).equivalent
    assert verify_graphs(wrong, right).equivalent is False


@pytest.mark.parametrize("number", range(len(COLUMNS)))
def test_a_fault_in_one_output_is_found(number: int) -> None:
    left, right = projections(*COLUMNS), projections_in_blocks(*COLUMNS, late=number)
    assert (None, 1, 1, 1) in {axis.inputs for axis in shared_slice(left, right, simple=False).axes}
    assert verify_graphs(left, right).equivalent is False


@pytest.mark.parametrize("order", [order for order in map("".join, itertools.permutations("qkv")) if order != "qkv"])
def test_stretches_in_another_order_are_told_apart(order: str) -> None:
    assert verify_graphs(packed_attention(), packed_in_blocks(order=order)).equivalent is False


@pytest.mark.parametrize("name", PAIRS)
def test_no_mutant_of_joint_axes_that_differs_is_accepted(name: str) -> None:
    left, right = (make() for make in PAIRS[name][:2])
    graphs = [right, *itertools.islice(mutants(right), 0, None, 2)]
    accepted = [bool(by_random_tests(left, graph).equivalent) for graph in graphs]
    assert accepted == [agree(left, graph) for graph in graphs]
    assert accepted[0]
    assert not all(accepted)


def test_outputs_that_tell_their_slices_apart_are_not_joined() -> None:
    """Of one weight the columns are an axis, of the other they are summed in an exponent."""
    left = program(lambda x, y, z: (x @ y, (x @ z).sum(1).exp()), (2, 4), (4, 4), (4, 4))
    assert all(axis.inputs[2] != 1 for axis in shared_slice(left, left, simple=False).axes)


def test_parts_that_end_within_stretches_are_not_taken() -> None:
    assert stretches_between((2, 1), 3, 0, 6) == (0, 1)
    assert stretches_between((2, 1), 3, 6, 9) == (1, 2)
    assert stretches_between((2, 1), 3, 0, 3) is None
    assert stretches_between((2, 1), 3, 3, 9) is None
    sliced = program_of_one(lambda x: x.slice(1, 1, 4), (2, 8))
    with pytest.raises(NotParallel):
        Cut.of(sliced, (1,), [(1, 1)])


def test_views_of_digits_are_followed_there_and_back() -> None:
    """Heads beside each other, merged and parted again, at each of three places."""
    rng = np.random.default_rng(0)
    for sizes in itertools.permutations((2, 3, 4)):
        place = int(rng.integers(3))
        graph = program_of_one(lambda x, sizes=sizes: x.reshape(24).exp().reshape(*sizes).square(), (24,))
        before, behind = sizes[:place], sizes[place + 1 :]
        widths = (int(np.prod(behind)),) * int(np.prod(before))
        cut = assert_slices_stand_for_all(graph, (0,), widths)
        assert cut.dims == (place,)
        assert cut.slices == sizes[place]


@pytest.mark.parametrize("dim", [0, 1])
def test_values_of_blocks_and_stretches_do_not_mix(dim: int) -> None:
    """A grid that cuts a dimension of several stretches gives each block a stretch, and not a part of each; they are put back
    behind each other, or one below the other."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (2, 8), FP32)
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    tile = block.add("exp", block.iterator(0, kernel.tensor(x), (1,), None))
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", tile, omap=(dim,))]), [x]))
    for widths in ((1, 1), (2, 2)):
        cut = assert_slices_stand_for_all(graph, (1,), widths)
        assert cut.widths == (widths if dim else widths[:1],)
    if dim:
        assert_slices_stand_for_all(graph, (1,), (1,))
    assert assert_slices_stand_for_all(graph, (1,), (1, 1, 1, 1)).dims == (1,)
    with pytest.raises(NotParallel):
        Cut.of(graph, (1,), [(2, 1, 1)])
