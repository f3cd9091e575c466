"""Axes that are merged with other dimensions, in programs and in tiles: followed where slices stay apart, or refused."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from checker.test_checker import write
from mugraph.checker import Rejected, check_folder
from mugraph.checker.axis_digits import Digit
from mugraph.checker.batch_ranges import _whole_dims
from mugraph.checker.float_errors import Floats
from mugraph.checker.interpreter import run
from mugraph.checker.operators import OPERATORS
from mugraph.checker.size_ranges import _without_size, compare_slices, slice_of
from mugraph.checker.slice_axes import cut_axis
from mugraph.ir import Graph, GraphBuilder, Level
from mugraph.ir.program import ProgramTensor
from mugraph.ir.serialize import graph_to_json
from mugraph.testing.mugraphs import random_mugraph
from verifier.graphs import FP32, program
from verifier.joint_graphs import packed_attention, packed_in_blocks

Array = npt.NDArray[Any]
HEADS, ROWS, INNER = 2, 3, 2
DOUBLE = Floats(np.float64)
Merged = Callable[[GraphBuilder, Any, int], Any]
"""What a block does to the scores of `samples`, of shape [samples, heads, rows, rows]."""


def scores(batch: int) -> Graph:
    """exp(q k) of several samples and heads, summed over rows."""
    shapes = (batch, HEADS, ROWS, INNER), (batch, HEADS, INNER, ROWS)
    return program(lambda q, k: (q @ k).exp().sum(-1, keepdim=True), *shapes)


def in_blocks(batch: int, between: Merged, cut: int = 0, blocks: int = 2) -> Graph:
    """The same in one kernel, of which each block has its part of dimension `cut`, and merges samples with heads."""
    kernel = GraphBuilder(Level.KERNEL)
    q, k = (kernel.input(f"x{i}", (batch, HEADS, *s), FP32) for i, s in enumerate(((ROWS, INNER), (INNER, ROWS))))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    reads = [block.iterator(i, kernel.tensor(x), (cut,), None) for i, x in enumerate((q, k))]
    samples, heads = block.tensor(reads[0]).shape[:2]
    flat = [block.add("reshape", x, shape=(samples * heads, *block.tensor(x).shape[2:])) for x in reads]
    made = between(block, block.add("exp", block.add("matmul", *flat)), samples)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", made, omap=(cut,))]), [q, k]))


def summed(block: GraphBuilder, x: Any, samples: int) -> Any:
    """The sums of rows, with samples and heads as they were."""
    return block.add("reshape", block.add("sum", x, dim=2, size=ROWS), shape=(samples, HEADS, ROWS, 1))


def heads_first(block: GraphBuilder, x: Any, samples: int) -> Any:
    """As if heads were the slower of the merged dimensions."""
    parted = block.add("reshape", block.add("sum", x, dim=2, size=ROWS), shape=(HEADS, samples, ROWS, 1))
    return block.add("transpose", parted, permutation=(1, 0, 2, 3))


def other_factor(block: GraphBuilder, x: Any, samples: int) -> Any:
    """As if a sample had as many heads as there are samples."""
    return block.add("reshape", block.add("sum", x, dim=2, size=ROWS), shape=(HEADS, samples, ROWS, 1))


def sum_of_samples(block: GraphBuilder, x: Any, samples: int) -> Any:
    """Sums of all heads of two samples, for each of them."""
    total = block.add("sum", block.add("sum", x, dim=2, size=ROWS), dim=0, size=2 * HEADS)
    return block.add("reshape", block.add("repeat", total, dim=0, times=2 * HEADS), shape=(samples, HEADS, ROWS, 1))


def sum_of_heads(block: GraphBuilder, x: Any, samples: int) -> Any:
    """Sums of the heads of each sample, for each of them."""
    total = block.add("sum", block.add("sum", x, dim=2, size=ROWS), dim=0, size=HEADS)
    return block.add("repeat", block.add("reshape", total, shape=(samples, 1, ROWS, 1)), dim=1, times=HEADS)


def document(graph: Graph) -> Any:
    return json.loads(json.dumps(graph_to_json(graph)))["graph"]


def batches(count: int) -> list[Digit | None]:
    return [Digit(0, 1, count)] * 2


def sample(array: Array, digit: Digit | None, number: int) -> Array:
    """The positions of a slice."""
    if digit is None:
        return array
    return np.take(array, [i for i in range(array.shape[digit.dim]) if i // digit.inner % digit.count == number], digit.dim)


def assert_acts_on_slices(whole: Any, digits: Sequence[Digit | None]) -> Sequence[Digit | None]:
    """A graph cut to one slice gives what the whole one has there, for each slice; returns the digits in its outputs."""
    cut, found = cut_axis(whole, digits)
    shapes = [node["outputs"][0]["shape"] for node in whole["nodes"] if node["op"] == "input"]
    results = [whole["nodes"][i]["outputs"][j]["shape"] for i, j in whole["outputs"]]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape) / 3 for shape in shapes]
    with np.errstate(all="ignore"):
        expected = [np.broadcast_to(*pair) for pair in zip(run(whole, inputs, DOUBLE), results, strict=True)]
        for number in range(next(digit.count for digit in digits if digit is not None)):
            parts = [sample(*pair, number) for pair in zip(inputs, digits, strict=True)]
            for y, part, digit in zip(expected, run(cut, parts, DOUBLE), found, strict=True):
                wanted = sample(y, digit, number)
                np.testing.assert_allclose(np.broadcast_to(part, wanted.shape), wanted, rtol=1e-7, atol=1e-9)
    return found


@pytest.mark.parametrize(("cut", "blocks"), [(0, 2), (0, 4), (1, 2), (1, 1)])
@pytest.mark.parametrize("between", [summed, sum_of_heads])
def test_samples_that_a_tile_merges_with_heads_stay_apart(cut: int, blocks: int, between: Merged) -> None:
    if between is sum_of_heads and (cut, blocks) == (1, 2):
        return  # a block has one head, and none to sum up
    heads = HEADS // blocks if cut else HEADS

    def made(block: GraphBuilder, x: Any, samples: int) -> Any:
        if between is sum_of_heads:
            return sum_of_heads(block, x, samples)
        return block.add("reshape", block.add("sum", x, dim=2, size=ROWS), shape=(samples, heads, ROWS, 1))

    assert assert_acts_on_slices(document(in_blocks(4, made, cut, blocks)), batches(4)) == [Digit(0, 1, 4)]


@pytest.mark.parametrize("between", [heads_first, other_factor, sum_of_samples])
def test_samples_that_a_tile_mixes_are_told(between: Merged) -> None:
    with pytest.raises(Rejected, match="an axis is not parallel"):
        cut_axis(document(in_blocks(8, between)), batches(8))


@pytest.mark.parametrize("blocks", [3, 6])
def test_blocks_have_whole_samples_or_one(blocks: int) -> None:
    """Four samples of three heads, merged, in blocks of four heads and of two."""

    def function(x: ProgramTensor) -> ProgramTensor:
        return x.reshape(12, ROWS).exp().reshape(4, 3, ROWS)

    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x0", (4, 3, ROWS), FP32)
    flat = kernel.add("reshape", x, shape=(12, ROWS))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    made = block.add("exp", block.iterator(0, kernel.tensor(flat), (0,), None))
    saved = kernel.graph_defined(block.build([block.add("output_saver", made, omap=(0,))]), [flat])[0]
    graph = kernel.build([kernel.add("reshape", saved, shape=(4, 3, ROWS))])
    assert assert_acts_on_slices(document(program(function, (4, 3, ROWS))), [Digit(0, 1, 4)]) == [Digit(0, 1, 4)]
    with pytest.raises(Rejected, match="parts of several slices"):
        cut_axis(document(graph), [Digit(0, 1, 4)])


def test_numbers_without_the_axis_are_not_joined_to_it() -> None:
    graph = program(lambda x, y: x.program.concat([x, y, y], 0), (2, 3), (1, 3))
    with pytest.raises(Rejected, match="tells its slices apart"):
        cut_axis(document(graph), [Digit(0, 1, 2), None])


def test_inputs_have_one_number_of_slices() -> None:
    with pytest.raises(Rejected, match="different numbers of slices"):
        cut_axis(document(program(lambda x, y: x + y, (4, 3), (4, 3))), [Digit(0, 1, 4), Digit(0, 2, 2)])


@pytest.mark.parametrize(
    "digit", [Digit(-1, 1, 4), Digit(2, 1, 4), Digit(0, 1, 3), Digit(0, 4, 4), Digit(0, 0, 4), Digit(0, 1, 0)]
)
def test_digits_that_inputs_do_not_have_are_refused(digit: Digit) -> None:
    with pytest.raises(Rejected, match="inputs do not have it"):
        cut_axis(document(program(lambda x: x.softmax(-1), (4, 4))), [digit])


def test_outputs_have_a_batch_as_a_dimension() -> None:
    def places(shape: Sequence[int]) -> list[int | None]:
        graph = document(program(lambda x: x.exp().reshape(*shape), (4, 2, 3)))
        return _whole_dims(_without_size(*cut_axis(graph, [Digit(0, 1, 4)])), "batches/4")

    assert places((4, 6)) == [0]
    with pytest.raises(Rejected, match="batches/4: an output has the batch merged with another dimension"):
        places((8, 3))


def test_ranges_of_batches_may_merge_samples_with_heads(tmp_path: Path) -> None:
    slices = {}
    for batch in (2, 4):
        folder = write(tmp_path / str(batch), scores(batch), in_blocks(batch, summed))
        slices[batch] = slice_of(folder, [0, 0], batch)
        assert slices[batch][1] == [(0, 1)]
    compare_slices(slices)
    wrong = write(tmp_path / "wrong", scores(4), in_blocks(4, heads_first), lambda files: accepted(files["certificate.json"]))
    with pytest.raises(Rejected):
        slice_of(wrong, [0, 0], 4)


def accepted(certificate: Any) -> None:
    certificate.update({"accepted": True, "error_bound": 1e-20})


@pytest.mark.parametrize("order", ["qkv", "qvk"])
def test_heads_in_stretches_are_cut_and_still_tested(tmp_path: Path, order: str) -> None:
    """One of three stretches: the numbers behind each other of a head of queries, of keys and of values."""
    axis = {"size": 2, "inputs": [1], "outputs": [1], "input_widths": [[2, 2, 2]], "output_widths": [2], "narrow": False}

    def forge(files: dict[str, Any]) -> None:
        if order != "qkv":
            accepted(files["certificate.json"])
            files["certificate.json"].update(axes=[axis])

    folder = write(tmp_path / "result", packed_attention(), packed_in_blocks(order=order), forge)
    if order == "qkv":
        assert check_folder(folder, seed=0).axes == 1
        return
    with pytest.raises(Rejected, match="output 0 is not what"):
        check_folder(folder, seed=0)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 8])
def test_slices_of_random_mugraphs_are_those_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    graph = document(random_mugraph(rng, 1))
    shapes = [node["outputs"][0]["shape"] for node in graph["nodes"] if node["op"] == "input"]
    choices = [[None, *every_digit(shape)] for shape in shapes]
    for _ in range(6):
        count = rng.choice([2, 3, 4])
        digits = [rng.choice([each for each in some if each is None or each.count == count]) for some in choices]
        if any(digits):
            try:
                cut_axis(graph, digits)
            except Rejected:
                continue
            assert_acts_on_slices(graph, digits)


def every_digit(shape: Sequence[int]) -> list[Digit]:
    """All digits with several slices that dimensions of a shape have."""
    return [
        Digit(dim, inner, count)
        for dim, size in enumerate(shape)
        for inner in range(1, size + 1)
        for count in range(2, size + 1)
        if size % (inner * count) == 0
    ]


MOVES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "reshape": ((4, 6), {"shape": (2, 2, 3, 2)}),
    "repeat": ((3, 4), {"dim": 1, "times": 3}),
    "slice": ((3, 12), {"dim": 1, "start": 4, "size": 8, "step": 1}),
    "sum": ((2, 12), {"dim": 1, "size": 3}),
}


@pytest.mark.parametrize("name", MOVES)
def test_digits_of_results_are_where_the_slices_are(name: str) -> None:
    """Every element is the number of its slice; a sum of equals is told from others by its mean."""
    shape, attributes = MOVES[name]
    row = OPERATORS[name]
    assert row.digits is not None
    moved = 0
    for digit in every_digit(shape):
        result = row.shape({"grid": [], "block": [], "loop": 1}, attributes, [shape])
        labels = np.broadcast_to(labelled(shape, digit), shape)
        graph = document(program(lambda x: x.apply(name, **attributes), shape))
        (made,) = run(graph, [labels], DOUBLE)
        (squares,) = run(graph, [labels**2], DOUBLE)
        members = math.prod(shape) // math.prod(result) if name == "sum" else 1
        one_slice = np.allclose(made**2, members * squares)
        possible = [found for found in every_digit(result) if np.array_equal(labelled(result, found) * members, made)]
        found = row.digits(attributes, [shape], 0, digit, result)
        if name == "reshape" or found is not None:
            assert found == next(iter(possible), None)
            assert len(possible) <= 1
            moved += found is not None
        assert one_slice or found is None
    assert moved > 2


def labelled(shape: Sequence[int], digit: Digit) -> Array:
    """A tensor of the numbers of slices."""
    numbers = np.arange(shape[digit.dim]) // digit.inner % digit.count
    return np.broadcast_to(numbers.reshape([-1 if dim == digit.dim else 1 for dim in range(len(shape))]), shape).astype(float)
