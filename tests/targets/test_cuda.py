"""The CUDA printer: what the CPU target runs also runs as CUDA, without a fault, and compiles for every architecture."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
import torch

from lower.graphs import attention, normalised_scores, rms_norm_linear
from lower.test_pipeline import epilogue
from mugraph.devices import device_for
from mugraph.errors import UnsupportedOperator
from mugraph.frontend import trace
from mugraph.frontend.operators.torch_casts import DTYPES
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.lower import cooperative, lower
from mugraph.runtime import Executable
from mugraph.search import search
from mugraph.targets.cuda import print_program
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from pairwise import pairwise
from runtime.block_graphs import many_kernels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

ERRORS = {DType.FP32: 2e-6, DType.FP16: 2e-3, DType.BF16: 1.5e-2}
"""Largest error that rounding explains, relative to the largest result."""


def emulated(graph: Graph, machine: EmulatedCuda, seed: int = 0, scale: float = 1.0, lowered: Executable | None = None) -> float:
    """The largest error of a graph's kernels on the emulator, relative to float64; inputs are normal numbers times `scale`.

    The kernels are those of `lowered`, where it is given, with the machine's edit of their text.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = {ours: theirs for theirs, ours in DTYPES.items()}
    shapes = [(node.output.shape, kinds[node.output.dtype]) for node in graph.inputs()]
    inputs = [(scale * torch.randn(shape, generator=generator)).to(dtype) for shape, dtype in shapes]
    expected = evaluate(graph, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())
    lowered = Executable(graph, machine) if lowered is None else lowered
    results = Executable(graph, machine, lowered.sources, launches=lowered.launches)(*inputs)
    return max(_error(result.double().numpy(), exact) for result, exact in zip(results, expected, strict=True))


def _error(result: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(result - exact)) / max(float(np.max(np.abs(exact))), 1e-6))


def machine(shared_bytes: int = 100_000, seed: int = 0) -> EmulatedCuda:
    return EmulatedCuda(Cuda("sm_90", shared_bytes), seed)


SCHEDULES = {
    "odd sizes": lambda dtype: rms_norm_linear(rows=3, inner=30, columns=10, grid=1, loop=3, dtype=dtype),
    "loop and grid": lambda dtype: rms_norm_linear(rows=8, inner=256, columns=64, grid=2, loop=2, dtype=dtype),
    "no loop": lambda dtype: rms_norm_linear(rows=16, inner=128, columns=48, grid=3, loop=1, dtype=dtype),
    "many rows": lambda dtype: rms_norm_linear(rows=40, inner=64, columns=144, grid=2, loop=2, dtype=dtype),
    "online softmax": lambda dtype: attention(queries=16, keys=128, width=64, loop=4, dtype=dtype),
    "sums of another shape": lambda dtype: attention(queries=16, keys=128, width=64, loop=4, dtype=dtype, flat=True),
    "two heads a block": lambda dtype: attention(queries=16, keys=64, width=32, loop=2, dtype=dtype, grid=1),
    "keys read twice": lambda dtype: normalised_scores(queries=8, keys=192, width=48, loop=3, dtype=dtype),
    "narrow panels": lambda dtype: rms_norm_linear(rows=8, inner=512, columns=256, grid=1, loop=1, dtype=dtype),
    "parts of k": lambda dtype: rms_norm_linear(rows=1, inner=512, columns=64, grid=2, loop=2, dtype=dtype),
    "one query": lambda dtype: attention(queries=1, keys=96, width=32, loop=3, dtype=dtype),
}


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_kernels_are_right_and_clean(schedule: str, dtype: DType) -> None:
    on = machine()
    assert emulated(SCHEDULES[schedule](dtype), on) < ERRORS[dtype]
    assert on.findings == []


@pairwise(
    read=[("bias", 1), ("bias", 4), ("gate", 4), ("both", 4)],
    sizes=[(16, 64), (5, 46), (3, 62), (40, 144)],
    turned=[False, True],
    dtype=[DType.FP16, DType.BF16],
)
def test_epilogues_write_every_element_once(read: tuple[str, int], sizes: tuple[int, int], turned: bool, dtype: DType) -> None:
    """Rows and columns beyond the target are not written, odd numbers of columns and columns of an output one by one."""
    on, (reader, loop) = machine(), read
    assert emulated(epilogue(reader, dtype, loop, *sizes, turned), on) < ERRORS[dtype]
    assert on.findings == []


@pytest.mark.parametrize("schedule", ["loop and grid", "no loop", "many rows", "odd sizes"])
def test_products_of_small_inputs_do_not_vanish_in_fp16(schedule: str) -> None:
    """x * g is 1e-6 here, where fp16 has four bits left; its products with w are summed before anything is divided."""
    on = machine()
    assert emulated(SCHEDULES[schedule](DType.FP16), on, scale=1e-3) < ERRORS[DType.FP16]
    assert on.findings == []


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
def test_random_block_graphs(dtype: DType) -> None:
    on = machine()
    assert emulated(many_kernels(list(DType).index(dtype), 6, dtype), on) < ERRORS[dtype]
    assert on.findings == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 40))
def test_many_more_random_block_graphs(seed: int) -> None:
    dtype = (DType.FP32, DType.FP16, DType.BF16)[seed % 3]
    on = machine(device_for("cuda:sm_90").shared_memory_bytes, seed)
    assert emulated(many_kernels(seed, 12, dtype), on, seed) < 10 * ERRORS[dtype]
    assert on.findings == []


def test_fp64_kernels_are_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="fp64"):
        Executable(many_kernels(0, 1, DType.FP64), machine())


def test_tiles_too_large_to_count_are_refused() -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (2**16, 2**16), DType.FP16)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    value = block.add("sum", block.iterator(0, builder.tensor(x), (None,), None), dim=1, size=2**16)
    graph = builder.build(builder.graph_defined(block.build([block.add("output_saver", value, omap=(0,))]), [x]))
    (launch,) = lower(graph).values()
    with pytest.raises(UnsupportedOperator, match="32 bits"):
        print_program([cooperative(launch.kernel, 2**20)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_best_candidates_of_the_workloads(name: str, dtype: str) -> None:
    inputs = WORKLOADS[name].inputs(dtype=dtype, size="small")
    program = trace(WORKLOADS[name].function(), inputs).graph
    exact = evaluate(program, [tensor.double().numpy() for tensor in inputs], FloatArithmetic())
    for candidate in search(program, device_for("cuda:sm_90")).candidates[:3]:
        on = machine(200_000)
        for result, reference in zip(Executable(candidate.graph, on)(*inputs), exact, strict=True):
            assert _error(result.double().numpy(), reference) < ERRORS[DType.parse(dtype)]
        assert on.findings == []


def products(dtype: DType, computed: bool) -> Graph:
    """Products with each factor plain or transposed, over sizes around the fragments; the left factor computed if `computed`."""
    kernel = GraphBuilder(Level.KERNEL)
    outputs: list[Value] = []
    for rows, inner, columns in ((1, 16, 8), (16, 32, 40), (24, 64, 16), (33, 48, 7), (9, 24, 72), (5, 17, 3), (128, 64, 1)):
        for transposed in itertools.product((False, True), repeat=2):
            shapes = [(rows, inner), (inner, columns)]
            stored = [shape[::-1] if flip else shape for shape, flip in zip(shapes, transposed, strict=True)]
            operands = [kernel.input(f"x{len(kernel.nodes)}", shape, dtype) for shape in stored]
            block = GraphBuilder(Level.BLOCK, grid=(1,))
            factors = []
            for number, flip in enumerate(transposed):
                factor = block.iterator(number, kernel.tensor(operands[number]), (None,), None)
                factor = block.add("tanh", factor) if computed and number == 0 else factor
                factors.append(block.add("transpose", factor, permutation=(1, 0)) if flip else factor)
            saved = block.add("output_saver", block.add("matmul", *factors), omap=(0,))
            outputs.extend(kernel.graph_defined(block.build([saved]), operands))
    return kernel.build(outputs)


@pytest.mark.parametrize("computed", [False, True], ids=["both factors stream", "the left factor is computed"])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
def test_products_of_every_orientation(dtype: DType, computed: bool) -> None:
    on = machine()
    assert emulated(products(dtype, computed), on) < ERRORS[dtype]
    assert on.findings == []


@pytest.mark.parametrize("op", ["sigmoid", "silu"])
def test_operators_negate_negative_constants(op: str) -> None:
    builder = GraphBuilder(Level.KERNEL)
    x = builder.input("x", (4, 8), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    tile = block.iterator(0, builder.tensor(x), (None,), None)
    result = block.add("add", tile, block.add(op, block.constant(-1.0, DType.FP32)))
    saved = block.add("output_saver", result, omap=(0,))
    graph = builder.build(builder.graph_defined(block.build([saved]), [x]))
    assert emulated(graph, machine()) < ERRORS[DType.FP32]
