"""k of panels shared out among warps: which products, right and clean on the emulator, and every planted fault noticed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lower.graphs import attention, rms_norm_linear
from lower.test_tensor_maps import product
from mugraph.devices import NO_ENGINES, Engines
from mugraph.errors import InvalidGraph
from mugraph.ir import DType, Graph
from mugraph.lower import construct
from mugraph.lower.check import check
from mugraph.lower.parts_of_panels import parted_products
from mugraph.lower.tile_form import Kernel, Matmul, Statement
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from targets.cuda.test_machine_code import DISASSEMBLER, MATRIX_UNITS, disassembled
from targets.plants import Plant, shows
from targets.test_cuda import ERRORS, emulated

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
MAPS = Cuda("sm_90", 200_000, engines=Engines(warp_group_rows=64, tensor_maps=True), multiprocessors=132)
MACHINES = {
    "tensor maps": MAPS,
    "bulk copies": replace(MAPS, engines=Engines(bulk_row_bytes=128)),
    "threads": replace(MAPS, engines=NO_ENGINES),
    "sm_80": Cuda("sm_80", 160_000, multiprocessors=108),
}


def normed(columns: int, dtype: DType = DType.BF16, rows: int = 8, inner: int = 1024) -> Graph:
    return construct(rms_norm_linear(rows=rows, inner=inner, columns=2 * columns, grid=2, loop=4, dtype=dtype))


GRAPHS = {
    "two parts": (normed(32), 2),
    "four parts": (normed(16), 4),
    "eight parts": (normed(8), 8),
    "in TF32": (normed(32, DType.FP16), 2),
    "32 instructions in TF32": (normed(32, DType.FP16, inner=256), 2),
    "as many values of k in 16": (normed(32, inner=256), 1),
    "three rows": (normed(24, rows=3), 2),
    "two tiles a warp": (construct(product(32, 1024, 64, grid=2, loop=2)), 1),
    "sixteen rows of both factors": (construct(product(16, 2048, 32, (False, True), grid=2, loop=2)), 4),
    "a task for each warp": (normed(64), 1),
    "a short chain": (construct(product(8, 256, 32, grid=2, loop=2)), 1),
    "rescaled sums": (attention(queries=8, keys=1024, width=32, loop=4, dtype=DType.BF16), 1),
}
PARTED = [name for name, (_, parts) in GRAPHS.items() if parts > 1]


def lowered(graph: Graph, machine: Cuda = MAPS) -> Kernel:
    (launch,) = machine.lower(graph).values()
    return launch.kernel


@pytest.mark.parametrize("name", GRAPHS)
def test_warps_without_a_task_take_parts_of_long_chains(name: str) -> None:
    graph, parts = GRAPHS[name]
    kernel = lowered(graph)
    assert kernel.ring is not None
    assert [each.panels.parts for each in parted_products(kernel) if each.panels is not None] == [parts] * (parts > 1)
    assert parse_kernel(format_kernel(kernel)) == kernel
    check(kernel)


@needs_compiler
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", PARTED)
def test_kernels_are_right_and_clean(name: str, machine: str) -> None:
    graph, _ = GRAPHS[name]
    assert parted_products(lowered(graph, MACHINES[machine]))
    for seed, apart in ((0, False), (3, True)):
        on = EmulatedCuda(MACHINES[machine], seed, apart=apart)
        assert emulated(graph, on) < ERRORS[graph.inputs()[0].output.dtype]
        assert on.findings == []


PLANTS: dict[str, Plant] = {
    "sums are left where others still read": (r"\(float \*\)ring;\s*__syncthreads\(\);", "(float *)slot;", {Fault.RACE}),
    "sums are read before they are left": (r"__syncthreads\(\);(\s*for \(int part)", r"\1", {Fault.RACE}),
    "a part is left out": (r"part < 3", "part < 2", set()),
    "a part too many is added": (r"part < 3", "part < 4", set(Fault)),
    "parts in each other's place": (r"sums\[\(\(warp - (\d)\)", r"sums[((warp - \1) / 2", set(Fault)),
    "all parts begin at the first value of k": (r"const int k = warp / \d \* \d+ \+ ", "const int k = ", set()),
    "parts overlap": (r"(const int k = warp / \d \* )(\d+)", r"\1(\2 / 2)", set()),
    "parts do not start from 0": (r"(_held\[1\]\[1\]\[4\]) = \{\}", r"\1", set()),
    "warps of other parts are idle": (r"(a_batch = [^;]*;\s*(?:const int b_batch = [^;]*;\s*)?)\{", r"\1if (warp < 2) {", set()),
    "a task of another warp": (r"\(warp % 2\)", "((warp + 1) % 2)", set()),
}


@needs_compiler
@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_shows(fault: str) -> None:
    assert shows(GRAPHS["four parts"][0], EmulatedCuda(MAPS, seed=1), PLANTS[fault])


@pytest.mark.parametrize("parts", [3, 16])
def test_the_checker_refuses_parts_that_warps_or_steps_do_not_make(parts: int) -> None:
    kernel = lowered(normed(32))

    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Matmul) and statement.panels is not None:
            return replace(statement, panels=replace(statement.panels, parts=parts))
        return statement

    with pytest.raises(InvalidGraph, match="do not fit the slots"):
        check(replace(kernel, body=tuple(map(changed, kernel.body))))


def test_each_warp_issues_its_part_of_the_chain(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    if DISASSEMBLER is None:
        pytest.skip("there is no nvdisasm; Triton's package has one")
    for name in ("two parts", "four parts", "a task for each warp"):
        graph, parts = GRAPHS[name]
        (multiplied,) = (s for s in lowered(graph).body if isinstance(s, Matmul))
        assert multiplied.panels is not None
        code = disassembled(graph, MAPS, tmp_path)
        assert len(MATRIX_UNITS.findall(code)) == multiplied.panels.depth // 16 // parts
