"""Devices: what targets stand for, and how the host is described."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mugraph.devices import device_for, known_targets
from mugraph.devices.host import available_cores, instruction_set, l2_bytes, processor_features
from mugraph.errors import TargetUnavailable
from mugraph.ir import DType


@pytest.mark.parametrize(
    ("target", "name", "multiprocessors", "shared_kib", "bandwidth"),
    [
        ("cuda:sm_80", "A100", 108, 163, 1.555e12),
        ("cuda:sm_90", "H100", 132, 227, 3.35e12),
        ("cuda:sm_90:h200", "H200", 132, 227, 4.8e12),
        ("cuda:sm_100", "B200", 148, 227, 8.0e12),
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


@pytest.mark.parametrize("target", known_targets())
def test_every_known_target_is_complete_and_plausible(target: str) -> None:
    device = device_for(target)
    assert set(device.matmul_flops) == set(DType) - {DType.BOOL, DType.INT32, DType.INT64}
    assert device.multiprocessors >= 1
    assert 2**12 <= device.shared_memory_bytes < device.device_memory_bytes
    assert device.register_bytes >= 2**8
    assert 1e9 < device.memory_bandwidth <= device.cache_bandwidth
    assert 0 < device.iteration_seconds < device.launch_seconds < 1e-3
    assert device.vector_flops <= device.matmul_flops[DType.FP32] <= device.matmul_flops[DType.BF16]


@pytest.mark.parametrize(
    ("architecture", "bulk", "groups"),
    [("sm_80", False, False), ("sm_90", True, True), ("sm_90:h200", True, True), ("sm_100", True, False)],
)
def test_hopper_brought_bulk_copies_that_stayed_and_warp_groups_that_did_not(architecture: str, bulk: bool, groups: bool) -> None:
    engines = device_for(f"cuda:{architecture}").engines
    assert (engines.bulk_row_bytes > 0) == bulk
    assert (engines.warp_group_rows > 0) == groups


def test_devices_are_values() -> None:
    device = device_for("cuda:sm_80")
    same, slower = replace(device), replace(device, launch_seconds=2 * device.launch_seconds)
    assert same is not device
    assert {device, same, slower} == {device, slower}


@pytest.mark.parametrize("target", ["gpu", "cuda", "cuda:sm_70", "cpu:sm_80", "metal:sm_90", ""])
def test_an_unknown_target_is_refused_with_the_known_ones(target: str) -> None:
    with pytest.raises(TargetUnavailable, match=r"unknown target .*cpu, cuda:sm_80.*triton:sm_100"):
        device_for(target)


def test_the_host_has_the_cores_this_process_may_use() -> None:
    device = device_for("cpu")
    assert device.multiprocessors == available_cores()
    if hasattr(os, "sched_getaffinity"):
        assert device.multiprocessors == len(os.sched_getaffinity(0))
    assert device.target == "cpu"


def test_l2_size_is_read_where_linux_reports_it(tmp_path: Path) -> None:
    for index, level, size in [("index0", "1", "32K"), ("index1", "2", "1280K"), ("index2", "3", "32M")]:
        (tmp_path / index).mkdir()
        (tmp_path / index / "level").write_text(f"{level}\n")
        (tmp_path / index / "size").write_text(f"{size}\n")
    assert l2_bytes(tmp_path, unknown=7) == 1280 * 1024


def test_l2_size_falls_back_where_nothing_is_reported(tmp_path: Path) -> None:
    assert l2_bytes(tmp_path / "absent", unknown=7) == 7
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "level").write_text("2\n")
    (tmp_path / "index0" / "size").write_text("unknown\n")
    assert l2_bytes(tmp_path, unknown=7) == 7


def test_instruction_set_is_the_widest_whose_features_are_all_present(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"requires": ["wide", "bf16"]}, {"requires": ["wide"]}, {"requires": []}]
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu wide sse\n")
    assert instruction_set(rows, processor_features(cpuinfo)) == {"requires": ["wide"]}
    assert instruction_set(rows, processor_features(tmp_path / "absent")) == {"requires": []}
