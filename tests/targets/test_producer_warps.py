"""Warps that copy: right and clean on the emulator, with every planted fault noticed, in loops in which no threads meet."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lower.test_tensor_maps import product
from mugraph.devices import device_for
from mugraph.errors import InvalidGraph
from mugraph.ir import Graph
from mugraph.lower import construct
from mugraph.lower.check import check
from mugraph.lower.issue_slots import PANEL_LEFT, copy_slots
from mugraph.lower.tile_form import MBARRIER_BYTES, Kernel, Staged
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda, launch_shape
from mugraph.targets.cuda.nvrtc import compile_cubin
from targets.cuda.test_machine_code import DISASSEMBLER
from targets.plants import Plant, shows
from targets.test_cuda import ERRORS, emulated
from targets.test_lagging_rings import ENGINES, GRAPHS, expect_right_and_clean, lowered, needs_compiler
from targets.test_lagging_rings import MACHINE as WITHOUT

PRODUCER = replace(ENGINES, producer_warps=True)
MACHINE = replace(WITHOUT, engines=PRODUCER)
SHARED = replace(MACHINE, multiprocessors=0)
"""The same where blocks leave room for a second one."""
MADE = sorted({*GRAPHS} - {"rows of 64 bytes"})
"""Graphs whose kernels have such a warp on both machines; the other one's barriers find no room beside a second block."""


@pytest.mark.parametrize("name", GRAPHS)
def test_a_warp_beside_the_threads_copies_where_nothing_else_makes_them_meet(name: str) -> None:
    kernel, without = lowered(GRAPHS[name], MACHINE), lowered(GRAPHS[name], WITHOUT)
    check(kernel)
    assert kernel.ring is not None
    assert without.ring is not None
    assert (kernel.ring.producer, without.ring.producer) == (True, False)
    assert kernel.ring.ahead == kernel.ring.stages == without.ring.stages, "all slots are filled ahead"
    assert (kernel.threads, kernel.launched_threads) == (without.threads, without.threads + 32)
    assert launch_shape(kernel).threads == kernel.launched_threads
    assert kernel.shared_bytes == without.shared_bytes + kernel.ring.stages * MBARRIER_BYTES
    assert parse_kernel(format_kernel(kernel)) == kernel


@pytest.mark.parametrize("what", ["staged", "barriers", "lag"])
def test_threads_that_meet_otherwise_have_no_such_warp(what: str) -> None:
    kernel = lowered(GRAPHS["two groups"], MACHINE)
    assert kernel.ring is not None
    changed = {
        "barriers": replace(kernel, barriers=frozenset({1})),
        "lag": replace(kernel, ring=replace(kernel.ring, lag=0)),
        "staged": replace(kernel, staged=(Staged("staged0", kernel.body[0].sources[0]),)),
    }
    with pytest.raises(InvalidGraph, match="slots of the kernel's ring"):
        check(changed[what])


def test_no_described_gpu_has_them_before_one_has_run_them() -> None:
    for target in ("cuda:sm_80", "cuda:sm_90", "cuda:sm_90:h200", "cuda:sm_90:h100-pcie", "cuda:sm_100", "cuda:sm_120"):
        assert not device_for(target).engines.producer_warps


@needs_compiler
@pytest.mark.parametrize("machine", [MACHINE, SHARED], ids=["alone", "beside another"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_right_and_clean(name: str, machine: Cuda) -> None:
    expect_right_and_clean(GRAPHS[name], machine)


LEFT = r"leave_panel\(used - 2\);"
PLANTS: dict[str, Plant] = {
    "a slot is filled before it is left": (r"mbarrier_wait\(left[^;]*;", "", {Fault.IN_FLIGHT, Fault.RACE}),
    "a slot is filled one turn too early": (r"\(panel / (\d+) \+ 1\) % 2\)", r"(panel / \1) % 2)", {Fault.DIVERGENCE}),
    "a panel is left while products read it": (LEFT, "leave_panel(used - 1);", {Fault.IN_FLIGHT, Fault.RACE}),
    "a panel is left before products are waited for": (
        r"(wgmma_wait<1>\(\);)(\s*wgmma_registers[^;]*;\s*)" + LEFT,
        r"leave_panel(used - 2); \1\2",
        {Fault.IN_FLIGHT, Fault.RACE},
    ),
    "no panel is left": (LEFT, "", {Fault.DIVERGENCE}),
    "one warp leaves for all": (
        r"mbarrier_init\(left \+ stage, 8\)",
        "mbarrier_init(left + stage, 1)",
        {Fault.RACE, Fault.IN_FLIGHT},
    ),
    "one group leaves for both": (
        r"mbarrier_init\(left \+ stage, 8\)",
        "mbarrier_init(left + stage, 4)",
        {Fault.RACE, Fault.IN_FLIGHT},
    ),
    "seven warps leave for all": (
        r"mbarrier_init\(left \+ stage, 8\)",
        "mbarrier_init(left + stage, 7)",
        {Fault.RACE, Fault.IN_FLIGHT},
    ),
    "more are to leave than are there": (
        r"mbarrier_init\(left \+ stage, 8\)",
        "mbarrier_init(left + stage, 9)",
        {Fault.DIVERGENCE},
    ),
    "barriers are used before they are there": (r"__syncthreads\(\);", "", {Fault.RACE, Fault.UNINITIALIZED, Fault.DIVERGENCE}),
    "the engine does not see the barriers": (r"proxy_fence\(\);", "", {Fault.UNFENCED}),
    "a panel is not waited for": (r"mbarrier_wait\(arrived[^;]*;", "", {Fault.IN_FLIGHT}),
    "no wait for products": (r"wgmma_wait<1>\(\);", "", {Fault.IN_FLIGHT, Fault.RACE}),
    "the last panel is not fetched": (
        r"(if \(elected\(\)\) \{\s*for \(int panel = 0; panel < \d+)",
        r"\1 - 1",
        {Fault.DIVERGENCE},
    ),
    "the warp goes on as the others": (r"return;", "", set(Fault)),
}


@needs_compiler
@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_shows(fault: str) -> None:
    assert any(shows(GRAPHS["two groups"], EmulatedCuda(MACHINE, seed=seed), PLANTS[fault]) for seed in (1, 2))


def compiled(graph: Graph, machine: Cuda = MACHINE) -> tuple[Kernel, bytes, str]:
    """The kernel of a graph, its machine code and what the assembler said."""
    kernel = lowered(graph, machine)
    (source,) = machine.print([kernel]).values()
    made = compile_cubin(source, machine.architecture)
    assert all(resources.spill_bytes == 0 for resources in made.resources.values())
    return kernel, made.code, made.log


@pytest.mark.parametrize("name", MADE)
def test_the_assembler_leaves_products_beside_the_threads(name: str) -> None:
    pytest.importorskip("cuda.core")
    assert "serialized" not in compiled(GRAPHS[name], SHARED)[2]


def test_threads_meet_once(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    if DISASSEMBLER is None:
        pytest.skip("there is no nvdisasm; Triton's package has one")
    _, code, log = compiled(GRAPHS["two groups"])
    file = tmp_path / "kernel.cubin"
    file.write_bytes(code)
    text = subprocess.run([DISASSEMBLER, "-c", file], capture_output=True, text=True, check=True).stdout
    assert "serialized" not in log
    assert text.count("BAR.SYNC") == 1, "before the copies begin, and nowhere else"
    leaving = re.search(r"ELECT P\d.*?SYNCS\.ARRIVE", text, re.DOTALL)
    assert leaving is not None
    assert leaving[0].count(";") + 1 <= PANEL_LEFT + 1
    assert re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\d)", text).count("0x0") == 1


def test_leaving_panels_takes_issue_slots() -> None:
    with_warp, without = lowered(GRAPHS["two groups"], MACHINE), lowered(GRAPHS["two groups"], WITHOUT)
    assert copy_slots(with_warp) > copy_slots(without)


@needs_compiler
def test_a_ring_is_gone_round_many_times() -> None:
    graph = construct(product(64, 2048, 64, grid=2, loop=16))
    on = EmulatedCuda(MACHINE, seed=5, apart=True)
    kernel = lowered(graph, MACHINE)
    assert kernel.ring is not None
    assert kernel.ring.producer
    assert emulated(graph, on) < ERRORS[graph.inputs()[0].output.dtype]
    assert on.findings == []
