"""NVIDIA GPUs as PyTorch sees them, whatever prints their kernels: whether there is one, its tensors, and how long calls take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.host.arrays import Arrays, cuda_arrays
from mugraph.lower.fragments import on_matrix_units
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.machine import Timed

_CAPTURED = 20
"""Calls in one CUDA graph that is timed: inputs of small programs stay in the GPU's cache between them."""


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """What machines for GPUs of an `architecture`, as `sm_90`, have in common; blocks share up to `shared_bytes` of memory."""

    architecture: str
    shared_bytes: int

    @property
    def available(self) -> bool:
        """Whether PyTorch sees a GPU of the architecture or a later one of its generation."""
        import torch

        return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == int(self.architecture[3:-1])

    @property
    def stand_in(self) -> Cpu:
        """This host, with factors rounded as the matrix units round them."""
        return Cpu(matrix_units=on_matrix_units)

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
        """The call captured into a CUDA graph."""
        return captured(call)


def gpu_index(device: int | None = None) -> int:
    """The index of a GPU, by default torch's current one; raises TargetUnavailable where torch has none of that index."""
    import torch

    if not torch.cuda.is_available():
        raise TargetUnavailable("a kernel needs an NVIDIA GPU to run; without one it is compiled, and checked on the CPU")
    index = torch.cuda.current_device() if device is None else device
    if not 0 <= index < torch.cuda.device_count():
        raise TargetUnavailable(f"there is no cuda:{index}; PyTorch sees {torch.cuda.device_count()} devices")
    torch.cuda.init()  # type: ignore[no-untyped-call]  # not annotated by torch
    return index


def captured(call: Callable[[], object]) -> Timed:
    """The call captured into a CUDA graph several times, so that neither launches nor waiting for the GPU count."""
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # not annotated by torch
    with torch.cuda.stream(stream):
        call()  # loads kernels and lets libraries choose theirs, which must not happen while capturing
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(_CAPTURED):
            call()

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return Timed(run, _CAPTURED)
