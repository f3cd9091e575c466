"""What tests give to emulators, run on the GPU that PyTorch sees: the same kernels, tensors of the host, and findings.

A kernel's operands lie on the GPU in one allocation, outputs and the gaps around them with all bits set, which is NaN to whoever
reads them. A kernel that writes outside of its outputs is found; an element of an output that it does not write stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mugraph.lower.tile_form import Kernel
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.emulator import POISON, places_apart
from mugraph.targets.gpu import present_architecture
from mugraph.targets.machine import Functions
from mugraph.targets.triton import TileKernel
from mugraph.targets.triton.interpreted import InterpretedTriton, bytes_at

_EMULATED, _INTERPRETED = EmulatedCuda.load, InterpretedTriton.load


class CudaOnGpu(EmulatedCuda):
    """CUDA C++, compiled for the GPU that is here; what an `edit` changes, which plants faults, is emulated all the same."""

    def load(self, kernels: Sequence[Kernel], sources: Any, cache_directory: Path | None) -> Functions:
        """Functions that launch the kernels on copies of host tensors."""
        if self.edit is not str:
            return _EMULATED(self, kernels, sources, cache_directory)
        operands = {kernel.name: [kernel.buffer(name).bytes for name in (*kernel.inputs, *kernel.outputs)] for kernel in kernels}
        return _on_copies(self, kernels, sources, cache_directory, operands)


class TritonOnGpu(InterpretedTriton):
    """Triton, compiled for the GPU that is here; the same of an `edit`."""

    def load(self, kernels: Sequence[TileKernel], sources: Any, cache_directory: Path | None) -> Functions:
        """Functions that launch the kernels on copies of host tensors."""
        if self.edit is not str:
            return _INTERPRETED(self, kernels, sources, cache_directory)
        operands = {kernel.name: [parameter.tensor.bytes for parameter in kernel.parameters] for kernel in kernels}
        return _on_copies(self, kernels, sources, cache_directory, operands)


def _on_copies(
    emulator: EmulatedCuda | InterpretedTriton,
    kernels: Sequence[Any],
    sources: Any,
    cache_directory: Path | None,
    operands: dict[str, list[int]],
) -> Functions:
    """The functions of a machine for the GPU that is here, each behind a copy to it and before one back; `operands` are bytes."""
    architecture = present_architecture().partition(":")[0]
    functions = replace(emulator.machine, architecture=architecture).load(kernels, sources, cache_directory)
    return {
        kernel.name: partial(
            _run, functions[kernel.name], kernel.name, operands[kernel.name], len(kernel.inputs), emulator.findings
        )
        for kernel in kernels
    }


def _run(
    launch: Callable[..., None], name: str, sizes: Sequence[int], inputs: int, findings: MutableSequence[Any], *addresses: int
) -> None:
    """Launch a kernel on copies of the operands at host addresses, and copy its outputs back."""
    host = [bytes_at(address, size) for address, size in zip(addresses, sizes, strict=True)]
    offsets, top = places_apart(sizes)
    before = np.full(top, POISON, np.uint8)
    for offset, array in zip(offsets[:inputs], host, strict=False):
        before[offset : offset + array.size] = array
    memory = torch.from_numpy(before).cuda()
    launch(*(memory.data_ptr() + offset for offset in offsets))
    torch.cuda.synchronize()
    after = memory.cpu().numpy()
    for offset, array in zip(offsets[inputs:], host[inputs:], strict=True):
        place = slice(offset, offset + array.size)
        array[:] = after[place]
        before[place] = array
    if not np.array_equal(before, after):
        findings.append(f"{name} writes outside of its outputs")
