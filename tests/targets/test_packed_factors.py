"""Weights that do not change between calls: packed for the products of kernels and of the library, and again when they change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower.check import check
from mugraph.lower.packing import Packing
from mugraph.lower.tile_form import Strips
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.runtime import Executable, build, packed_operands
from mugraph.runtime.packed_operands import Kept, packer, pages_reused
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.compiler import find_compiler
from mugraph.targets.cpu.machine import SOURCE_NAME, Cpu
from mugraph.targets.cpu.packer import pack
from pairwise import pairwise

DTYPES = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}
WHOLE = {DType.INT8: torch.int8, DType.UINT8: torch.uint8}
ERRORS = {DType.FP32: 1e-5, DType.BF16: 2e-2, DType.FP16: 3e-3}
HOSTS = [Vectors(16, 32), Vectors(8, 16), Vectors(4, 16), Vectors(16, 32, bf16_pairs=True)]
TILED = Vectors(16, 32, bf16_pairs=True, tiles=True)
Shape = tuple[int, int, int]
"""Rows, depth and columns."""


def product_with(kernel: GraphBuilder, x: Value, right: Value, grid: int = 1, loop: int = 1, rounded: bool = True) -> Value:
    """A product in a kernel of its own; see `linear`."""
    block = GraphBuilder(Level.BLOCK, grid=(grid,), loop=loop)
    along = (1, 0) if loop > 1 else (None, None)
    tiles = [block.iterator(0, kernel.tensor(x), (None,), along[0]), block.iterator(1, kernel.tensor(right), (1,), along[1])]
    made = block.add("matmul", *tiles)
    if loop > 1:
        made = block.add("accumulate", made, combine="sum")
    if not rounded:
        made = block.add("mul", block.add("exp", made), block.constant(1, DType.FP32))
    (result,) = kernel.graph_defined(block.build([block.add("output_saver", made, omap=(1,))]), [x, right])
    return result


def linear(
    rows: int,
    depth: int,
    columns: int,
    dtype: DType,
    *,
    transposed: bool = False,
    grid: int = 1,
    loop: int = 1,
    rounded: bool = True,
    stored: DType | None = None,
) -> Graph:
    """A product with a weight in one kernel: blocks of columns, iterations over k; the sum is stored in fp32 unless `rounded`.

    The weight is of the type `stored`, or of that of the left factor.
    """
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, depth), dtype)
    weight = kernel.input("weight", (columns, depth) if transposed else (depth, columns), stored or dtype)
    right = kernel.add("transpose", weight, permutation=(1, 0)) if transposed else weight
    return kernel.build([product_with(kernel, x, right, grid, loop, rounded)])


def given(graph: Graph, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [drawn(node.output.shape, node.output.dtype) for node in graph.inputs()]


def drawn(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    if dtype.is_whole:
        return torch.randint(int(dtype.least), int(dtype.largest) + 1, shape).to(WHOLE[dtype])
    return torch.randn(shape).to(DTYPES[dtype])


def exact(graph: Graph, inputs: list[torch.Tensor]) -> torch.Tensor:
    x, weight = (tensor.double() for tensor in inputs)
    return x @ (weight if weight.shape[0] == x.shape[-1] else weight.T)


def largest_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def packed_for(graph: Graph, vectors: Vectors | None = None) -> Executable:
    executable = Executable(graph.with_constants(["weight"]), Cpu(vectors))
    assert executable.packs
    for launch in executable.launches.values():
        check(launch.kernel)
        assert parse_kernel(format_kernel(launch.kernel)) == launch.kernel
    return executable


def strips_of(executable: Executable) -> list[Strips]:
    """How factors lie packed."""
    return [packing.strips for launch in executable.launches.values() for packing in launch.packings.values()]


SHAPES = [(1, 1, 1), (1, 40, 130), (3, 17, 5), (9, 64, 48), (33, 70, 16), (20, 34, 100), (2, 1100, 24)]


@pairwise(vectors=HOSTS, dtype=list(DTYPES), shape=SHAPES, transposed=[False, True])
def test_products_with_packed_weights_of_every_shape(vectors: Vectors, dtype: DType, shape: Shape, transposed: bool) -> None:
    graph = linear(*shape, dtype, transposed=transposed)
    inputs = given(graph)
    (result,) = packed_for(graph, vectors)(*inputs)
    assert largest_error(result, exact(graph, inputs)) < ERRORS[dtype]


@pairwise(shape=SHAPES, transposed=[False, True])
def test_products_of_pairs_with_packed_weights_of_every_shape(shape: Shape, transposed: bool) -> None:
    """Only tensors of bf16 are multiplied in pairs, and only where the host does it."""
    graph = linear(*shape, DType.BF16, transposed=transposed)
    inputs = given(graph)
    (result,) = packed_for(graph, HOSTS[-1])(*inputs)
    assert largest_error(result, exact(graph, inputs)) < ERRORS[DType.BF16]


STRIP_SHAPES = [(33, 210, 35), (40, 64, 160), (64, 100, 130)]


@pairwise(vectors=HOSTS, dtype=list(DTYPES), rounded=[False, True], shape=STRIP_SHAPES, loop=[1, 2])
def test_many_rows_meet_strips_of_panels(
    vectors: Vectors, dtype: DType, rounded: bool, shape: Shape, loop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels of a few values of k, with a shorter last one, that add to sums of a few columns; also over iterations."""
    monkeypatch.setattr("mugraph.targets.cpu.panels._STRIP_BYTES", 128 * vectors.lanes)
    monkeypatch.setattr("mugraph.targets.cpu.panels.Panels.sums_bytes", 1 << 13)
    graph = linear(*shape, dtype, rounded=rounded, loop=loop)
    inputs = [tensor / 8 for tensor in given(graph)]
    executable = packed_for(graph, vectors)
    assert all(0 < strips.depth < shape[1] for strips in strips_of(executable))
    wanted = exact(graph, inputs)
    (result,) = executable(*inputs)
    assert largest_error(result, wanted if rounded else wanted.exp()) < ERRORS[dtype]


@pairwise(rounded=[False, True], shape=STRIP_SHAPES, loop=[1, 2])
def test_many_rows_of_pairs_meet_strips_of_panels(
    rounded: bool, shape: Shape, loop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_many_rows_meet_strips_of_panels(HOSTS[-1], DType.BF16, rounded, shape, loop, monkeypatch)


def test_few_rows_that_are_too_long_for_the_stack_are_pairs_in_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.targets.cpu.panels.PACKED_BYTES", 1024)
    for dtype, rows in product((DType.BF16, DType.FP32), (2, 9)):
        graph = linear(rows, 600, 40, dtype)
        inputs = given(graph)
        executable = packed_for(graph, HOSTS[-1])
        assert [strips.pairs for strips in strips_of(executable)] == [dtype is DType.BF16]
        assert largest_error(executable(*inputs)[0], exact(graph, inputs)) < ERRORS[dtype]


@pairwise(vectors=HOSTS, stored=list(WHOLE), dtype=list(DTYPES), shape=SHAPES, transposed=[False, True])
def test_weights_of_8_bits_are_packed_as_they_are(
    vectors: Vectors, stored: DType, dtype: DType, shape: Shape, transposed: bool
) -> None:
    graph = linear(*shape, dtype, transposed=transposed, stored=stored)
    inputs = given(graph)
    executable = packed_for(graph, vectors)
    (result,) = executable(*inputs)
    assert largest_error(result, exact(graph, inputs)) < ERRORS[dtype]
    assert executable.packed_bytes == shape[1] * shape[2]


@pairwise(stored=list(WHOLE), shape=SHAPES, transposed=[False, True])
def test_weights_of_8_bits_are_packed_as_they_are_for_pairs(stored: DType, shape: Shape, transposed: bool) -> None:
    test_weights_of_8_bits_are_packed_as_they_are(HOSTS[-1], stored, DType.BF16, shape, transposed)


TILED_SHAPES = [(4, 32, 16), (16, 64, 80), (17, 96, 48), (31, 32, 112), (32, 608, 32), (40, 64, 16), (100, 96, 144)]
TILED_PANELS = [64, 1 << 20]
"""Bytes of a panel: sums are kept between panels, or there is one."""


@pytest.mark.parametrize("real", [False, True], ids=["emulated", "real"])
@pairwise(stored=list(WHOLE), shape=TILED_SHAPES, transposed=[False, True], panel=TILED_PANELS)
def test_matrix_units_multiply_packed_weights_of_8_bits(
    real: bool, stored: DType, shape: Shape, transposed: bool, panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = linear(*shape, DType.BF16, transposed=transposed, stored=stored)
    inputs = given(graph)
    (result,) = tiled(graph, real, panel, monkeypatch)(*inputs)
    assert largest_error(result, exact(graph, inputs)) < 1e-2


def test_every_whole_number_is_widened_for_the_matrix_unit() -> None:
    """Rows of one 1 each pick rows of the weight, bit for bit."""
    for stored in WHOLE:
        graph = linear(32, 32, 16, DType.BF16, stored=stored)
        every = torch.arange(int(stored.least), int(stored.largest) + 1).to(WHOLE[stored])
        for half in every.reshape(2, 128):
            weight = half.repeat(4).reshape(32, 16)
            (result,) = emulated(graph)(torch.eye(32, dtype=torch.bfloat16), weight)
            assert torch.equal(result, weight.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_windows_of_blocks_and_iterations_follow_each_other(dtype: DType, transposed: bool) -> None:
    for rows, grid, loop in ((1, 3, 1), (5, 3, 4), (17, 1, 8), (4, 6, 2)):
        graph = linear(rows, 256, 96, dtype, transposed=transposed, grid=grid, loop=loop)
        inputs = given(graph)
        (result,) = packed_for(graph)(*inputs)
        assert largest_error(result, exact(graph, inputs)) < ERRORS[dtype]


def emulated(graph: Graph) -> Executable:
    """For a host with matrix units, whose registers are arrays here."""
    marked, machine = graph.with_constants(["weight"]), Cpu(TILED)
    sources = machine.print([launch.kernel for launch in machine.lower(marked).values()])
    assert "MULTIPLY_TILES" in sources[SOURCE_NAME].split("#endif")[-1]
    return Executable(marked, machine, {name: f"#define EMULATED_TILES\n{text}" for name, text in sources.items()})


def tiled(graph: Graph, real: bool, panel: int, monkeypatch: pytest.MonkeyPatch) -> Executable:
    """For the matrix unit, emulated or of this host, with panels of so many bytes."""
    if real and not find_compiler().vectors.tiles:
        pytest.skip("this host has no matrix unit, or does not let us use it")
    monkeypatch.setattr("mugraph.targets.cpu.matrix_tiles._PANEL_BYTES", panel)
    monkeypatch.setattr("mugraph.targets.cpu.matrix_tiles._PANEL", 32)
    return packed_for(graph, TILED) if real else emulated(graph)


@pytest.mark.parametrize("real", [False, True], ids=["emulated", "real"])
@pairwise(rounded=[False, True], shape=TILED_SHAPES, transposed=[False, True], panel=TILED_PANELS)
def test_matrix_units_multiply_packed_bf16_weights(
    real: bool, rounded: bool, shape: Shape, transposed: bool, panel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = linear(*shape, DType.BF16, transposed=transposed, rounded=rounded)
    inputs = [tensor / 8 for tensor in given(graph)]
    (result,) = tiled(graph, real, panel, monkeypatch)(*inputs)
    wanted = exact(graph, inputs)
    assert largest_error(result, wanted if rounded else wanted.exp()) < 2e-2


def test_sums_that_are_not_rounded_between_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of many ones is exact in fp32, and was not if panels added to bf16."""
    monkeypatch.setattr("mugraph.targets.cpu.matrix_tiles._PANEL_BYTES", 64)
    for make in (emulated, lambda graph: packed_for(graph, HOSTS[-1])):
        graph = linear(16, 2048, 16, DType.BF16)
        x, weight = torch.ones(16, 2048, dtype=torch.bfloat16), torch.zeros(2048, 16, dtype=torch.bfloat16)
        weight[:] = torch.cat([torch.ones(1024), torch.full((1024,), 2**-8)])[:, None]
        (result,) = make(graph)(x, weight)
        assert (result == 1024 + 4).all()


@pytest.mark.parametrize(
    ("rows", "columns", "strips"), [(7, 10, Strips(3, 4)), (8, 9, Strips(4, 4, pairs=True)), (2, 3, Strips(9, 9))]
)
def test_packed_memory_is_what_the_words_say(rows: int, columns: int, strips: Strips) -> None:
    memory = np.arange(1000, dtype=np.float32)
    packing = Packing(5, ((2, 300), (3, 100)), (rows, columns), (columns, 1), strips)
    packed = np.empty(packing.elements, np.float32)
    pack(packing, memory, packed)
    step = 2 if strips.pairs else 1
    expected = []
    for window in (0, 100, 200, 300, 400, 500):
        for top in range(0, rows, strips.depth):
            for left in range(0, columns, strips.width):
                for row in range(top, min(rows, top + strips.depth), step):
                    for column in range(left, min(columns, left + strips.width)):
                        expected += [5 + window + (row + second) * columns + column for second in range(step)]
    assert packed.tolist() == expected


def packed_by_one(packing: Packing, memory: NDArray[Any], packed: NDArray[Any]) -> None:
    """Write what lies in a tensor's memory as it is packed; both are given as arrays of one dimension."""
    counts = tuple(count for count, _ in packing.windows)
    rows, columns = packing.shape
    steps = (*(stride for _, stride in packing.windows), *packing.strides)
    windows = np.lib.stride_tricks.as_strided(
        memory[packing.offset :], (*counts, rows, columns), [step * memory.itemsize for step in steps], writeable=False
    )
    result = packed.reshape(*counts, rows * columns)
    pair = 2 if packing.strips.pairs else 1
    for top in range(0, rows, packing.strips.depth):
        depth = min(packing.strips.depth, rows - top)
        for start, count, width in _pieces(columns, packing.strips.width):
            part = windows[..., top : top + depth, start : start + count * width]
            split = part.reshape(*counts, depth // pair, pair, count, width)
            place = columns * top + depth * start
            stored = result[..., place : place + depth * count * width].reshape(*counts, count, depth // pair, width, pair)
            stored[...] = np.moveaxis(split, (-2, -4, -1, -3), (-4, -3, -2, -1))


def _pieces(total: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(start, count, size) of the equal pieces of a dimension, and of what is left of it."""
    whole = total // size
    if whole:
        yield 0, whole, size
    if total % size:
        yield whole * size, 1, total % size


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 10), (64, 48), (130, 33)])
def test_all_threads_pack_what_one_would(dtype: type[np.generic], rows: int, columns: int) -> None:
    memory = np.random.default_rng(0).integers(0, 200, 3 * rows * columns + 5).astype(dtype)
    for strides, (depth, width), pairs in product(((columns, 1), (1, rows)), ((1, 1), (4, 16), (512, 64)), (False, True)):
        if pairs and (rows % 2 or depth % 2):
            continue
        packing = Packing(5, ((2, rows * columns), (1, 7)), (rows, columns), strides, Strips(depth, width, pairs))
        wanted, packed = (np.zeros(packing.elements, dtype) for _ in range(2))
        packed_by_one(packing, memory, wanted)
        pack(packing, memory, packed)
        np.testing.assert_array_equal(packed, wanted)


def linear_and_library() -> Graph:
    """A product in a kernel, and one by the array library."""
    kernel = GraphBuilder(Level.KERNEL)
    x, weight, other = (kernel.input(name, (32, 32), DType.FP32) for name in ("x", "weight", "other"))
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tiles = [block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate((x, weight))]
    saved = block.add("output_saver", block.add("matmul", *tiles), omap=(0,))
    (made,) = kernel.graph_defined(block.build([saved]), [x, weight])
    return kernel.build([kernel.add("matmul", made, kernel.add("transpose", other, permutation=(1, 0)))])


def test_weights_that_change_are_packed_again() -> None:
    graph = linear_and_library().with_constants(["weight", "other"])
    executable = build(graph)
    assert executable.packed_bytes == 2 * 32 * 32 * 4
    x, weight, other = given(graph)

    def right() -> bool:
        (result,) = executable(x, weight, other)
        return largest_error(result, x.double() @ weight.double() @ other.double().T) < 1e-5

    assert right()
    assert right()
    for changed in (weight, other):
        changed.mul_(2.0)
        assert right()
        changed[3, 3] = 50.0
        assert right()
        changed.data = torch.randn(32, 32)
        assert right()
    weight, other = torch.randn(32, 32), torch.randn(64, 32)[::2]
    assert right()
    with torch.inference_mode():
        weight = torch.randn(32, 32)
        assert right()
        weight.add_(1.0)
        assert right()
    again = torch.randn(32, 32).T
    weight = again
    assert right()
    again.add_(1.0)
    assert right()


def test_pages_of_weights_that_are_gone_are_used_again() -> None:
    """Those of weights that somebody still reads are not."""
    rows, columns = 1024, 1088
    packing = Packing(0, (), (rows, columns), (columns, 1), Strips(rows, columns))
    make, weight = packer(packing), torch.randn(rows, columns)
    with pages_reused():
        first = make(weight)
        held, place = first.array.copy(), first.address
        second = make(-weight)
        assert second.address != place
        np.testing.assert_array_equal(first.array, held)
        del first
        third = make(2 * weight)
        assert third.address == place
        np.testing.assert_array_equal(third.array, 2 * held)
        np.testing.assert_array_equal(second.array, -held)
        assert make(3 * weight).address not in (place, second.address)


def test_pages_are_given_back_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(0, (), (1024, 1088), (1088, 1), Strips(1024, 1088))
    make, weight, kept = packer(packing), torch.randn(1024, 1088), list[object]()
    monkeypatch.setattr(packed_operands, "_SPARE", ContextVar("spare pages", default=kept))
    for free, spare in ((0, 0), (1 << 60, 1)):
        monkeypatch.setattr("mugraph.devices.host.free_memory", lambda free=free: free)
        make(weight)
        assert len(kept) == spare


def test_layers_that_share_kernels_are_packed_once_each() -> None:
    executable = packed_for(linear(3, 64, 48, DType.FP32))
    x, layers = torch.randn(3, 64), [torch.randn(64, 48) for _ in range(3)]
    with mock.patch("mugraph.runtime.packed_operands.pack", side_effect=pack) as packs:
        for _ in range(3):
            for weight in layers:
                assert largest_error(executable(x, weight)[0], x.double() @ weight.double()) < 1e-5
    assert packs.call_count == 3
    executable.forget_weights()
    assert largest_error(executable(x, layers[0])[0], x.double() @ layers[0].double()) < 1e-5


def test_layers_beyond_those_that_are_kept_are_not_all_packed_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_operands, "_MOST", 7)
    executable = packed_for(linear(3, 64, 48, DType.FP32))
    x, layers, rounds = torch.randn(3, 64), [torch.randn(64, 48) for _ in range(8)], 20
    with mock.patch("mugraph.runtime.packed_operands.pack", side_effect=pack) as packs:
        for _ in range(rounds):
            for weight in layers:
                assert largest_error(executable(x, weight)[0], x.double() @ weight.double()) < 1e-5
    assert len(layers) < packs.call_count < rounds * len(layers) / 2


def test_where_memory_becomes_short_what_is_packed_grows_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Kept(lambda array: array.sum().item(), "sums")
    tensors = [torch.full((2,), float(number)) for number in range(6)]
    for number, tensor in enumerate(tensors):
        monkeypatch.setattr("mugraph.devices.host.free_memory", lambda free=(1 << 60) * (number < 3): free)
        assert made.of(tensor) == 2 * number
    assert len(made._known) == 3


def test_launches_of_one_kernel_pack_a_weight_each_in_its_way() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x, weight = kernel.input("x", (3, 64), DType.FP32), kernel.input("weight", (64, 64), DType.FP32)
    rights = [weight, kernel.add("transpose", weight, permutation=(1, 0))]
    executable = packed_for(kernel.build([product_with(kernel, x, right) for right in rights]))
    assert len({each.name for each in executable.kernels}) == 1
    left, factor = given(executable.graph)
    for found, right in zip(executable(left, factor), (factor, factor.T), strict=True):
        assert largest_error(found, left.double() @ right.double()) < 1e-5


def test_edits_without_a_trace_are_seen_in_any_column() -> None:
    executable = packed_for(linear(3, 256, 256, DType.FP32))
    x, weight = torch.randn(3, 256), torch.randn(256, 256)
    executable(x, weight)
    weight.data[:, 1:].mul_(2.0)
    assert largest_error(executable(x, weight)[0], x.double() @ weight.double()) < 1e-5


@pytest.mark.parametrize("first", [False, True])
def test_views_and_modes_between_calls(first: bool) -> None:
    executable = packed_for(linear(3, 64, 48, DType.FP32))
    x, stored = torch.randn(3, 64), torch.randn(48, 64)
    memory = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    complex_weight = torch.randn(64, 48, dtype=torch.complex64)
    views = [complex_weight.imag, complex_weight.conj().imag]
    weights = [stored.t(), torch.from_numpy(memory), *(views if first else reversed(views))]
    for _ in range(2):
        for weight in weights:
            for mode in (first, not first):
                with torch.inference_mode(mode):
                    given = torch.from_numpy(memory) if mode and weight is weights[1] else weight
                    assert largest_error(executable(x, given)[0], x.double() @ given.double()) < 1e-5


def test_numpy_arrays_are_packed_in_every_call() -> None:
    graph = linear(3, 64, 48, DType.FP32)
    executable, (x, weight) = packed_for(graph), [tensor.numpy() for tensor in given(graph)]
    for _ in range(2):
        np.testing.assert_allclose(executable(x, weight)[0], x @ weight, rtol=1e-4, atol=1e-4)
        weight[:] += 1.0


def test_kernels_for_other_weights_keep_their_own() -> None:
    graph = linear(3, 64, 48, DType.FP32)
    first = packed_for(graph)
    second = first.with_own_weights()
    x, weight = given(graph)
    others = torch.randn(64, 48)
    for _ in range(2):
        assert largest_error(first(x, weight)[0], x.double() @ weight.double()) < 1e-5
        assert largest_error(second(x, others)[0], x.double() @ others.double()) < 1e-5


def test_what_is_read_by_others_too_or_is_no_right_factor_stays_where_it_is() -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x, weight = kernel.input("x", (8, 32), DType.FP32), kernel.input("weight", (32, 32), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tiles = [block.iterator(number, kernel.tensor(value), (None,), None) for number, value in enumerate((x, weight))]
    both = [block.add("matmul", *tiles), block.add("square", tiles[1])]
    saved = [block.add("output_saver", value, omap=(0,)) for value in both]
    graph = kernel.build(kernel.graph_defined(block.build(saved), [x, weight])).with_constants(["weight"])
    assert not build(graph).packs
    assert not build(linear(4, 32, 32, DType.FP32).with_constants(["x"])).packs


def test_a_mugraph_says_what_is_constant() -> None:
    from mugraph.ir.serialize import graph_from_json, graph_to_json
    from mugraph.ir.text import parse_graph

    graph = linear(4, 32, 32, DType.FP32)
    marked = graph.with_constants(["weight"])
    assert "weight: fp32[32, 32] = input constant=1" in str(marked)
    assert parse_graph(str(marked)) == marked
    assert graph_from_json(graph_to_json(marked)) == marked
    assert marked.constants == {1}
    assert marked.with_constants(()) == graph
    assert replace(marked, nodes=graph.nodes) == graph
    assert Value(1) in build(marked).launches[len(marked.nodes) - 1].packings


@pytest.mark.parametrize(("rows", "ahead"), [(1, 768), (2, 768), (8, 8192)])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_wide_steps_ask_for_lines_close_ahead(dtype: DType, rows: int, ahead: int) -> None:
    """Those of one and two rows, which read 512 bytes; those of more rows ask for what lies two pages ahead."""
    machine = Cpu(Vectors(16, 32, bf16_pairs=True))
    graph = linear(rows, 256, 1024, dtype).with_constants(["weight"])
    source = machine.print([launch.kernel for launch in machine.lower(graph).values()])[SOURCE_NAME]
    places = re.findall(r"__builtin_prefetch\(strip \+ (\d+) \* \(k - k0\) \+ (\d+), 0, 2\)", source)
    bytes_ahead = {dtype.bytes * int(place) for _, place in places}
    assert min(bytes_ahead) == ahead
    assert max(bytes_ahead) < ahead + 512
    if rows <= 2:
        assert len(places) == 512 // 64
