"""Random tensors for a program, and kernels run on NumPy arrays: bf16, which NumPy lacks, travels as float32 or in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.runtime import Executable
from mugraph.runtime.arrays import NUMPY, Arrays, torch_arrays
from mugraph.verifier.floats import Runner, random_inputs


def random_tensors(program: Graph, seed: int) -> list[Any]:
    """One tensor per input of a kernel graph, of standard normal numbers; NumPy arrays unless there is bf16."""
    return _converted(program, random_inputs(program, seed), _library(program))


def runner(executable: Executable) -> Runner:
    """The kernels as the float check runs them: float arrays in (rounded to the inputs' dtypes), float arrays out."""
    library = _library(executable.graph)

    def run(*arrays: Array) -> Sequence[Array]:
        outputs = executable(*_converted(executable.graph, arrays, library))
        return [library.to_numpy(output) for output in outputs]

    return run


def _library(program: Graph) -> Arrays:
    tensors = [node.output for node in program.inputs()] + list(program.output_tensors)
    return torch_arrays() if any(tensor.dtype is DType.BF16 for tensor in tensors) else NUMPY


def _converted(program: Graph, arrays: Sequence[Array], library: Arrays) -> list[Any]:
    return [library.from_numpy(array, node.output) for node, array in zip(program.inputs(), arrays, strict=True)]
