"""Loading compiled kernels onto a GPU and launching them on PyTorch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.errors import TargetUnavailable
from mugraph.runtime.cuda.nvrtc import Cubin


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Blocks of the grid (one to three dimensions), threads of a block, bytes of dynamic shared memory of a block."""

    grid: tuple[int, ...]
    threads: int
    shared_bytes: int


class LoadedKernel:
    """A kernel on the GPU that was current when it was loaded.

    Calling it enqueues one launch on torch's current stream and returns at once: it allocates nothing and waits for nothing,
    so it may be captured into a CUDA graph.
    """

    def __init__(self, cubin: Cubin, name: str, shape: LaunchShape) -> None:
        """Raises TargetUnavailable when there is no GPU, or its blocks have too little shared memory."""
        import torch

        if not torch.cuda.is_available():
            raise TargetUnavailable("target cuda needs an NVIDIA GPU to run; without one it compiles and is checked on the CPU")
        from cuda.core import Device, LaunchConfig, ObjectCode

        device = Device(torch.cuda.current_device())
        device.set_current()
        self._config = LaunchConfig(grid=shape.grid, block=shape.threads, shmem_size=shape.shared_bytes)
        self._kernel = ObjectCode.from_cubin(cubin.code, name=name).get_kernel(name)
        _allow_shared_memory(self._kernel, device, shape.shared_bytes)

    def __call__(self, addresses: Sequence[int]) -> None:
        """Launch with the device addresses of the kernel's parameters, in order."""
        from cuda.core import launch

        launch(_CurrentStream(), self._config, self._kernel, *addresses)


class _CurrentStream:
    """Torch's current stream to `cuda-core`; torch's own streams speak its protocol from 2.10 on."""

    def __cuda_stream__(self) -> tuple[int, int]:
        import torch

        return (0, torch.cuda.current_stream().cuda_stream)


def _allow_shared_memory(kernel: Any, device: Any, size: int) -> None:
    """Above 48 KB a kernel must ask for its dynamic shared memory once, before the first launch."""
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(attribute, size, kernel.handle, driver.CUdevice(device.device_id))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise TargetUnavailable(f"{device.name} cannot give a block {size} bytes of shared memory; optimize for this device")
