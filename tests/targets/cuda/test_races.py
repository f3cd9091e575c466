"""The race detector against its definition: random programs of reads, writes and barriers, and every pair of their accesses."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.targets.cuda.emulator import Fault, emulate
from mugraph.targets.launch import LaunchShape

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

THREADS, CELLS, WARP = 64, 2, 32
IDLE, READ, WRITE = 0, 1, 2
BARRIER, WARP_BARRIER = -1, -2

INTERPRETER = """
extern "C" __global__ void interpret(const int *length, const int *program, float *y)
{
    float *const s = (float *)shared_memory();
    if (threadIdx.x < 2)
        s[threadIdx.x] = 0;
    __syncthreads();
    float seen = 0;
    for (int step = 0; step < *length; ++step) {
        const int what = program[step * 64 + threadIdx.x];
        if (what == -1)
            __syncthreads();
        else if (what == -2)
            __syncwarp();
        else if (what % 3 == 1)
            seen += *(volatile float *)(s + what / 3);
        else if (what % 3 == 2)
            *(volatile float *)(s + what / 3) = 1;
    }
    y[threadIdx.x] = seen;
}
"""


@dataclass(frozen=True, slots=True)
class Access:
    thread: int
    cell: int
    writes: bool
    barriers: int
    warp_barriers: int

    def races(self, other: Access) -> bool:
        """The definition: another thread, the same cell, one of them writes, and no barrier of both in between."""
        if self.thread == other.thread or self.cell != other.cell or not (self.writes or other.writes):
            return False
        ordered_by_warp = self.thread // WARP == other.thread // WARP and self.warp_barriers != other.warp_barriers
        return self.barriers == other.barriers and not ordered_by_warp


Step = int | dict[int, int]
"""A barrier, or what some of the threads do: READ or WRITE plus 3 times the cell."""


def accesses(steps: list[Step]) -> list[Access]:
    found, barriers, warp_barriers = [], 0, 0
    for step in steps:
        if isinstance(step, dict):
            found += [Access(t, what // 3, what % 3 == WRITE, barriers, warp_barriers) for t, what in step.items()]
        else:
            barriers += step == BARRIER
            warp_barriers += 1
    return found


def program_of(steps: list[Step]) -> np.ndarray:
    program = np.zeros((len(steps), THREADS), np.int32)
    for row, step in zip(program, steps, strict=True):
        if isinstance(step, dict):
            for thread, what in step.items():
                row[thread] = what
        else:
            row[:] = step
    return program


# Few threads and cells: what the detector forgets shows where the same ones meet again and again.
deeds = st.builds(lambda kind, cell: kind + 3 * cell, st.sampled_from([READ, READ, WRITE]), st.integers(0, CELLS - 1))
few_threads = st.sampled_from([0, 1, 32])
steps_of = st.lists(
    st.one_of(st.sampled_from([BARRIER, WARP_BARRIER]), st.dictionaries(few_threads, deeds, min_size=1, max_size=2)),
    min_size=1,
    max_size=7,
)


@settings(max_examples=500, deadline=None)
@given(steps_of, st.integers(0, 5))
def test_a_race_is_reported_exactly_where_two_accesses_race(steps: list[Step], seed: int) -> None:
    racing = any(first.races(second) for first, second in itertools.combinations(accesses(steps), 2))
    length, y = np.array([len(steps)], np.int32), np.empty(THREADS, np.float32)
    shown = emulate(INTERPRETER, "interpret", LaunchShape((1,), THREADS, 4 * CELLS), [length, program_of(steps)], [y], seed)
    assert {finding.fault for finding in shown.findings} == ({Fault.RACE} if racing else set())
