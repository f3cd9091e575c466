"""Bulk copies and the barriers that count them, emulated: what lands when, for whom, and what is reported."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from mugraph.targets.cuda.emulator import Emulation, Fault, emulate
from mugraph.targets.launch import LaunchShape
from targets.cuda.kernels import ROW_COUNT, ROW_ELEMENTS, changed, copied_rows

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")

SHAPE = LaunchShape((2,), threads=64, shared_bytes=2048)
X = np.random.default_rng(0).standard_normal((2, ROW_COUNT, ROW_ELEMENTS)).astype(np.float32)


def run(source: str, seed: int = 0) -> tuple[Emulation, bool]:
    """What running a variant of `copied_rows` showed, and whether its result is right."""
    y = np.empty((2, ROW_ELEMENTS), np.float32)
    shown = emulate(source, "sum_rows", SHAPE, [X], [y], seed)
    return shown, np.allclose(y, X.sum(1), atol=1e-5)


def faults(source: str) -> set[Fault]:
    return {finding.fault for finding in run(source)[0].findings}


@pytest.mark.parametrize("seed", range(4))
def test_rows_pass_through_slots_in_every_phase(seed: int) -> None:
    shown, right = run(copied_rows(), seed)
    assert shown.findings == ()
    assert right


FAULTS: dict[str, tuple[str, str, Fault]] = {
    "no wait": ("mbarrier_wait(full + row % 2, row / 2 % 2);", "", Fault.IN_FLIGHT),
    "the phase before": ("row / 2 % 2);", "(row / 2 + 1) % 2);", Fault.IN_FLIGHT),
    "fewer bytes": ("expect(full + slot, 256)", "expect(full + slot, 240)", Fault.DIVERGENCE),
    "more bytes": ("expect(full + slot, 256)", "expect(full + slot, 272)", Fault.DIVERGENCE),
    "no arrival": ("mbarrier_arrive_expect(full + slot, 256);", "", Fault.DIVERGENCE),
    "two arrivals wanted": ("mbarrier_init(full + slot, 1)", "mbarrier_init(full + slot, 2)", Fault.DIVERGENCE),
    "no fence": ("proxy_fence();", "", Fault.UNFENCED),
    "no barrier after setting up": ("__syncthreads(); /* set up */", "", Fault.UNINITIALIZED),
    "no barrier before the next copy": ("__syncthreads(); /* read */", "", Fault.RACE),
    "an odd size": ("256, full", "248, full", Fault.MISALIGNED),
    "an odd source": ("x + (", "x + 1 + (", Fault.MISALIGNED),
    "beyond the input": ("blockIdx.x * 5 + row", "blockIdx.x * 6 + row", Fault.OUT_OF_BOUNDS),
    "beyond shared memory": ("s + 64 * slot,", "s + 512 * slot,", Fault.OUT_OF_BOUNDS),
    "copies nobody waits for": ("row + 2 < 5", "row + 2 < 6", Fault.UNFINISHED),
    "no such barrier": ("256, full + slot)", "256, full + slot + 2)", Fault.UNINITIALIZED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_reported_by_kind(name: str) -> None:
    old, new, fault = FAULTS[name]
    assert fault in faults(changed(copied_rows(), old, new))


PIECE = """
extern "C" __global__ void k(const float *x, float *y)
{
    float *const s = (float *)shared_memory();
    mbarrier_t *const full = (mbarrier_t *)(s + 64);
    @written
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        proxy_fence();
        bulk_copy(s, x, 128, full);
        bulk_copy(s + 32, x + 32, 128, full);
        mbarrier_arrive_expect(full, 256);
    }
    __syncthreads();
    if (@waiting) mbarrier_wait(full, 0);
    @between
    y[threadIdx.x] = s[threadIdx.x];
}
"""


def run_piece(waiting: str = "true", between: str = "", written: str = "") -> set[Fault]:
    source = PIECE.replace("@waiting", waiting).replace("@between", between).replace("@written", written)
    x, y = np.arange(64, dtype=np.float32), np.empty(64, np.float32)
    shown = emulate(source, "k", LaunchShape((1,), 64, 512), [x], [y])
    if not shown.findings:
        np.testing.assert_array_equal(y, x)
    return {finding.fault for finding in shown.findings}


def test_bytes_may_be_counted_before_they_are_expected() -> None:
    assert run_piece() == set()


def test_what_has_landed_is_there_for_those_who_waited() -> None:
    assert run_piece(waiting="threadIdx.x < 32") == {Fault.IN_FLIGHT}


def test_a_barrier_behind_one_wait_is_enough_for_all() -> None:
    assert run_piece(waiting="threadIdx.x == 7", between="__syncthreads();") == set()


def test_nothing_is_there_before_somebody_waits() -> None:
    assert run_piece(waiting="false", between="__syncthreads();") == {Fault.IN_FLIGHT, Fault.UNFINISHED}


def test_what_threads_wrote_is_fenced_by_those_who_wrote() -> None:
    store = "s[threadIdx.x] = 0; {} __syncthreads();"
    assert run_piece(written=store.format("proxy_fence();")) == set()
    assert run_piece(written=store.format("")) == {Fault.UNFENCED}


def test_threads_must_not_write_where_a_copy_is_on_its_way() -> None:
    assert Fault.IN_FLIGHT in run_piece(waiting="false", between="s[threadIdx.x] = 1; __syncthreads();")
