"""Rows of self-attention: an axis once what queries and keys both read is two inputs, in every form of rotary embedding."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mugraph.errors import InvalidInput
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.program import ProgramTensor
from mugraph.ir.validity import check
from mugraph.testing import agree
from mugraph.verifier import Certificate, separate_inputs, verify_graphs
from mugraph.verifier.axis_candidates import candidates_apart
from mugraph.verifier.parallel_axes import Slice, shared_slice
from mugraph.verifier.random_tests import by_random_tests, recheck
from mugraph.verifier.separate_inputs import separate_slice, separated

from .graphs import FP32, mutants, program
from .test_slices import part

HEADS, ROWS, WIDTH = 2, 4, 4
Turn = Callable[[ProgramTensor, ProgramTensor, ProgramTensor], ProgramTensor]
"""Rows [..., tokens, width] turned by tables [tokens, width] of cosines and sines."""


@pytest.fixture(autouse=True)
def small_graphs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_inputs, "LARGE", 0)


def by_halves(x: ProgramTensor, cos: ProgramTensor, sin: ProgramTensor) -> ProgramTensor:
    """As Llama, Qwen and Gemma have it: slices and a concatenation."""
    half, last = x.shape[-1] // 2, len(x.shape) - 1
    swapped = x.program.concat([x.slice(last, half, half) * -1, x.slice(last, 0, half)], last)
    return x * cos + swapped * sin


def by_part_of_width(x: ProgramTensor, cos: ProgramTensor, sin: ProgramTensor) -> ProgramTensor:
    """As GPT-NeoX has it: some columns are turned, and the others kept."""
    half, last = x.shape[-1] // 2, len(x.shape) - 1
    turned = by_halves(x.slice(last, 0, half), cos.slice(1, 0, half), sin.slice(1, 0, half))
    return x.program.concat([turned, x.slice(last, half, half)], last)


def by_pairs(x: ProgramTensor, cos: ProgramTensor, sin: ProgramTensor) -> ProgramTensor:
    """As torchtune has it: pairs of neighbours, each result stacked with the other."""
    pairs, last = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2), len(x.shape)
    tables = [table.slice(1, 0, x.shape[-1] // 2).reshape(x.shape[-2], x.shape[-1] // 2, 1) for table in (cos, sin)]
    even, odd = (pairs.slice(last, number, 1) for number in (0, 1))
    made = [even * tables[0] - odd * tables[1], odd * tables[0] + even * tables[1]]
    return x.program.concat(made, last).reshape(*x.shape)


def by_complex_numbers(x: ProgramTensor, cos: ProgramTensor, sin: ProgramTensor) -> ProgramTensor:
    """The product of complex numbers, of halves as real and imaginary parts."""
    half, last = x.shape[-1] // 2, len(x.shape) - 1
    real, imaginary = x.slice(last, 0, half), x.slice(last, half, half)
    c, s = cos.slice(1, 0, half), sin.slice(1, 0, half)
    return x.program.concat([real * c - imaginary * s, real * s + imaginary * c], last)


FORMS: tuple[Turn, ...] = (by_halves, by_part_of_width, by_pairs, by_complex_numbers)
SHAPES = ((ROWS, HEADS * WIDTH), *[(HEADS * WIDTH, HEADS * WIDTH)] * 3, (ROWS, WIDTH), (ROWS, WIDTH), (ROWS, ROWS))


def attention(turn: Turn, *, late: bool = False, fault: str = "") -> Graph:
    """Causal self-attention of rotated queries and keys, which divides before or after the product with values."""

    def function(
        x: ProgramTensor,
        wq: ProgramTensor,
        wk: ProgramTensor,
        wv: ProgramTensor,
        cos: ProgramTensor,
        sin: ProgramTensor,
        mask: ProgramTensor,
    ) -> ProgramTensor:
        def heads(rows: ProgramTensor) -> ProgramTensor:
            return rows.reshape(ROWS, HEADS, WIDTH).transpose(0, 1)

        q, k, v = (heads(x @ weight) for weight in (wq, wk, wv))
        if fault == "the next row's cosines":
            q = turn(q, rolled(cos, 0), sin)
        elif fault == "keys turned by the next row's":
            q, k = turn(q, cos, sin), turn(k, rolled(cos, 0), sin)
        else:
            q = turn(q, cos, sin)
        if fault != "keys turned by the next row's":
            k = turn(k, cos, sin)
        if fault == "the neighbour's keys":
            k = rolled(k, 0)
        if fault == "rows of queries from the next":
            q = rolled(q, 1)
        if fault == "a mask of the next row":
            mask = rolled(mask, 0)
        weights = (q @ k.transpose(1, 2) + mask).exp()
        sums = weights.sum(-1, keepdim=True)
        mixed = (weights @ v) / sums if late else (weights / sums) @ v
        return mixed.transpose(0, 1).reshape(ROWS, HEADS * WIDTH)

    return program(function, *SHAPES)


def rolled(x: ProgramTensor, dim: int) -> ProgramTensor:
    """What begins at one, and has the first behind the others."""
    return x.program.concat([x.slice(dim, 1, x.shape[dim] - 1), x.slice(dim, 0, 1)], dim)


def cut(left: Graph, right: Graph) -> Slice:
    """Both at single slices, those of inputs read twice besides."""
    return separate_slice(shared_slice(left, right, simple=False), lambda *_: True)


def numbers(graph: Graph, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.5, 1.5, node.output.shape) for node in graph.inputs()]


def assert_slices_are_of_the_whole(graph: Graph, found: Graph, axes: Slice) -> None:
    """The graph of slices, on slices of the inputs and on those that it takes as a whole, gives slices of the result."""
    inputs = numbers(graph)
    (whole,) = evaluate(graph, inputs, FloatArithmetic())
    for places in itertools.product(*(range(axis.size) for axis in axes.axes)):
        given, wanted = list(inputs), whole
        for place, axis in zip(places, axes.axes, strict=True):
            given += [given[number] for number in axis.apart]
            given = [part(*each, place) for each in zip(given, axis.inputs, axis.input_widths, strict=True)]
            wanted = part(wanted, axis.outputs[0], axis.output_widths[0], place)
        (result,) = evaluate(found, given, FloatArithmetic())
        np.testing.assert_allclose(result, wanted)


@pytest.mark.parametrize("turn", FORMS)
def test_rows_of_queries_are_an_axis_through_every_form(turn: Turn) -> None:
    left, right = attention(turn), attention(turn, late=True)
    found = cut(left, right)
    (apart,) = (axis for axis in found.axes if axis.apart)
    assert (apart.size, apart.outputs) == (ROWS, (0,))
    assert 0 in apart.apart, "the rows of which keys are made"
    assert found.left.output_tensors[0].shape[0] == 1
    for graph, slices in ((left, found.left), (right, found.right)):
        check(slices)
        assert_slices_are_of_the_whole(graph, slices, found)
    verdict = by_random_tests(left, right)
    assert verdict.equivalent
    assert any(axis.apart for axis in verdict.certificate.axes)
    read = Certificate.from_json(verdict.certificate.to_json())
    assert read == verdict.certificate
    recheck(read, left, right)
    with pytest.raises(InvalidInput):
        recheck(replace(read, axes=(*read.axes[:-1], replace(read.axes[-1], size=ROWS + 1))), left, right)


@pytest.mark.parametrize("turn", FORMS)
def test_forms_are_equal_where_they_are_the_same_function(turn: Turn) -> None:
    """Halves by slices and as complex numbers; no other two."""
    other = by_halves if turn is not by_halves else by_complex_numbers
    left, right = attention(turn), attention(other, late=True)
    wanted = agree(left, right)
    assert verify_graphs(left, right).equivalent is wanted


FAULTS = (
    "the next row's cosines",
    "keys turned by the next row's",
    "the neighbour's keys",
    "rows of queries from the next",
    "a mask of the next row",
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("turn", [by_halves, by_pairs])
def test_what_reads_a_neighbour_is_told_apart(turn: Turn, fault: str) -> None:
    left, right = attention(turn), attention(turn, late=True, fault=fault)
    assert not agree(left, right)
    assert not by_random_tests(left, right).equivalent
    assert verify_graphs(left, right).equivalent is False


@pytest.mark.parametrize("turn", FORMS)
def test_a_separated_graph_is_the_graph_where_inputs_are_the_same(turn: Turn) -> None:
    """Whatever is proposed for an axis, and in mutants, too."""
    left = attention(turn)
    seen = 0
    for graph in (left, *(mutant for mutant in itertools.islice(mutants(left), 0, 120, 3))):
        given = numbers(graph)
        for candidate in candidates_apart(graph, graph):
            made = separated(graph, candidate)
            if made is None:
                continue
            seen += 1
            twice = [given[number] for number, dim in enumerate(candidate.inputs) if dim is not None]
            ours, theirs = evaluate(graph, given, FloatArithmetic()), evaluate(made, [*given, *twice], FloatArithmetic())
            np.testing.assert_allclose(theirs[0], ours[0])
    assert seen > 20


def in_one_kernel(blocks: int, *, shifted: bool = False) -> Graph:
    """exp(q k^T) of rows that one table scales, in blocks of queries: the table is read by rows, and as a whole, which may begin
    at its second row instead."""
    kernel = GraphBuilder(Level.KERNEL)
    x, table = kernel.input("x0", (ROWS, WIDTH), FP32), kernel.input("x1", (ROWS, WIDTH), FP32)
    ends = [kernel.add("slice", table, dim=0, start=start, size=size, step=1) for start, size in ((1, ROWS - 1), (0, 1))]
    read = kernel.add("concat", *ends, dim=0) if shifted else table
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    q, own = block.iterator(0, kernel.tensor(x), (0,), None), block.iterator(1, kernel.tensor(table), (0,), None)
    k, whole = block.iterator(0, kernel.tensor(x), (None,), None), block.iterator(2, kernel.tensor(read), (None,), None)
    keys = block.add("transpose", block.add("mul", k, whole), permutation=(1, 0))
    made = block.add("exp", block.add("matmul", block.add("mul", q, own), keys))
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [x, table, read]))


def test_blocks_of_a_kernel_read_their_rows_and_all_of_them() -> None:
    left = program(lambda x, y: ((x * y) @ (x * y).transpose(0, 1)).exp(), (ROWS, WIDTH), (ROWS, WIDTH))
    for blocks in (2, ROWS):
        right = in_one_kernel(blocks)
        found = cut(left, right)
        assert [axis.apart for axis in found.axes] == [(0, 1), ()], "rows, and those of the whole, which are columns then"
        for graph, slices in ((left, found.left), (right, found.right)):
            check(slices)
            assert_slices_are_of_the_whole(graph, slices, found)
        assert by_random_tests(left, right).equivalent
        assert not by_random_tests(left, in_one_kernel(blocks, shifted=True)).equivalent


def test_what_holds_only_where_the_whole_is_made_of_the_rows_is_proved_as_before() -> None:
    """The sums of x x^T, and its diagonal's part of it: rows and the whole may not be told apart there."""
    left = program(lambda x: (x @ x.transpose(0, 1)).exp(), (ROWS, WIDTH))
    right = program(lambda x: (x @ x.transpose(0, 1)).transpose(0, 1).exp(), (ROWS, WIDTH))
    assert agree(left, right)
    verdict = by_random_tests(left, right)
    assert verdict.equivalent
    assert not any(axis.apart for axis in verdict.certificate.axes)
    recheck(verdict.certificate, left, right)


def test_a_certificate_claims_no_other_size_of_such_rows() -> None:
    left, right = attention(by_halves), attention(by_halves, late=True)
    found = cut(left, right)
    other = replace(by_random_tests(left, right).certificate, axes=tuple(axis for axis in found.axes if axis.apart))
    assert "any size" not in other.claim


def test_what_divides_by_the_difference_of_a_row_and_itself_is_not_equal_to_anything() -> None:
    """Pairs of rows have differences, of which one is zero; a row and those of another tensor have none."""

    def differences(x: ProgramTensor, factor: int) -> ProgramTensor:
        return (factor / (factor * x.reshape(ROWS, 1, WIDTH) - factor * x.reshape(1, ROWS, WIDTH))).sum(1)

    left, right = (program(lambda x, factor=factor: differences(x, factor), (ROWS, WIDTH)) for factor in (1, 2))
    assert not any(axis.apart for axis in cut(left, right).axes)
    assert not by_random_tests(left, right).equivalent
    assert not verify_graphs(left, right).equivalent


def test_a_division_by_zero_that_rounding_hides_is_one() -> None:
    """Rows of products are computed alone, and among all of them, in other orders; their differences are zero or nearly."""

    def differences(factor: int, x: ProgramTensor, first: ProgramTensor, last: ProgramTensor) -> ProgramTensor:
        rows = x @ first @ last
        return (factor / (factor * rows.reshape(8, 1, WIDTH) - factor * rows.reshape(1, 8, WIDTH))).sum(1)

    shapes = ((8, WIDTH), (WIDTH, 37), (37, WIDTH))
    left, right = (program(functools.partial(differences, factor), *shapes) for factor in (1, 2))
    assert not any(axis.apart for axis in cut(left, right).axes)
    assert not by_random_tests(left, right).equivalent


@pytest.mark.parametrize("row", range(ROWS))
def test_what_divides_zero_by_zero_in_one_row_only_is_not_one(row: int) -> None:
    """The difference of row and row over itself, where the program has nothing: that row has no value for any input."""

    def function(x: ProgramTensor, *, quotient: bool) -> ProgramTensor:
        product = (x @ x.transpose(0, 1)).exp()
        difference = (x - x.slice(0, row, 1)).sum(-1, keepdim=True)
        return (product * (difference / difference) if quotient else product).exp()

    left, right = (program(lambda x, q=q: function(x, quotient=q), (ROWS, WIDTH)) for q in (False, True))
    assert not verify_graphs(left, right).equivalent
    assert not verify_graphs(right, left).equivalent
