"""The cuda target on a machine without a GPU: optimize, compile, report, save, read back; only running is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mugraph
from lower.graphs import attention, rms_norm_linear
from mugraph.cli import main
from mugraph.devices import device_for
from mugraph.errors import InvalidInput, MugraphError, TargetUnavailable
from mugraph.frontend.workloads import WORKLOADS
from mugraph.ir import DType
from mugraph.runtime import build
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import recorded_machine

pytest.importorskip("cuda.core")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16])
def test_kernels_compile_without_spills(architecture: str, dtype: DType) -> None:
    for graph in (
        rms_norm_linear(rows=16, inner=1024, columns=256, grid=4, loop=4, dtype=dtype),
        attention(queries=16, keys=256, width=64, loop=4, dtype=dtype),
    ):
        (figures,) = build(graph, f"cuda:{architecture}").resources
        assert figures.spill_bytes == 0
        assert 0 < figures.registers <= 65536 // figures.threads


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(TargetUnavailable, match="sm_35"):
        Cuda.of("cuda:sm_35")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_a_machine_is_that_which_its_record_describes(architecture: str) -> None:
    described = Cuda.described(f"cuda:{architecture}")
    without_order, usual_rings = replace(described, cache_bytes=0), replace(described, bytes_in_flight=0)
    assert recorded_machine(f"cuda:{architecture}", described.parameters) == described
    assert recorded_machine(f"cuda:{architecture}", without_order.parameters) == without_order
    assert recorded_machine(f"cuda:{architecture}", usual_rings.parameters) == usual_rings
    whole_cache = replace(
        described, cache_bytes=device_for(f"cuda:{architecture}").shared_cache_bytes
    )  # of results until 2026-11
    assert recorded_machine(f"cuda:{architecture}", whole_cache.parameters) == whole_cache
    for name in ("cache_bytes", "bytes_in_flight"):
        with pytest.raises(InvalidInput, match="describes itself"):
            recorded_machine(f"cuda:{architecture}", {**described.parameters, name: 4096})


@without_gpu
def test_running_needs_a_gpu() -> None:
    executable = build(rms_norm_linear(), "cuda:sm_90")
    assert not executable.machine.available
    with pytest.raises(InvalidInput, match="cuda"):
        executable(*(torch.zeros(node.output.shape) for node in executable.graph.inputs()))


@without_gpu
def test_a_result_for_a_gpu_is_verified_and_travels(tmp_path: Path) -> None:
    rmsnorm = WORKLOADS["rmsnorm"]
    inputs = rmsnorm.inputs(dtype="fp16", size="small")
    opt = mugraph.superoptimize(rmsnorm.function(), inputs, "cuda:sm_90")
    assert opt.found
    assert opt.certificate.accepted
    assert opt.best.latency is None
    again = mugraph.load(opt.save(tmp_path / "result"))
    assert again.sources == opt.sources
    assert "__global__" in opt.sources["kernels.cu"]
    with pytest.raises(MugraphError, match="cuda"):
        again(*inputs)


@pytest.mark.slow
@without_gpu
def test_a_normalization_is_fused_in_fp16_at_full_size() -> None:
    """It multiplies before it divides, so that numbers arise that fp16 does not hold."""
    rmsnorm = WORKLOADS["rmsnorm"]
    opt = mugraph.superoptimize(rmsnorm.function(), rmsnorm.inputs(dtype="fp16"), "cuda:sm_90")
    (kernel,) = opt.best.graph.kernels()
    assert kernel.body is not None
    assert "multiply_fragments<tf32_t>" in opt.sources["kernels.cu"]


@pytest.mark.slow
@without_gpu
def test_evidence_is_sampled_where_this_cpu_is_slow() -> None:
    """The whole comparison would be 34 billion operations of float64; blocks are compared, and the report says so."""
    x, y, z = (torch.randn(2048, 2048).half() for _ in range(3))
    opt = mugraph.superoptimize(lambda x, y, z: x @ z + y @ z, (x, y, z), "cuda:sm_90", budget=20, cache="off")
    assert opt.found
    floats = opt.certificate.floats
    assert floats is not None
    (standard,) = (entry for entry in floats.scales if entry.scale == 1 and not entry.pattern)
    assert standard.compared is not None
    assert 1000 < standard.compared[0] < floats.elements[0] == 2048 * 2048
    assert opt.best.spot_check is not None
    assert opt.best.spot_check.ran > 0


@without_gpu
def test_the_command_line_reports_what_kernels_take_and_times_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "lora")
    options = ["--size", "small", "--dtype", "bf16", "--target", "cuda:sm_80", "-o", folder]
    assert main(["optimize", "lora", *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verified"]
    assert record["latency"] is None
    assert record["predicted"] > record["roofline"] > 0
    assert record["gpu_kernels"]
    assert all(kernel["spill_bytes"] == 0 for kernel in record["gpu_kernels"])
    assert all(kernel["engines"] == [] for kernel in record["gpu_kernels"]), "this architecture has threads alone"
    assert main(["bench", folder]) == 2
    assert "cuda:sm_80" in capsys.readouterr().err
