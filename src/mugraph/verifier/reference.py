"""A program in float64, evaluated slice by slice where it treats slices alike, so that temporaries stay in the cache.

The same axes (`mugraph.verifier.slices`) let a few different slices stand for many: inputs in which they repeat give outputs in
which they repeat, and a kernel that runs on all of them can be compared with a reference that was computed for the few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import round_to
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Shape
from mugraph.verifier.batched import Pulse, evaluate_batched
from mugraph.verifier.slices import Axis, shared_slice, slice_of

_SMALLEST = 1 << 14
"""Slices of fewer elements cost more calls than they save time."""
_GROWTH = 1.25
"""An axis is not cut where slices have so many times the elements of the whole between them: inputs without it are read again."""
_FEW = 1 << 22
"""Elements of the inputs of the few slices, unless a single one has more."""

Counts = tuple[int, ...]
"""How many different slices there are along each axis; they repeat."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A kernel graph of pre-defined operators, and the same at size 1 of `axes`: its `unit`."""

    program: Graph
    unit: Graph
    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, program: Graph) -> Reference:
        """The axes of a program that are worth cutting."""
        cut = shared_slice(program, program, _worthwhile)
        return cls(program, cut.left, cut.axes)

    @property
    def all(self) -> Counts:
        """All slices different."""
        return tuple(axis.size for axis in self.axes)

    @property
    def few(self) -> Counts:
        """As many different slices as _FEW elements make, at least one."""
        counts, room = [], _FEW // _elements(self.unit)
        for axis in self.axes:
            count = max(divisor for divisor in range(1, axis.size + 1) if axis.size % divisor == 0 and divisor <= max(1, room))
            counts.append(count)
            room //= count
        return tuple(counts)

    def input_shapes(self, counts: Counts) -> list[Shape]:
        """The shapes of inputs with so many slices."""
        return [self._resized(node.output.shape, self._input_dims(i), counts) for i, node in enumerate(self.program.inputs())]

    def full_inputs(self, inputs: Sequence[Array], counts: Counts, into: Sequence[Array]) -> None:
        """Fill arrays of the program's input shapes by repeating slices."""
        for number, (array, full) in enumerate(zip(inputs, into, strict=True)):
            _repeat(array, self._input_dims(number), counts, full)

    def full_outputs(self, outputs: Sequence[Array], counts: Counts) -> tuple[Array, ...]:
        """The program's outputs, made of those of the different slices."""
        found = []
        for number, (array, tensor) in enumerate(zip(outputs, self.program.output_tensors, strict=True)):
            full = np.empty(tensor.shape, array.dtype)
            _repeat(array, self._output_dims(number), counts, full)
            found.append(full)
        return tuple(found)

    def outputs(self, inputs: Sequence[Array], counts: Counts, pulse: Pulse) -> tuple[Array, ...]:
        """The outputs of the different slices, in float64, infinite where they leave the range of the outputs' types.

        No kernel could store them there.
        """
        tensors = self.program.output_tensors
        found = [np.empty(self._resized(t.shape, self._output_dims(i), counts)) for i, t in enumerate(tensors)]
        with np.errstate(all="ignore"):
            for index in np.ndindex(counts):
                slices = [slice_of(array, self._input_dims(number), index) for number, array in enumerate(inputs)]
                operands = [array.astype(np.float64) for array in slices]
                results = evaluate_batched(self.unit, operands, FloatArithmetic(np.float64), pulse)
                for number, (result, tensor) in enumerate(zip(results, tensors, strict=True)):
                    stored = np.where(np.isinf(round_to(tensor.dtype, result)), np.inf, result)
                    slice_of(found[number], self._output_dims(number), index)[...] = stored
        return tuple(found)

    def _input_dims(self, number: int) -> list[int | None]:
        return [axis.inputs[number] for axis in self.axes]

    def _output_dims(self, number: int) -> list[int | None]:
        return [axis.outputs[number] for axis in self.axes]

    def _resized(self, shape: Shape, dims: Sequence[int | None], counts: Counts) -> Shape:
        sizes = list(shape)
        for dim, count in zip(dims, counts, strict=True):
            if dim is not None:
                sizes[dim] = count
        return tuple(sizes)


def _worthwhile(before: Graph, after: Graph, axis: Axis) -> bool:
    return _elements(after) >= _SMALLEST and axis.size * _elements(after) <= _GROWTH * _elements(before)


def _elements(graph: Graph) -> int:
    return sum(math.prod(node.output.shape) for node in graph.inputs())


def _repeat(array: Array, dims: Sequence[int | None], counts: Counts, into: Array) -> None:
    """Fill `into` with `array`, repeated along `dims`, of which `array` has `counts` elements."""
    shape, source = list(_split(into.shape, dims, counts)), list(array.shape)
    for dim in sorted((dim for dim in dims if dim is not None), reverse=True):
        source.insert(dim, 1)
    into.reshape([size for sizes in shape for size in sizes])[...] = array.reshape(source)


def _split(shape: Shape, dims: Sequence[int | None], counts: Counts) -> Iterator[tuple[int, ...]]:
    """Every dimension as (repetitions, different) where it repeats."""
    different = {dim: count for dim, count in zip(dims, counts, strict=True) if dim is not None}
    for dim, size in enumerate(shape):
        yield (size // different[dim], different[dim]) if dim in different else (size,)
