"""Layouts of shared memory: what accesses cost, the cheapest choice, and kernels that stay the same otherwise."""

from __future__ import annotations

import functools
import itertools
import math
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lower.graphs import attention, rms_norm_linear
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower import cooperative, lower
from mugraph.lower.access_costs import accesses_of
from mugraph.lower.check import check
from mugraph.lower.choices import MOST_COSTS, MOST_TOTALS, choose
from mugraph.lower.layouts import swizzle_of, with_layouts
from mugraph.lower.places import Swizzle
from mugraph.lower.scalar_expressions import Source
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Tile
from mugraph.lower.traffic import sectors, wavefronts
from mugraph.targets.cuda import print_program
from mugraph.targets.cuda.emulator import Emulation, emulate
from mugraph.targets.cuda.machine import Cuda, launch_shape
from mugraph.testing.mugraphs import LARGE, random_mugraph


@pytest.mark.parametrize(
    ("step", "width", "expected"),
    [
        pytest.param(4, 4, 1, id="neighbouring words"),
        pytest.param(0, 4, 1, id="one word for all"),
        pytest.param(2, 2, 1, id="halves of words"),
        pytest.param(8, 4, 2, id="every other word"),
        pytest.param(128, 4, 32, id="one bank"),
        pytest.param(132, 4, 1, id="one bank, padded"),
        pytest.param(16, 16, 4, id="wide accesses in four groups"),
        pytest.param(128, 16, 32, id="wide accesses to the same banks"),
    ],
)
def test_wavefronts_of_a_warp(step: int, width: int, expected: int) -> None:
    assert wavefronts(np.arange(32)[None] * step, width) == expected


@pytest.mark.parametrize(("step", "expected"), [(2, 2), (4, 4), (16, 16), (32, 32), (64, 32), (0, 1)])
def test_sectors_of_a_warp(step: int, expected: int) -> None:
    assert sectors(np.arange(32)[None] * step) == expected


def product_after_copy(rows: int, inner: int, columns: int, transposed_copy: bool) -> Kernel:
    """A factor copied to shared memory (perhaps transposed) and multiplied on matrix units, by 64 threads."""
    strides = (1, rows) if transposed_copy else (inner, 1)
    factor = Tile("factor", (rows, inner), (inner, 1))
    return Kernel(
        name="k",
        grid=(1,),
        loop=1,
        buffers=(
            Buffer("x", Memory.DEVICE, DType.BF16, rows * inner),
            Buffer("w", Memory.DEVICE, DType.BF16, inner * columns),
            Buffer("y", Memory.DEVICE, DType.FP32, rows * columns),
            Buffer("factor", Memory.SHARED, DType.BF16, rows * inner),
        ),
        inputs=("x", "w"),
        outputs=("y",),
        before=(),
        body=(
            Elementwise(factor, (Tile("x", (rows, inner), strides),), Source(0)),
            Matmul(Tile("y", (rows, columns), (columns, 1)), factor, Tile("w", (inner, columns), (columns, 1)), DType.BF16),
        ),
        after=(),
        threads=64,
        barriers=frozenset({1}),
    )


def cost_of(kernel: Kernel) -> float:
    every = (accesses for statement in kernel.statements for accesses in accesses_of(kernel, statement))
    return sum(accesses.traffic(accesses.tiles).cost for accesses in every)


def relaid(kernel: Kernel, strides: tuple[int, int], elements: int, swizzle: Swizzle | None = None) -> Kernel:
    """The kernel with the factor in a layout chosen by hand."""
    copy, product = kernel.body
    assert isinstance(product, Matmul)
    factor = replace(copy.target, strides=strides, swizzle=swizzle)
    buffers = tuple(replace(b, elements=elements) if b.name == "factor" else b for b in kernel.buffers)
    return replace(kernel, buffers=buffers, body=(replace(copy, target=factor), replace(product, left=factor)))


@pytest.mark.parametrize("transposed_copy", [False, True])
@pytest.mark.parametrize(("rows", "inner"), [(16, 64), (16, 128), (32, 16), (64, 32)])
def test_the_choice_is_the_cheapest_of_all(rows: int, inner: int, transposed_copy: bool) -> None:
    kernel = product_after_copy(rows, inner, 16, transposed_copy)
    by_hand = [relaid(kernel, (inner + pad, 1), rows * (inner + pad)) for pad in (0, 8)]
    by_hand += [relaid(kernel, (1, rows + pad), inner * (rows + pad)) for pad in (0, 8)]
    swizzles = [Swizzle(bits, 3, shift) for bits in (1, 2, 3) for shift in (3, 4)]
    by_hand += [relaid(kernel, strides, rows * inner, s) for s in swizzles for strides in ((inner, 1), (1, rows))]
    chosen = with_layouts(kernel)
    check(chosen)
    assert cost_of(chosen) == pytest.approx(min(map(cost_of, by_hand)), abs=1)


def test_rows_of_a_factor_are_swizzled_where_they_would_share_banks_and_take_no_more_bytes() -> None:
    kernel = product_after_copy(16, 64, 16, False)
    chosen = with_layouts(kernel)
    assert chosen.buffer("factor").elements == 16 * 64
    assert {s.left.swizzle for s in chosen.body if isinstance(s, Matmul)} == {Swizzle(bits=3, base=3, shift=3)}
    assert cost_of(chosen) == cost_of(relaid(kernel, (72, 1), 16 * 72)) < cost_of(kernel)


def test_rows_that_lie_in_different_banks_stay_plain() -> None:
    kernel = product_after_copy(16, 40, 16, False)
    assert with_layouts(kernel) == kernel


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("row_bytes", [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 1040])
def test_the_chunks_of_eight_rows_at_one_column_share_no_bank(row_bytes: int, element_bytes: int) -> None:
    swizzle = swizzle_of(row_bytes, element_bytes)
    pitch, chunk = row_bytes // element_bytes, 16 // element_bytes
    for column in range(0, pitch, chunk):
        places = np.arange(8) * pitch + column
        moved = places if swizzle is None else swizzle(places)
        assert wavefronts(moved[None] * element_bytes, 16) == 1


@settings(deadline=None)
@given(bits=st.integers(1, 3), base=st.integers(2, 3), more=st.integers(0, 4))
def test_a_swizzle_is_its_own_inverse_and_keeps_chunks_and_blocks(bits: int, base: int, more: int) -> None:
    swizzle = Swizzle(bits, base, bits + more)
    places = np.arange(1 << (bits + base + bits + more + 1))
    moved = swizzle(places)
    np.testing.assert_array_equal(swizzle(moved), places)
    np.testing.assert_array_equal(moved % (1 << base), places % (1 << base))
    np.testing.assert_array_equal(moved // swizzle.block, places // swizzle.block)
    assert [swizzle(int(place)) for place in places] == moved.tolist()


def by_counting(addresses: list[list[int]], width: int) -> int:
    """Wavefronts, word by word: 128 bytes are asked for at a time, and every bank gives one word after the other."""
    total = 0
    for lanes in addresses:
        group = max(1, min(len(lanes), 128 // width))
        for first in range(0, len(lanes), group):
            words = {(lane + byte) // 4 for lane in lanes[first : first + group] for byte in range(0, width, 4)}
            total += max(sum(word % 32 == bank for word in words) for bank in range(32))
    return total


@settings(deadline=None)
@given(st.data())
def test_wavefronts_are_those_counted_word_by_word(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from((2, 4, 8, 16)))
    lanes = data.draw(st.sampled_from((8, 32)))
    lane = st.integers(0, 255).map(lambda at: at * width)
    addresses = data.draw(st.lists(st.lists(lane, min_size=lanes, max_size=lanes), min_size=1, max_size=4))
    assert wavefronts(np.array(addresses), width) == by_counting(addresses, width)


def test_the_checker_refuses_a_swizzle_that_leaves_its_buffer_or_is_not_everywhere_the_same() -> None:
    kernel = product_after_copy(16, 40, 16, False)
    swizzle = Swizzle(bits=3, base=3, shift=3)
    check(relaid(kernel, (64, 1), 16 * 64, swizzle))
    with pytest.raises(InvalidGraph, match="leaves its buffer"):
        check(relaid(kernel, (40, 1), 15 * 40 + 39, swizzle))
    copy, product = relaid(kernel, (64, 1), 16 * 64, swizzle).body
    other = replace(copy, target=replace(copy.target, swizzle=None))
    with pytest.raises(InvalidGraph, match="swizzled"):
        check(replace(relaid(kernel, (64, 1), 16 * 64, swizzle), body=(other, product)))


def test_kernels_are_printed_alike_in_whichever_order_costs_and_buffers_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved result is refused where its kernels are printed otherwise."""
    machine, shuffling, choices = Cuda.of("cuda:sm_90"), random.Random(1), 0

    def printed(graph: Graph) -> str:
        return print_program([launch.kernel for launch in machine.lower(graph).values()])

    def shuffled(options: dict[str, Any], relations: list[Any]) -> dict[str, Any]:
        nonlocal choices
        choices += len(options) > 1
        names, relations = shuffling.sample(list(options), len(options)), shuffling.sample(relations, len(relations))
        return choose({name: options[name] for name in names}, relations)

    graphs = [random_mugraph(random.Random(seed), kernels=2, space=LARGE) for seed in range(16)]
    before = list(map(printed, graphs))
    monkeypatch.setattr("mugraph.lower.layouts.choose", shuffled)
    monkeypatch.setattr("mugraph.lower.device_layouts.choose", shuffled)
    assert list(map(printed, graphs)) == before
    assert choices > 5


def product_of_products(count: int, in_pairs: bool = False) -> Graph:
    """Products of one tensor with several weights in one block, all multiplied by each other in a statement, or every two."""
    kernel = GraphBuilder(Level.KERNEL)
    operands = [kernel.input("x", (16, 16), DType.FP16), *(kernel.input(f"w{n}", (16, 16), DType.FP16) for n in range(count))]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    x, *weights = (block.iterator(n, kernel.tensor(operand), (None,), None) for n, operand in enumerate(operands))
    products = [block.add("matmul", x, weight) for weight in weights]
    results = [functools.reduce(lambda left, right: block.add("mul", left, right), products)]
    if in_pairs:
        results = [block.add("mul", *pair) for pair in itertools.combinations(products, 2)]
    saved = [block.add("output_saver", result, omap=(0,)) for result in results]
    return kernel.build(kernel.graph_defined(block.build(saved), operands))


@pytest.mark.parametrize(("count", "in_pairs"), [(5, False), (12, False), (7, True)])
def test_layouts_of_many_tiles_that_meet_are_chosen_from_fewer(
    count: int, in_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five that meet in one statement have 32,768 combinations of layouts, and seven that meet in pairs a table of 2 million."""
    offered: list[int] = []

    def seen(options: dict[str, Any], relations: list[Any]) -> dict[str, Any]:
        offered.append(math.prod(map(len, options.values())))
        assert all(len(relation.costs) <= MOST_COSTS for relation in relations)
        return choose(options, relations)

    monkeypatch.setattr("mugraph.lower.layouts.choose", seen)
    (launch,) = Cuda.of("cuda:sm_90").lower(product_of_products(count, in_pairs)).values()
    check(launch.kernel)
    assert offered
    assert max(offered) <= (MOST_TOTALS if in_pairs else MOST_COSTS)


def test_layouts_of_many_tensors_between_kernels_are_chosen_from_fewer() -> None:
    """A sum of 40 of them in one statement has 2**40 combinations."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 16), DType.FP16)
    tensors: list[Value] = []
    for number in range(40):
        block = GraphBuilder(Level.BLOCK, grid=(1,))
        part = block.add("mul", block.iterator(0, kernel.tensor(x), (0,), None), block.constant(number + 2, DType.FP16))
        tensors += kernel.graph_defined(block.build([block.add("output_saver", part, omap=(0,))]), [x])
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    parts = [block.iterator(n, kernel.tensor(tensor), (0,), None) for n, tensor in enumerate(tensors)]
    added = functools.reduce(lambda left, right: block.add("add", left, right), parts)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", added, omap=(0,))]), tensors))
    launches = Cuda.of("cuda:sm_90").lower(graph)
    assert all(not launch.orders for launch in launches.values()), "as they are written and read"


def test_buffers_read_as_something_else_keep_their_layout() -> None:
    kernel = product_after_copy(16, 64, 16, False)
    flat = Elementwise(Tile("y", (256,), (1,)), (Tile("factor", (256,), (1,)),), Source(0))
    kernel = replace(kernel, after=(flat,))
    assert with_layouts(kernel) == kernel


GRAPHS: dict[str, Callable[[], Graph]] = {
    "attention": lambda: attention(queries=16, keys=256, width=64, loop=2, dtype=DType.BF16),
    "rmsnorm": lambda: rms_norm_linear(rows=40, inner=256, columns=64, grid=2, loop=2, dtype=DType.BF16),
    "rmsnorm in TF32": lambda: rms_norm_linear(rows=40, inner=256, columns=64, grid=2, loop=2, dtype=DType.FP16),
}


def emulated(kernel: Kernel) -> Emulation:
    arrays = [np.zeros(kernel.buffer(name).elements, np.uint16) for name in (*kernel.inputs, *kernel.outputs)]
    inputs, outputs = arrays[: len(kernel.inputs)], arrays[len(kernel.inputs) :]
    return emulate(print_program([kernel]), kernel.name, launch_shape(kernel), inputs, outputs, count_wavefronts=True)


def predicted(kernel: Kernel) -> float:
    """Wavefronts of all blocks and iterations."""
    total = 0.0
    for statements, times in ((kernel.before, 1), (kernel.body, kernel.loop), (kernel.after, 1)):
        for accesses in (accesses for statement in statements for accesses in accesses_of(kernel, statement)):
            total += times * accesses.traffic(accesses.tiles).wavefronts
    for staged in kernel.staged:  # copies one behind the other
        total += kernel.loop * math.prod(staged.source.shape) * kernel.buffer(staged.buffer).dtype.bytes / 128
    return total * math.prod(kernel.grid)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize("name", GRAPHS)
def test_the_emulator_counts_the_wavefronts_that_were_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (launch,) = lower(GRAPHS[name]()).values()
    laid = cooperative(launch.kernel, 100_000)
    monkeypatch.setattr(sys.modules[cooperative.__module__], "with_layouts", lambda kernel: kernel)
    plain = cooperative(launch.kernel, 100_000)
    after, before = emulated(laid), emulated(plain)
    assert after.bank_conflicts == 0
    assert after.wavefronts < (0.6 if "TF32" in name else 0.5) * before.wavefronts
    assert predicted(plain) == before.wavefronts
    assert predicted(laid) == after.wavefronts
