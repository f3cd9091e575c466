"""The cuda target on the CPU emulator: what a GPU would run, run here and checked, behind the interface of a target."""

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
    """What `machine` prints, emulated on CPU tensors of PyTorch; `findings` are the faults of all launches so far.

    `seed` chooses the order in which threads take turns; `edit` changes the text before it is built, for planted faults.
    Lowered kernels are checked before they are printed.
    """

    machine: Cuda
    seed: int = 0
    edit: Callable[[str], str] = str
    findings: list[Finding] = field(default_factory=list)

    @property
    def available(self) -> bool:
        """Always: the emulator runs here."""
        return True

    def lower(self, graph: Graph) -> dict[int, Launch]:
        """The launches of a kernel graph, by node; raises InvalidGraph where one breaks the lowered form's rules."""
        launches = self.machine.lower(graph)
        for launch in launches.values():
            check(launch.kernel)
        return launches

    def print(self, kernels: Sequence[Kernel]) -> dict[str, str]:
        """One CUDA C++ file."""
        return self.machine.print(kernels)

    def load(self, kernels: Sequence[Kernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that emulate the kernels."""
        return {kernel.name: partial(self._run, kernel, self.edit(sources[SOURCE_NAME])) for kernel in kernels}

    def arrays(self, inputs: Sequence[Any]) -> Arrays:
        """CPU tensors of PyTorch."""
        return torch_arrays()

    def moved(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs themselves."""
        return list(inputs)

    def finish(self) -> None:
        """Nothing: calls return when their kernels are done."""

    def _run(self, kernel: Kernel, source: str, *addresses: int) -> None:
        names = (*kernel.inputs, *kernel.outputs)
        arrays = [_memory(kernel.buffer(name), address) for name, address in zip(names, addresses, strict=True)]
        count = len(kernel.inputs)
        shown = emulate(source, kernel.name, launch_shape(kernel), arrays[:count], arrays[count:], self.seed)
        self.findings.extend(shown.findings)


def _memory(buffer: Buffer, address: int) -> Array:
    kind = ctypes.c_uint16 if buffer.dtype.bytes == 2 else ctypes.c_uint32
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), (buffer.elements,))
