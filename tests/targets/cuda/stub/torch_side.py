"""PyTorch's side of GPUs that are not there, for a build without CUDA: tensors on two devices, whose memory is the host's.

`install` adds what mugraph asks of `torch.cuda` and nothing else, so that anything new that is asked for fails by name. A tensor
is one of PyTorch's wrappers, with the device of a GPU, around a tensor of the host, where operators run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch

from mugraph.host import arrays

DRIVER = ctypes.CDLL("libcuda.so.1")
_guards: Any = torch._C._dynamo.guards
streams = {0: 0, 1: 0}
"""The current stream on each device."""
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, shared_memory_per_multiprocessor=233472
)
properties = {0: H100, 1: H100}
"""What each device is, as PyTorch says."""


_index: Any = torch.Tensor.get_device
_PLACE = {getattr(torch.Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu")} | {_index}


class GpuTensor(torch.Tensor):
    """A tensor on a GPU, whose elements `held` has."""

    held: torch.Tensor
    address: int

    __module__ = "torch"  # where mugraph looks whether it is one of PyTorch's

    @staticmethod
    def of(held: torch.Tensor, device: int) -> GpuTensor:
        """A tensor on the GPU of that index with the memory of `held`."""
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(
            GpuTensor,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("cuda", device),
        )
        made.held, made.address = held, held.data_ptr()
        return made

    def data_ptr(self) -> int:
        return self.address

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Ask the wrapper where it is, and anything else of the tensor inside; what comes out is on the same GPU."""
        if function in _PLACE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args)
        return _of_the_held(function, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """The same of ATen's operators, which graphs call."""
        return _of_the_held(function, args, kwargs or {})


def _of_the_held(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    tensors = [argument for argument in args if isinstance(argument, GpuTensor)]
    indices = {_index(tensor) for tensor in tensors}
    if len(indices) > 1:
        raise RuntimeError(f"{function} of tensors on several devices")
    result = function(*map(_held, args), **kwargs)
    same = [tensor for tensor in tensors if tensor.held is result]
    return same[0] if same else GpuTensor.of(result, *indices) if isinstance(result, torch.Tensor) else result


def _held(value: Any) -> Any:
    return value.held if isinstance(value, GpuTensor) else value


def on(device: int, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of the host on a GPU."""
    return GpuTensor.of(tensor.clone(), device)


def at_offset(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """A contiguous tensor of the same kind that begins some elements behind the start of its memory."""
    device, held = tensor.device.index, _held(tensor)
    memory = torch.empty(held.numel() + elements, dtype=held.dtype)
    return GpuTensor.of(memory[elements:].view(held.shape).copy_(held), device)


class _Thread(threading.local):
    device = 0
    """What the CUDA runtime says, in a thread without a context too."""


_thread = _Thread()


def current_device() -> int:
    """The index of this thread's device."""
    return _thread.device


def exchange_device(device: int) -> int:
    """Make a device the current one, and its context, unless it is; the one before."""
    before = _thread.device
    if device not in (-1, before):
        _thread.device = device
        DRIVER.stub_set_device(device)
    return before


_usual_to = torch.Tensor.to


def _to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    there = args[0] if args else None
    if isinstance(there, torch.device) and there.type == "cuda":
        assert there.index is not None
        return on(there.index, tensor)
    return _usual_to(tensor, *args, **kwargs)


_capturing: list[Graph] = []


def _allocate(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    made = GpuTensor.of(_guards._empty_strided_cpu(shape, strides, dtype), current_device())
    for graph in _capturing:
        graph.memory.append(made)
    return made


class Graph:
    """A CUDA graph of launches, which keeps the memory that they use; operators are not captured, as the stub knows none."""

    def __init__(self) -> None:
        self.first = self.end = 0
        self.memory: list[torch.Tensor] = []

    def replay(self) -> None:
        DRIVER.stub_replay(self.first, self.end)


@contextmanager
def capture(graph: Graph, stream: Stream | None = None, capture_error_mode: str = "global") -> Iterator[None]:
    """What `torch.cuda.graph` does."""
    with into(stream or Stream()):
        DRIVER.stub_begin_capture()
        _capturing.append(graph)
        try:
            yield
        finally:
            _capturing.remove(graph)
            graph.first, graph.end = DRIVER.stub_end_capture(), DRIVER.stub_launches()


class Stream:
    """A stream of the device that is current when it is made."""

    def __init__(self) -> None:
        self.device = current_device()
        self.handle = 0x1000 * (self.device + 1) + 0xFF0

    def wait_stream(self, other: object) -> None:
        pass


@contextmanager
def into(stream: Stream) -> Iterator[None]:
    """What `torch.cuda.stream` does."""
    before, streams[stream.device] = streams[stream.device], stream.handle
    try:
        yield
    finally:
        streams[stream.device] = before


def install() -> None:
    """Make this process see two GPUs."""
    cuda: Any = torch.cuda
    native: Any = torch._C
    torch.Tensor.to = _to  # type: ignore[assignment,method-assign]  # a build without CUDA moves nothing to a GPU
    cuda.is_available, cuda.device_count, cuda.init, cuda.current_device = lambda: True, lambda: 2, lambda: None, current_device
    cuda.get_device_properties = properties.__getitem__
    cuda._exchange_device = cuda._maybe_exchange_device = exchange_device
    cuda.CUDAGraph, cuda.graph, cuda.Stream, cuda.stream = Graph, capture, Stream, into
    cuda.current_stream = Stream
    native._cuda_getDevice, native._cuda_getCurrentRawStream = current_device, streams.__getitem__
    _guards._empty_strided_cuda = _allocate
    DRIVER.stub_set_device(0)
    for device in (0, 1):
        library: Any = arrays.torch_arrays(f"cuda:{device}")
        library.kinds.add(GpuTensor)
        library.pointer = attrgetter("address")  # which takes as long as PyTorch's own `data_ptr`
