"""Printed kernels run where their GPU is not: sound ones pass at full size, and a fault in the text is not handed out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import mugraph
from lower.graphs import attention, rms_norm_linear
from lower.test_device_layouts import chain
from mugraph.cli import main
from mugraph.cli.output import print_result
from mugraph.devices import device_for
from mugraph.errors import MugraphError, TargetUnavailable
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.arithmetic import Array
from mugraph.ir.evaluate import block_slices, evaluate, evaluate_block
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import construct
from mugraph.lower.lower import DimensionOrder
from mugraph.results.data import SpotCheck
from mugraph.results.summary import spot_check_text
from mugraph.runtime import Executable, build
from mugraph.search import search
from mugraph.selection import emulated_blocks
from mugraph.selection.block_errors import BlockErrors
from mugraph.selection.emulated_blocks import _chosen, _places_text, spot_check
from mugraph.support import deadline
from mugraph.support.deadline import Deadline
from mugraph.support.store import Store
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import toolchain
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import SOURCE_NAME
from mugraph.targets.machine import Machine
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import Triton
from mugraph.testing.kernel_faults import plants
from mugraph.verifier import block_samples
from mugraph.verifier.float_report import TOLERANCES
from runtime.block_graphs import many_kernels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

Edit = Callable[[str], str]
ON_CUDA, ON_TRITON = "cuda:sm_90", "triton:sm_90"


class UncompiledCuda(Cuda):
    """What prints and is imitated as Cuda, without a compiler for the GPU."""

    def load(self, *_: object) -> dict[str, Callable[..., None]]:
        return {}


class UncompiledTriton(Triton):
    """The same for Triton."""

    def load(self, *_: object) -> dict[str, Callable[..., None]]:
        return {}


def executable(graph: Graph, target: str = ON_CUDA) -> Executable:
    device = device_for(ON_CUDA)
    if target == ON_CUDA:
        return Executable(construct(graph), UncompiledCuda("sm_90", device.shared_memory_bytes, engines=device.engines))
    pytest.importorskip("triton", reason="the interpreter is Triton's; pip install 'mugraph[triton]'")
    return Executable(construct(graph), UncompiledTriton("sm_90", device.shared_memory_bytes))


def checked(graph: Graph, target: str = ON_CUDA) -> SpotCheck:
    found = spot_check(executable(graph, target))
    assert found is not None
    return found


def plant(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Change every text between its printing and its run, on either emulator."""
    monkeypatch.setattr(EmulatedCuda, "of", lambda machine: EmulatedCuda(machine, seed=1, edit=edit))
    monkeypatch.setattr(InterpretedTriton, "of", lambda machine: InterpretedTriton(machine, edit=edit))


def replaced(pattern: str, replacement: str) -> Edit:
    def edit(text: str) -> str:
        changed, count = re.subn(pattern, replacement, text)
        assert count > 0, pattern
        return changed

    return edit


def constant(text: str, _: str) -> str:
    return text


# --- sound kernels -----------------------------------------------------------------------------------------------------


def check_workload(name: str, dtype: DType, target: str, candidates: int) -> None:
    inputs = WORKLOADS[name].inputs(8, dtype, "full")
    found = search(trace(WORKLOADS[name].function(), inputs).graph, device_for(target)).candidates[:candidates]
    assert found
    for candidate in found:
        result = checked(candidate.graph, target)
        assert not result.fault
        assert not result.missed
        assert result.largest_error is not None
        assert 0 < result.largest_error < TOLERANCES[dtype]
        kernels = sum(node.body is not None for node in candidate.graph.kernels())
        assert result.blocks >= result.ran >= 2 * kernels


@pytest.mark.parametrize("target", [ON_CUDA, ON_TRITON])
def test_the_best_kernels_of_a_workload_at_full_size_pass(target: str) -> None:
    check_workload("rmsnorm", DType.BF16, target, candidates=1)


@pytest.mark.slow
@pytest.mark.parametrize("target", [ON_CUDA, ON_TRITON])
@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.FP32])
@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_of_all_workloads_at_full_size_pass(name: str, dtype: DType, target: str) -> None:
    check_workload(name, dtype, target, candidates=3)


@pytest.mark.parametrize("target", [ON_CUDA, ON_TRITON])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_kernels_pass(seed: int, target: str) -> None:
    result = checked(many_kernels(seed, 4, DType.FP32), target)
    assert not result.fault
    assert not result.missed


@pytest.mark.parametrize("target", [ON_CUDA, ON_TRITON])
def test_kernels_of_tensors_without_dimensions_pass(target: str) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=())
    number = block.iterator(0, kernel.tensor(x), (), None)
    result = block.add("mul", block.add("exp", number), block.constant(2, DType.FP16))
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=())]), [x]))
    assert not checked(graph, target).fault


@pytest.mark.parametrize("types", [(DType.FP32, DType.FP16), (DType.FP16, DType.FP32), (DType.BF16, DType.FP16)])
@pytest.mark.parametrize("target", [ON_CUDA, ON_TRITON])
def test_results_of_a_kernel_are_each_read_as_their_own_type(types: tuple[DType, DType], target: str) -> None:
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (8, 16), types[0])
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    rows = block.iterator(0, kernel.tensor(x), (0,), None)
    made = block.add("exp", rows), block.add("cast", rows, dtype=types[1])
    saved = [block.add("output_saver", each, omap=(0,)) for each in made]
    result = checked(kernel.build(list(kernel.graph_defined(block.build(saved), [x]))), target)
    assert not result.fault
    assert result.largest_error is not None


def test_tensors_between_kernels_are_read_and_written_in_the_order_they_lie_in(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(transposed=True)
    launches = executable(graph).launches.values()
    assert [len(launch.orders) for launch in launches] == [1, 1]
    assert not checked(graph).fault
    monkeypatch.setattr(DimensionOrder, "stored", lambda self, elements: elements.reshape(-1))
    assert "errs in block" in checked(graph).fault


def test_orders_of_dimensions_are_undone() -> None:
    order, elements = DimensionOrder((2, 3, 4), (2, 0, 1)), np.arange(24)
    stored = order.stored(elements)
    assert stored.tolist() == elements.reshape(2, 3, 4).transpose(2, 0, 1).reshape(-1).tolist()
    assert order.restored(stored).tolist() == elements.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_blocks_make_their_slices_of_the_outputs(seed: int) -> None:
    graph = many_kernels(seed, 1, DType.FP64)
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(node.output.shape) for node in graph.inputs()]
    (index,) = (index for index, node in enumerate(graph.nodes) if node.body is not None)
    node, body = graph.nodes[index], graph.nodes[index].body
    assert body is not None
    whole = evaluate(replace(graph, outputs=tuple(Value(index, n) for n in range(len(node.outputs)))), inputs, FloatArithmetic())
    places = [index for index, node in enumerate(graph.nodes) if node.op == "input"]
    operands = [inputs[places.index(value.node)] for value in node.inputs]
    for block in np.ndindex(*body.grid):
        for number, made in enumerate(evaluate_block(body, block, operands, FloatArithmetic())):
            np.testing.assert_array_equal(whole[number][block_slices(body, number, block, node.outputs[number].shape)], made)


# --- faults ------------------------------------------------------------------------------------------------------------

RMS_NORM = rms_norm_linear(rows=8, inner=4096, columns=4096, grid=128, loop=4, dtype=DType.BF16)
ATTENTION = attention(queries=32, keys=4096, width=64, loop=64, dtype=DType.BF16)


@pytest.mark.parametrize(
    ("graph", "kinds"),
    [(RMS_NORM, {"barrier", "wait", "layout", "swizzle"}), (ATTENTION, {"overlap"})],
    ids=["rms_norm", "attention"],
)
def test_planted_faults_are_noticed_at_full_size(graph: Graph, kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    built = executable(graph)
    by_kind: dict[str, list[str]] = {}
    for each in plants([launch.kernel for launch in built.launches.values()], built.sources[SOURCE_NAME]):
        by_kind.setdefault(each.kind, []).append(each.text)
    for kind in kinds:
        for text in (by_kind[kind][0], by_kind[kind][-1]):
            plant(monkeypatch, partial(constant, text))
            result = spot_check(built)
            assert result is not None
            assert result.fault, kind


CUDA_FAULTS = {
    "a dropped store": (r"store_run<\w+, 2>\(x0 [^;]*;", "", "leaves 256 of its elements of output 0 unwritten|never written"),
    "a store for some threads": (
        r"(store_run<\w+, 2>\(x0 )",
        r"if (n < 24) \1",
        "leaves 64 of its elements of output 0 unwritten",
    ),
    "the next block's part": (r"out0 \+ 32 \* g0", "out0 + 32 * (g0 ^ 1)", "leaves 256 of its elements of output 0 unwritten"),
    "a part of the next block too": (
        r"(store_run<\w+, 2>\(x0 [^;]*;)",
        r"\1 if (g0 == 0 && m == 0 && n < 16) x0[32 + n] = {0};",
        "8 elements of output 0 that belong",
    ),
    "columns of another block": (r"\(int\)\(32 \* g0\)", "(int)(64 * (g0 % 64))", "errs in block 127 by"),
    "a wrong stride": (r"4096 \* \(long\)row", "4095 * (long)row", "misaligned|not aligned"),
    "an iteration too few": (r"l < 4; \+\+l", "l < 3; ++l", "an asynchronous copy|still being copied"),
    "no barrier": (r"__syncthreads\(\);", "", "with no barrier between them|reads what nobody"),
}


@pytest.mark.parametrize("fault", CUDA_FAULTS)
def test_faults_of_cuda_are_named(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    pattern, replacement, reason = CUDA_FAULTS[fault]
    plant(monkeypatch, replaced(pattern, replacement))
    found = checked(RMS_NORM).fault
    assert re.search(reason, found)
    assert found.startswith("kernel_3")


TRITON_FAULTS = {
    "a name that means two things": (r"(W_2 = )", r"X_0 = \1", "rejected kernel_3"),
    "a number overwritten by another": (r"( +)(square_3 = )", r"\1G_1 = i1024\n\1\2", "errs in block 0 by"),
    "a dropped store": (r"tl\.store\(", "(lambda *_: None)(", "rejected kernel_3|unwritten"),
    "the next block's part": (
        r"t3_ptr \+ 32 \* g0",
        "t3_ptr + 32 * (g0 ^ 1)",
        "leaves 256 of its elements of output 0 unwritten",
    ),
    "columns of another block": (r"W_ptr \+ 32 \* g0", "W_ptr + 64 * (g0 % 64)", "errs in block 127 by"),
    "a wrong stride": (r"(t3_ptr .*)\* 4096", r"\1* 4095", "unwritten"),
    "an iteration too few": (r"tl\.range\(4,", "tl.range(3,", "errs in block 0 by"),
    "a store behind the end": (r"t3_ptr \+ 32 \* g0", "t3_ptr + 33 * g0", "writes outside|unwritten"),
}


@pytest.mark.parametrize("fault", TRITON_FAULTS)
def test_faults_of_triton_are_named(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    pattern, replacement, reason = TRITON_FAULTS[fault]
    plant(monkeypatch, replaced(pattern, replacement))
    assert re.search(reason, checked(RMS_NORM, ON_TRITON).fault)


# --- faults that standard normal inputs do not show ---------------------------------------------------------------------

SMALL = partial(rms_norm_linear, rows=8, inner=256, columns=64, grid=2, loop=4)
FACTOR = r"y\[v\] = (v3);\n( *\}\n *store_run<[a-z0-9]+_t, 2>\(target)"
"""The computed factor of a normalization, x * g, as it is stored."""
CASTS = {
    "to fewer bits than small numbers need": (DType.FP16, r"to_float(from_float<fp16_t>(\1))", "at input scale 0.001: kernel_3"),
    "that saturates": (
        DType.BF16,
        r"(\1 > 65504.0f ? 65504.0f : \1 < -65504.0f ? -65504.0f : \1)",
        "at input scale 1000: kernel_3",
    ),
}


@pytest.mark.parametrize("cast", CASTS)
def test_casts_that_spoil_small_or_large_numbers_alone_are_found(monkeypatch: pytest.MonkeyPatch, cast: str) -> None:
    dtype, stored, where = CASTS[cast]
    sound = checked(SMALL(dtype=dtype))
    assert not sound.fault
    assert sound.scales == (1.0, 1e-3, 1e3) if dtype is DType.BF16 else sound.scales[:2] == (1.0, 1e-3)
    plant(monkeypatch, replaced(FACTOR, rf"y[v] = {stored};\n\2"))
    found = checked(SMALL(dtype=dtype)).fault
    assert found.startswith(f"{where}: output 0 errs in block ")
    monkeypatch.setattr(emulated_blocks, "_KINDS_OF_INPUTS", emulated_blocks._KINDS_OF_INPUTS[:1])
    passed = checked(SMALL(dtype=dtype))
    assert (passed.fault, passed.scales) == ("", (1.0,))


def rows_of_all_sizes() -> Graph:
    """x * exp(v) with one v for each of 64 rows."""
    kernel = GraphBuilder(Level.KERNEL)
    x, v = kernel.input("x", (64, 64), DType.FP16), kernel.input("v", (64, 1), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    rows, sizes = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate((x, v)))
    saved = block.add("output_saver", block.add("mul", rows, block.add("exp", sizes)), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), [x, v]))


def test_rows_of_small_results_are_judged_by_their_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not checked(rows_of_all_sizes()).fault
    plant(monkeypatch, replaced(r"y\[v\] = (v\d+);", r"y[v] = \1 + 0.015625f;"))
    assert "of the largest value of a line" in checked(rows_of_all_sizes()).fault


EXACT_ROWS = np.outer([1.0, 0.01], np.linspace(0.5, 1.0, 16))
SPOILED = EXACT_ROWS + np.outer([0.0, 0.001], np.ones(16))


@pytest.mark.parametrize(
    ("results", "theirs", "columns", "fault"),
    [
        (SPOILED, EXACT_ROWS, 16, "0.1 of the largest value of a line, its stand-in by 0"),
        (SPOILED, EXACT_ROWS, 15, ""),
        (SPOILED, EXACT_ROWS + 0.2 * (SPOILED - EXACT_ROWS), 16, ""),
        (EXACT_ROWS + 0.01, EXACT_ROWS, 16, "0.01 of its largest value, its stand-in by 0"),
        (np.full_like(EXACT_ROWS, np.nan), EXACT_ROWS, 16, "inf of its largest value, its stand-in by 0"),
        (np.full_like(EXACT_ROWS, np.nan), np.full_like(EXACT_ROWS, np.inf), 16, ""),
    ],
    ids=["a small row", "a short one", "the stand-in alike", "all of it", "no numbers", "no numbers in the stand-in"],
)
def test_lines_that_are_long_enough_are_judged_beside_the_whole(results: Array, theirs: Array, columns: int, fault: str) -> None:
    exact, made, own = (array[:, :columns] for array in (EXACT_ROWS, results, theirs))
    errors = BlockErrors.of(exact, made, own, DType.FP16, 1.0, TOLERANCES[DType.FP16])
    assert errors.fault == fault


def test_lines_far_below_the_largest_value_are_not_judged_alone() -> None:
    errors = BlockErrors.of(EXACT_ROWS[1:], SPOILED[1:], EXACT_ROWS[1:], DType.FP16, 100.0, TOLERANCES[DType.FP16])
    assert errors.fault == ""


def reciprocal_products() -> Graph:
    """1 / (x @ w) in fp32: where the terms of a sum cancel, its rounding errors are a larger part of it."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (32, 256), DType.FP32), kernel.input("w", (256, 64), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,), loop=4)
    product = block.add("matmul", block.iterator(0, kernel.tensor(x), (None,), 1), block.iterator(1, kernel.tensor(w), (1,), 0))
    total = block.add("accumulate", product, combine="sum")
    made = block.add("div", block.constant(1, DType.FP32), total)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", made, omap=(1,))]), [x, w]))


def exact_runner(stand_in: Executable) -> Callable[..., list[Array]]:
    """A stand-in that errs by nothing but rounding its results."""

    def run(*arrays: Array) -> list[Array]:
        wide: list[Array] = [np.asarray(array, np.float64) for array in arrays]
        return [np.asarray(result, np.float32) for result in evaluate(stand_in.graph, wide, FloatArithmetic())]

    return run


def test_a_stand_in_that_is_near_by_chance_does_not_make_a_kernel_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_blocks, "runner", exact_runner)
    found = checked(reciprocal_products())
    assert (found.fault, found.scales) == ("", (1.0, 1e-3, 1e3))
    with monkeypatch.context() as without:
        without.setattr(emulated_blocks, "_NUDGES", 0)
        assert "errs in block" in checked(reciprocal_products()).fault
    plant(monkeypatch, replaced(r"y\[v\] = (v\d+);", r"y[v] = \1 * 1.001f;"))
    assert "errs in block" in checked(reciprocal_products()).fault


def test_results_that_no_type_can_hold_are_not_compared() -> None:
    """exp of fp16 numbers up to about 6, squared twice: beyond 65504."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (64, 256), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    tile = block.add("exp", block.iterator(0, kernel.tensor(x), (0,), None))
    for _ in range(3):
        tile = block.add("square", tile)
    graph = kernel.build(kernel.graph_defined(block.build([block.add("output_saver", tile, omap=(0,))]), [x]))
    result = checked(graph)
    assert not result.fault
    assert result.largest_error is not None
    assert result.largest_error < 1e-3


def divided_by_roots(x_shape: tuple[int, ...], *, of_differences: bool = False) -> Graph:
    """x / sqrt(v) of a whole row at once, where v is an input or, `of_differences`, v - x."""
    kernel = GraphBuilder(Level.KERNEL)
    x, v = (kernel.input(name, x_shape, DType.FP32) for name in "xv")
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    x_tile, v_tile = (block.iterator(number, kernel.tensor(value), (0,), None) for number, value in enumerate((x, v)))
    under = block.add("sub", v_tile, x_tile) if of_differences else v_tile
    rows = block.add("sum", block.add("div", x_tile, block.add("sqrt", under)), dim=1, size=x_shape[1])
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", rows, omap=(0,))]), [x, v]))


def test_results_are_finite_where_roots_are_taken_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = checked(divided_by_roots((64, 256)))
    assert not result.missed
    assert result.largest_error is not None
    assert 0 < result.largest_error < TOLERANCES[DType.FP32]
    plant(monkeypatch, replaced(r"sqrtf?\(", "1.5f + ("))
    assert "errs in block" in checked(divided_by_roots((64, 256))).fault


def test_what_has_no_finite_value_is_not_called_right() -> None:
    result = checked(divided_by_roots((64, 256), of_differences=True))
    assert result.ran > 0
    assert result.largest_error is None
    assert "no finite value" in result.missed
    assert "nothing was compared" in spot_check_text(result)


# --- blocks of kernels of which a host cannot compute all ---------------------------------------------------------------

GRID = (6, 8)


def product_in_blocks() -> tuple[Graph, Graph]:
    """tanh(x) @ w as a program, and as one kernel of 6 x 8 blocks."""
    written = mugraph.Program()
    x, w = written.input("x", (96, 64), "fp16"), written.input("w", (64, 256), "fp16")
    written.output(x.tanh() @ w)
    kernel = GraphBuilder(Level.KERNEL)
    left, right = kernel.input("x", (96, 64), DType.FP16), kernel.input("w", (64, 256), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=GRID, loop=2)
    rows = block.add("tanh", block.iterator(0, kernel.tensor(left), (0, None), 1))
    columns = block.iterator(1, kernel.tensor(right), (None, 1), 0)
    made = block.add("accumulate", block.add("matmul", rows, columns), combine="sum")
    saved = block.add("output_saver", made, omap=(0, 1))
    return written.graph, kernel.build(kernel.graph_defined(block.build([saved]), [left, right]))


def checked_in_part(monkeypatch: pytest.MonkeyPatch) -> SpotCheck:
    """What is found of the kernel where the host's stand-in computes what is needed alone."""
    monkeypatch.setattr(block_samples, "_WHOLE", 0.0)
    program, graph = product_in_blocks()
    found = spot_check(executable(graph), program=program)
    assert found is not None
    return found


def test_blocks_are_chosen_in_corners_inside_and_of_either_parity() -> None:
    for seed in range(20):
        places = [tuple(map(int, np.unravel_index(block, GRID))) for block in _chosen(GRID, seed)]
        assert len(places) == len({*places}) == 8
        assert places[:2] == [(0, 0), (5, 7)]
        assert {(0, 0), (0, 7), (5, 0), (5, 7)} <= {*places}
        assert [(row % 2, column % 2) for row, column in places[2:4]] == [(1, 1), (0, 0)]
        for grid in (GRID, (4, 4), (5, 4, 6)):
            for block in _chosen(grid, seed)[2:4]:
                assert all(0 < place < count - 1 for place, count in zip(np.unravel_index(block, grid), grid, strict=True))
    assert _chosen((), 0) == _chosen((1,), 0) == [0]
    assert sorted(_chosen((3,), 0)) == [0, 1, 2]


def test_it_is_said_in_words_which_blocks_were_run() -> None:
    assert _places_text([0, 47, 9], GRID) == "at (0, 0), (5, 7), (1, 1) of 6 x 8"
    assert _places_text([0, 7], (8,)) == "at 0, 7 of 8"
    assert _places_text([0], ()) == _places_text([0], (1, 1)) == "in its one block"


def test_what_the_stand_in_computes_is_what_the_blocks_need(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[int, ...]] = []

    class Seen(Executable):
        def __init__(self, graph: Graph, machine: Machine) -> None:
            computed.append(graph.output_tensors[0].shape)
            super().__init__(graph, machine)

    monkeypatch.setattr(emulated_blocks, "Executable", Seen)
    found = checked_in_part(monkeypatch)
    assert not found.fault
    assert not found.missed
    assert found.ran == 8
    assert found.where.startswith("kernel_2 at (0, 0), (5, 7), (")
    assert found.where.endswith(") of 6 x 8")
    assert found.largest_error is not None
    assert 0 < found.largest_error < TOLERANCES[DType.FP16]
    ((rows, columns),) = computed
    assert rows <= 96
    assert columns < 256


FAULTY_BLOCKS = {
    "all": "true",
    "the first": "g0 == 0 && g1 == 0",
    "the last": "g0 == 5 && g1 == 7",
    "the last of the first row": "g0 == 0 && g1 == 7",
    "the last row": "g0 == 5",
    "the first column": "g1 == 0",
    "all inside": "g0 > 0 && g0 < 5 && g1 > 0 && g1 < 7",
    "every other": "g1 % 2 == 1",
    "the other every other": "g0 % 2 == 0",
}


def only_in(blocks: str) -> Edit:
    """A number too much in the results of some blocks."""
    return replaced(r"(y\[h % 2\] = s1_held\[i\]\[j\]\[h\])", rf"\1 + ({blocks} ? 8.0f : 0.0f)")


@pytest.mark.parametrize("blocks", FAULTY_BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_faults_of_a_kind_of_blocks_are_found(monkeypatch: pytest.MonkeyPatch, blocks: str, seed: int) -> None:
    plant(monkeypatch, only_in(FAULTY_BLOCKS[blocks]))
    monkeypatch.setattr(block_samples, "_WHOLE", 0.0)
    program, graph = product_in_blocks()
    found = spot_check(executable(graph), seed, program=program)
    assert found is not None
    assert "errs in block" in found.fault


def test_a_fault_of_one_block_alone_is_found_where_that_one_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, found = _chosen(GRID, 0), set[int]()
    others = [block for block in range(GRID[0] * GRID[1]) if block not in chosen]
    for block in (*chosen, *others[::10]):
        plant(monkeypatch, only_in(f"8 * g0 + g1 == {block}"))
        if checked_in_part(monkeypatch).fault:
            found.add(block)
    assert found == {*chosen}


def test_what_is_read_of_other_blocks_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, replaced(r"in0 \+ ([0-9]+) \* g0", r"in0 + \1 * (g0 == 5 ? 4 : g0)"))
    assert "errs in block" in checked_in_part(monkeypatch).fault


# --- what is not run ---------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_report_says_that_nothing_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler() -> str:
        raise TargetUnavailable("no g++ here")

    monkeypatch.setattr(toolchain, "_compiler", no_compiler)
    result = checked(rms_norm_linear(rows=7, inner=48, columns=40, dtype=DType.FP16))
    assert (result.ran, result.largest_error, result.fault) == (0, None, "")
    assert spot_check_text(result) == "the printed kernels were not run on the CUDA emulator: no g++ here"


def test_blocks_that_would_take_long_are_not_begun() -> None:
    graph = rms_norm_linear(rows=64, inner=1 << 19, columns=64, grid=1, loop=1 << 13, dtype=DType.BF16)
    result = checked(graph)
    assert result.ran == 0
    assert re.fullmatch(r"kernel_3: one of its blocks would take about \d+ s with its tensors", result.missed)


def test_nothing_is_begun_when_the_budget_has_ended() -> None:
    result = spot_check(executable(rms_norm_linear(dtype=DType.FP16)), deadline=Deadline(0.0))
    assert result is not None
    assert (result.ran, result.missed) == (0, "the budget ended")


class Clock:
    """A clock that every look at it moves on by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("looks", "begun"), [(2, []), (4, ["_values"]), (7, ["_values"]), (9, ["_values", "run_blocks", "_exact"])]
)
def test_nothing_more_is_begun_once_the_budget_has_ended(monkeypatch: pytest.MonkeyPatch, looks: int, begun: list[str]) -> None:
    """Neither stand-ins, nor blocks, nor what they are compared with; of blocks that ran and are not compared nothing is said."""
    monkeypatch.setattr(deadline, "time", Clock())
    asked: list[str] = []

    def note(owner: object, name: str) -> None:
        function = getattr(owner, name)

        def noted(*arguments: object) -> object:
            asked.append(name)
            return function(*arguments)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in (
        (emulated_blocks._Check, "_values"),
        (EmulatedCuda, "run_blocks"),
        (emulated_blocks._Check, "_exact"),
        (emulated_blocks, "_block"),
    ):
        note(owner, name)
    result = spot_check(executable(rms_norm_linear(dtype=DType.FP16)), deadline=Deadline(float(looks), started=0.0))
    assert result is not None
    assert (result.fault, result.largest_error) == ("", None)
    assert (result.ran, result.where) == (0, "")
    assert result.missed.endswith("the budget ended")
    assert asked == begun


def test_targets_that_run_here_are_not_imitated() -> None:
    graph = rms_norm_linear()
    assert spot_check(build(construct(graph), "cpu")) is None
    assert spot_check(Executable(construct(graph), EmulatedCuda(Cuda("sm_90", 100_000)))) is None
    kernel = GraphBuilder(Level.KERNEL)
    alone = kernel.build([kernel.add("exp", kernel.input("x", (4, 8), DType.FP16))])
    assert spot_check(executable(alone)) is None


# --- what the user gets ------------------------------------------------------------------------------------------------


def program() -> mugraph.Program:
    p = mugraph.Program()
    x, w = p.input("x", (8, 64), "fp16"), p.input("w", (64, 128), "fp16")
    p.output((x / (x.square().mean(-1, keepdim=True) + 1.5)) @ w)
    return p


def test_a_candidate_whose_text_is_wrong_is_dropped_and_the_next_one_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = mugraph.superoptimize(program(), target=ON_CUDA)
    assert sound.found
    assert sound.best.spot_check is not None
    assert sound.best.spot_check.ran > 0
    wrong = sound.sources[SOURCE_NAME]
    plant(monkeypatch, lambda text: replaced(r"__syncthreads\(\);", "")(text) if text == wrong else text)
    opt = mugraph.superoptimize(program(), target=ON_CUDA)
    assert opt.found
    assert opt.sources[SOURCE_NAME] != wrong
    (dropped,) = (rejection for rejection in opt.report.rejected if rejection.stage == "text")
    assert dropped.cost == sound.best.cost
    assert re.match(r"kernel_\d+, line \d+: .*(no barrier between them|what nobody has written)", dropped.reason)


def test_a_program_that_takes_long_is_compared_in_part_saved_and_accepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(block_samples, "_WHOLE", 0.0)
    monkeypatch.setattr(block_samples, "_SAMPLED", 0.0)
    written = mugraph.Program()
    x, y, z = (written.input(name, (128, 128), "fp16") for name in "xyz")
    written.output(x @ z + y @ z)
    opt = mugraph.superoptimize(written, target=ON_CUDA)
    assert opt.found
    floats = opt.best.certificate.floats
    assert floats is not None
    assert ((0,), True) in [(each.outputs, each.blocks > each.chosen) for each in floats.blocks]
    assert opt.best.spot_check is not None
    assert not opt.best.spot_check.missed
    folder = opt.save(f"{tmp_path}/out")
    again = mugraph.load(folder).best.certificate.floats
    assert again is not None
    assert again.blocks == floats.blocks
    capsys.readouterr()
    assert main(["verify", "--certificate", str(folder)]) == 0
    assert "of some blocks of the outputs" in capsys.readouterr().out


def test_what_was_run_is_kept_and_what_was_not_is_made_up_for(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    store = Store(tmp_path)  # type: ignore[arg-type]
    with monkeypatch.context() as without:
        without.setattr(EmulatedCuda, "of", lambda machine: NoEmulator(machine))
        first = mugraph.superoptimize(program(), target=ON_CUDA, cache=store)
    assert first.best.spot_check is not None
    assert first.best.spot_check.missed == "not today"
    again = mugraph.superoptimize(program(), target=ON_CUDA, cache=store)
    assert again.report.recalled
    assert again.best.spot_check is not None
    assert again.best.spot_check.ran > 0
    assert not again.best.spot_check.missed


class NoEmulator(EmulatedCuda):
    """An emulator that cannot be built."""

    def prepare(self, sources: object) -> None:
        raise MugraphError("not today")


def test_the_evidence_is_saved_and_read_back(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    opt = mugraph.superoptimize(program(), target=ON_CUDA, progress=lambda event: told.append(event.text))
    assert "candidate 1, proof, and kernels on the CUDA emulator" in told
    assert opt.best.spot_check is not None
    folder = opt.save(f"{tmp_path}/out")
    assert mugraph.load(folder).best.spot_check == opt.best.spot_check
    record = json.loads((folder / "report.json").read_text())["best"]["spot_check"]
    assert record == opt.best.spot_check.to_json()
    text = spot_check_text(opt.best.spot_check)
    assert "blocks of the printed kernels (kernel_" in text
    assert "were run on the CUDA emulator, the first of them at input scales 0.001 and 1000 too: no fault" in text
    old = {name: value for name, value in record.items() if name not in ("where", "scales")}
    assert (SpotCheck.from_json(old).where, SpotCheck.from_json(old).scales) == ("", (1.0,))
    assert SpotCheck.from_json({**old, "ran": 0, "largest_error": None}).scales == ()
    assert opt.best.spot_check.scales == (1.0, 1e-3, 1e3)
    print_result(opt)
    assert "these are the errors of the same muGraph compiled for a CPU" in capsys.readouterr().out
    with pytest.raises(TypeError, match="ran"):
        SpotCheck.from_json({**record, "ran": "many"})
