"""The cuda target on the CPU emulator: what a GPU would run, run here and checked, behind the interface of a target."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from mugraph.ir.graph import Graph
from mugraph.lower import Launch
from mugraph.lower.block_order import numbers_of
from mugraph.lower.check import check
from mugraph.lower.first_slices import Slices
from mugraph.lower.tile_form import Buffer, Kernel
from mugraph.lower.tile_form import Memory as Place
from mugraph.lower.warp_groups import PLACE_BYTES
from mugraph.targets.cuda.emulator import Array, Finding, emulate, prepare
from mugraph.targets.cuda.machine import Cuda, launch_shape
from mugraph.targets.cuda.nvrtc import SOURCE_NAME
from mugraph.targets.emulator import Emulator, Memory, launched_elements
from mugraph.targets.machine import Functions

_GAP = 4096
"""Bytes between buffers that are kept apart: more than a row of most."""


@dataclass
class EmulatedCuda(Emulator):
    """What `machine` prints, emulated on CPU tensors of PyTorch; `findings` are the faults of all launches so far.

    `seed` chooses the order in which threads take turns; `edit` changes the text before it is built, for planted faults.
    With `apart`, no two buffers in shared memory share bytes and gaps lie between them, so that an access that misses
    its buffer hits none. Lowered kernels are checked before they are printed.
    """

    title = "CUDA emulator"
    seconds_per_operation = 1e-8
    seconds_per_tile = 1e-5
    seconds_per_byte = 1e-9

    machine: Cuda
    seed: int = 0
    edit: Callable[[str], str] = str
    apart: bool = False
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, machine: Cuda) -> EmulatedCuda:
        """The emulator, its warps taking turns in a random order: what depends on it is a fault."""
        return cls(machine, seed=1)

    def lower(self, graph: Graph) -> dict[int, Launch]:
        """The launches of a kernel graph, by node; raises InvalidGraph where one breaks the lowered form's rules."""
        return self._checked(self.machine.lower(graph))

    def lower_slices(self, graph: Graph, slices: Slices) -> dict[int, Launch]:
        """The same of those that compute its first slices; raises UnsupportedOperator, too, as the machine does."""
        return self._checked(self.machine.lower_slices(graph, slices))

    def _checked(self, launches: dict[int, Launch]) -> dict[int, Launch]:
        """The launches, each valid."""
        if self.apart:
            launches = {index: replace(launch, kernel=_apart(launch.kernel)) for index, launch in launches.items()}
        for launch in launches.values():
            check(launch.kernel)
        return launches

    def load(self, kernels: Sequence[Kernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that emulate the kernels."""
        return {kernel.name: partial(self._run, kernel, self.edit(sources[SOURCE_NAME])) for kernel in kernels}

    def form(self, kernel: Kernel) -> Kernel:
        """The kernel, which is lowered for its threads."""
        return kernel

    def prepare(self, sources: Mapping[str, str]) -> None:
        """Build the emulator with the kernels; raises TargetUnavailable without g++, CompilationFailed when it rejects them."""
        prepare(self.edit(sources[SOURCE_NAME]))

    def run_blocks(
        self, kernel: Kernel, sources: Mapping[str, str], memory: Sequence[Memory], blocks: Sequence[int], seconds: float
    ) -> int:
        """Emulate blocks."""
        numbers = numbers_of(_launched(kernel, memory), blocks)
        return self._emulate(kernel, self.edit(sources[SOURCE_NAME]), memory, numbers, seconds)

    def _run(self, kernel: Kernel, source: str, *addresses: int) -> None:
        self._emulate(kernel, source, _memories(kernel, addresses))

    def _emulate(
        self, kernel: Kernel, source: str, arrays: Sequence[Array], blocks: Sequence[int] = (), seconds: float = math.inf
    ) -> int:
        operands = arrays[: len(kernel.inputs)], arrays[len(kernel.inputs) :]
        regions = {buffer.name: (buffer.offset, buffer.bytes) for buffer in kernel.buffers if buffer.memory is Place.SHARED}
        ends = kernel.outputs if kernel.slices is None else kernel.slices.ends
        partial = [number for number, name in enumerate(kernel.outputs) if name not in ends]
        shape = launch_shape(kernel)
        shown = emulate(
            source, kernel.name, shape, *operands, self.seed, regions, blocks=blocks, seconds=seconds, partial=partial
        )
        self.findings.extend(shown.findings)
        return shown.blocks


def _apart(kernel: Kernel) -> Kernel:
    """The kernel with every shared buffer in a place of its own, the ring first: warp groups are told 18 bits of an address."""
    offsets, top = dict[str, int](), _GAP
    for buffer in sorted(kernel.buffers, key=lambda each: kernel.ring is None or each.name != kernel.ring.buffer):
        if buffer.memory is Place.SHARED:
            offsets[buffer.name] = top
            top = -(-(top + buffer.bytes) // PLACE_BYTES) * PLACE_BYTES + _GAP
    return replace(kernel, buffers=tuple(replace(each, offset=offsets.get(each.name, each.offset)) for each in kernel.buffers))


def _launched(kernel: Kernel, arrays: Sequence[Array]) -> Kernel:
    """The kernel with the grid of a launch on these operands."""
    slices = kernel.slices
    if slices is None or slices.dim is None:
        return kernel
    grid = [*kernel.grid]
    grid[slices.dim] = slices.begun(int(arrays[kernel.inputs.index(slices.count)][0]), grid[slices.dim])
    return replace(kernel, grid=tuple(grid))


def _memories(kernel: Kernel, addresses: Sequence[int]) -> list[Array]:
    """The operands at their addresses; a number of slices, which stands in the place of one, as such."""
    elements, number = launched_elements(kernel, addresses), "" if kernel.slices is None else kernel.slices.count
    return [
        np.array([address], np.int64) if name == number else _memory(kernel.buffer(name), address, elements[name])
        for name, address in zip(elements, addresses, strict=True)
    ]


def _memory(buffer: Buffer, address: int, elements: int) -> Array:
    kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16}.get(buffer.dtype.bytes, ctypes.c_uint32)
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(kind)), (elements,))
