"""GPUs as PyTorch sees them, whatever prints their kernels: whether there is one, its tensors, and how long calls take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from mugraph.devices.capability import Architecture, Capability
from mugraph.devices.device import ReportedGpu, architecture_of, architectures
from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.host.array_interface import Arrays
from mugraph.host.arrays import cuda_arrays
from mugraph.targets.machine import Timed

_OF_EACH_BLOCK = 1024
"""Bytes of shared memory that CUDA takes of each block."""
_CAPTURED = 20
"""Calls in one CUDA graph that is timed: inputs of small programs stay in the GPU's cache between them."""


@dataclass(frozen=True, slots=True)
class TorchGpu:
    """What machines for GPUs of an `architecture`, as `sm_90`, have in common; blocks share up to `shared_bytes` of memory."""

    architecture: str
    shared_bytes: int

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        """CUDA tensors of PyTorch, all on one GPU."""
        if any(type(array).__module__.partition(".")[0] != "torch" for array in inputs):
            raise InvalidInput(f"kernels for {self.architecture} take torch tensors on a CUDA device")
        return cuda_arrays(inputs)

    def moved(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs as tensors on the current GPU."""
        import torch

        return [torch.as_tensor(np.require(a, requirements="W") if isinstance(a, np.ndarray) else a).cuda() for a in inputs]

    def timed(self, call: Callable[[], object]) -> Timed:
        """The call captured into a CUDA graph, if it can be."""
        return captured(call)


@dataclass(frozen=True, slots=True)
class NvidiaGpu(TorchGpu):
    """The same of NVIDIA's GPUs, on which kernels run."""

    @property
    def available(self) -> bool:
        """Whether PyTorch's current GPU runs code for the architecture, with as much shared memory as a block may take."""
        return _torch_sees_one() and not lacking(self.variant, self.shared_bytes, reported_gpu())

    @property
    def variant(self) -> str:
        """What its code is for, where kernels ask for no instructions that only a variant of the architecture has."""
        return self.architecture


def gpu_index(device: int | None = None) -> int:
    """The index of a GPU, by default torch's current one; raises TargetUnavailable where torch has none of that index."""
    import torch

    if not _torch_sees_one():
        raise TargetUnavailable("a kernel needs an NVIDIA GPU to run; without one it is compiled, and checked on the CPU")
    index = torch.cuda.current_device() if device is None else device
    if not 0 <= index < torch.cuda.device_count():
        raise TargetUnavailable(f"there is no cuda:{index}; PyTorch sees {torch.cuda.device_count()} devices")
    torch.cuda.init()  # type: ignore[no-untyped-call]  # not annotated by torch
    return index


def reported_gpu(device: int | None = None) -> ReportedGpu:
    """What PyTorch reports of the GPU of an index, by default its current one; raises TargetUnavailable where there is none."""
    import torch

    found = torch.cuda.get_device_properties(gpu_index(device))
    shared_bytes = getattr(found, "shared_memory_per_multiprocessor", sys.maxsize)  # what PyTorch doesn't say the driver refuses
    capability = Capability(found.major, found.minor)
    return ReportedGpu(found.name, capability, found.multi_processor_count, shared_bytes - _OF_EACH_BLOCK)


def lacking(architecture: str, shared_bytes: int, gpu: ReportedGpu) -> str:
    """What a GPU lacks to run code for an architecture (`sm_90a`, `sm_100f`, ...) whose blocks take so much shared memory;
    "" where it runs it."""
    needed = Architecture.of(architecture)
    if not needed.runs_on(gpu.capability):
        return f"code for {architecture} needs {needed}, and {gpu.name} has {gpu.capability}"
    if shared_bytes > gpu.shared_memory_bytes:
        return f"a block takes {shared_bytes} bytes of shared memory, and {gpu.name} has {gpu.shared_memory_bytes}"
    return ""


def present_architecture(device: int | None = None) -> str:
    """The architecture of a GPU that is here, by default torch's current one, with its model where that is described.

    Raises TargetUnavailable where there is no GPU, or none that kernels are made for.
    """
    remedy = f"name what to compile for, as in cuda:sm_90 (known are {', '.join(architectures())})"
    if find_spec("torch") is None or not _torch_sees_one():
        raise TargetUnavailable(f"the target is the GPU that is here, and PyTorch sees none; {remedy}")
    gpu = reported_gpu(device)
    architecture = architecture_of(gpu)
    if architecture is None:
        raise TargetUnavailable(f"no kernels are made for {gpu.name} of compute capability {gpu.capability}; {remedy}")
    return architecture


def target_of(tensors: Iterable[Any]) -> str:
    """The target that tensors of PyTorch lie on; raises TargetUnavailable for a device without one."""
    devices = [tensor.device for tensor in tensors]
    if gpu := next((device for device in devices if device.type == "cuda"), None):
        return f"cuda:{present_architecture(gpu.index)}"
    if other := next((device for device in devices if device.type != "cpu"), None):
        raise TargetUnavailable(f"no target runs on {other}")
    return "cpu"


def common_target(tensors: Iterable[Any]) -> str:
    """The same of tensors that have to lie on one device; numbers without dimensions may lie on the CPU beside a GPU.

    Raises InvalidInput that names the devices where there are several.
    """
    placed = [tensor for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"]
    places = sorted({str(tensor.device) for tensor in placed})
    if len(places) > 1:
        raise InvalidInput(f"tensors lie on {' and '.join(places)}; move them to one device, or name the target")
    return target_of(placed)


def on_their_gpu(tensors: Iterable[Any]) -> AbstractContextManager[Any]:
    """A context in which the GPU that tensors lie on is PyTorch's current one, where calls are timed."""
    gpu = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if gpu is None:
        return nullcontext()
    import torch  # which need not be installed otherwise

    return torch.cuda.device(gpu)


def _torch_sees_one() -> bool:
    """Whether PyTorch has an NVIDIA GPU: builds for AMD's call theirs CUDA devices, too."""
    import torch

    return torch.version.hip is None and torch.cuda.is_available()


def captured(call: Callable[[], object]) -> Timed:
    """The call captured into a CUDA graph several times, so that neither launches nor waiting for the GPU count.

    What cannot be captured, for it waits for the GPU itself, is called as often, and its launches count.
    """
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # not annotated by torch
    with torch.cuda.stream(stream):
        call()  # loads kernels and lets libraries choose theirs, which must not happen while capturing
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    def repeated() -> None:
        for _ in range(_CAPTURED):
            call()

    try:
        with torch.cuda.graph(graph, stream=stream):
            repeated()
        launched: Callable[[], object] = graph.replay
    except RuntimeError:
        launched = repeated

    def run() -> None:
        launched()
        torch.cuda.synchronize()

    return Timed(run, _CAPTURED)
