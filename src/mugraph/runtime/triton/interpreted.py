"""The triton target in Triton's interpreter: what a GPU would run, run here on the CPU, behind the interface of a target."""

from __future__ import annotations

import ctypes
import functools
import json
import os
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

from mugraph.errors import CompilationFailed, UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.runtime.imitation import Imitation
from mugraph.runtime.machine import Functions
from mugraph.runtime.triton.machine import SOURCE_NAME, Triton
from mugraph.targets.triton import TileKernel, TileLaunch
from mugraph.targets.triton.tile import ELEMENT_TYPES

_GAP = 1 << 14
"""Bytes before, between and behind tensors: NaN to whoever reads them, and nobody may write there."""
_POISON = 0xFF


@dataclass
class InterpretedTriton(Imitation):
    """What `machine` prints, interpreted on CPU tensors in fp16 and fp32; `findings` are the faults of all launches so far.

    A fault is a write outside the kernel's outputs. Reads outside of tensors give NaN, and so do elements of outputs that no
    block writes. `edit` changes the text before it runs, for planted faults.
    """

    machine: Triton
    edit: Callable[[str], str] = str
    findings: list[str] = field(default_factory=list)

    def lower(self, graph: Graph) -> dict[int, TileLaunch]:
        """The launches of a kernel graph, by node; raises UnsupportedOperator for bf16, which Triton interprets wrongly."""
        launches = self.machine.lower(graph)
        for launch in launches.values():
            for parameter in launch.kernel.parameters:
                if parameter.tensor.dtype is DType.BF16:
                    raise UnsupportedOperator(
                        f"Triton's interpreter computes bf16 wrongly ({launch.kernel.name}, {parameter.name}); check in fp16"
                    )
        return launches

    def load(self, kernels: Sequence[TileKernel], sources: Mapping[str, str], cache_directory: Path | None) -> Functions:
        """Functions that interpret the kernels."""
        return {kernel.name: partial(self._run, kernel, self.edit(sources[SOURCE_NAME])) for kernel in kernels}

    def _run(self, kernel: TileKernel, source: str, *addresses: int) -> None:
        places = [_bytes_at(address, p.tensor.bytes) for p, address in zip(kernel.parameters, addresses, strict=True)]
        offsets, top = [], _GAP
        for array in places:
            offsets.append(top)
            top += -(-(array.size + _GAP) // _GAP) * _GAP
        memory = np.full(top, _POISON, np.uint8)
        inputs = len(kernel.inputs)
        for offset, array in zip(offsets[:inputs], places[:inputs], strict=True):
            memory[offset : offset + array.size] = array
        after = _interpreter().run(kernel, source, memory, offsets)
        for offset, array in zip(offsets[inputs:], places[inputs:], strict=True):
            array[:] = after[offset : offset + array.size]
            after[offset : offset + array.size] = _POISON
        if not np.array_equal(memory, after):
            self.findings.append(f"{kernel.name} writes outside of its outputs")


def _bytes_at(address: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (size,))


@functools.cache
def _interpreter() -> _Interpreter:
    """The interpreter of this process, which ends with it."""
    return _Interpreter()


class _Interpreter:
    """A process that interprets kernels, one at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mugraph.runtime.triton.interpreter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lock = threading.Lock()

    def run(
        self, kernel: TileKernel, source: str, memory: np.ndarray[Any, np.dtype[np.uint8]], offsets: Sequence[int]
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The memory after a launch; raises CompilationFailed with what the interpreter says against the kernel."""
        tensors = [
            (offset, parameter.tensor.shape, ELEMENT_TYPES[parameter.tensor.dtype])
            for offset, parameter in zip(offsets, kernel.parameters, strict=True)
        ]
        with tempfile.NamedTemporaryFile(prefix="mugraph-") as file:
            memory.tofile(file.name)
            request = {
                "source": source,
                "kernel": kernel.name,
                "blocks": kernel.blocks,
                "warps": kernel.warps,
                "file": file.name,
                "tensors": tensors,
            }
            answer = self._answer(json.dumps(request))
            if answer is not None:
                raise CompilationFailed(f"Triton's interpreter rejected {kernel.name}: {answer}")
            return np.fromfile(file.name, np.uint8)

    def _answer(self, request: str) -> str | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            _interpreter.cache_clear()
            return f"the process ended with status {self.process.wait()}"
        answer: str | None = json.loads(line)
        return answer
