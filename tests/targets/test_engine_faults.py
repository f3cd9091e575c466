"""Faults planted in kernels that use units beside the threads, bulk copies and warp groups: every one shows on the CPU."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import Engines
from mugraph.frontend.operators.torch_casts import DTYPES
from mugraph.ir import DType
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from mugraph.testing.kernel_faults import try_faults
from targets.plants import Plant, shows
from targets.test_cuda import ERRORS, emulated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

GRAPHS = {
    "norm": rms_norm_linear(rows=8, inner=256, columns=192, grid=3, loop=2, dtype=DType.BF16),
    "attention": attention(queries=12, keys=192, width=64, loop=3, dtype=DType.FP16),
    "boxes": attention(queries=16, keys=256, width=128, loop=2, dtype=DType.FP16),
    "boxes and staged inputs": rms_norm_linear(rows=8, inner=1024, columns=64, grid=2, loop=4, dtype=DType.BF16),
}


def machine(engines: Engines) -> EmulatedCuda:
    return EmulatedCuda(Cuda("sm_90", 100_000, engines=engines), seed=1)


BULK, GROUPS, MAPS = Engines(bulk_row_bytes=128), Engines(warp_group_rows=1), Engines(tensor_maps=True)

BULK_PLANTS: dict[str, Plant] = {
    "no wait": (r"mbarrier_wait\([^;]*;", "", {Fault.IN_FLIGHT}),
    "the wait is for the phase before": (r"(used / \d+) % 2\)", r"(\1 + 1) % 2)", {Fault.IN_FLIGHT, Fault.DIVERGENCE}),
    "the wait is for another slot's barrier": (
        r"mbarrier_wait\(arrived \+ used",
        r"mbarrier_wait(arrived + 1 + used",
        set(Fault),
    ),
    "fewer bytes are expected": (r"expect\(count, (\d+)\)", r"expect(count, \1 - 128)", {Fault.IN_FLIGHT, Fault.DIVERGENCE}),
    "more bytes are expected": (r"expect\(count, (\d+)\)", r"expect(count, \1 + 16)", {Fault.DIVERGENCE}),
    "nobody expects": (r"mbarrier_arrive_expect\([^;]*;", "", {Fault.DIVERGENCE}),
    "every lane issues": (r"warp == 0 && elected\(\)", "warp == 0", set(Fault)),
    "a thread of every warp issues": (r"warp == 0 && elected\(\)", "elected()", set(Fault)),
    "lanes do not meet to elect one": (r"warp == 0 && elected\(\)", "thread < 7 && elected()", {Fault.DIVERGENCE}),
    "barriers are not fenced": (r"proxy_fence\(\);", "", {Fault.UNFENCED}),
    "threads do not meet before a slot is filled again": (r"__syncthreads\(\);(\s*if \(warp == 0)", r"\1", {Fault.RACE}),
    "rows are copied short": (r"(bulk_copy\([^;]*, )(\d+), count", r"\g<1>\2 - 16, count", {Fault.DIVERGENCE}),
    "rows stand at the wrong pitch": (r"(bulk_copy\(slot \+ (?:\d+ \+ )?)(\d+) \* row", r"\1(\2 - 8) * row", set(Fault)),
    "one slot is filled too early": (r"fetch\(used \+ (\d+)\)", r"fetch(used + \1 + 1)", set(Fault)),
}


BOX_PLANTS: dict[str, Plant] = {
    **{name: BULK_PLANTS[name] for name in BULK_PLANTS if not name.startswith("rows ")},
    "a box too few": (r"box_copy\([^;]*;", "", {Fault.DIVERGENCE}),
    "a box arrives elsewhere": (r"box_copy\(slot \+ (\d+)", r"box_copy(slot + \1 + 64", set(Fault)),
    "another column": (r"(box_copy\([^;]*map\d), \(int\)\(", r"\1, (int)(8 + ", set()),
    "another row": (r"(box_copy\([^;]*), \(int\)\(([^;]*), count", r"\1, (int)(1 + \2, count", set(Fault)),
    "chunks are read where they lie in plain rows": (r"Swizzle<\d, 3, 3>", "Plain", set()),
    "blocks lie too close": (r"(\+ )(\d+)( \* \(\([^;]*\) / 64\))", r"\1(\2 - 64)\3", set(Fault)),
}


STAGED_PLANTS: dict[str, Plant] = {
    "no wait for what is staged": (r"cp_async_wait<\d>\(\);", "", {Fault.IN_FLIGHT}),
    "a wait for too few copies": (r"cp_async_wait<(\d)>", r"cp_async_wait<\1 + 1>", {Fault.IN_FLIGHT}),
    "a group for each iteration alone": (r"(stage\([^;]*\);)\s*cp_async_commit\(\);", r"\1", {Fault.IN_FLIGHT}),
    "copies come a panel too late": (r"panel \+ 1 - (\d+)", r"panel - \1", {Fault.IN_FLIGHT}),
    "copies of another iteration": (r"const long l = next / (\d+);", r"const long l = next / \1 - 1;", set(Fault)),
    "the first iteration is not staged": (r"const long l = 0;\s*\{[^}]*cp_async<16[^}]*\}", "", set(Fault)),
}


GROUP_PLANTS: dict[str, Plant] = {
    "no wait for copies": (r"cp_async_wait<\d>\(\);", "", {Fault.IN_FLIGHT}),
    "a wait for too few copies": (r"cp_async_wait<(\d)>", r"cp_async_wait<\1 + 1>", {Fault.IN_FLIGHT}),
    "no wait for products": (r"wgmma_wait<0>\(\);", "", set(Fault)),
    "a wait for too few products": (r"wgmma_wait<0>", "wgmma_wait<1>", set(Fault)),
    "panels are not fenced": (r"proxy_fence\(\);", "", {Fault.UNFENCED}),
    "panels are fenced before they have landed": (
        r"(cp_async_wait<\d>\(\);)\s*proxy_fence\(\);",
        r"proxy_fence(); \1",
        {Fault.UNFENCED},
    ),
    "registers are not fenced": (r"wgmma_fence\(\);", "", {Fault.REGISTERS}),
    "nothing is committed": (r"wgmma_commit\(\);", "", set(Fault)),
    "threads do not meet before a slot is filled again": (r"__syncthreads\(\);(\s*fetch)", r"\1", {Fault.RACE}),
    "chunks are not exchanged": (r"(cp_async<16[^;]*)Swizzle<\d, 3, 3>", r"\1Plain", set()),
    "chunks are exchanged by another row": (r"(cp_async<16[^;]*Swizzle<\d, 3, )3>", r"\g<1>4>", set()),
    "matrices of another swizzle": (r"wgmma_matrix<(\d+)>", "wgmma_matrix<32>", set()),
    "matrices of another stride": (r"(wgmma_matrix<[^;]*), (512|1024)\)\)", r"\1, \2 / 2))", set()),
    "rows along the other dimension": (r"(wgmma_m64k16<\w+, \d+), (true|false)>", r"\1, !\2>", set(Fault)),
    "steps of k in another place": (r"k \* (32|64)", r"k * \1 / 2", set(Fault)),
    "columns of the other group": (r"(b_panel \+ [^;]*)n0", r"\1(32 - n0)", set(Fault)),
    "slots lie too close": (r"(% \d) \* (4096|8192)", r"\1 * (\2 - 64)", set(Fault)),
}


def noticed(engines: Engines, name: str, plant: Plant) -> bool:
    """Whether a fault planted in the kernel of one of the graphs shows."""
    return shows(GRAPHS[name], machine(engines), plant)


def both(usual: str) -> list[Any]:
    """The graphs; only one of them in runs that leave slow tests out."""
    return [name if name == usual else pytest.param(name, marks=pytest.mark.slow) for name in GRAPHS if "boxes" not in name]


@pytest.mark.parametrize("name", both("norm"))
@pytest.mark.parametrize("fault", BULK_PLANTS)
def test_a_fault_in_a_ring_of_bulk_copies_shows(name: str, fault: str) -> None:
    assert noticed(BULK, name, BULK_PLANTS[fault])


@pytest.mark.parametrize("name", both("attention"))
@pytest.mark.parametrize("fault", GROUP_PLANTS)
def test_a_fault_in_products_of_warp_groups_shows(name: str, fault: str) -> None:
    assert noticed(GROUPS, name, GROUP_PLANTS[fault])


@pytest.mark.parametrize("fault", BOX_PLANTS)
def test_a_fault_in_a_ring_of_boxes_shows(fault: str) -> None:
    assert noticed(MAPS, "boxes", BOX_PLANTS[fault])


@pytest.mark.parametrize("fault", STAGED_PLANTS)
def test_a_fault_in_what_is_staged_beside_boxes_shows(fault: str) -> None:
    assert noticed(MAPS, "boxes and staged inputs", STAGED_PLANTS[fault])


@pytest.mark.parametrize("engines", [BULK, GROUPS, MAPS], ids=["bulk copies", "warp groups", "tensor maps"])
@pytest.mark.parametrize("name", GRAPHS)
def test_without_a_fault_nothing_shows(name: str, engines: Engines) -> None:
    on = machine(engines)
    assert emulated(GRAPHS[name], on) < ERRORS[GRAPHS[name].inputs()[0].output.dtype]
    assert on.findings == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engines", "own"),
    [(BULK, {"count", "fence", "wait", "layout"}), (GROUPS, {"fence", "wait", "swizzle"})],
    ids=["bulk", "groups"],
)
@pytest.mark.parametrize("name", ["norm", "attention"])
def test_faults_in_every_place_are_noticed(name: str, engines: Engines, own: set[str]) -> None:
    generator, kinds = torch.Generator().manual_seed(0), {ours: theirs for theirs, ours in DTYPES.items()}
    inputs = [torch.randn(x.output.shape, generator=generator).to(kinds[x.output.dtype]) for x in GRAPHS[name].inputs()]
    found = try_faults(GRAPHS[name], inputs, machine(engines).machine, most=6)
    assert own | {"barrier", "mask"} <= found.keys()
    assert {kind: trials.unnoticed for kind, trials in found.items() if trials.unnoticed} == {}
