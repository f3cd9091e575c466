"""Kernels that are launched before those before them are over: right and clean on the emulator, which sees who does not wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lower.graphs import chain_of_kernels, elementwise_kernel
from mugraph.devices import device_for
from mugraph.devices.device import architectures
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower import construct
from mugraph.lower.check import check
from mugraph.lower.tile_form import Kernel
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda, launch_shape
from targets.cuda.test_machine_code import DISASSEMBLER, disassembled
from targets.plants import Plant, shows
from targets.test_lagging_rings import MACHINE, expect_right_and_clean, needs_compiler

EARLY = replace(MACHINE, engines=replace(MACHINE.engines, early_launches=True))
PRODUCER = replace(EARLY, engines=replace(EARLY.engines, producer_warps=True))


def computed_factor() -> Graph:
    """tanh(x) @ w in two kernels, k cut by a loop: boxes bring what the first kernel writes to the second."""
    kernel = GraphBuilder(Level.KERNEL)
    x, w = kernel.input("x", (64, 512), DType.BF16), kernel.input("w", (512, 256), DType.BF16)
    factor = elementwise_kernel(kernel, "tanh", [x])
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=4)
    left, right = block.iterator(0, kernel.tensor(factor), (None,), 1), block.iterator(1, kernel.tensor(w), (1,), 0)
    total = block.add("accumulate", block.add("matmul", left, right), combine="sum")
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(1,))]), [factor, w]))


def split_sum() -> Graph:
    """The sums of rows, each cut in four by the grid of a kernel and put together by a second one."""
    kernel = GraphBuilder(Level.KERNEL)
    x = kernel.input("x", (16, 512), DType.FP32)
    block = GraphBuilder(Level.BLOCK, grid=(4,))
    part = block.add("sum", block.iterator(0, kernel.tensor(x), (1,), None), dim=1, size=128)
    (parts,) = kernel.graph_defined(block.build([block.add("output_saver", part, omap=(1,))]), [x])
    block = GraphBuilder(Level.BLOCK, grid=(2,))
    total = block.add("sum", block.iterator(0, kernel.tensor(parts), (0,), None), dim=1, size=4)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", total, omap=(0,))]), [parts]))


GRAPHS = {"elementwise": chain_of_kernels(3), "parts and their sum": split_sum(), "a computed factor": computed_factor()}


def kernels(graph: Graph, machine: Cuda) -> list[Kernel]:
    return [launch.kernel for launch in machine.lower(construct(graph)).values()]


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_of_a_graph_wait_for_each_other(name: str) -> None:
    without = kernels(GRAPHS[name], MACHINE)
    for kernel, usual in zip(kernels(GRAPHS[name], EARLY), without, strict=True):
        check(kernel)
        assert kernel == replace(usual, chained=True)
        assert (launch_shape(kernel).chained, launch_shape(usual).chained) == (True, False)
        assert parse_kernel(format_kernel(kernel)) == kernel


def test_a_kernel_alone_waits_for_nothing() -> None:
    graph = chain_of_kernels(1)
    assert kernels(graph, EARLY) == kernels(graph, MACHINE)


def test_no_description_has_them_before_a_gpu_has_run_one() -> None:
    assert not any(device_for(f"cuda:{name}").engines.early_launches for name in architectures())


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_right_and_clean(name: str) -> None:
    expect_right_and_clean(construct(GRAPHS[name]), EARLY)


@needs_compiler
def test_a_warp_that_copies_waits_as_well() -> None:
    graph = construct(GRAPHS["a computed factor"])
    _, product = kernels(graph, PRODUCER)
    assert product.ring is not None
    assert product.ring.producer
    expect_right_and_clean(graph, PRODUCER)


WAIT = r"griddepcontrol_wait\(\);"
PLANTS: dict[str, Plant] = {
    "nobody waits": (WAIT, "", {Fault.EARLY}),
    "a warp alone waits": (WAIT, "if (warp == 0) griddepcontrol_wait();", {Fault.EARLY}),
    "a lane of each warp does not": (WAIT, "if (lane != 31) griddepcontrol_wait();", {Fault.EARLY}),
    "later blocks do not": (WAIT, "if (blockIdx.x == 0) griddepcontrol_wait();", {Fault.EARLY}),
    "they go on and wait at the end": (rf"{WAIT}((?s:.*?))\n}}\n", r"\1 griddepcontrol_wait();\n}\n", {Fault.EARLY}),
}


@needs_compiler
@pytest.mark.parametrize("fault", PLANTS)
@pytest.mark.parametrize("name", ["elementwise", "parts and their sum"])
def test_a_planted_fault_shows(name: str, fault: str) -> None:
    assert shows(construct(GRAPHS[name]), EmulatedCuda(EARLY), PLANTS[fault])


@needs_compiler
@pytest.mark.parametrize(
    ("machine", "replacement"),
    [(EARLY, "if (warp != 0) griddepcontrol_wait();"), (PRODUCER, "if (thread < 128) griddepcontrol_wait();")],
    ids=["boxes", "a warp that copies"],
)
def test_who_tells_the_engine_to_copy_has_to_wait(machine: Cuda, replacement: str) -> None:
    assert shows(construct(GRAPHS["a computed factor"]), EmulatedCuda(machine), (WAIT, replacement, {Fault.EARLY}))


MEMORY = re.compile(r"\b(LDG|LDGSTS|UTMALDG|UBLKCP|STG|ATOMG|RED)\b[.\w]*|\b(ACQBULK|PREEXIT)\b")


def accesses(code: str) -> list[list[str]]:
    """Of each kernel, its accesses of device memory, and where it waits and lets others begin, in the order of its code."""
    parts = re.split(r"^\.text\.\w+:", code, flags=re.MULTILINE)[1:]
    return [[found[0] for found in MEMORY.finditer(part)] for part in parts]


def machine_code(graph: Graph, machine: Cuda, tmp_path: Path, edit: Callable[[str], str] = str) -> list[list[str]]:
    pytest.importorskip("cuda.core")
    if DISASSEMBLER is None:
        pytest.skip("there is no nvdisasm; Triton's package has one")
    return accesses(disassembled(graph, machine, tmp_path, edit))


@pytest.mark.parametrize(("name", "machine"), [*((name, EARLY) for name in GRAPHS), ("a computed factor", PRODUCER)])
def test_no_access_of_device_memory_stands_before_the_wait(name: str, machine: Cuda, tmp_path: Path) -> None:
    found = machine_code(GRAPHS[name], machine, tmp_path)
    assert len(found) == len(kernels(GRAPHS[name], machine))
    for each in found:
        assert each[:2] == ["ACQBULK", "PREEXIT"]
        assert len(each) > 2
        assert not any("CONSTANT" in access for access in each), "nothing is promised of what other kernels write"


def test_an_access_before_the_wait_is_seen(tmp_path: Path) -> None:
    pattern, late, _ = PLANTS["they go on and wait at the end"]
    found = machine_code(split_sum(), EARLY, tmp_path, lambda text: re.sub(pattern, late, text))
    assert all(each[0] != "ACQBULK" for each in found)
