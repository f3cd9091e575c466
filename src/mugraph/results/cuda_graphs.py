"""Results as CUDA graphs: one call captured, then replayed on inputs that are copied to where it read them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.host.arrays import torch_arrays
from mugraph.results.data import Result, Shared
from mugraph.targets.gpu import NvidiaGpu, gpu_index


class Graphed(Shared):
    """A result for a GPU as a CUDA graph: called like the result, and all that a call does on the GPU is one launch.

    Arguments are copied into `inputs`, the tensors that the graph reads, but for those that are passed themselves. Parameters and
    other tensors that the function brings along are read where they lie: values changed in place are seen, and a call raises
    InvalidInput where one lies elsewhere than when the graph was captured. What a call returns is copied from `outputs`, which
    the graph writes; with `static_outputs` it is that memory itself, and the next call overwrites it. Calls from several threads
    wait for each other on the host; they must be on one stream, since the graph has its tensors once.
    """

    def __init__(self, result: Result, device: int | None = None, static_outputs: bool = False) -> None:
        """Capture a call on a GPU, by default torch's current one.

        Raises InvalidInput for a result that is not for GPUs, or whose captured tensors are on another device, TargetUnavailable
        where there is no such GPU, and LaunchFailed where its driver refuses.
        """
        if not isinstance(result.executable.machine, NvidiaGpu):
            raise InvalidInput(f"a result for {result.target} is no CUDA graph; call it as it is, or optimize for a GPU")
        import torch

        self._result, self._static_outputs, self._one_call = result, static_outputs, threading.Lock()
        self.device = gpu_index(device)
        result.executable.load(self.device)
        arguments = result.program.inputs()[: len(result.program.inputs()) - len(result.calling.captured)]
        self._names = result.program.input_names
        library = torch_arrays(f"cuda:{self.device}")
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.device):
            self.inputs = tuple(library.allocator(node.output)().zero_() for node in arguments)
            self._captured = tuple(result.calling.captured_beside(self.inputs))
            self._graph, self.outputs = self._capture(torch)

    def _capture(self, torch: Any) -> tuple[Any, Sequence[Any]]:
        """The graph of a call, and what it writes. Libraries choose their kernels in a call before: that cannot be captured."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._result.executable(*self.inputs, *self._captured)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            outputs = self._result.executable(*self.inputs, *self._captured)
        return graph, tuple(outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs; raises ShapeMismatch or InvalidInput for tensors other than optimized for, or on another device."""
        import torch

        inputs = self._result.calling.flatten(args, kwargs)
        arguments, captured = inputs[: len(self.inputs)], inputs[len(self.inputs) :]
        self._expect_in_place(captured)
        with self._one_call, torch.no_grad(), torch.cuda.device(self.device):
            for name, static, given in zip(self._names, self.inputs, arguments, strict=False):
                if given is not static:
                    static.copy_(self._beside(name, given))
            self._graph.replay()
            outputs = self.outputs if self._static_outputs else [output.clone() for output in self.outputs]
        return self._result.calling.unflatten(outputs, inputs)

    def _beside(self, name: str, given: Any) -> Any:
        if given.is_cuda and given.get_device() == self.device:
            return given
        where = f"the graph was captured on cuda:{self.device}"
        raise InvalidInput(f"input {name!r} is on {given.device}, and {where}: move it with .to('cuda:{self.device}')")

    def _expect_in_place(self, captured: Sequence[Any]) -> None:
        for name, before, now in zip(self._names[len(self.inputs) :], self._captured, captured, strict=True):
            if now.data_ptr() != before.data_ptr() or now.stride() != before.stride():
                raise InvalidInput(f"{name} is another tensor than when the CUDA graph was captured; call graphed() again")
