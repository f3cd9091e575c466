"""GPUs as PyTorch sees them: whether there is one, and how long calls take on it."""

from __future__ import annotations

from collections.abc import Callable

from mugraph.runtime.machine import Timed

_CAPTURED = 20
"""Calls in one CUDA graph that is timed: inputs of small programs stay in the GPU's cache between them."""


def has_gpu(architecture: str) -> bool:
    """Whether PyTorch sees a GPU of an architecture, as in `sm_90`, or a later one of its generation."""
    import torch

    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == int(architecture[3:-1])


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
