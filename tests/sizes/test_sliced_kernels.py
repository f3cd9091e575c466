"""Kernels that compute the first slices of those they were made for: bits of those for all, nothing touched behind."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from mugraph.errors import CompilationFailed, InvalidInput, ShapeMismatch, UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.ops import LEAST
from mugraph.runtime import Executable, build
from mugraph.runtime.packed_operands import _IN_USE
from mugraph.sizes.sliced_kernels import InPart, SlicedKernels, example_inputs, sliced_kernels
from mugraph.support.deadline import Deadline
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.machine import Cpu
from mugraph.testing.mugraphs import LARGE, SMALL, random_mugraph
from threads import at_once

WIDTH, COLUMNS = 48, 80


def program(*inputs: tuple[tuple[int, ...], DType]) -> tuple[GraphBuilder, list[Value]]:
    """A kernel graph to be, and its inputs."""
    kernel = GraphBuilder(Level.KERNEL)
    return kernel, [kernel.input(f"x{number}", *each) for number, each in enumerate(inputs)]


def norm_linear(rows: int, grid: tuple[int, ...], dtype: DType = DType.FP32, loop: int = 2) -> Graph:
    """Rows times a matrix, each divided by its norm; the grid cuts rows and columns."""
    kernel, values = program(((rows, WIDTH), dtype), ((WIDTH, COLUMNS), dtype))
    block = GraphBuilder(Level.BLOCK, grid=grid, loop=loop)
    x = block.iterator(0, kernel.tensor(values[0]), (0, None), 1)
    w = block.iterator(1, kernel.tensor(values[1]), (None, 1), 0)
    product = block.add("accumulate", block.add("matmul", x, w), combine="sum")
    squares = block.add("sum", block.add("square", x), dim=1, size=WIDTH // loop)
    norm = block.add("sqrt", block.add("accumulate", squares, combine="sum"))
    saved = block.add("output_saver", block.add("div", product, norm), omap=(0, 1))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), values)))


def dot_products(rows: int, dtype: DType = DType.FP32) -> Graph:
    """Rows times the rows of a matrix."""
    kernel, values = program(((rows, WIDTH), dtype), ((COLUMNS - 3, WIDTH), dtype))
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, w = (block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate(values))
    product = block.add("matmul", x, block.add("transpose", w, permutation=(1, 0)))
    saved = block.add("output_saver", product, omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), values)))


def attention(samples: int, blocks: int) -> Graph:
    """Attention of two heads of every sample; a block has some heads, which may be less than a sample's or more."""
    heads, keys, width = 2 * samples, 32, 16
    kernel, given = program(*(((samples, 2, rows, width), DType.FP32) for rows in (3, keys, keys)))
    values = [kernel.add("reshape", value, shape=(heads, *kernel.tensor(value).shape[2:])) for value in given]
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=2)
    q, k, v = (block.iterator(number, kernel.tensor(value), (0,), 1 if number else None) for number, value in enumerate(values))
    scores = block.add("matmul", q, block.add("transpose", k, permutation=(0, 2, 1)))
    largest = block.add("max", scores, dim=2, size=keys // 2, least=LEAST)
    weights = block.add("exp", block.add("sub", scores, largest))
    mixed = block.add("accumulate_rescaled", block.add("matmul", weights, v), largest)
    total = block.add("accumulate_rescaled", block.add("sum", weights, dim=2, size=keys // 2), largest)
    saved = block.add("output_saver", block.add("div", mixed, total), omap=(0,))
    (made,) = kernel.graph_defined(block.build([saved]), values)
    return kernel.build([kernel.add("reshape", made, shape=kernel.tensor(given[0]).shape)])


def two_kernels(rows: int) -> Graph:
    """A kernel of blocks of rows, and one of blocks of columns that reads what it makes."""
    kernel, values = program(((1, rows, WIDTH), DType.FP32), ((WIDTH, WIDTH), DType.FP32))
    first = GraphBuilder(Level.BLOCK, grid=(rows // 4,))
    x = first.iterator(0, kernel.tensor(values[0]), (1,), None)
    largest = first.add("max", x, dim=2, size=WIDTH, least=LEAST)
    saved = first.add("output_saver", first.add("exp", first.add("sub", x, largest)), omap=(1,))
    (between,) = kernel.graph_defined(first.build([saved]), values[:1])
    second = GraphBuilder(Level.BLOCK, grid=(3,))
    left = second.iterator(0, kernel.tensor(between), (None,), None)
    right = second.iterator(1, kernel.tensor(values[1]), (1,), None)
    made = second.add("output_saver", second.add("matmul", left, right), omap=(2,))
    return kernel.build(list(kernel.graph_defined(second.build([made]), [between, values[1]])))


def turned(samples: int, blocks: int, *, mixed: bool = False) -> Graph:
    """Halves of each sample turned by a matrix [2, 2], in blocks of several samples, which have both halves of all beside each
    other; `mixed` with a sum over all samples of a block."""
    kernel, (x, matrix) = program(((samples, 2, WIDTH), DType.FP32), ((2, 2), DType.FP32))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    halves = block.add("transpose", block.iterator(0, kernel.tensor(x), (0,), None), permutation=(1, 0, 2))
    count = samples // blocks
    columns = block.add("reshape", block.add("square", halves), shape=(2, count * WIDTH))
    product = block.add("matmul", block.iterator(1, kernel.tensor(matrix), (None,), None), columns)
    if mixed:
        product = block.add("sub", product, block.add("sum", product, dim=1, size=count * WIDTH))
    apart = block.add("reshape", product, shape=(2, count, WIDTH))
    saved = block.add("output_saver", block.add("transpose", apart, permutation=(1, 0, 2)), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), [x, matrix])))


def split_k(rows: int, *, mixed: bool = False) -> Graph:
    """A product whose blocks have parts of k each, and the sum of these; `mixed` with parts taken for rows."""
    kernel, values = program(((rows, WIDTH), DType.FP32), ((WIDTH, COLUMNS), DType.FP32))
    first = GraphBuilder(Level.BLOCK, grid=(2, 2))
    x = first.iterator(0, kernel.tensor(values[0]), (1, None), None)
    w = first.iterator(1, kernel.tensor(values[1]), (0, 1), None)
    part = first.add("reshape", first.add("matmul", x, w), shape=(1, rows, COLUMNS // 2))
    saved = first.add("output_saver", part, omap=(0, 2))
    (parts,) = kernel.graph_defined(first.build([saved]), values)
    if mixed:
        parts = kernel.add("reshape", parts, shape=(rows, 2, COLUMNS))
    second = GraphBuilder(Level.BLOCK, grid=(1,))
    inside = second.iterator(0, kernel.tensor(parts), (None,), None)
    total = second.add("sum", inside, dim=1 if mixed else 0, size=2)
    made = second.add("output_saver", second.add("reshape", total, shape=(rows, COLUMNS)), omap=(0,))
    return kernel.build(list(kernel.graph_defined(second.build([made]), [parts])))


def added(rows: int, blocks: int) -> Graph:
    """Rows, and those of a table that has no slices added to them; a block has a part of both."""
    kernel, values = program(*[((rows, WIDTH), DType.FP32)] * 2)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    x, table = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(values))
    saved = block.add("output_saver", block.add("add", x, table), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), values)))


def sliced(executable: Executable, *dims: int | None, capacity: int) -> SlicedKernels:
    """Kernels for the first slices, whose outputs have these in the dimension of the first input."""
    return SlicedKernels(executable, dims, (dims[0],) * len(executable.graph.outputs), capacity)


def with_constants(graph: Graph, *numbers: int) -> Graph:
    """The graph with some inputs as weights, which are packed."""
    return graph.with_constants([graph.input_names[number] for number in numbers])


def drawn(seed: int) -> tuple[Graph, tuple[int | None, ...], int]:
    """A random muGraph, which of its inputs are taken to have slices, and how many."""
    rng = random.Random(seed)
    graph = random_mugraph(rng, 1 + seed % 2, SMALL if seed % 3 else LARGE)
    shapes = [node.output.shape for node in graph.inputs()]
    outputs = {tensor.shape[0] for tensor in graph.output_tensors if tensor.shape}
    capacity = rng.choice(sorted({shape[0] for shape in shapes if shape} & outputs - {1}) or [1])
    return graph, tuple(0 if shape and shape[0] == capacity else None for shape in shapes), capacity


SEEDS = (23, 144, 470, 549, 799, 2202)
"""Of muGraphs that can stop, some of which have two kernels."""
GRAPHS = {
    "every block has all rows": lambda: norm_linear(24, (1, 2)),
    "a grid along rows": lambda: norm_linear(24, (3, 1)),
    "a grid along both": lambda: norm_linear(20, (2, 5)),
    "rows one by one": lambda: norm_linear(12, (12, 1)),
    "few rows": lambda: norm_linear(3, (1, 1)),
    "bf16": lambda: norm_linear(24, (2, 1), DType.BF16),
    "dot products": lambda: dot_products(7),
    "dot products of bf16": lambda: dot_products(7, DType.BF16),
    "packed weights": lambda: with_constants(norm_linear(64, (1, 2)), 1),
    "packed pairs": lambda: with_constants(norm_linear(9, (1, 1), DType.BF16), 1),
    "packed pairs in panels": lambda: with_constants(norm_linear(40, (1, 1), DType.BF16), 1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_first_rows_are_those_of_all(name: str) -> None:
    executable = build(GRAPHS[name]())
    capacity = executable.graph.inputs()[0].output.shape[0]
    kernels = sliced(executable, 0, None, capacity=capacity)
    assert kernels.agree_with(executable, example_inputs(executable.graph))


@pytest.fixture
def on_three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All kernels of several blocks run on all threads."""
    before = torch.get_num_threads()
    monkeypatch.setattr("mugraph.targets.cpu.printer._SERIAL_WORK", 0)
    monkeypatch.setattr("mugraph.targets.cpu.slices._FEW", 0)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


SHARED: dict[str, tuple[Callable[[], Graph], tuple[int | None, ...]]] = {
    "a product": (lambda: norm_linear(24, (3, 1)), (0, None)),
    "bf16": (lambda: norm_linear(42, (3, 1), DType.BF16), (0, None)),
    "packed weights": (lambda: with_constants(norm_linear(64, (4, 1)), 1), (0, None)),
    "packed pairs": (lambda: with_constants(norm_linear(64, (4, 1), DType.BF16), 1), (0, None)),
    "the first of two kernels": (lambda: two_kernels(12), (1, None)),
    "heads of several samples": (lambda: attention(6, 3), (0, 0, 0)),
}
"""Graphs with a kernel of which a block may begin at any row, and where the inputs have slices."""


@pytest.mark.parametrize("name", SHARED)
def test_threads_share_rows_wherever_blocks_begin(name: str, on_three_threads: None) -> None:
    graph, dims = SHARED[name]
    executable = build(graph())
    example = example_inputs(executable.graph)
    (dim, *_) = dims
    kernels = sliced(executable, *dims, capacity=example[0].shape[dim or 0])
    (source,) = kernels.sources.values()
    assert source.count("begin < last_row") == 1
    assert kernels.agree_with(executable, example)


@pytest.mark.parametrize(
    ("graph", "dims"),
    [(added(24, 3), (0, None)), (norm_linear(20, (2, 5)), (0, None)), (norm_linear(12, (12, 1)), (0, None))],
    ids=["a table is cut as rows are", "columns are cut, too", "blocks are rows"],
)
def test_other_blocks_begin_where_they_do(graph: Graph, dims: tuple[int | None, ...], on_three_threads: None) -> None:
    executable = build(graph)
    kernels = sliced(executable, *dims, capacity=graph.inputs()[0].output.shape[0])
    assert "last_row" not in kernels.sources["kernels.c"]
    assert kernels.agree_with(executable, example_inputs(graph))


def test_few_slices_run_on_one_thread() -> None:
    """As many as have the work below which whole kernels run so."""
    kernels = sliced(build(norm_linear(512, (8, 1))), 0, None, capacity=512)  # whose work is 16 times that
    assert "task->parallel = slices[0] > 32;" in kernels.sources["kernels.c"]


@pytest.mark.parametrize(
    ("graph", "dims", "least"),
    [
        (norm_linear(48, (3, 1)), (0, None), 7),
        (norm_linear(12, (3, 1)), (0, None), 4),
        (attention(6, 3), (0, 0, 0), 0),
        (two_kernels(12), (1, None), 0),
    ],
    ids=["a matrix", "blocks of fewer", "each its own matrix", "no product"],
)
def test_few_rows_times_a_matrix_run_on_one_thread(
    graph: Graph, dims: tuple[int | None, ...], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they take: each thread would read all of the matrix."""
    monkeypatch.setattr("mugraph.targets.cpu.printer._SERIAL_WORK", 0)
    kernels = sliced(build(graph), *dims, capacity=graph.inputs()[0].output.shape[dims[0] or 0])
    conditions = re.findall(r"task->parallel = (.*);", kernels.sources["kernels.c"])
    assert conditions[0] == (f"slices[0] > {least}" if least else "1")


def test_fewer_rows_than_a_tile_has_meet_more_columns_at_a_time() -> None:
    executable = Executable(dot_products(7), Cpu(Vectors(lanes=16, registers=32)))
    (source,) = sliced(executable, 0, None, capacity=7).sources.values()
    assert [few for few in range(8) if f"if (held == {few})" in source] == [1, 2, 3, 4, 5]  # tiles of all rows have two columns
    assert "if (held > 5)" in source
    assert "vec c0_5 = {0};" in source
    assert "vec c0_6 = {0};" not in source  # rows a power of two apart compete for the same ways of a cache


@pytest.mark.parametrize("blocks", [1, 2, 3, 6, 12])
def test_a_block_may_have_a_part_of_a_sample_or_several(blocks: int) -> None:
    executable = build(attention(6, blocks))
    kernels = sliced(executable, 0, 0, 0, capacity=6)
    assert kernels.agree_with(executable, example_inputs(executable.graph))


def test_kernels_hand_first_slices_on() -> None:
    executable = build(two_kernels(12))
    kernels = sliced(executable, 1, None, capacity=12)
    assert kernels.agree_with(executable, example_inputs(executable.graph))


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_samples_may_lie_beside_each_other_within_a_block(blocks: int) -> None:
    executable = build(turned(8, blocks))
    kernels = sliced(executable, 0, None, capacity=8)
    assert kernels.agree_with(executable, example_inputs(executable.graph))
    with pytest.raises(UnsupportedOperator, match="one by one"):
        sliced(build(turned(8, blocks, mixed=True)), 0, None, capacity=8)


def test_parts_of_all_slices_may_follow_each_other_between_kernels() -> None:
    executable = build(split_k(6))
    kernels = sliced(executable, 0, None, capacity=6)
    assert kernels.agree_with(executable, example_inputs(executable.graph))
    with pytest.raises(UnsupportedOperator, match="one by one"):
        sliced(build(split_k(6, mixed=True)), 0, None, capacity=6)


def test_a_row_too_many_would_be_noticed() -> None:
    executable = build(norm_linear(8, (1, 1)))
    kernels, example = sliced(executable, 0, None, capacity=8), example_inputs(executable.graph)

    def one_more(arrays: list[Any]) -> None:
        count = arrays[len(example)]
        count[0] += count[0] < 8

    assert kernels._host is not None
    late = replace(kernels._host.plan, steps=(one_more, *kernels._host.plan.steps))
    kernels._host = kernels._host._replace(run=late)  # as of kernels that stop too late
    assert not kernels.agree_with(executable, example)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_mugraphs_agree(seed: int) -> None:
    """Whatever can stop computes what all of it does, whether or not its inputs have a common axis on purpose."""
    graph, places, capacity = drawn(seed)
    executable = build(graph)
    kernels = SlicedKernels(executable, places, (0,) * len(graph.outputs), capacity)
    assert kernels.agree_with(executable, example_inputs(graph))


def test_what_is_not_computed_slice_by_slice_is_refused() -> None:
    executable = build(norm_linear(24, (2, 1)))
    with pytest.raises(UnsupportedOperator, match="one behind the other"):
        SlicedKernels(executable, (1, 0), (0,), WIDTH)  # columns are no outermost dimension
    with pytest.raises(UnsupportedOperator, match="slice"):
        SlicedKernels(executable, (None, 0), (0,), WIDTH)  # they are summed over
    with pytest.raises(UnsupportedOperator, match="one behind the other"):
        SlicedKernels(executable, (0, None), (None,), 24)
    kernel, (x, w) = program(((6, 4), DType.FP32), ((4, 4), DType.FP32))
    between = build(kernel.build([kernel.add("matmul", x, w)]))
    with pytest.raises(UnsupportedOperator, match="kernels alone"):
        SlicedKernels(between, (0, None), (0,), 6)


def test_rows_that_are_summed_up_are_no_slices() -> None:
    kernel, (x,) = program(((6, 4), DType.FP32))
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    inside = block.iterator(0, kernel.tensor(x), (None,), None)
    total = block.add("add", inside, block.add("sum", inside, dim=0, size=6))
    saved = block.add("output_saver", total, omap=(0,))
    executable = build(kernel.build(list(kernel.graph_defined(block.build([saved]), [x]))))
    with pytest.raises(UnsupportedOperator, match="one by one"):
        SlicedKernels(executable, (0,), (0,), 6)


def test_tensors_that_do_not_fit_are_named() -> None:
    kernels = sliced(build(norm_linear(8, (1, 1))), 0, None, capacity=8)
    w = torch.randn(WIDTH, COLUMNS)
    for _ in range(2):  # as they are read, and as they are recognized
        assert kernels(torch.randn(3, WIDTH), w)[0].shape == (3, COLUMNS)
        for count in (0, 9):
            with pytest.raises(ShapeMismatch, match=f"has {count} slices; there are kernels for 1 to 8"):
                kernels(torch.randn(count, WIDTH), w)
        with pytest.raises(ShapeMismatch):
            kernels(torch.randn(3, WIDTH + 1), w)
        with pytest.raises(InvalidInput):
            kernels(torch.randn(3, WIDTH).double(), w)
        with pytest.raises(InvalidInput, match="expected 2 inputs"):
            kernels(torch.randn(3, WIDTH))


def test_tensors_in_other_memory_are_copied() -> None:
    executable = build(norm_linear(8, (1, 1)))
    kernels, (x, w) = sliced(executable, 0, None, capacity=8), example_inputs(executable.graph)
    (wanted,) = executable(x, w)
    apart = torch.full((8, 2 * WIDTH), torch.nan)
    apart[:, :WIDTH] = x
    for given in (x[:5], apart[:5, :WIDTH], x.T.contiguous().T[:5], x[:5].clone()):
        assert torch.equal(kernels(given, w)[0], wanted[:5])


def test_kernels_for_one_number_recognize_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = build(norm_linear(8, (1, 1)))
    kernels, (x, w) = sliced(executable, 0, None, capacity=8), example_inputs(executable.graph)
    (wanted,), five = executable(x, w), kernels.at(5)
    apart = torch.full((8, 2 * WIDTH), torch.nan)
    apart[:, :WIDTH] = x
    for given in (apart[:5, :WIDTH], x[:5], x[:5], x[:5].clone()):
        assert torch.equal(five(given, w)[0], wanted[:5])
    with monkeypatch.context() as patch:
        patch.delattr(SlicedKernels, "_placed")
        assert torch.equal(five(x[:5], w)[0], wanted[:5])
    for count in (4, 6, 9):
        with pytest.raises(ShapeMismatch):
            five(torch.randn(count, WIDTH), w)
    with pytest.raises(InvalidInput, match="expected 2 inputs"):
        five(x[:5])
    assert torch.equal(five(apart[:5, :WIDTH], w)[0], wanted[:5])


def test_threads_may_call_with_different_numbers() -> None:
    executable = build(norm_linear(24, (1, 1)))
    kernels, (x, w) = sliced(executable, 0, None, capacity=24), example_inputs(executable.graph)
    (wanted,) = executable(x, w)

    def called(count: int) -> None:
        for _ in range(50):
            assert torch.equal(kernels(x[:count], w)[0], wanted[:count])

    at_once(called, [1, 7, 23, 24])


def test_weights_are_packed_once_for_all_numbers() -> None:
    graph = with_constants(norm_linear(64, (1, 2)), 1)
    executable = build(graph)
    kernels, (x, w) = sliced(executable, 0, None, capacity=64), example_inputs(graph)
    executable(x, w)
    packed = len(_IN_USE)
    for count in (1, 5, 64):
        kernels(x[:count], w)
    assert packed > 0
    assert len(_IN_USE) == packed


def test_weights_that_have_slices_are_not_packed() -> None:
    """All of them would be, and memory is read that is not there."""
    kernel, values = program(((6, 8, 16), DType.FP32), ((6, 16, 32), DType.FP32))
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, w = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate(values))
    saved = block.add("output_saver", block.add("matmul", x, w), omap=(0,))
    graph = with_constants(kernel.build(list(kernel.graph_defined(block.build([saved]), values))), 1)
    executable, example = build(graph), example_inputs(graph)
    kernels = sliced(executable, 0, 0, capacity=6)
    assert kernels.agree_with(executable, example)
    packed = len(_IN_USE)
    assert packed > 0
    kernels(*(tensor[:2].clone() for tensor in example))
    assert len(_IN_USE) == packed


def test_kernels_are_not_compared_behind_a_deadline() -> None:
    executable = build(norm_linear(8, (1, 1)))
    kernels, example = sliced(executable, 0, None, capacity=8), example_inputs(executable.graph)
    assert not kernels.agree_with(executable, example, Deadline(0.0))
    assert kernels.agree_with(executable, example, Deadline(1e6))


def test_parts_of_the_time_are_measured() -> None:
    executable = build(norm_linear(24, (1, 1)))
    example = example_inputs(executable.graph)
    known = InPart.of(executable, (0, None), (0,), example, 2)
    assert known.kernels is not None
    assert known.parts == {2: 1.0, 24: 1.0}
    measured = known.measured(example)
    assert sorted(measured.parts) == [2, 3, 6, 12, 18, 24]
    assert measured.parts[24] == 1
    assert min(measured.parts.values()) > 0
    assert InPart.of(build(norm_linear(24, (1, 1))), (0, None), (None,), example, 2).measured(example)[1:] == (None, {})


def test_a_compiler_that_fails_is_no_reason_to_lose_what_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executable = build(norm_linear(24, (3, 1)))
    example = example_inputs(executable.graph)
    assert sliced_kernels(executable, (0, None), (0,), example) is not None

    def rejects(*given: Any) -> Any:
        raise CompilationFailed("cc rejected a generated kernel")

    monkeypatch.setattr(type(executable.machine), "load", rejects)
    assert sliced_kernels(executable, (0, None), (0,), example) is None
    assert "cc rejected a generated kernel" in caplog.text


def test_outputs_of_any_number_have_the_memory_of_others_that_are_gone() -> None:
    """Results that somebody has stay what they are."""
    kernels = sliced(build(norm_linear(2048, (8, 1))), 0, None, capacity=2048)
    runs = {count: kernels.at(count) for count in (1900, 1700, 2048)}
    w = torch.randn(WIDTH, COLUMNS)
    given = [torch.randn(count, WIDTH) for count in (*runs, *runs)]
    results = [runs[len(x)](x, w)[0] for x in given]
    for x, made in zip(given, results, strict=True):
        torch.testing.assert_close(made, x @ w / x.norm(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)
    assert len({made.data_ptr() for made in results}) == len(results)
    place = results.pop(0).data_ptr()
    assert runs[1700](given[1], w)[0].data_ptr() == place


def test_outputs_of_many_calls_in_a_row_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that numbers of slices share take longer to lend than memory of one size takes to ask for."""
    monkeypatch.setattr("mugraph.sizes.sliced_kernels._RENTED", 3)
    kernels = sliced(build(norm_linear(2048, (8, 1))), 0, None, capacity=2048)
    runs, w = {count: kernels.at(count) for count in (1900, 1800)}, torch.randn(WIDTH, COLUMNS)

    def is_lent(count: int) -> bool:
        (made,) = runs[count](torch.ones(count, WIDTH), w)
        torch.testing.assert_close(made, (w.sum(0) / WIDTH**0.5).expand(count, -1), rtol=1e-4, atol=1e-4)
        return not made.untyped_storage().resizable()  # memory of PyTorch's allocator is

    assert [is_lent(1900) for _ in range(5)] == [True, True, True, False, False]
    assert [is_lent(count) for count in (1800, 1900, 1900)] == [True, True, True]
