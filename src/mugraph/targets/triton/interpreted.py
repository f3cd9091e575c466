"""The triton target in Triton's interpreter: what a GPU would run, run here on the CPU, behind the interface of a target."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.errors import CompilationFailed, TargetUnavailable
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.graph import Graph
from mugraph.lower.first_slices import Slices
from mugraph.lower.tile_form import Kernel
from mugraph.targets.emulator import POISON, Emulator, Memory, launched_elements, places_apart
from mugraph.targets.machine import Functions
from mugraph.targets.triton import TileKernel, TileLaunch
from mugraph.targets.triton.machine import SOURCE_NAME, TritonMachine
from mugraph.targets.triton.tensors import ELEMENT_TYPES

_BF16 = re.compile(rf"\b(?<=tl\.){ELEMENT_TYPES[DType.BF16]}\b")
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class InterpretedTriton(Emulator):
    """What `machine` prints, interpreted on CPU tensors; `findings` are the faults of all launches so far.

    Triton interprets arithmetic in bf16 wrongly, so kernels have fp32 in its place: tensors are widened before a kernel and
    rounded after it, and what it would round to bf16 inside is not.

    A fault is a write outside the kernel's outputs. Reads outside of tensors give NaN, and so do elements of outputs that no
    block writes. `edit` changes the text before it runs, for planted faults.
    """

    title = "interpreter of Triton"
    seconds_per_operation = 4e-9
    seconds_per_tile = 3e-4
    seconds_per_byte = 3e-9

    machine: TritonMachine
    edit: Callable[[str], str] = str
    findings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, machine: TritonMachine) -> InterpretedTriton:
        """Triton's interpreter."""
        return cls(machine)

    def lower(self, graph: Graph) -> dict[int, TileLaunch]:
        """The launches of a kernel graph, by node."""
        return self.machine.lower(graph)

    def lower_slices(self, graph: Graph, slices: Slices) -> dict[int, TileLaunch]:
        """The launches of a kernel graph that compute its first slices, as the machine makes them."""
        return self.machine.lower_slices(graph, slices)

    def load(self, kernels: Sequence[TileKernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that interpret the kernels."""
        return {kernel.name: partial(self._run, kernel, self.edit(sources[SOURCE_NAME])) for kernel in kernels}

    def form(self, kernel: TileKernel) -> Kernel:
        """What the kernel is printed of."""
        return kernel.form

    def runs_as(self, dtype: DType) -> DType:
        """Tensors of bf16 are taken in fp32, and the text with its name for bf16 replaced."""
        return DType.FP32 if dtype is DType.BF16 else dtype

    def prepare(self, sources: Mapping[str, str]) -> None:
        """Start the interpreter's process."""
        _interpreter().started()

    def run_blocks(
        self, kernel: TileKernel, sources: Mapping[str, str], memory: Sequence[Memory], blocks: Sequence[int], seconds: float
    ) -> int:
        """Interpret blocks."""
        source = self.edit(sources[SOURCE_NAME])
        return self._interpret(kernel, source, [array.view(np.uint8) for array in memory], blocks, seconds)

    def _run(self, kernel: TileKernel, source: str, *addresses: int) -> None:
        places = _places(kernel, addresses)
        as_bf16 = [parameter.tensor.dtype is DType.BF16 for parameter in kernel.parameters]
        wide = [_widened(place) if narrow else place for place, narrow in zip(places, as_bf16, strict=True)]
        self._interpret(kernel, source, wide)
        for number, place in enumerate(places):
            if number >= len(kernel.inputs) and as_bf16[number]:
                place[:] = _narrowed(wide[number])

    def _interpret(
        self,
        kernel: TileKernel,
        source: str,
        places: Sequence[_Bytes],
        blocks: Sequence[int] | None = None,
        seconds: float | None = None,
    ) -> int:
        types = [self.runs_as(parameter.tensor.dtype) for parameter in kernel.parameters]
        source = _BF16.sub(ELEMENT_TYPES[self.runs_as(DType.BF16)], source)
        offsets, top = places_apart([array.size for array in places])
        sliced = kernel.sliced
        in_all = kernel.blocks if sliced is None else sliced.begun(int(places[sliced.operand].view(np.int64)[0]))
        inputs = len(kernel.inputs)
        with tempfile.NamedTemporaryFile(prefix="mugraph-") as file:
            memory = np.memmap(file.name, np.uint8, "w+", shape=(top,))
            memory[: offsets[0]] = POISON
            for number, (offset, array) in enumerate(zip(offsets, places, strict=True)):
                memory[offset : offset + array.size] = array if number < inputs else POISON
                memory[offset + array.size : [*offsets, top][number + 1]] = POISON
            elements = [array.size // dtype.bytes for array, dtype in zip(places, types, strict=True)]
            ran = _interpreter().run(kernel, source, file.name, offsets, elements, types, in_all, blocks, seconds)
            untouched = bool((memory[: offsets[0]] == POISON).all())
            for number, (offset, array) in enumerate(zip(offsets, places, strict=True)):
                after = memory[offset : offset + array.size]
                if number < inputs:
                    untouched &= np.array_equal(after, array)
                else:
                    array[:] = after
                untouched &= bool((memory[offset + array.size : [*offsets, top][number + 1]] == POISON).all())
        if not untouched:
            self.findings.append(f"{kernel.name} writes outside of its outputs")
        return ran


def _places(kernel: TileKernel, addresses: Sequence[int]) -> list[_Bytes]:
    """The operands at their addresses; a number of slices, which stands in the place of one, as such."""
    elements = launched_elements(kernel.form, addresses)
    return [
        np.array([address], np.int64).view(np.uint8)
        if parameter.is_number
        else bytes_at(address, count * parameter.tensor.dtype.bytes)
        for parameter, address, count in zip(kernel.parameters, addresses, elements.values(), strict=True)
    ]


def bytes_at(address: int, size: int) -> _Bytes:
    """The bytes of the host's memory from an address on."""
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (size,))


def _widened(place: _Bytes) -> _Bytes:
    """The bytes of numbers of bf16 as those of fp32: bf16 is its upper half."""
    return (place.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)


def _narrowed(place: _Bytes) -> _Bytes:
    """The bytes of numbers of fp32 as those of bf16, rounded to the nearest."""
    rounded = np.ascontiguousarray(round_to(DType.BF16, place.view(np.float32)))
    return (rounded.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@functools.cache
def _interpreter() -> _Interpreter:
    """The interpreter of this process, which ends with it."""
    return _Interpreter()


class _Interpreter:
    """A process that interprets kernels, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mugraph.targets.triton.interpreter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lock = threading.Lock()
        self.has_started = False

    def started(self) -> None:
        """Wait for the process; raises TargetUnavailable where it ends."""
        with self.lock:
            if not self.has_started:
                self._line()
                self.has_started = True

    def run(
        self,
        kernel: TileKernel,
        source: str,
        file: str,
        offsets: Sequence[int],
        elements: Sequence[int],
        types: Sequence[DType],
        blocks_in_all: int,
        blocks: Sequence[int] | None,
        seconds: float | None,
    ) -> int:
        """Launch a kernel on the bytes of a file, and return of how many blocks; raises CompilationFailed with what is wrong with
        the kernel, TargetUnavailable where the process ends."""
        number = next((place for place, parameter in enumerate(kernel.parameters) if parameter.is_number), None)
        tensors = [(offset, count, dtype.torch_name) for offset, count, dtype in zip(offsets, elements, types, strict=True)]
        request = {
            "source": source,
            "kernel": kernel.name,
            "blocks": blocks_in_all,
            "number": number,
            "chosen": None if blocks is None else list(blocks),
            "seconds": seconds,
            "warps": kernel.warps,
            "file": file,
            "tensors": tensors,
        }
        answer = self._answer(json.dumps(request))
        if isinstance(answer, str):
            raise CompilationFailed(f"Triton's interpreter rejected {kernel.name}: {answer}")
        return answer

    def _answer(self, request: str) -> str | int:
        self.started()
        assert self.process.stdin is not None
        with self.lock:
            try:
                self.process.stdin.write(f"{request}\n")
                self.process.stdin.flush()
                answer: str | int = json.loads(self._line())
            except BrokenPipeError:
                raise self._ended() from None
            except KeyboardInterrupt:  # the next request would read the answer to this one
                self.process.kill()
                self._ended()
                raise
        return answer

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._ended()
        return line

    def _ended(self) -> TargetUnavailable:
        """What to raise where the process has ended; the next kernel gets another one."""
        _interpreter.cache_clear()
        return TargetUnavailable(f"the process of Triton's interpreter ended with status {self.process.wait()}; try again")
