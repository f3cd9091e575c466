"""Kernels with the help of units beside the threads: as right and clean as without, and compiled without spills."""

from __future__ import annotations

import shutil

import pytest

from lower.graphs import attention, rms_norm_linear
from lower.test_tensor_maps import GRAPHS as BOXED
from mugraph.devices import Engines
from mugraph.ir import DType
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from runtime.block_graphs import many_kernels
from targets.test_cuda import ERRORS, emulated, products

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

BULK, GROUPS, MAPS = Engines(bulk_row_bytes=128), Engines(warp_group_rows=1), Engines(tensor_maps=True)
MACHINES = {
    "bulk copies": Cuda("sm_90", 200_000, engines=BULK),
    "warp groups": Cuda("sm_90", 200_000, engines=GROUPS),
    "tensor maps": Cuda("sm_90", 200_000, engines=MAPS),
    "both": Cuda("sm_90", 200_000, engines=Engines(warp_group_rows=1, tensor_maps=True)),
}

SCHEDULES = {
    "few rows": lambda dtype: rms_norm_linear(rows=3, inner=256, columns=128, grid=1, loop=2, dtype=dtype),
    "many rows and columns": lambda dtype: rms_norm_linear(rows=120, inner=256, columns=128, grid=2, loop=2, dtype=dtype),
    "no loop": lambda dtype: rms_norm_linear(rows=64, inner=256, columns=256, grid=2, loop=1, dtype=dtype),
    "online softmax": lambda dtype: attention(queries=64, keys=256, width=128, loop=2, dtype=dtype),
    "one query": lambda dtype: attention(queries=1, keys=384, width=64, loop=3, dtype=dtype),
}


@needs_compiler
@pytest.mark.parametrize(("dtype", "apart"), [(DType.FP16, False), pytest.param(DType.BF16, True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("engine", MACHINES)
def test_kernels_are_right_and_clean(engine: str, schedule: str, dtype: DType, apart: bool) -> None:
    on = EmulatedCuda(MACHINES[engine], seed=3, apart=apart)
    assert emulated(SCHEDULES[schedule](dtype), on) < ERRORS[dtype]
    assert on.findings == []


@needs_compiler
@pytest.mark.parametrize("engine", MACHINES)
def test_products_of_every_orientation(engine: str) -> None:
    on = EmulatedCuda(MACHINES[engine])
    assert emulated(products(DType.BF16, computed=False), on) < ERRORS[DType.BF16]
    assert on.findings == []


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1], ids=["warps", "warp groups"])
@pytest.mark.parametrize("name", BOXED)
def test_panels_that_boxes_bring_are_multiplied_right(name: str, rows: int) -> None:
    on = EmulatedCuda(Cuda("sm_90", 100_000, engines=Engines(warp_group_rows=rows, tensor_maps=True)), seed=2, apart=True)
    assert all(tensor_maps(launch.kernel) for launch in on.lower(BOXED[name]).values())
    assert emulated(BOXED[name], on) < ERRORS[BOXED[name].inputs()[0].output.dtype]
    assert on.findings == []


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("seed", range(20))
def test_many_random_block_graphs(seed: int) -> None:
    dtype = (DType.FP16, DType.BF16)[seed % 2]
    boxes = seed % 4 > 1
    engines = Engines(
        bulk_row_bytes=128, warp_group_rows=1 + seed % 40, tensor_maps=boxes, producer_warps=boxes, early_launches=boxes
    )
    on = EmulatedCuda(Cuda("sm_90", 200_000, engines=engines), seed)
    assert emulated(many_kernels(seed, 12, dtype), on, seed) < 10 * ERRORS[dtype]
    assert on.findings == []


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_kernels_compile_without_spills(architecture: str, schedule: str) -> None:
    pytest.importorskip("cuda.core")
    engines = GROUPS if architecture == "sm_90" else BULK
    executable = Executable(SCHEDULES[schedule](DType.BF16), Cuda(architecture, 200_000, engines=engines))
    (figures,) = executable.resources
    assert figures.spill_bytes == 0
    assert figures.registers * figures.threads <= 65536
    assert len(figures.engines) == 1


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100", "sm_120"])
def test_kernels_with_tensor_maps_compile_without_spills(architecture: str) -> None:
    pytest.importorskip("cuda.core")
    executable = Executable(SCHEDULES["online softmax"](DType.BF16), Cuda(architecture, 200_000, engines=MAPS))
    (figures,) = executable.resources
    assert (figures.spill_bytes, figures.engines) == (0, ("tensor maps",))


def test_a_tall_product_is_on_warp_groups_where_a_target_has_them() -> None:
    pytest.importorskip("cuda.core")
    graph = SCHEDULES["many rows and columns"](DType.BF16)
    for target, grouped in (("cuda:sm_80", False), ("cuda:sm_90", True), ("cuda:sm_100", False)):
        (launch,) = Cuda.of(target).lower(graph).values()
        assert uses_warp_groups(launch.kernel) == grouped
