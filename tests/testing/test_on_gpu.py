"""What runs emulated kernels on a GPU, with the host's memory in the place of a GPU's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lower.graphs import chain_of_kernels
from mugraph.devices import Engines
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Functions
from mugraph.testing.on_gpu import CudaOnGpu


@pytest.fixture
def host_as_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kernels that are loaded for a GPU are emulated on its copies, and write a byte as far behind their output as is said."""
    emulated = EmulatedCuda.load
    behind = [-1]

    def load(machine: Cuda, kernels: Sequence[Any], sources: Any, cache_directory: Any) -> Functions:
        functions = emulated(EmulatedCuda(machine), kernels, sources, cache_directory)
        sizes = {kernel.name: kernel.buffer(kernel.outputs[0]).bytes for kernel in kernels}

        def launched(name: str) -> Callable[..., None]:
            def launch(*addresses: int) -> None:
                functions[name](*addresses)
                if behind[0] >= 0:
                    ctypes.memset(addresses[-1] + sizes[name] + behind[0], 0, 1)

            return launch

        return {kernel.name: launched(kernel.name) for kernel in kernels}

    monkeypatch.setattr(Cuda, "load", load)
    monkeypatch.setattr("mugraph.testing.on_gpu.present_architecture", lambda: "sm_90:h100")
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return lambda offset: behind.__setitem__(0, offset)


def ran(machine: EmulatedCuda) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    (y,) = Executable(chain_of_kernels(2, (64, 256)), machine)(x)
    return x, y


@pytest.mark.parametrize("engines", [Engines(), Engines(bulk_row_bytes=128)])
def test_results_come_back(host_as_gpu: Callable[[int], None], engines: Engines) -> None:
    machine = CudaOnGpu(Cuda("sm_80", 100_000, engines=engines))
    x, y = ran(machine)
    torch.testing.assert_close(y, x.tanh().exp(), rtol=1e-5, atol=1e-5)
    assert machine.findings == []


@pytest.mark.parametrize("offset", [0, 100, (1 << 14) - 1])
def test_writes_outside_of_outputs_are_found(host_as_gpu: Callable[[int], None], offset: int) -> None:
    host_as_gpu(offset)
    machine = CudaOnGpu(Cuda("sm_90", 100_000))
    ran(machine)
    assert "writes outside of its outputs" in str(machine.findings[0])


def test_planted_faults_stay_on_the_emulator(host_as_gpu: Callable[[int], None]) -> None:
    host_as_gpu(0)
    machine = CudaOnGpu(Cuda("sm_90", 100_000), edit=lambda text: text.replace("expf", "sinf"))
    ran(machine)
    assert machine.findings == []
