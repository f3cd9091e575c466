"""Functions with scans and lookups for GPUs, whose kernels have neither: PyTorch calls these between kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mugraph
from mugraph.pieces.partitioned import Partitioned
from mugraph.runtime import Executable
from mugraph.targets.emulator import emulator_of
from mugraph.targets.machine import machine_for

pytest.importorskip("cuda.core", reason="kernels for a GPU are compiled with cuda-core")

NO_SCANS = "running sums and products are kernels of the CPU alone"
NO_LOOKUPS = "kernels of GPUs read no integers"


def running(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.exp(x * g).cumsum(-1)) * 2 + 1


def norm_then_scan(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return (x * g / x.square().mean(-1, keepdim=True).sqrt()).cumsum(0)


def products(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.cumprod(-1) * g).sum(-1)


def looked_up(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    y = x[rows]
    return y / y.square().mean(-1, keepdim=True).sqrt()


X, G, ROWS = torch.randn(32, 64).mul(0.1), torch.randn(64), torch.randint(0, 32, (16,))


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
@pytest.mark.parametrize(
    ("function", "inputs", "operator", "reason"),
    [
        (running, (X, G), "cumsum", NO_SCANS),
        (norm_then_scan, (X, G), "cumsum", NO_SCANS),
        (products, (X, G), "cumprod", NO_SCANS),
        (looked_up, (X, ROWS), "index", NO_LOOKUPS),
    ],
)
def test_what_kernels_of_a_gpu_lack_is_called_between_them(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], operator: str, reason: str, target: str
) -> None:
    """The kernels are the printed ones, run by emulators of the target."""
    opt = mugraph.superoptimize(function, inputs, target, 30, profile=False, cache="off")
    assert isinstance(opt, Partitioned)
    coverage = opt.report.coverage
    assert coverage is not None
    assert reason in {calls.reason for calls in coverage.left if calls.operator == operator}
    assert coverage.mugraphs.bytes > 0
    emulator: Any = emulator_of(machine_for(target))
    for result in opt.results:
        assert result.certificate.accepted
        result.executable = Executable(result.graph, emulator)
    opt.run = opt.cut.spliced()
    torch.testing.assert_close(opt(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
    assert emulator.findings == []
