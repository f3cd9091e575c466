"""Leaving an optimization out changes what kernels take, and no result."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from lower.graphs import attention, rms_norm_linear
from mugraph.cli import main
from mugraph.errors import TargetUnavailable
from mugraph.experiments.optimizer_ablation import FULL, Variant, ablate, measure_on_cpu, variants
from mugraph.ir import DType
from mugraph.lower import Passes
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from targets.test_cuda import ERRORS, emulated

ATTENTION = attention(queries=16, keys=256, width=64, loop=4, dtype=DType.FP16)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
@pytest.mark.parametrize(("name", "passes"), list(variants()))
def test_results_are_right_whatever_is_left_out(name: str, passes: Passes) -> None:
    for graph in (ATTENTION, rms_norm_linear(rows=8, inner=256, columns=64, grid=2, loop=2, dtype=DType.FP16)):
        machine = EmulatedCuda(Cuda("sm_90", 200_000, passes))
        assert emulated(graph, machine) < ERRORS[DType.FP16], name
        assert machine.findings == []


def test_each_optimization_lowers_the_figure_it_is_for() -> None:
    pytest.importorskip("cuda.core")
    found: dict[str, Variant | None] = dict(ablate(ATTENTION, "cuda:sm_80"))
    full = found[FULL]
    assert full is not None
    for name, figure in (
        ("no thread graphs", "wavefronts"),
        ("no layouts", "wavefronts"),
        ("no order", "barriers"),
        ("no memory", "shared_bytes"),
    ):
        without = found[name]
        assert without is not None
        assert getattr(without, figure) > getattr(full, figure), name
        if figure != "shared_bytes":
            assert without.predicted_seconds > full.predicted_seconds, name


def test_kernels_without_thread_graphs_are_timed_on_a_cpu() -> None:
    graph = rms_norm_linear(rows=8, inner=256, columns=64, grid=2, loop=2, dtype=DType.FP32)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(node.output.shape).astype(np.float32) for node in graph.inputs()]
    assert all(seconds > 0 for seconds in measure_on_cpu(graph, inputs).values())


def test_what_does_not_fit_says_so() -> None:
    pytest.importorskip("cuda.core")
    too_large = rms_norm_linear(rows=64, inner=2048, columns=256, grid=1, loop=1, dtype=DType.FP32)
    assert {variant for _, variant in ablate(too_large, "cuda:sm_80")} == {None}


def test_other_targets_have_nothing_to_leave_out() -> None:
    with pytest.raises(TargetUnavailable, match="unknown target"):
        list(ablate(ATTENTION, "cuda:sm_12"))


def test_the_command_line_prints_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cuda.core")
    assert main(["ablate", "optimizer", "gated-mlp", "--size", "small", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record["variants"]) == {name for name, _ in variants()}
    assert "Figure 13" in record["paper"]
