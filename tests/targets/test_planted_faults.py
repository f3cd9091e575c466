"""Faults planted in every place of the workloads' CUDA kernels are noticed: by the emulator's checks or by a wrong result.

Some plants are no faults, and nothing can notice them: a barrier between statements whose threads touch the same elements, a
swizzle that only exchanges parts of one sum, or a running maximum replaced by any other number throughout. They are few.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace

import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.devices import device_for
from mugraph.errors import InvalidGraph
from mugraph.frontend import trace
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType, Graph
from mugraph.lower import construct
from mugraph.lower.check import check
from mugraph.lower.memory import lifetimes
from mugraph.search import search
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import SOURCE_NAME
from mugraph.testing.kernel_faults import plants, try_faults

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

MACHINE = Cuda("sm_90", 200_000)


ATTENTION = attention(queries=16, keys=64, width=32, loop=2, dtype=DType.BF16)
RMS_NORM = rms_norm_linear(rows=13, inner=96, columns=40, grid=1, loop=3, dtype=DType.BF16)


@pytest.mark.parametrize(("graph", "missing"), [(ATTENTION, set()), (RMS_NORM, {"overlap"})], ids=["attention", "rms_norm"])
def test_there_is_a_place_for_every_kind_of_fault(graph: Graph, missing: set[str]) -> None:
    """What a loop adds up stays in registers, so that no two buffers of RMSNorm are needed at once."""
    on = EmulatedCuda(MACHINE, apart=True)
    kernels = [launch.kernel for launch in on.lower(graph).values()]
    text = on.print(kernels)[SOURCE_NAME]
    planted = list(plants(kernels, text))
    assert {plant.kind for plant in planted} == {"barrier", "wait", "mask", "layout", "shuffle", "swizzle", "overlap"} - missing
    assert text not in {plant.text for plant in planted}


def test_swizzles_and_strides_of_one_row_are_no_faults() -> None:
    """Row 0 lies where it would without them; kernels of one row clamp all rows to it."""
    one = "ldmatrix<4>(left[i], a_panel + Swizzle<3, 3, 3>::at(a_batch + 64 * (min(m0 + lane % 16, 0)) + k + lane / 16 * 8));"
    kinds = [[plant.kind for plant in plants([], text)] for text in (one, one.replace(", 0))", ", 7))"))]
    assert kinds == [[], ["layout", "swizzle"]]


def test_buffers_that_overlap_are_refused_before_anything_is_printed() -> None:
    graph = attention(queries=16, keys=128, width=64, loop=4, dtype=DType.BF16)
    (kernel,) = (launch.kernel for launch in MACHINE.lower(graph).values())
    alive = lifetimes(kernel.before, kernel.body, kernel.after)
    pairs = [pair for pair in itertools.combinations(alive, 2) if all(kernel.buffer(b).memory == "shared" for b in pair)]
    pairs = [(first, second) for first, second in pairs if alive[first].overlaps(alive[second])]
    assert len(pairs) > 20
    for first, second in pairs:
        moved = replace(kernel.buffer(second), offset=kernel.buffer(first).offset)
        buffers = tuple(moved if buffer.name == second else buffer for buffer in kernel.buffers)
        with pytest.raises(InvalidGraph):
            check(replace(kernel, buffers=buffers))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("name", WORKLOADS)
def test_planted_faults_in_the_workloads_are_noticed(name: str, dtype: DType) -> None:
    inputs = WORKLOADS[name].inputs(8, dtype, "small")
    found = search(trace(WORKLOADS[name].function(), inputs).graph, device_for("cuda:sm_90")).candidates
    looped = [c.graph for c in found if any(body.loop > 1 for node in c.graph.kernels() if (body := node.body) is not None)]
    graph = construct((looped or [candidate.graph for candidate in found])[0])
    trials = try_faults(graph, inputs, MACHINE, most=12)
    assert {"barrier", "mask"} <= trials.keys()
    tried, unnoticed = (sum(kind.tried for kind in trials.values()), sum(len(kind.unnoticed) for kind in trials.values()))
    assert unnoticed <= 0.1 * tried
    assert all(not trials[kind].unnoticed for kind in trials.keys() & {"wait", "mask", "layout", "shuffle"})
