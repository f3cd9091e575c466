"""Devices: what targets stand for, and how the host is described."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mugraph.devices import device_for, known_targets
from mugraph.devices.capability import Architecture, Capability
from mugraph.devices.copies import MOST_STAGES, PANEL_BYTES
from mugraph.devices.device import ProductRate, ProductRates, ReportedGpu, RightFactor, architecture_of, architectures
from mugraph.devices.host import (
    available_cores,
    cache_bytes,
    instruction_set,
    kernel_threads,
    processor_features,
    product_rates,
    slowdown,
    slowdown_of_calls,
)
from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.ir import DType
from mugraph.targets.cuda.machine import Cuda


@pytest.mark.parametrize(
    ("target", "name", "multiprocessors", "shared_kib", "bandwidth"),
    [
        ("cuda:sm_80", "A100", 108, 163, 1.555e12),
        ("cuda:sm_90", "H100", 132, 227, 3.35e12),
        ("cuda:sm_90:h200", "H200", 132, 227, 4.8e12),
        ("cuda:sm_100", "B200", 148, 227, 8.0e12),
        ("cuda:sm_80:a100-40gb", "A100 SXM 40 GB", 108, 163, 1.555e12),
        ("cuda:sm_80:a100-80gb", "A100 SXM 80 GB", 108, 163, 2.039e12),
        ("cuda:sm_89", "L40S", 142, 99, 8.64e11),
        ("cuda:sm_89:rtx4090", "RTX 4090", 128, 99, 1.008e12),
        ("cuda:sm_90:h100-pcie", "H100 PCIe", 114, 227, 2.0e12),
        ("cuda:sm_103", "B300", 148, 227, 8.0e12),
        ("cuda:sm_120", "RTX 5090", 170, 99, 1.792e12),
        ("triton:sm_90", "H100", 132, 64, 3.35e12),
    ],
)
def test_a_gpu_target_stands_for_its_datasheet(
    target: str, name: str, multiprocessors: int, shared_kib: int, bandwidth: float
) -> None:
    device = device_for(target)
    assert name in device.name
    assert device.target == target
    assert device.multiprocessors == multiprocessors
    assert device.shared_memory_bytes == shared_kib * 1024
    assert device.memory_bandwidth == bandwidth


@pytest.mark.parametrize("architecture", architectures())
def test_bytes_in_flight_are_what_latency_times_bandwidth_asks_for(architecture: str) -> None:
    """Of a busy memory: no fewer than three times the 479 cycles that a load takes on an idle H100 (arXiv 2402.13499), by the
    clocks that devices have; and no more than four panels of the usual size are."""
    device = device_for(f"cuda:{architecture}")
    asked = 3 * 479 / device.clock_hertz * device.memory_bandwidth / device.multiprocessors
    assert 0 < asked <= device.bytes_in_flight < MOST_STAGES * PANEL_BYTES


@pytest.mark.parametrize(
    ("architecture", "megabytes"),
    [
        *(("sm_80", 20), ("sm_80:a100-80gb", 20), ("sm_90", 25), ("sm_90:h100-pcie", 25), ("sm_90:h200", 25)),
        *(("sm_89", 96), ("sm_89:rtx4090", 72), ("sm_100", 63), ("sm_103", 63), ("sm_120", 96)),
    ],
)
def test_what_all_multiprocessors_read_lies_in_every_partition_of_the_last_cache(architecture: str, megabytes: int) -> None:
    device = device_for(f"cuda:{architecture}")
    assert device.common_cache_bytes == megabytes << 20
    assert device.shared_cache_bytes == device.common_cache_bytes * device.shared_cache_partitions
    assert Cuda.described(f"cuda:{architecture}").cache_bytes == device.common_cache_bytes


@pytest.mark.parametrize("target", known_targets())
def test_every_known_target_is_complete_and_plausible(target: str) -> None:
    device = device_for(target)
    assert set(device.matmul_flops) == {dtype for dtype in DType if dtype.is_floating}
    assert device.multiprocessors >= 1
    assert 2**12 <= device.shared_memory_bytes < device.device_memory_bytes
    assert device.register_bytes >= 2**8
    assert device.memory_bandwidth > 1e9
    assert device.cache_bandwidth > 0.8 * device.memory_bandwidth, "measured kernels draw 87 % of an H200's datasheet through it"
    assert 0 < device.iteration_seconds < device.launch_seconds < 1e-3
    assert device.vector_flops <= device.matmul_flops[DType.FP32] <= device.matmul_flops[DType.BF16]


@pytest.mark.parametrize(
    ("architecture", "bulk", "groups"),
    [
        *(("sm_80", False, False), ("sm_89", False, False), ("sm_90", True, True), ("sm_90:h200", True, True)),
        *(("sm_90:h100-pcie", True, True), ("sm_100", True, False), ("sm_103", True, False), ("sm_120", True, False)),
    ],
)
def test_hopper_brought_bulk_copies_that_stayed_and_warp_groups_that_did_not(architecture: str, bulk: bool, groups: bool) -> None:
    engines = device_for(f"cuda:{architecture}").engines
    assert (engines.bulk_row_bytes > 0) == bulk
    assert (engines.warp_group_rows > 0) == groups
    assert engines.tensor_maps == groups, "which only Hopper's have been measured with"


def test_devices_are_values() -> None:
    device = device_for("cuda:sm_80")
    same, slower = replace(device), replace(device, launch_seconds=2 * device.launch_seconds)
    assert same is not device
    assert {device, same, slower} == {device, slower}


@pytest.mark.parametrize("target", ["gpu", "cuda:sm_70", "cpu:sm_80", "metal:sm_90", ""])
def test_an_unknown_target_is_refused_with_the_known_families(target: str) -> None:
    with pytest.raises(TargetUnavailable, match=r"unknown target .*cpu, cuda:ARCH \(sm_80,.*triton:ARCH \(sm_80,") as refusal:
        device_for(target)
    named = set(re.findall(r"\w+", str(refusal.value)))
    assert {name.split(":")[1] for name in known_targets() if ":" in name} <= named
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "shared_kib", "architecture"),
    [
        ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 163, "sm_80:a100"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163, "sm_80:a100-80gb"),
        ("NVIDIA A100 80GB PCIe", (8, 0), 108, 163, "sm_80:a100-80gb"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", (8, 0), 42, 163, "sm_80"),
        ("NVIDIA RTX A6000", (8, 6), 84, 99, None),
        ("NVIDIA L40S", (8, 9), 142, 99, "sm_89:l40s"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, 99, "sm_89:rtx4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76, 99, "sm_89"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, 227, "sm_90:h100"),
        ("NVIDIA H100 PCIe", (9, 0), 114, 227, "sm_90:h100-pcie"),
        ("NVIDIA H200", (9, 0), 132, 227, "sm_90:h200"),
        ("NVIDIA B200", (10, 0), 148, 227, "sm_100:b200"),
        ("NVIDIA B300 SXM6 AC", (10, 3), 148, 227, "sm_103:b300"),
        ("NVIDIA GB300", (10, 3), 152, 227, "sm_103"),
        ("NVIDIA GeForce RTX 5090", (12, 0), 170, 99, "sm_120:rtx5090"),
        ("NVIDIA GB10", (12, 1), 48, 99, "sm_120"),
        ("NVIDIA Tesla T4", (7, 5), 40, 63, None),
    ],
)
def test_a_gpu_is_the_described_one_of_its_name_or_another_whose_code_it_runs(
    name: str, capability: tuple[int, int], multiprocessors: int, shared_kib: int, architecture: str | None
) -> None:
    gpu = ReportedGpu(name, Capability(*capability), multiprocessors, shared_kib * 1024)
    assert architecture_of(gpu) == architecture
    if architecture is not None:
        device = device_for(f"cuda:{architecture}")
        assert device.shared_memory_bytes <= gpu.shared_memory_bytes
        assert Architecture.of(architecture.split(":")[0]).runs_on(gpu.capability)


@pytest.mark.parametrize("target", ["cuda", "triton"])
def test_a_target_without_an_architecture_needs_a_gpu(target: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        TargetUnavailable, match=r"PyTorch sees none; name what to compile for, as in cuda:sm_90 \(known are sm_80"
    ):
        device_for(target)


@pytest.mark.parametrize(
    ("architecture", "runs", "needs"),
    [
        ("sm_80", [(8, 0), (8, 6), (8, 9)], "compute capability 8.0 or a later 8.x"),
        ("sm_89", [(8, 9)], "compute capability 8.9 or a later 8.x"),
        ("sm_90a", [(9, 0)], "compute capability 9.0"),
        ("sm_100", [(10, 0), (10, 3)], "compute capability 10.0 or a later 10.x"),
        ("sm_100f", [(10, 0), (10, 3)], "compute capability 10.0 or a later 10.x"),
        ("sm_100a", [(10, 0)], "compute capability 10.0"),
        ("sm_103f", [(10, 3)], "compute capability 10.3 or a later 10.x"),
        ("sm_120", [(12, 0), (12, 1)], "compute capability 12.0 or a later 12.x"),
    ],
)
def test_code_runs_on_its_generation_or_on_one_capability_alone(
    architecture: str, runs: list[tuple[int, int]], needs: str
) -> None:
    gpus = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]
    needed = Architecture.of(architecture)
    assert [gpu for gpu in gpus if needed.runs_on(Capability(*gpu))] == runs
    assert str(needed) == needs


@pytest.mark.parametrize("name", ["sm_9", "sm_90b", "90", "compute_90", ""])
def test_what_is_no_architecture_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is no architecture of a GPU; write it as in sm_90"):
        Architecture.of(name)


def test_the_host_has_the_cores_this_process_may_use() -> None:
    device = device_for("cpu")
    assert device.multiprocessors == min(available_cores(), torch.get_num_threads())
    if hasattr(os, "sched_getaffinity"):
        assert available_cores() == len(os.sched_getaffinity(0))
    assert device.target == "cpu"


def test_l2_size_is_read_where_linux_reports_it(tmp_path: Path) -> None:
    for index, level, size in [("index0", "1", "32K"), ("index1", "2", "1280K"), ("index2", "3", "32M")]:
        (tmp_path / index).mkdir()
        (tmp_path / index / "level").write_text(f"{level}\n")
        (tmp_path / index / "size").write_text(f"{size}\n")
    assert cache_bytes(tmp_path, 2, unknown=7) == 1280 * 1024


def test_l2_size_falls_back_where_nothing_is_reported(tmp_path: Path) -> None:
    assert cache_bytes(tmp_path / "absent", 2, unknown=7) == 7
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "level").write_text("2\n")
    (tmp_path / "index0" / "size").write_text("unknown\n")
    assert cache_bytes(tmp_path, 2, unknown=7) == 7


def instruction_sets() -> list[dict[str, Any]]:
    """The rows of the table."""
    rows: list[dict[str, Any]] = json.loads((resources.files("mugraph.devices") / "cpu.json").read_text())["instruction_sets"]
    return rows


PAIRS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_bf16"})
"""What multiplies pairs of bf16."""


def test_rates_of_products_are_there_where_they_were_measured() -> None:
    known = (PAIRS, PAIRS | {"amx_tile", "amx_bf16"}, PAIRS - {"avx512_bf16"}, frozenset[str]())
    measured = ["products" in instruction_set(instruction_sets(), features) for features in known]
    assert measured == [True, True, False, False]
    gpu = device_for("cuda:sm_90")
    assert gpu.multiplying(RightFactor.PACKED, DType.BF16, 64) == gpu


@pytest.mark.parametrize("row", instruction_sets(), ids=lambda row: row["name"])
def test_rates_of_products_grow_with_rows_and_exceed_no_machine(row: dict[str, Any]) -> None:
    """The library's do: of more rows none takes less time. What kernels lose by rows that leave a cache is a few percent."""
    for rates in product_rates(row.get("products", {})).values():
        for of_library, of_type in ((True, rates.library), (False, rates.kernels)):
            for rate in of_type.values():
                shares = [rate.of_rows(rows) for rows in (1, 2, 4, 8, 15, 16, 17, 64, 100, 512, 4096)]
                assert all(0 < share <= 1 for share in shares)
                assert shares == sorted(shares) or not of_library


def test_with_a_matrix_unit_few_rows_take_as_long_as_sixteen() -> None:
    """One, which vectors multiply, takes less; of matrices as they lie kernels multiply many rows by vectors, too, at a small
    part of the rate of the library."""
    row = instruction_set(instruction_sets(), PAIRS | {"amx_tile", "amx_bf16"})
    rates = product_rates(row["products"])
    packed, plain = rates[RightFactor.PACKED], rates[RightFactor.PLAIN]
    assert packed.kernels[DType.BF16].of_rows(8) == pytest.approx(packed.kernels[DType.BF16].of_rows(16) / 2, rel=0.3)
    assert packed.kernels[DType.BF16].of_rows(1) > packed.kernels[DType.BF16].of_rows(16) / 8
    assert packed.library[DType.BF16].of_rows(4) == pytest.approx(packed.library[DType.BF16].of_rows(16) / 4)
    assert plain.kernels[DType.BF16].of_rows(64) < plain.library[DType.BF16].of_rows(64) / 4
    assert plain.kernels[DType.FP32].of_rows(64) > plain.library[DType.FP32].of_rows(64)


def test_between_two_measured_numbers_of_rows_a_share_is_between_theirs() -> None:
    rate = ProductRate(((16, 0.2), (64, 0.8)))
    assert [rate.of_rows(rows) for rows in (0, 4, 16, 32, 64, 100)] == pytest.approx([0.0125, 0.05, 0.2, 0.4, 0.8, 0.8])
    assert (rate.first, rate.best) == (16, 0.8)


def test_what_fewer_rows_take_too_is_the_part_of_reading() -> None:
    """All of it where shares go with the rows, nothing where half of the rows reach as much, and half where that takes 3/4."""
    rate = ProductRate(((16, 0.2), (32, 0.2), (64, 0.3)))
    assert [rate.reading(rows) for rows in (1, 8, 16, 32, 64, 128, 1024)] == pytest.approx([0, 1, 1, 0, 0.5, 0, 0])
    assert ProductRate.of(0.95).reading(64) == 0


def test_kinds_that_were_not_measured_are_as_matrices_that_lie_in_memory() -> None:
    plain = ProductRates({DType.FP32: ProductRate.of(0.5)}, {DType.FP32: ProductRate.of(0.7)})
    packed = ProductRates({DType.BF16: ProductRate.of(0.9, 16)})
    device = replace(device_for("cpu"), products={RightFactor.PLAIN: plain, RightFactor.PACKED: packed}, product_efficiency=0.6)
    asked = [(RightFactor.PACKED, DType.BF16), (RightFactor.PACKED, DType.FP32), (RightFactor.BATCHED, DType.BF16)]
    assert [device.multiplying(by, dtype, 8).product_efficiency for by, dtype in asked] == [0.45, 0.5, 0.6]
    assert all(device.multiplying(by, dtype, 8).library_products == plain.library for by, dtype in asked)


def test_instruction_set_is_the_widest_whose_features_are_all_present(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"requires": ["wide", "bf16"]}, {"requires": ["wide"]}, {"requires": []}]
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu wide sse\n")
    assert instruction_set(rows, processor_features(cpuinfo)) == {"requires": ["wide"]}
    assert instruction_set(rows, processor_features(tmp_path / "absent")) == {"requires": []}


def test_the_host_has_the_cores_that_kernels_run_on() -> None:
    """Blocks that split rows between two cores read all weights twice, which nothing makes up for on one thread."""
    threads = torch.get_num_threads()
    whole = device_for("cpu")
    try:
        torch.set_num_threads(1)
        alone = device_for("cpu")
        torch.set_num_threads(available_cores() + 1)
        assert device_for("cpu").multiprocessors == available_cores()
    finally:
        torch.set_num_threads(threads)
    assert alone.multiprocessors == 1
    assert alone.matmul_flops[DType.FP32] * whole.multiprocessors == whole.matmul_flops[DType.FP32]
    assert device_for("cpu") == whole


def test_the_host_is_known_while_another_thread_loads_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in (None, ModuleType("torch")):
        monkeypatch.setitem(sys.modules, "torch", loaded)
        assert kernel_threads() == available_cores()


@pytest.mark.parametrize(
    ("scheduled", "seconds"), [("1000 3000 7\n", 4.0), ("2000 0 7\n", 1.0), ("0 0 0\n", 1.0), ("", 1.0), ("many\n", 1.0)]
)
def test_waits_for_a_core_tell_how_busy_a_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduled: str, seconds: float
) -> None:
    (tmp_path / "schedstat").write_text(scheduled, encoding="utf-8")
    monkeypatch.setattr("mugraph.devices.host._SCHEDULED", tmp_path / "schedstat")
    assert slowdown() == seconds
    for threads, power in ((1, 1.0), (2, 1.5), (8, 1.5)):
        monkeypatch.setattr("mugraph.devices.host.kernel_threads", lambda threads=threads: threads)
        assert slowdown_of_calls() == seconds**power


def test_where_the_system_does_not_say_how_busy_it_is_it_is_taken_for_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mugraph.devices.host._SCHEDULED", tmp_path / "none")
    assert slowdown() == 1.0
