"""What a launch asks of the driver, with the driver's part played by the test: there is no GPU here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mugraph.errors import TargetUnavailable
from mugraph.runtime.cuda.launch import LaunchShape, LoadedKernel
from mugraph.runtime.cuda.nvrtc import Cubin

core = pytest.importorskip("cuda.core", reason="launching needs cuda-core")
bindings = pytest.importorskip("cuda.bindings.driver", reason="launching needs cuda-bindings")

CUBIN = Cubin(b"code", "sm_90a", "")
SHAPE = LaunchShape(grid=(4, 2), threads=128, shared_bytes=100_000)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU that accepts everything and records what it was asked for."""
    stream = SimpleNamespace(cuda_stream=1)
    asked = SimpleNamespace(loaded=[], attributes=[], launches=[], answer=bindings.CUresult.CUDA_SUCCESS, stream=stream)
    device = SimpleNamespace(device_id=0, name="a GPU", set_current=lambda: None)

    def load(code: bytes, name: str) -> Any:
        asked.loaded.append(code)
        return SimpleNamespace(get_kernel=lambda kernel: SimpleNamespace(name=kernel, handle=f"handle of {kernel}"))

    def set_attribute(attribute: Any, value: int, kernel: Any, of_device: Any) -> tuple[Any]:
        asked.attributes.append((attribute.name, value, kernel))
        return (asked.answer,)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: asked.stream)
    monkeypatch.setattr(core, "Device", lambda number: device)
    monkeypatch.setattr(core, "ObjectCode", SimpleNamespace(from_cubin=load))
    monkeypatch.setattr(core, "launch", lambda stream, *arguments: asked.launches.append((stream.__cuda_stream__(), *arguments)))
    monkeypatch.setattr(bindings, "cuKernelSetAttribute", set_attribute)
    return asked


def test_a_kernel_is_loaded_once_and_launched_on_the_current_stream(driver: SimpleNamespace) -> None:
    kernel = LoadedKernel(CUBIN, "k", SHAPE)
    kernel([11, 22])
    driver.stream = SimpleNamespace(cuda_stream=2)
    kernel([33, 44])
    assert driver.loaded == [b"code"]
    (first, config, loaded, *addresses), (second, _, _, *later) = driver.launches
    assert (addresses, later) == ([11, 22], [33, 44])
    assert (first, second) == ((0, 1), (0, 2))
    assert loaded.name == "k"
    assert (config.grid, config.block, config.shmem_size) == ((4, 2, 1), (128, 1, 1), 100_000)


def test_shared_memory_is_asked_for_before_the_first_launch(driver: SimpleNamespace) -> None:
    LoadedKernel(CUBIN, "k", SHAPE)
    assert driver.attributes == [("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000, "handle of k")]
    assert driver.launches == []


def test_a_gpu_with_too_little_shared_memory_is_refused(driver: SimpleNamespace) -> None:
    driver.answer = bindings.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(TargetUnavailable, match="a GPU cannot give a block 100000 bytes"):
        LoadedKernel(CUBIN, "k", SHAPE)
