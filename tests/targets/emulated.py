"""Generated CUDA kernels run on the CPU emulator, behind the interface of a target."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.ir.graph import Graph
from mugraph.lower import Launch
from mugraph.lower.check import check
from mugraph.lower.lowered import Buffer, Kernel
from mugraph.runtime.arrays import Arrays, torch_arrays
from mugraph.runtime.cuda.emulator import Array, Finding, emulate
from mugraph.runtime.cuda.machine import Cuda, launch_shape
from mugraph.runtime.cuda.nvrtc import SOURCE_NAME
from mugraph.runtime.machine import Functions


@dataclass
class EmulatedCuda:
    """What `Cuda` prints, emulated after an `edit` of its text; `findings` are those of all launches so far."""

    machine: Cuda
    seed: int = 0
    edit: Callable[[str], str] = str
    findings: list[Finding] = field(default_factory=list)

    def lower(self, graph: Graph) -> dict[int, Launch]:
        launches = self.machine.lower(graph)
        for launch in launches.values():
            check(launch.kernel)
        return launches

    def print(self, kernels: Sequence[Kernel]) -> dict[str, str]:
        return self.machine.print(kernels)

    def load(self, kernels: Sequence[Kernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        return {kernel.name: partial(self.run, kernel, self.edit(sources[SOURCE_NAME])) for kernel in kernels}

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        return torch_arrays()

    def run(self, kernel: Kernel, source: str, *addresses: int) -> None:
        names = (*kernel.inputs, *kernel.outputs)
        arrays = [_memory(kernel.buffer(name), address) for name, address in zip(names, addresses, strict=True)]
        count = len(kernel.inputs)
        shown = emulate(source, kernel.name, launch_shape(kernel), arrays[:count], arrays[count:], self.seed)
        self.findings.extend(shown.findings)


def _memory(buffer: Buffer, address: int) -> Array:
    kind = ctypes.c_uint16 if buffer.dtype.bytes == 2 else ctypes.c_uint32
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), (buffer.elements,))
