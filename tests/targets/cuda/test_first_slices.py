"""CUDA kernels that compute as many slices as a launch says: the bits of those for all, and nothing touched behind."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mugraph.devices import Engines
from mugraph.errors import UnsupportedOperator
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.ops import LEAST
from mugraph.lower.fragments import holds_rows
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.tile_form import Bands, Kernel, Memory
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.runtime import Executable
from mugraph.sizes.sliced_kernels import SlicedKernels, example_inputs
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda, launch_shape
from mugraph.targets.cuda.nvrtc import SOURCE_NAME, compile_cubin
from sizes.test_sliced_kernels import (
    added,
    dot_products,
    drawn,
    norm_linear,
    program,
    split_k,
    turned,
    two_kernels,
)
from sizes.test_sliced_kernels import attention as heads
from targets.test_cuda import ERRORS
from targets.test_lagging_rings import gated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

PLAIN = Cuda("sm_90", 100_000)
BULK, MAPS = (replace(PLAIN, engines=engines) for engines in (Engines(bulk_row_bytes=32), Engines(tensor_maps=True)))
EARLY = replace(PLAIN, engines=Engines(early_launches=True))
GROUPS = Cuda("sm_90", 232_448, engines=Engines(warp_group_rows=1, tensor_maps=True, producer_warps=True), multiprocessors=132)
GROUPED = replace(PLAIN, engines=Engines(warp_group_rows=1, tensor_maps=True))


def on(machine: Cuda = PLAIN, edit: Callable[[str], str] = str) -> EmulatedCuda:
    """An emulator whose warps take turns in a random order."""
    return EmulatedCuda(machine, seed=3, edit=edit)


def softmax(rows: int, width: int, blocks: int) -> Graph:
    """Rows of few numbers, which runs of one load reach across."""
    kernel, (x,) = program(((rows, width), DType.FP32))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    powers = block.add("exp", block.iterator(0, kernel.tensor(x), (0,), None))
    total = block.add("sum", powers, dim=1, size=width)
    saved = block.add("output_saver", block.add("div", powers, total), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), [x])))


def doubled(rows: int, width: int, blocks: int, dtype: DType = DType.FP32) -> Graph:
    """Rows and nothing else, one run of numbers behind another."""
    kernel, (x,) = program(((rows, width), dtype))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,))
    inside = block.iterator(0, kernel.tensor(x), (0,), None)
    saved = block.add("output_saver", block.add("add", inside, inside), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), [x])))


def linear(rows: int, inner: int, columns: int, grid: tuple[int, int], loop: int, dtype: DType) -> Graph:
    """Rows times a matrix, and an epilogue that reads them again."""
    kernel, values = program(((rows, inner), dtype), ((inner, columns), dtype), ((rows, columns), dtype))
    block = GraphBuilder(Level.BLOCK, grid=grid, loop=loop)
    x = block.iterator(0, kernel.tensor(values[0]), (0, None), 1)
    w = block.iterator(1, kernel.tensor(values[1]), (None, 1), 0)
    bias = block.iterator(2, kernel.tensor(values[2]), (0, 1), None)
    total = block.add("accumulate", block.add("matmul", x, w), combine="sum")
    saved = block.add("output_saver", block.add("mul", total, bias), omap=(0, 1))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), values)))


def attended(rows: int, blocks: int) -> Graph:
    """Attention of rows to keys that all of them have."""
    kernel, values = program(((rows, 64), DType.FP16), ((128, 64), DType.FP16), ((128, 64), DType.FP16))
    block = GraphBuilder(Level.BLOCK, grid=(blocks,), loop=2)
    q = block.iterator(0, kernel.tensor(values[0]), (0,), None)
    k, v = (block.iterator(number, kernel.tensor(values[number]), (None,), 0) for number in (1, 2))
    scores = block.add("matmul", q, block.add("transpose", k, permutation=(1, 0)))
    largest = block.add("max", scores, dim=1, size=64, least=LEAST)
    weights = block.add("exp", block.add("sub", scores, largest))
    mixed = block.add("accumulate_rescaled", block.add("matmul", weights, v), largest)
    total = block.add("accumulate_rescaled", block.add("sum", weights, dim=1, size=64), largest)
    saved = block.add("output_saver", block.add("div", mixed, total), omap=(0,))
    return kernel.build(list(kernel.graph_defined(block.build([saved]), values)))


def sliced(graph: Graph, machine: EmulatedCuda, dims: tuple[int | None, ...]) -> tuple[Executable, SlicedKernels]:
    """A graph's kernels, and those for its first slices, which are in these dimensions of the inputs."""
    executable = Executable(graph, machine)
    number, dim = next((number, dim) for number, dim in enumerate(dims) if dim is not None)
    capacity = graph.inputs()[number].output.shape[dim]
    return executable, SlicedKernels(executable, dims, (dims[0],) * len(graph.outputs), capacity)


CASES: dict[str, tuple[Graph, Cuda, tuple[int | None, ...]]] = {
    "every block has all rows": (norm_linear(24, (1, 2)), PLAIN, (0, None)),
    "a grid along rows": (norm_linear(24, (3, 1)), PLAIN, (0, None)),
    "a grid along both": (norm_linear(20, (2, 5)), PLAIN, (0, None)),
    "rows one by one": (norm_linear(12, (12, 1)), PLAIN, (0, None)),
    "a prime number of rows": (norm_linear(13, (1, 1)), PLAIN, (0, None)),
    "bf16": (norm_linear(24, (2, 1), DType.BF16), PLAIN, (0, None)),
    "dot products of bf16": (dot_products(7, DType.BF16), PLAIN, (0, None)),
    "runs across rows": (softmax(24, 7, 2), PLAIN, (0,)),
    "a run of several rows": (doubled(24, 2, 3), PLAIN, (0,)),
    "rows of a single byte": (doubled(24, 1, 1, DType.INT8), PLAIN, (0,)),
    "a table that is cut as rows are": (added(24, 3), PLAIN, (0, None)),
    "two kernels": (two_kernels(12), EARLY, (1, None)),
    "parts of k": (split_k(6), EARLY, (0, None)),
    "halves beside each other": (turned(8, 2), PLAIN, (0, None)),
    "heads of a sample": (heads(6, 6), PLAIN, (0, 0, 0)),
    "heads of several samples": (heads(6, 2), PLAIN, (0, 0, 0)),
    "a part of a sample": (heads(6, 12), PLAIN, (0, 0, 0)),
    "an epilogue in registers": (linear(40, 128, 96, (1, 2), 2, DType.FP16), PLAIN, (0, None, 0)),
    "bulk copies": (linear(40, 128, 96, (2, 1), 2, DType.FP16), BULK, (0, None, 0)),
    "tensor maps": (linear(40, 128, 64, (2, 1), 2, DType.BF16), MAPS, (0, None, 0)),
    "warp groups": (linear(128, 128, 64, (2, 1), 2, DType.BF16), GROUPED, (0, None, 0)),
    "a warp that copies": (gated(), GROUPS, (0, None, None)),
    "scores in registers": (attended(128, 2), PLAIN, (0, None, None)),
}


@pytest.mark.parametrize("name", CASES)
def test_first_slices_have_the_bits_of_all(name: str) -> None:
    """At corners of sizes, with NaN behind the inputs; the emulator reports what is read or written behind them."""
    graph, target, dims = CASES[name]
    machine = on(target)
    executable, kernels = sliced(graph, machine, dims)
    example = example_inputs(graph)
    exact = evaluate(graph, [tensor.double().numpy() for tensor in example], FloatArithmetic())
    for made, wanted in zip(executable(*example), exact, strict=True):
        tolerance = ERRORS.get(graph.output_tensors[0].dtype, 0.0) * float(np.abs(wanted).max())
        np.testing.assert_allclose(made.double().numpy(), wanted, rtol=0, atol=2 * tolerance)
    assert kernels.agree_with(executable, example)
    assert machine.findings == []


def _kernels(name: str) -> list[Kernel]:
    graph, target, dims = CASES[name]
    _, kernels = sliced(graph, on(target), dims)
    return [launch.kernel for launch in kernels.launches.values()]


FORMS: dict[str, tuple[str, Callable[[Kernel], bool]]] = {
    "asynchronous copies by threads": ("a grid along rows", lambda kernel: kernel.ring is not None and not kernel.ring.bulk),
    "bulk copies": ("bulk copies", lambda kernel: kernel.ring is not None and kernel.ring.bulk and not tensor_maps(kernel)),
    "tensor maps": ("tensor maps", lambda kernel: bool(tensor_maps(kernel)) and not uses_warp_groups(kernel)),
    "warp groups": ("warp groups", lambda kernel: uses_warp_groups(kernel) and bool(tensor_maps(kernel))),
    "a warp that copies": ("a warp that copies", lambda kernel: kernel.ring is not None and kernel.ring.producer),
    "epilogues in registers": (
        "an epilogue in registers",
        lambda kernel: any(buffer.memory is Memory.REGISTERS for buffer in kernel.buffers),
    ),
    "scores in registers": ("scores in registers", holds_rows),
    "early launches": ("two kernels", lambda kernel: kernel.chained),
    "elements one by one": ("a prime number of rows", lambda kernel: kernel.slices is not None and kernel.slices.is_ragged),
}


@pytest.mark.parametrize("form", FORMS)
def test_kernels_have_the_forms_that_they_are_tried_for(form: str) -> None:
    name, has = FORMS[form]
    assert any(map(has, _kernels(name)))


RAGGED = [name for name in CASES if name not in ("rows one by one", "heads of a sample", "a part of a sample")]


def test_blocks_of_whole_slices_need_no_masks() -> None:
    for name in CASES:
        masked = any(kernel.slices is not None and kernel.slices.is_ragged for kernel in _kernels(name))
        assert masked == (name in RAGGED), name


def without_masks(names: str) -> Callable[[str], str]:
    """An edit of a text that says of operands, as a pattern, that their memory ends far behind."""
    return lambda text: re.sub(rf"(const \w+ \*const ({names})_end = [^;]*);", r"\1 + 1000000;", text)


@pytest.mark.parametrize("side", ["in", "out"])
@pytest.mark.parametrize("name", RAGGED)
def test_masks_that_are_missing_are_seen(name: str, side: str) -> None:
    """Without those of loads something is read behind the last slice, without those of stores something is written."""
    graph, target, dims = CASES[name]
    if side == "in" and target.engines.tensor_maps:
        pytest.skip("boxes are cut by their maps, which is planted below")
    machine = on(target, without_masks(rf"{side}\d"))
    _, kernels = sliced(graph, machine, dims)
    kernels(*kernels.first(kernels.capacity - 1, example_inputs(graph)))
    found = {finding.place.split()[0] for finding in machine.findings if finding.fault is Fault.OUT_OF_BOUNDS}
    assert {"in": "input", "out": "output"}[side] in found


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["tensor maps", "warp groups", "a warp that copies"])
def test_maps_that_are_too_large_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, target, dims = CASES[name]
    machine = on(target)
    _, kernels = sliced(graph, machine, dims)
    monkeypatch.setattr("mugraph.targets.launch.LaunchShape.map_of", lambda shape, number, slices: shape.maps[number][1])
    kernels(*kernels.first(kernels.capacity - 1, example_inputs(graph)))
    assert any(finding.fault is Fault.OUT_OF_BOUNDS and finding.place.startswith("input") for finding in machine.findings)


def test_a_launch_has_the_blocks_that_begin_before_the_last_row() -> None:
    (kernel,) = _kernels("a grid along both")  # 2 blocks of 10 rows times 5 of columns
    shape = launch_shape(kernel)
    assert [shape.of_slices(count).grid for count in (1, 10, 11, 20)] == [(5,), (5,), (10,), (10,)]
    (kernel,) = _kernels("every block has all rows")
    assert {launch_shape(kernel).of_slices(count).grid for count in (1, 24)} == {(2,)}
    (kernel,) = _kernels("tensor maps")
    rows = [matrix.rows for _, matrix in launch_shape(kernel).of_slices(21).maps]
    assert sorted(rows) == [21, 128]  # those of x, and all of the matrix


@pytest.mark.parametrize("bands", [Bands(0, 2), Bands(0, 3), Bands(1, 2)])
def test_blocks_may_run_in_bands(bands: Bands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks that are launched, not of all."""
    monkeypatch.setattr("mugraph.lower.pipeline.with_block_order", lambda kernel, *memory: replace(kernel, bands=bands))
    graph, machine = norm_linear(35, (7, 5)), on()
    executable, kernels = sliced(graph, machine, (0, None))
    assert all(launch.kernel.bands == bands for launch in kernels.launches.values())
    assert kernels.agree_with(executable, example_inputs(graph))
    assert machine.findings == []


@pytest.mark.parametrize("seed", [23, 144, 549, 2202])
def test_random_mugraphs_agree(seed: int) -> None:
    """Those that can stop compute what all of them does."""
    graph, places, capacity = drawn(seed)
    machine = on(replace(PLAIN, engines=Engines(bulk_row_bytes=32, early_launches=True)))
    executable = Executable(graph, machine)
    kernels = SlicedKernels(executable, places, (0,) * len(graph.outputs), capacity)
    assert kernels.agree_with(executable, example_inputs(graph))
    assert machine.findings == []


def test_copies_of_several_slices_at_once_are_refused() -> None:
    (kernel,) = _kernels("a grid along rows")
    assert kernel.slices is not None
    odd = replace(kernel.slices, sizes=tuple((name, 47 if name == "in0" else size) for name, size in kernel.slices.sizes))
    with pytest.raises(UnsupportedOperator, match="copies of in0 may have elements of several slices"):
        Cuda("sm_90", 100_000).print([replace(kernel, slices=odd)])
    (kernel,) = _kernels("tensor maps")
    assert kernel.slices is not None
    odd = replace(kernel.slices, sizes=tuple((name, 192 if name == "in0" else size) for name, size in kernel.slices.sizes))
    with pytest.raises(UnsupportedOperator, match="copies of in0"):
        Cuda("sm_90", 100_000).print([replace(kernel, slices=odd)])


def test_what_is_not_computed_slice_by_slice_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="one by one"):
        sliced(turned(8, 2, mixed=True), on(), (0, None))
    with pytest.raises(UnsupportedOperator, match="one by one"):
        sliced(split_k(6, mixed=True), on(), (0, None))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_kernels_compile_without_spills(architecture: str) -> None:
    pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC")
    for name in (*("a grid along both", "runs across rows", "two kernels"), *FORMS.keys() & CASES.keys()):
        graph, target, dims = CASES[name]
        engines = replace(target.engines, warp_group_rows=0 if architecture == "sm_100" else target.engines.warp_group_rows)
        machine = replace(target, architecture=architecture, engines=Engines() if architecture == "sm_80" else engines)
        _, kernels = sliced(graph, EmulatedCuda(machine), dims)
        cubin = compile_cubin(kernels.sources[SOURCE_NAME], architecture)
        assert {made.spill_bytes for made in cubin.resources.values()} == {0}
