"""Kernels that read tensors where they lie, up to a length that a call gives: bits of kernels that have them padded with 0."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import mugraph
from mugraph import Dim
from mugraph.errors import InvalidInput, ShapeMismatch, UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.ops import LEAST
from mugraph.lower.growing_inputs import Axis, HeldSlots
from mugraph.lower.tile_form import Memory
from mugraph.runtime import Executable, build
from mugraph.sizes.growing_kernels import GrowingKernels
from mugraph.targets.machine import machine_for
from mugraph.testing.mugraphs import random_mugraph
from threads import at_once

HEADS, CAPACITY, WIDTH = 4, 128, 32
TILE = 16
LENGTHS = [1, TILE - 1, TILE, TILE + 1, 61, 64, 65, 113, CAPACITY - 1, CAPACITY]
TYPES = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16}
AXES = {1: Axis(1, 0), 2: Axis(1, 0)}
MASKS = {3: HeldSlots(None, 0)}


def only_held(block: GraphBuilder, held: Value, scores: Value, v: Value, hidden: Value) -> tuple[Value, Value]:
    """Scores of a tile, which are `hidden` where a slot is not held, and its values, which are 0 there."""
    (tile,), nothing = block.tensor(held).shape, block.constant(0, block.tensor(v).dtype)
    return (
        block.add("select", block.add("reshape", held, shape=(1, 1, tile)), scores, hidden),
        block.add("select", block.add("reshape", held, shape=(1, tile, 1)), v, nothing),
    )


def sums_of_tiles(block: GraphBuilder, scores: Value, v: Value) -> tuple[Value, Value, Value]:
    """Of all tiles together the weighted values and the weights, rescaled, and the largest score of a tile."""
    largest = block.add("max", scores, dim=2, size=TILE, least=LEAST)
    weights = block.add("exp", block.add("sub", scores, largest))
    total = block.add("accumulate_rescaled", block.add("sum", weights, dim=2, size=TILE), largest)
    mixed = block.add("accumulate_rescaled", block.add("matmul", weights, v), largest)
    return mixed, total, largest


def masked_attention(dtype: DType = DType.FP32, splits: int = 2, masked: bool = True) -> Graph:
    """Sums of attention of one query to each part of a cache of keys, and its largest score; what is not held is masked."""
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(name, (HEADS, rows, WIDTH), dtype) for name, rows in (("q", 1), ("k", CAPACITY), ("v", CAPACITY))]
    inputs.append(kernel.input("held", (CAPACITY,), DType.BOOL))
    block = GraphBuilder(Level.BLOCK, grid=(HEADS, splits), loop=CAPACITY // splits // TILE)
    q = block.iterator(0, kernel.tensor(inputs[0]), (0, None), None)
    k, v = (block.iterator(number, kernel.tensor(inputs[number]), (0, 1), 1) for number in (1, 2))
    held = block.iterator(3, kernel.tensor(inputs[3]), (None, 0), 0)
    scores = block.add("matmul", q, block.add("transpose", k, permutation=(0, 2, 1)))
    if masked:
        scores, v = only_held(block, held, scores, v, block.add("infinity", block.constant(-1, dtype)))
    mixed, total, largest = sums_of_tiles(block, scores, v)
    top = block.add("accumulate", largest, combine="max")
    saved = [block.add("output_saver", value, omap=(0, 1)) for value in (mixed, total, top)]
    return kernel.build(list(kernel.graph_defined(block.build(saved), inputs)))


def grouped_attention(dtype: DType, loop: int, ends: bool = True, capacity: int = CAPACITY) -> Graph:
    """Attention of several queries to each head of a cache, in so many iterations; weights are summed element by element over
    these, and behind the loop over a tile. What is not held is masked if the mask `ends` there."""
    kernel, tile = GraphBuilder(Level.KERNEL), capacity // loop
    inputs = [kernel.input(name, (HEADS, rows, WIDTH), dtype) for name, rows in (("q", 3), ("k", capacity), ("v", capacity))]
    inputs.append(kernel.input("held", (capacity,), DType.BOOL))
    block = GraphBuilder(Level.BLOCK, grid=(HEADS,), loop=loop)
    q = block.iterator(0, kernel.tensor(inputs[0]), (0,), None)
    k, v = (block.iterator(number, kernel.tensor(inputs[number]), (0,), 1 if loop > 1 else None) for number in (1, 2))
    held = block.iterator(3, kernel.tensor(inputs[3]), (None,), 0 if loop > 1 else None)
    scores = block.add("matmul", q, block.add("transpose", k, permutation=(0, 2, 1)))
    hidden = block.add("infinity", block.constant(-1, dtype)) if ends else block.constant(-3, dtype)
    scores, v = only_held(block, held, scores, v, hidden)
    largest = block.add("max", scores, dim=2, size=tile, least=LEAST)
    weights = block.add("exp", block.add("sub", scores, largest))
    mixed = block.add("matmul", weights, v)
    if loop > 1:
        weights, mixed = (block.add("accumulate_rescaled", each, largest) for each in (weights, mixed))
    result = block.add("div", mixed, block.add("sum", weights, dim=2, size=tile))
    return kernel.build(list(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), inputs)))


def shown_attention(dtype: DType, queries: int = 1, blocks: int = HEADS) -> Graph:
    """Attention of queries to each head of a cache with a mask that is added to scores; what is not held is masked."""
    kernel = GraphBuilder(Level.KERNEL)
    rows = (("q", queries), ("k", CAPACITY), ("v", CAPACITY))
    inputs = [kernel.input(name, (HEADS, count, WIDTH), dtype) for name, count in rows]
    inputs += [kernel.input("held", (CAPACITY,), DType.BOOL), kernel.input("added", (HEADS, queries, CAPACITY), dtype)]
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=CAPACITY // TILE)
    q = block.iterator(0, kernel.tensor(inputs[0]), (0,), None)
    k, v = (block.iterator(number, kernel.tensor(inputs[number]), (0,), 1) for number in (1, 2))
    held = block.iterator(3, kernel.tensor(inputs[3]), (None,), 0)
    added = block.iterator(4, kernel.tensor(inputs[4]), (0,), 2)
    scores = block.add("matmul", q, block.add("transpose", k, permutation=(0, 2, 1)))
    scores, v = only_held(block, held, block.add("add", scores, added), v, block.add("infinity", block.constant(-1, dtype)))
    mixed, total, _ = sums_of_tiles(block, scores, v)
    saved = block.add("output_saver", block.add("div", mixed, total), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), inputs)))


def layouts() -> dict[str, Callable[[int, torch.dtype], torch.Tensor]]:
    """Tensors [HEADS, length, WIDTH] in memory of several kinds, which has NaN wherever they have no element."""

    def memory(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=dtype)

    def static(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, HEADS, CAPACITY + 5, WIDTH)[:, :length].normal_()

    def transposed(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, CAPACITY + 5, HEADS, WIDTH)[:length].normal_().transpose(0, 1)

    def shared_heads(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, 1, CAPACITY, WIDTH)[:, :length].normal_().expand(HEADS, length, WIDTH)

    def one_key(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, HEADS, 1, WIDTH).normal_().expand(HEADS, length, WIDTH)

    def part_of_rows(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, HEADS, CAPACITY, 3 * WIDTH)[:, :length, WIDTH + 1 : 2 * WIDTH + 1].normal_()

    def turned(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, HEADS, WIDTH, CAPACITY)[..., :length].normal_().transpose(1, 2)

    def every_second(length: int, dtype: torch.dtype) -> torch.Tensor:
        return memory(dtype, HEADS, 2 * CAPACITY, WIDTH)[:, : 2 * length : 2].normal_()

    made = (static, transposed, shared_heads, one_key, part_of_rows, turned, every_second)
    return {each.__name__: each for each in made}


def padded(tensor: torch.Tensor, behind: float = 0.0) -> torch.Tensor:
    """A tensor in memory for the capacity, contiguous."""
    whole = torch.full((HEADS, CAPACITY, WIDTH), behind, dtype=tensor.dtype)
    whole[:, : tensor.shape[1]] = tensor
    return whole


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors]


def call(executable: Executable, growing: GrowingKernels, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Compare both kernels on a query, keys and values."""
    held = torch.arange(CAPACITY) < k.shape[1]
    assert bits(growing(q, k, v, held)) == bits(executable(q, padded(k), padded(v), held))


@pytest.fixture(scope="module", params=[*TYPES], ids=str)
def kernels(request: pytest.FixtureRequest) -> tuple[Executable, GrowingKernels, torch.dtype]:
    executable = build(masked_attention(request.param))
    return executable, GrowingKernels(executable, AXES, MASKS), TYPES[request.param]


@pytest.mark.parametrize("layout", layouts())
def test_bits_are_those_of_padded_inputs(kernels: tuple[Executable, GrowingKernels, torch.dtype], layout: str) -> None:
    executable, growing, dtype = kernels
    make = layouts()[layout]
    for length in LENGTHS:
        call(executable, growing, torch.randn(HEADS, 1, WIDTH, dtype=dtype), make(length, dtype), make(length, dtype))


@pytest.mark.parametrize("loop", [1, 2, 8])
@pytest.mark.parametrize("dtype", [*TYPES], ids=str)
def test_statements_stop_at_the_end_and_give_the_bits_of_padded_inputs(dtype: DType, loop: int) -> None:
    executable = build(grouped_attention(dtype, loop))
    growing = GrowingKernels(executable, AXES, MASKS)
    assert not growing.copies
    for make in layouts().values():
        for length in LENGTHS:
            k, v = make(length, TYPES[dtype]), make(length, TYPES[dtype])
            call(executable, growing, torch.randn(HEADS, 3, WIDTH, dtype=TYPES[dtype]), k, v)


@pytest.mark.parametrize("dtype", [*TYPES], ids=str)
def test_sums_have_the_order_of_capacities_that_are_no_whole_vectors(dtype: DType) -> None:
    executable = build(grouped_attention(dtype, 1, capacity=104))
    growing = GrowingKernels(executable, AXES, MASKS)
    assert not growing.copies
    for length in range(1, 105):
        q, k, v = (torch.randn(HEADS, rows, WIDTH, dtype=TYPES[dtype]) for rows in (3, length, length))
        whole = [torch.nn.functional.pad(each, (0, 0, 0, 104 - length)) for each in (k, v)]
        held = torch.arange(104) < length
        assert bits(growing(q, k, v, held)) == bits(executable(q, *whole, held))


def test_statements_stop_only_where_what_is_behind_the_end_is_neutral() -> None:
    executable = build(grouped_attention(DType.FP32, 2, ends=False))  # hidden scores count
    growing = GrowingKernels(executable, AXES, MASKS)
    assert growing.copies
    for length in LENGTHS:
        call(executable, growing, *(torch.randn(HEADS, rows, WIDTH) for rows in (3, length, length)))
    masked = build(grouped_attention(DType.FP32, 2))
    assert GrowingKernels(masked, AXES, {3: HeldSlots(None, 1)}).copies  # the mask holds one element more than the inputs have
    assert GrowingKernels(masked, AXES, {}).copies  # nothing is known of the mask
    assert not GrowingKernels(masked, {1: Axis(1, 0)}, MASKS).copies  # values are masked, too


@pytest.mark.parametrize("dtype", [*TYPES], ids=str)
def test_iterations_that_a_mask_hides_are_left_out_before_the_end_alone(dtype: DType) -> None:
    executable = build(shown_attention(dtype))
    growing = GrowingKernels(executable, {**AXES, 4: Axis(2, 0)}, MASKS)
    assert "_idle" in growing.sources["kernels.c"]
    for length, first, last in itertools.product(LENGTHS, (0, 1, 31, 32, 50), (1, 33, CAPACITY)):
        q, k, v = (torch.randn(HEADS, rows, WIDTH, dtype=TYPES[dtype]) for rows in (1, length, length))
        places = torch.arange(length)
        added = torch.full((HEADS, length), -torch.inf).masked_fill((places >= first) & (places < first + last), 0.5)
        added[1] = torch.where(places == length - 1, 0.0, -torch.inf)
        added = added.to(TYPES[dtype])[:, None]
        behind = torch.zeros(HEADS, 1, CAPACITY, dtype=TYPES[dtype])
        behind[..., :length] = added
        held = torch.arange(CAPACITY) < length
        wanted = bits(executable(q, padded(k), padded(v), held, behind))
        assert bits(growing(q, k, v, held, added)) == wanted
        spread = torch.full((2 * HEADS, 1, CAPACITY + 7), torch.nan, dtype=TYPES[dtype])[::2, :, :length].copy_(added)
        assert bits(growing(q, k, v, held, spread)) == wanted


def test_hidden_iterations_are_not_computed() -> None:
    executable = build(shown_attention(DType.FP32))
    growing = GrowingKernels(executable, {**AXES, 4: Axis(2, 0)}, MASKS)
    length = 5 * TILE + 3
    q, k, v = (torch.randn(HEADS, rows, WIDTH) for rows in (1, length, length))
    added = torch.zeros(HEADS, 1, length)
    added[..., TILE : 3 * TILE] = -torch.inf
    held, (wanted,) = torch.arange(CAPACITY) < length, growing(q, k, v, torch.arange(CAPACITY) < length, added)
    v[:, TILE : 3 * TILE] = torch.nan
    assert torch.equal(growing(q, k, v, held, added)[0], wanted)


@pytest.mark.parametrize(("queries", "blocks"), [(3, HEADS), (1, HEADS // 2), (3, HEADS // 2)])
def test_iterations_are_left_out_only_where_all_rows_of_a_mask_hide_them(queries: int, blocks: int) -> None:
    executable = build(shown_attention(DType.FP32, queries, blocks))
    growing = GrowingKernels(executable, {**AXES, 4: Axis(2, 0)}, MASKS)
    assert "_idle" in growing.sources["kernels.c"]
    for length in (TILE + 1, 61, CAPACITY):
        q, k, v = (torch.randn(HEADS, rows, WIDTH) for rows in (queries, length, length))
        behind, held = torch.zeros(HEADS, queries, CAPACITY), torch.arange(CAPACITY) < length
        for head, query in itertools.product(range(HEADS), range(queries)):  # the only row that sees more than the end
            behind[..., : length - 1] = -torch.inf
            behind[head, query] = 0.0
            wanted = bits(executable(q, padded(k), padded(v), held, behind))
            assert bits(growing(q, k, v, held, behind[..., :length])) == wanted


def test_lengths_and_layouts_of_earlier_calls_are_recognized() -> None:
    executable = build(masked_attention())
    growing = GrowingKernels(executable, AXES, MASKS)
    q, held = torch.randn(HEADS, 1, WIDTH), torch.arange(CAPACITY) < 9

    def recognized(k: torch.Tensor, v: torch.Tensor) -> bool:
        return growing.recognized([q, k, v, held]) is not None

    k, v = torch.randn(HEADS, 9, WIDTH), torch.randn(HEADS, 9, WIDTH)
    assert not recognized(k, v)
    growing(q, k, v, held)
    assert recognized(k, v)
    assert recognized(k[:, :5], v[:, :5])
    assert recognized(k.transpose(0, 1).contiguous().transpose(0, 1), v)
    assert not recognized(k, v[:, :8])
    assert not recognized(k[:, :0], v[:, :0])
    assert not recognized(k.transpose(1, 2).contiguous().transpose(1, 2), v)
    assert not recognized(*(torch.randn(HEADS, CAPACITY + 1, WIDTH) for _ in range(2)))
    assert not recognized(k.double(), v)
    with pytest.raises(ShapeMismatch):
        growing(q, k, v[:, :8], held)


def test_axes_that_are_not_contiguous_are_not_recognized_by_calls_with_one_element() -> None:
    growing = GrowingKernels(build(product([])), {0: Axis(1, 0)}, {})
    weights = torch.randn(64, 96)
    for length in (1, 2, 9, 64):
        x = torch.randn(length, 16).t()
        (made,) = growing(x, weights)
        torch.testing.assert_close(made, x @ weights[:length], rtol=1e-4, atol=1e-4)
        assert growing.recognized([x, weights]) is None


def test_what_is_not_a_number_is_what_it_is_in_padded_inputs(kernels: tuple[Executable, GrowingKernels, torch.dtype]) -> None:
    executable, growing, dtype = kernels
    for number in (torch.nan, torch.inf, -torch.inf):
        for place in (0, TILE, 40):
            for which in range(3):
                inputs = [torch.randn(HEADS, rows, WIDTH, dtype=dtype) for rows in (1, 41, 41)]
                inputs[which][1, place % inputs[which].shape[1], 3] = number
                q, k, v = inputs
                held = torch.arange(CAPACITY) < 41
                ours, theirs = growing(q, k, v, held), executable(q, padded(k), padded(v), held)
                for one, other in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_iterations_behind_the_end_are_left_out_only_where_they_change_nothing() -> None:
    for masked in (True, False):
        executable = build(masked_attention(masked=masked))
        growing = GrowingKernels(executable, AXES, MASKS)
        assert ("iterations_within(sizes[0]" in growing.sources["kernels.c"]) == masked
        q, k, v = torch.randn(HEADS, 1, WIDTH), torch.randn(HEADS, 40, WIDTH), torch.randn(HEADS, 40, WIDTH)
        call(executable, growing, q, k, v)


def weighted_sum(loop: int = 4) -> Graph:
    """A sum over the rows of one input, each times that of another."""
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(name, (64, 16), DType.FP32) for name in ("x", "weights")]
    block = GraphBuilder(Level.BLOCK, grid=(), loop=loop)
    rows = 0 if loop > 1 else None
    x, weights = (block.iterator(number, kernel.tensor(value), (), rows) for number, value in enumerate(inputs))
    total = block.add("mul", x, weights)
    total = block.add("accumulate", total, combine="sum") if loop > 1 else block.add("sum", total, dim=0, size=64)
    return kernel.build(list(kernel.graph_defined(block.build([block.add("output_saver", total, omap=())]), inputs)))


def test_iterations_in_which_others_may_be_no_numbers_are_run() -> None:
    executable = build(weighted_sum())
    x, weights = torch.randn(64, 16), torch.randn(64, 16)
    weights[40, 3] = torch.inf
    padded_x = torch.cat([x[:32], torch.zeros(32, 16)])
    (expected,) = executable(padded_x, weights)
    assert expected.isnan().sum() == 1
    (alone,) = GrowingKernels(executable, {0: Axis(0, 0)}, {})(x[:32], weights)
    torch.testing.assert_close(alone, expected, rtol=0, atol=0, equal_nan=True)
    both = GrowingKernels(executable, {0: Axis(0, 0), 1: Axis(0, 0)}, {})
    assert "iterations_within(sizes[0]" in both.sources["kernels.c"]
    assert bits(both(x[:32], weights[:32])) == bits(executable(padded_x, torch.cat([weights[:32], torch.zeros(32, 16)])))


def test_elements_that_others_may_make_no_numbers_are_computed() -> None:
    executable = build(weighted_sum(loop=1))
    x, weights = torch.randn(64, 16), torch.randn(64, 16)
    alone, both = (GrowingKernels(executable, {number: Axis(0, 0) for number in grows}, {}) for grows in ({0}, {0, 1}))
    assert (alone.copies, both.copies) == (True, False)
    padded_x = torch.cat([x[:33], torch.zeros(31, 16)])
    assert bits(both(x[:33], weights[:33])) == bits(executable(padded_x, weights))
    weights[40, 3] = torch.inf
    (expected,), (made,) = executable(padded_x, weights), alone(x[:33], weights)
    assert expected.isnan().sum() == 1
    torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)


def product(constants: list[str]) -> Graph:
    """A product whose factors are summed over their axis of 64 elements."""
    kernel = GraphBuilder(Level.KERNEL)
    inputs = [kernel.input(name, shape, DType.FP32) for name, shape in (("x", (16, 64)), ("weights", (64, 96)))]
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=4)
    x, weights = block.iterator(0, kernel.tensor(inputs[0]), (None,), 1), block.iterator(1, kernel.tensor(inputs[1]), (1,), 0)
    total = block.add("accumulate", block.add("matmul", x, weights), combine="sum")
    saved = block.build([block.add("output_saver", total, omap=(1,))])
    return kernel.build(list(kernel.graph_defined(saved, inputs))).with_constants(constants)


@pytest.mark.parametrize("grows", [{0}, {1}, {0, 1}], ids=str)
def test_weights_are_packed_where_they_do_not_grow(grows: set[int]) -> None:
    executable = build(product(["weights"]))
    growing = GrowingKernels(executable, {number: Axis(1 - number, 0) for number in grows}, {})
    for length in (1, 16, 33, 64):
        given, whole = [torch.randn(16, 64), torch.randn(64, 96)], []
        for number in range(2):
            tensor = given[number].clone()
            if number in grows:
                given[number] = given[number].narrow(1 - number, 0, length)
                tensor.narrow(1 - number, length, 64 - length).fill_(0)
            whole.append(tensor)
        torch.testing.assert_close(growing(*given), executable(*whole), rtol=1e-5, atol=1e-5)


def test_calls_of_several_threads_at_different_lengths() -> None:
    executable = build(masked_attention())
    growing = GrowingKernels(executable, AXES, MASKS)

    def work(length: int) -> None:
        for _ in range(30):
            q, k, v = (torch.randn(HEADS, rows, WIDTH) for rows in (1, length, length))
            call(executable, growing, q, k, v)

    at_once(work, (5, 64, 100, 128))


def test_copies_of_bf16_are_multiplied_as_it_is() -> None:
    executable = build(grouped_attention(DType.BF16, 1))
    (kernel,) = executable.kernels
    types = {buffer.name: buffer.dtype for buffer in kernel.buffers if buffer.memory is Memory.SHARED}
    copies = {statement.target.buffer for statement in kernel.statements if str(statement.label) == "select_9"}  # values, or 0
    assert {name for name, dtype in types.items() if dtype is DType.BF16} == copies != set()
    assert {*types.values()} == {DType.BF16, DType.FP32}


GUARDED = """
import ctypes, mmap
import torch
from mugraph.ir import DType
from mugraph.runtime import build
from mugraph.sizes.growing_kernels import GrowingKernels
from tests.sizes.test_growing_kernels import AXES, CAPACITY, HEADS, LENGTHS, MASKS, WIDTH, grouped_attention, masked_attention

def ending_at_a_page(length):
    # [length, HEADS, WIDTH] in fp32, behind whose last element lies a page that cannot be read
    size = 4 * length * HEADS * WIDTH
    pages = -(-size // mmap.PAGESIZE)
    area = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + pages * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    whole = torch.frombuffer(area, dtype=torch.float32, count=size // 4, offset=pages * mmap.PAGESIZE - size)
    return whole.view(length, HEADS, WIDTH).normal_().transpose(0, 1)

growing = GrowingKernels(build(masked_attention()), AXES, MASKS)
grouped = {loop: GrowingKernels(build(grouped_attention(DType.FP32, loop)), AXES, MASKS) for loop in (1, 2)}
for length in LENGTHS:
    held = torch.arange(CAPACITY) < length
    growing(torch.randn(HEADS, 1, WIDTH), ending_at_a_page(length), ending_at_a_page(length), held)
    for loop in (1, 2):
        grouped[loop](torch.randn(HEADS, 3, WIDTH), ending_at_a_page(length), ending_at_a_page(length), held)
print("read nothing behind the end", flush=True)
tensor = ending_at_a_page(3)
ctypes.c_float.from_address(tensor.data_ptr() + 4 * 3 * HEADS * WIDTH).value
print("read behind the end")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects a page of memory")
def test_nothing_is_read_behind_the_end() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", GUARDED], env=environment, capture_output=True, text=True)
    assert done.stdout == "read nothing behind the end\n", done.stderr
    assert done.returncode == -signal.SIGSEGV, "a read behind the end is noticed"


def test_tensors_that_do_not_fit_are_refused() -> None:
    growing = GrowingKernels(build(masked_attention()), AXES, MASKS)
    q, k, held = torch.randn(HEADS, 1, WIDTH), torch.randn(HEADS, 9, WIDTH), torch.arange(CAPACITY) < 9
    for keys, values in ((k, k[:, :8]), (k[:, :0], k[:, :0]), (k[1:], k[1:]), (torch.randn(HEADS, CAPACITY + 1, WIDTH),) * 2):
        with pytest.raises(ShapeMismatch):
            growing(q, keys, values, held)
    one_more = GrowingKernels(build(masked_attention()), {number: Axis(1, 1) for number in AXES}, {3: HeldSlots(None, 1)})
    with pytest.raises(ShapeMismatch):
        one_more(q, k[:, :1], k[:, :1], held)  # of length 0
    with pytest.raises(InvalidInput, match="bfloat16"):
        growing(q, k.bfloat16(), k.bfloat16(), held)
    with pytest.raises(InvalidInput, match="expected 4 inputs"):
        growing(q, k, k)


def test_kernels_that_cannot_be_so_are_refused() -> None:
    executable = build(masked_attention())
    with pytest.raises(UnsupportedOperator, match="no input"):
        GrowingKernels(executable, {}, MASKS)
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (2, 8, 16), DType.FP32)
    joined = kernel.add("reshape", x, shape=(16, 16))
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    rows = block.iterator(0, kernel.tensor(joined), (0,), None)
    saved = block.build([block.add("output_saver", block.add("exp", rows), omap=(0,))])
    (y,) = kernel.graph_defined(saved, [joined])
    with pytest.raises(UnsupportedOperator, match="between kernels"):
        GrowingKernels(build(kernel.build([y])), {0: Axis(1, 0)}, {})
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 16), DType.FP32)
    by_library = Executable(kernel.build([kernel.add("exp", x)]), machine_for("cpu"))
    with pytest.raises(UnsupportedOperator, match="between kernels"):
        GrowingKernels(by_library, {0: Axis(0, 0)}, {})
    for dim in range(2):
        kernel = GraphBuilder(Level.KERNEL)
        x = kernel.input("x", (8, 16), DType.FP32)
        turned = kernel.add("slice", x, dim=dim, start=(7, 15)[dim], size=(8, 16)[dim], step=-1)
        block = GraphBuilder(Level.BLOCK, grid=(2,))
        rows = block.iterator(0, kernel.tensor(turned), (0,), None)
        saved = block.build([block.add("output_saver", block.add("exp", rows), omap=(0,))])
        backwards = build(kernel.build(list(kernel.graph_defined(saved, [turned]))))
        with pytest.raises(UnsupportedOperator, match="backwards"):
            GrowingKernels(backwards, {0: Axis(0, 0)}, {})


@pytest.mark.parametrize("seed", range(20))
def test_random_mugraphs_have_the_bits_of_padded_inputs(seed: int) -> None:
    compare_random(seed)


def compare_random(seed: int) -> int:
    """Take every dimension of every input of a random muGraph for one that grows: how many kernels could be made so."""
    rng, made = random.Random(seed), 0
    graph = random_mugraph(rng, rng.choice((1, 1, 2)))
    executable = build(graph)
    generator = torch.Generator().manual_seed(seed)
    kinds = {DType.FP16: torch.float16, DType.BOOL: torch.bool, **TYPES}
    for number, node in enumerate(graph.inputs()):
        for dim, size in enumerate(node.output.shape):
            try:
                growing = GrowingKernels(executable, {number: Axis(dim, 0)}, {})
            except UnsupportedOperator:
                continue
            made += 1
            for length in sorted({1, size // 2, size - 1, size} - {0}):
                inputs = [torch.rand(each.output.shape, generator=generator) + 0.5 for each in graph.inputs()]
                inputs = [tensor.to(kinds[each.output.dtype]) for tensor, each in zip(inputs, graph.inputs(), strict=True)]
                inputs[number].narrow(dim, length, size - length).fill_(0)
                given = list(inputs)
                given[number] = inputs[number].narrow(dim, 0, length)
                for one, other in zip(growing(*given), executable(*inputs), strict=True):
                    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return made


def decode(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query to a cache."""
    return torch.softmax(q @ keys.transpose(-1, -2) / 4, -1) @ values


def test_results_for_any_size_read_caches_where_they_lie() -> None:
    keys = Dim("keys", 1, 100)
    example = (torch.randn(2, 3, 1, 16), torch.randn(2, 3, 7, 16), torch.randn(2, 3, 7, 16))
    growing = mugraph.superoptimize(decode, example, budget=300.0, dynamic={1: {2: keys}, 2: {2: keys}})
    assert growing.capacities is not None
    assert growing.capacities.in_place.keys() == growing.capacities.kernels.keys() != set()
    with torch.inference_mode():
        for capacity in growing.capacities.kernels:
            run = growing.capacities.at(capacity)
            for size in sorted({1, 2, 31, 33, 64, 65, 100} & {*range(capacity + 1)}):
                static = torch.full((2, 2, 103, 3, 16), torch.nan)[:, :, :size].normal_()
                k, v = static.transpose(2, 3)
                q = torch.randn(2, 3, 1, 16)
                torch.testing.assert_close(run(q, k, v), decode(q, k, v), rtol=1e-4, atol=1e-5)
