"""Values that outputs are computed of, kept where these will lie, and reductions computed along with what they reduce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import lower
from mugraph.lower.check import check
from mugraph.lower.places import Index
from mugraph.lower.tile_form import Kernel, Memory
from mugraph.lower.values_in_outputs import with_values_in_outputs
from mugraph.runtime.executable import Executable
from mugraph.targets.cpu import Vectors, print_program
from mugraph.targets.cpu.machine import PASSES, Cpu

ROWS, COLUMNS, BLOCKS = 16, 256, 4
Body = Callable[[GraphBuilder, Value], list[Value]]


def of_rows(body: Body, dtype: DType = DType.FP32, blocks: int = BLOCKS) -> Graph:
    """A kernel of which each block has rows of an input, and saves rows of outputs."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (ROWS, COLUMNS), dtype)
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    values = body(block, block.iterator(0, kernel.tensor(x), (0,), None))
    saved = [block.add("output_saver", value, omap=(0,)) for value in values]
    return kernel.build(kernel.graph_defined(block.build(saved), [x]))


def summed(block: GraphBuilder, value: Value, op: str = "sum") -> Value:
    return block.add(op, value, dim=1, size=COLUMNS)


def exponentials(block: GraphBuilder, x: Value) -> Value:
    return block.add("exp", block.add("sub", x, summed(block, x, "max")))


def softmax(block: GraphBuilder, x: Value) -> list[Value]:
    powers = exponentials(block, x)
    return [block.add("div", powers, summed(block, powers))]


def read_by_two(block: GraphBuilder, x: Value) -> list[Value]:
    """Exponentials are read after the first output is written, and lie in the second one; the first is read once it is there."""
    powers = exponentials(block, x)
    first = block.add("div", powers, summed(block, powers))
    return [first, block.add("mul", powers, summed(block, first, "max"))]


def of_columns_too(block: GraphBuilder, x: Value) -> list[Value]:
    """What exponents are shifted by lies along the rows, and nobody needs it when sums of rows are written."""
    largest = block.add("max", x, dim=0, size=block.tensor(x).shape[0])
    powers = block.add("exp", block.add("sub", x, largest))
    return [block.add("div", powers, summed(block, powers))]


def repeated(block: GraphBuilder, x: Value) -> list[Value]:
    """A value for each row, of which an output has many copies."""
    return [block.add("mul", summed(block, x), block.add("abs", x))]


def of_length_one(block: GraphBuilder, value: Value) -> Value:
    return block.add("div", value, block.add("sqrt", summed(block, block.add("square", value))))


def of_squares(block: GraphBuilder, x: Value) -> list[Value]:
    return [of_length_one(block, exponentials(block, x))]


def twice_of_squares(block: GraphBuilder, x: Value) -> list[Value]:
    """The second length lies where the first values did, which are read for what it is the length of."""
    return [of_length_one(block, block.add("add", x, of_length_one(block, block.add("exp", x))))]


def of_others(block: GraphBuilder, x: Value) -> list[Value]:
    """Exponentials are stored, and what is summed up has more than them."""
    powers = exponentials(block, x)
    return [block.add("div", powers, summed(block, block.add("mul", powers, block.add("abs", x))))]


def raised(block: GraphBuilder, x: Value) -> list[Value]:
    """A product that is stored as it is, and rounded before a number is added to it."""
    product = block.add("mul", block.add("exp", x), block.add("abs", x))
    one = block.constant(1.0, DType.FP32)
    return [block.add("div", product, summed(block, block.add("add", product, one)))]


BODIES = (softmax, read_by_two, of_columns_too, repeated, of_squares, twice_of_squares, of_others, raised)


def lowered(graph: Graph) -> Kernel:
    (launch,) = lower(graph, passes=PASSES).values()
    check(launch.kernel)
    return launch.kernel


def large_tiles(kernel: Kernel) -> int:
    """How many tiles of a block's rows have memory of their own."""
    size = ROWS // BLOCKS * COLUMNS
    return sum(buffer.memory is Memory.SHARED and buffer.elements == size for buffer in kernel.buffers)


@pytest.mark.parametrize(("body", "dtype", "before", "after"), [
    (softmax, DType.FP32, 1, 0),
    (softmax, DType.BF16, 1, 1),  # exponentials are kept in fp32, which outputs of two bytes have no room for
    (read_by_two, DType.FP32, 2, 0),
    (of_columns_too, DType.FP32, 1, 0),
])  # fmt: skip
def test_exponentials_lie_where_their_quotients_will(body: Body, dtype: DType, before: int, after: int) -> None:
    graph = of_rows(body, dtype)
    (without,) = lower(graph, passes=[each for each in PASSES if each is not with_values_in_outputs]).values()
    assert large_tiles(without.kernel) == before
    assert large_tiles(lowered(graph)) == after


def test_blocks_that_write_the_same_part_keep_their_values() -> None:
    """A block must not find what another one has made of the place."""
    (launch,) = lower(of_rows(softmax)).values()
    kernel = launch.kernel
    *others, last = kernel.after
    everywhere = replace(last, target=replace(last.target, start=Index(0, (0,))))
    assert large_tiles(with_values_in_outputs(kernel)) == 0
    assert large_tiles(with_values_in_outputs(replace(kernel, after=(*others, everywhere)))) == 1


@pytest.mark.parametrize(("body", "in_one_loop"), [
    (softmax, True),  # sums lie where maxima did, each in the place of that of its row
    (of_columns_too, False),  # sums lie where what all rows are shifted by did
    (repeated, False),  # what is summed is no value that is stored
    (of_squares, True),
    (raised, True),
    (of_others, False),
])  # fmt: skip
def test_what_is_stored_is_summed_in_the_same_loop(body: Body, in_one_loop: bool) -> None:
    text = print_program([lowered(of_rows(body))], Vectors(16, 32))
    assert ("store_fp32(x" in text) == in_one_loop


@pytest.mark.parametrize(("blocks", "loops"), [(BLOCKS, 1), (ROWS, 2)])
def test_one_sum_may_lie_where_what_is_read_for_it_does(blocks: int, loops: int) -> None:
    """It is written when all of that is read, but where there are several rows, those behind the first."""
    kernel = lowered(of_rows(twice_of_squares, blocks=blocks))
    text = print_program([kernel], Vectors(16, 32))
    body = text[text.index(f"{kernel.name}_blocks") :]
    sums = body.split("vec total0 =")[1:]
    assert [("store_fp32(x" in each) for each in sums].count(True) == loops


def test_sums_that_share_bytes_with_what_is_still_read_have_a_loop_of_their_own() -> None:
    kernel = lowered(of_rows(of_columns_too))
    largest, total = (kernel.buffer(kernel.after[number].target.buffer) for number in (0, 2))
    assert total.offset < largest.offset + largest.bytes
    apart = replace(kernel, buffers=tuple(replace(each, offset=1 << 16) if each is total else each for each in kernel.buffers))
    assert "store_fp32(x" in print_program([apart], Vectors(16, 32))


@pytest.mark.parametrize("vectors", [Vectors(4, 16), Vectors(8, 16), Vectors(16, 32)], ids=lambda each: str(each.lanes))
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("blocks", [BLOCKS, ROWS])
def test_results_are_the_program_s(body: Body, vectors: Vectors, blocks: int) -> None:
    graph = of_rows(body, blocks=blocks)
    array = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    results = Executable(graph, Cpu(vectors))(array)
    for result, expected in zip(results, evaluate(graph, [array.astype(np.float64)], FloatArithmetic()), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
