"""Rings that lag: products of a panel run on while the next one's begin. Right and clean on the emulator, with every planted
fault noticed, and compiled to machine code that waits for nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lower.test_tensor_maps import product
from mugraph.devices import Engines
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct
from mugraph.lower.check import check
from mugraph.lower.tile_form import Kernel
from mugraph.lower.warp_groups import sum_registers
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import compile_cubin
from targets.cuda.test_machine_code import DISASSEMBLER
from targets.plants import Plant, shows
from targets.test_cuda import ERRORS, emulated

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
ENGINES = Engines(warp_group_rows=64, tensor_maps=True)
MACHINE = Cuda("sm_90", 232_448, engines=ENGINES, multiprocessors=132)
SHARED = replace(MACHINE, multiprocessors=0)
"""The same where blocks leave room for a second one."""


def expect_right_and_clean(graph: Graph, machine: Cuda) -> None:
    """The emulator computes what a graph does, in two orders of threads, and finds nothing."""
    for seed, apart in ((0, False), (3, True)):
        on = EmulatedCuda(machine, seed, apart=apart)
        assert emulated(graph, on) < ERRORS[graph.inputs()[0].output.dtype]
        assert on.findings == []


def gated(rows: int = 64, inner: int = 512, columns: int = 128) -> Graph:
    """silu(x @ w) * (x @ v): two sums in registers, whose products take turns in the ring."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (rows, inner), DType.BF16)
    weights = [kernel.input(name, (inner, columns), DType.BF16) for name in "wv"]
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=4)
    tokens = block.iterator(0, kernel.tensor(x), (None,), 1)
    columns_of = [block.iterator(number, kernel.tensor(weight), (1,), 0) for number, weight in enumerate(weights, 1)]
    gate, up = (block.add("accumulate", block.add("matmul", tokens, each), combine="sum") for each in columns_of)
    result = block.add("mul", block.add("silu", gate), up)
    body = block.build([block.add("output_saver", result, omap=(1,))])
    return construct(kernel.build(kernel.graph_defined(body, [x, *weights])))


GRAPHS = {
    "two groups": construct(product(128, 512, 256, grid=2, loop=4)),
    "rows of weights along k": construct(product(128, 512, 256, (False, True), grid=2, loop=4)),
    "several panels an iteration": construct(product(64, 1024, 128, grid=2, loop=2)),
    "no loop": construct(product(64, 512, 128, grid=2)),
    "nine products of a panel": construct(product(64, 288, 64, grid=2)),
    "rows of 64 bytes": construct(product(128, 512, 64, grid=2, loop=4, dtype=DType.FP16)),
    "columns shared by groups": construct(product(64, 512, 512, grid=2, loop=4, dtype=DType.FP16)),
    "two sums": gated(),
}


def lowered(graph: Graph, machine: Cuda = MACHINE) -> Kernel:
    (launch,) = machine.lower(graph).values()
    return launch.kernel


@pytest.mark.parametrize("name", GRAPHS)
def test_what_units_read_in_the_ring_is_not_waited_for(name: str) -> None:
    kernel = lowered(GRAPHS[name])
    check(kernel)
    assert kernel.ring is not None
    assert (kernel.ring.lag, kernel.ring.ahead) == (1, kernel.ring.stages - 2)
    assert kernel.ring.ahead >= 1


@needs_compiler
@pytest.mark.parametrize("machine", [MACHINE, SHARED], ids=["alone", "beside another"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_right_and_clean(name: str, machine: Cuda) -> None:
    expect_right_and_clean(GRAPHS[name], machine)


PLANTS: dict[str, Plant] = {
    "a wait for too few products": (r"wgmma_wait<1>", "wgmma_wait<2>", {Fault.IN_FLIGHT, Fault.RACE}),
    "no wait for products": (r"wgmma_wait<1>\(\);", "", {Fault.IN_FLIGHT, Fault.RACE}),
    "no wait for the last products": (r"wgmma_wait<0>\(\);", "", set()),
    "a slot is filled while products read it": (r"fetch\(used \+ (\d+)\)", r"fetch(used + \1 + 1)", set(Fault)),
    "threads do not meet before a slot is filled again": (r"__syncthreads\(\);(\s*if \(warp == 0)", r"\1", {Fault.RACE}),
    "a panel is not waited for": (r"mbarrier_wait\([^;]*;", "", {Fault.IN_FLIGHT}),
    "the wait is for the phase before": (r"(used / \d+) % 2\)", r"(\1 + 1) % 2)", {Fault.IN_FLIGHT, Fault.DIVERGENCE}),
    "registers are not fenced": (r"wgmma_fence\(\);", "", {Fault.REGISTERS}),
    "nothing is committed": (r"wgmma_commit\(\);", "", set(Fault)),
    "rows of another warp": (r"\(m0 - warp % 4 \* 16\)", "m0", {Fault.DISAGREEMENT}),
    "rows of the other group": (r"\(m0 - warp % 4 \* 16\)", "(64 - m0 + warp % 4 * 16)", set()),
    "left rows of another swizzle": (r"wgmma_matrix<128>\(a_panel", "wgmma_matrix<64>(a_panel", set()),
    "left rows of another stride": (r"(a_panel [^;]*?, 0, )1024\)", r"\g<1>512)", set()),
    "steps of k in the place of the first": (r"(a_panel \+ [^;,]*) \+ k % 64", r"\1", set()),
}


@needs_compiler
@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_shows(fault: str) -> None:
    assert shows(GRAPHS["two groups"], EmulatedCuda(MACHINE, seed=1), PLANTS[fault])


LOOP = re.compile(r"\.L_x_\d+:(?:(?!\.L_x_\d+:).)*?HGMMA.*?WARPGROUP\.DEPBAR\.LE gsb0, 0x1", re.DOTALL)


@pytest.mark.parametrize("name", ["two groups", "rows of weights along k", "two sums"])
def test_machine_code_waits_for_the_panel_before_alone(name: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    if DISASSEMBLER is None:
        pytest.skip("there is no nvdisasm; Triton's package has one")
    kernel = lowered(GRAPHS[name])
    (source,) = MACHINE.print([kernel]).values()
    compiled = compile_cubin(source, MACHINE.architecture)
    (resources,) = compiled.resources.values()
    assert resources.spill_bytes == 0
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.code)
    code = subprocess.run([DISASSEMBLER, "-c", file], capture_output=True, text=True, check=True).stdout
    products = code.count("HGMMA")
    assert "LDSM" not in code, "no fragment goes through registers"
    assert len(re.findall(r"HGMMA\S+ R\d+, gdesc\[UR\d+\]", code)) == products > 0, "both factors are descriptors"
    assert LOOP.search(code) is not None
    waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\d)", code)
    assert waits.count("0x0") == 1, "the assembler adds no wait of its own"
    assert products == 4 * waits.count("0x1"), "four products of a panel are issued together"


@pytest.mark.parametrize("name", GRAPHS)
def test_the_assembler_leaves_products_beside_the_threads(name: str) -> None:
    pytest.importorskip("cuda.core")
    (source,) = MACHINE.print([lowered(GRAPHS[name])]).values()
    assert "serialized" not in compile_cubin(source, MACHINE.architecture).log


def test_a_ring_does_not_lag_where_groups_are_idle() -> None:
    """The assembler makes this one wait for every product by itself where it lags."""
    pytest.importorskip("cuda.core")
    kernel = lowered(construct(product(64, 64, 32, grid=2, dtype=DType.FP16)))
    assert kernel.ring is not None
    assert (kernel.ring.bulk, kernel.ring.lag) == (True, 0)
    (source,) = MACHINE.print([kernel]).values()
    assert "serialized" not in compile_cubin(source, MACHINE.architecture).log


def test_blocks_whose_sums_fill_the_registers_leave_no_room_for_a_second_one() -> None:
    small, large = (lowered(gated(rows=128, columns=columns), SHARED) for columns in (64, 256))
    assert (sum_registers(small), small.resident) == (32, 2)
    assert (sum_registers(large), large.resident) == (128, 1)
