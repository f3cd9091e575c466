"""Faults planted in rings that bulk copies fill: every one shows on the CPU."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import Engines
from mugraph.ir import DType
from mugraph.runtime import Executable
from mugraph.runtime.cuda.emulated import EmulatedCuda
from mugraph.runtime.cuda.emulator import Fault
from mugraph.runtime.cuda.machine import Cuda
from targets.test_cuda import ERRORS, emulated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

GRAPHS = {
    "norm": rms_norm_linear(rows=8, inner=256, columns=192, grid=3, loop=2, dtype=DType.BF16),
    "attention": attention(queries=12, keys=192, width=64, loop=3, dtype=DType.FP16),
}
CLEAN = EmulatedCuda(Cuda("sm_90", 100_000, engines=Engines(bulk_copies=True)), seed=1)

PLANTS: dict[str, tuple[str, str, set[Fault]]] = {
    "no wait": (r"mbarrier_wait\([^;]*;", "", {Fault.IN_FLIGHT}),
    "the wait is for the phase before": (r"(used / \d+) % 2\)", r"(\1 + 1) % 2)", {Fault.IN_FLIGHT, Fault.DIVERGENCE}),
    "the wait is for another slot's barrier": (
        r"mbarrier_wait\(arrived \+ used",
        r"mbarrier_wait(arrived + 1 + used",
        set(Fault),
    ),
    "fewer bytes are expected": (r"expect\(count, (\d+)\)", r"expect(count, \1 - 128)", {Fault.IN_FLIGHT, Fault.DIVERGENCE}),
    "more bytes are expected": (r"expect\(count, (\d+)\)", r"expect(count, \1 + 16)", {Fault.DIVERGENCE}),
    "nobody expects": (r"if \(lane == 0\)\s*mbarrier_arrive_expect\([^;]*;", "", {Fault.DIVERGENCE}),
    "every lane arrives": (r"if \(lane == 0\)(\s*mbarrier_arrive)", r"\1", {Fault.DIVERGENCE, Fault.IN_FLIGHT}),
    "barriers are not fenced": (r"proxy_fence\(\);", "", {Fault.UNFENCED}),
    "lanes do not wait for the barriers": (r"__syncwarp\(\);", "", {Fault.UNINITIALIZED, Fault.RACE}),
    "threads do not meet before a slot is filled again": (r"__syncthreads\(\);(\s*if \(warp == 0\))", r"\1", {Fault.RACE}),
    "rows are copied short": (r"(bulk_copy\([^;]*, )(\d+), count", r"\g<1>\2 - 16, count", {Fault.DIVERGENCE}),
    "rows stand at the wrong pitch": (r"(bulk_copy\(slot \+ (?:\d+ \+ )?)(\d+) \* row", r"\1(\2 - 8) * row", set(Fault)),
    "one slot is filled too early": (r"fetch\(used \+ (\d+)\)", r"fetch(used + \1 + 1)", set(Fault)),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_shows(name: str, fault: str) -> None:
    pattern, replacement, expected = PLANTS[fault]
    graph = GRAPHS[name]
    (text,) = Executable(graph, CLEAN).sources.values()
    changed, places = re.subn(pattern, replacement, text)
    assert places, "the fault has no place in the kernel"
    machine = replace(CLEAN, edit=lambda printed: changed, findings=[])
    error = emulated(graph, machine)
    shown = {finding.fault for finding in machine.findings}
    assert shown & expected or not error < ERRORS[graph.inputs()[0].output.dtype]


@pytest.mark.parametrize("name", GRAPHS)
def test_without_a_fault_nothing_shows(name: str) -> None:
    machine = replace(CLEAN, findings=[])
    assert emulated(GRAPHS[name], machine) < ERRORS[GRAPHS[name].inputs()[0].output.dtype]
    assert machine.findings == []
