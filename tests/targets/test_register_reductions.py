"""Reductions in registers on the emulator: right, clean, and every planted fault noticed."""

from __future__ import annotations

import shutil

import pytest

from lower.graphs import rms_norm_linear
from lower.test_register_reductions import in_registers, statistics
from mugraph.devices import NO_ENGINES, Engines
from mugraph.ir import DType
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from targets.plants import Plant, shows
from targets.test_cuda import ERRORS, emulated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
MACHINES = {
    "tensor maps": Cuda("sm_90", 200_000, engines=Engines(tensor_maps=True), multiprocessors=132),
    "threads": Cuda("sm_80", 160_000, engines=NO_ENGINES, multiprocessors=108),
}
GRAPHS = {
    "one row": lambda dtype: statistics(1, 384, 3, dtype),
    "odd rows": lambda dtype: statistics(5, 60, 4, dtype),
    "as many rows as threads": lambda dtype: statistics(128, 12, 3, dtype),
    "reduced behind the loop": lambda dtype: statistics(5, 60, 4, dtype, late="sum and max"),
    "of one row, behind the loop": lambda dtype: statistics(1, 768, 3, dtype, late="sum and max"),
    "all columns": lambda dtype: statistics(12, 40, 3, dtype, taken=False),
    "a normalization": lambda dtype: rms_norm_linear(rows=8, inner=512, columns=64, grid=2, loop=4, dtype=dtype),
    "of one row": lambda dtype: rms_norm_linear(rows=1, inner=2048, columns=32, grid=2, loop=4, dtype=dtype),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_right_and_clean(name: str, dtype: DType, machine: str) -> None:
    graph = GRAPHS[name](dtype)
    (launch,) = MACHINES[machine].lower(graph).values()
    assert in_registers(launch.kernel)
    for seed, apart in ((0, False), (3, True)):
        on = EmulatedCuda(MACHINES[machine], seed, apart=apart)
        assert emulated(graph, on) < ERRORS[dtype]
        assert on.findings == []


PLANTS: dict[str, Plant] = {
    "an iteration forgets the ones before": (r"float total = \w+_held;(?!\s*total)", "float total = 0;", set()),
    "an iteration is left out": (r"\w+_held = total;", "", set()),
    "nothing to start from": (r"\n\s*\w+_held = 0x0[^;]*;", "", set()),
    "lanes do not meet": (r"total = total \+ shfl_xor\(total, 1\);", "", set()),
    "a lane too few meets": (r"total = total \+ shfl_xor\(total, 8\);", "total = total + shfl_xor(total, 4);", set()),
    "every lane stores": (r"if \(wanted < (\d+) && thread % \d+ == 0\)", r"if (wanted < \1)", {Fault.RACE}),
    "another result": (
        r"const int wanted = o \+ thread / (\d+)(?=[^}]*float total = \w+_held;\s*total)",
        r"const int wanted = o + (thread / \1 ^ 1)",
        set(),
    ),
    "read before it is stored": (r"__syncthreads\(\);", "", {Fault.RACE, Fault.UNINITIALIZED}),
}


@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_shows(fault: str) -> None:
    graph = rms_norm_linear(rows=8, inner=512, columns=64, grid=2, loop=4, dtype=DType.BF16)
    assert shows(graph, EmulatedCuda(MACHINES["threads"], seed=1), PLANTS[fault])
