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
from mugraph.targets.emulator import POISON, launched_elements, places_apart
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
        return _on_copies(self, kernels, sources, cache_directory)


class TritonOnGpu(InterpretedTriton):
    """Triton, compiled for the GPU that is here; the same of an `edit`."""

    def load(self, kernels: Sequence[TileKernel], sources: Any, cache_directory: Path | None) -> Functions:
        """Functions that launch the kernels on copies of host tensors."""
        if self.edit is not str:
            return _INTERPRETED(self, kernels, sources, cache_directory)
        return _on_copies(self, kernels, sources, cache_directory)


def _on_copies(
    emulator: EmulatedCuda | InterpretedTriton,
    kernels: Sequence[Any],
    sources: Any,
    cache_directory: Path | None,
) -> Functions:
    """The functions of a machine for the GPU that is here, each behind a copy to it and before one back."""
    architecture = present_architecture().partition(":")[0]
    functions = replace(emulator.machine, architecture=architecture).load(kernels, sources, cache_directory)
    return {kernel.name: partial(_run, functions[kernel.name], emulator.form(kernel), emulator.findings) for kernel in kernels}


def _run(launch: Callable[..., None], form: Kernel, findings: MutableSequence[Any], *addresses: int) -> None:
    """Launch a kernel on copies of the operands at host addresses, and copy its outputs back."""
    inputs, number = len(form.inputs), -1 if form.slices is None else form.inputs.index(form.slices.count)
    elements = launched_elements(form, addresses)
    given = [address for place, address in enumerate(addresses) if place != number]
    sizes = [count * form.buffer(name).dtype.bytes for place, (name, count) in enumerate(elements.items()) if place != number]
    inputs -= number >= 0
    host = [bytes_at(address, size) for address, size in zip(given, sizes, strict=True)]
    offsets, top = places_apart(sizes)
    before = np.full(top, POISON, np.uint8)
    for offset, array in zip(offsets[:inputs], host, strict=False):
        before[offset : offset + array.size] = array
    memory = torch.from_numpy(before).cuda()
    operands = [memory.data_ptr() + offset for offset in offsets]
    if number >= 0:
        operands.insert(number, addresses[number])
    launch(*operands)
    torch.cuda.synchronize()
    after = memory.cpu().numpy()
    for offset, array in zip(offsets[inputs:], host[inputs:], strict=True):
        place = slice(offset, offset + array.size)
        array[:] = after[place]
        before[place] = array
    if not np.array_equal(before, after):
        findings.append(f"{form.name} writes outside of its outputs")
