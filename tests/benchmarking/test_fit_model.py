"""The constants of described GPUs are those that fit what was measured on them, and the order they predict is better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks import fit_model

from mugraph.devices import device_for

H100 = device_for("cuda:sm_90")


def made_up(device: Any) -> list[fit_model.Point]:
    """Kernels that take what the model says on a device."""
    kernels = [
        {
            "blocks": blocks,
            "loop": loop,
            "memory": memory,
            "cache": 2 * memory / blocks,
            "matmul_seconds": 1e-9,
            "vector_operations": operations,
            "steps": 6,
            "held": 100_000,
            "waiting": waiting,
        }
        for blocks, loop in ((8, 1), (128, 4), (512, 16))
        for memory in (1e5, 3e7)
        for operations in (1e3, 3e5)
        for waiting in (0.0, 1e5)
    ]
    return [{"kernels": [kernel], "measured": fit_model.predicted({"kernels": [kernel]}, device)} for kernel in kernels]


def test_the_constants_of_a_device_are_found_from_its_times() -> None:
    other = replace(
        H100, vector_flops=2 * H100.vector_flops, launch_seconds=1.5 * H100.launch_seconds, load_seconds=H100.load_seconds / 2
    )
    found = fit_model.fitted(made_up(other), H100)
    assert found.vector_flops == pytest.approx(other.vector_flops, rel=0.03)
    assert found.launch_seconds == pytest.approx(other.launch_seconds, rel=0.03)
    assert found.load_seconds == pytest.approx(other.load_seconds, rel=0.03)


@pytest.mark.slow
def test_the_described_device_is_the_fitted_one() -> None:
    found = fit_model.report()
    for name in fit_model.FITTED:
        assert found["fitted"][name] == pytest.approx(found["described"][name], rel=0.06), name
    before, roofs, now, held_out = (found["mean"][name] for name in ("before", "roofs", "described", "held_out"))
    for mean in (now, held_out):
        assert mean["ordered"] > roofs["ordered"] + 0.03
        assert mean["regret"] < roofs["regret"]
        assert mean["correlation"] > before["correlation"] + 0.15
        assert mean["regret"] < before["regret"]
        assert mean["largest_regret"] < before["largest_regret"]


def test_of_a_gpu_with_the_same_multiprocessors_the_memory_system_alone_is_fitted() -> None:
    target = "cuda:sm_90:h200"
    found = fit_model.report(target)
    assert found["fitted"].keys() == {"cache_bandwidth"}
    assert found["fitted"]["cache_bandwidth"] == pytest.approx(found["described"]["cache_bandwidth"], rel=0.06)
    for each in (name for name in fit_model.FITTED if name not in found["fitted"]):
        assert getattr(device_for(target), each) == getattr(H100, each)
    at_full_rate = replace(device_for(target), cache_bandwidth=device_for(target).memory_bandwidth)
    as_if = fit_model.mean(
        fit_model.order(fit_model.points(at_full_rate), lambda point: fit_model.predicted(point, at_full_rate))
    )
    assert found["mean"]["held_out"]["error"] < as_if["error"] - 0.03
    assert found["mean"]["described"]["largest_regret"] <= as_if["largest_regret"]
