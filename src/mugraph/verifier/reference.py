"""A program in float64, evaluated slice by slice where it treats slices alike, so that temporaries stay in the cache.

All such axes (`mugraph.verifier.parallel_axes`) let a few different slices stand for many: inputs in which they repeat give
outputs in which they repeat, and a kernel that runs on all of them can be compared with a reference that was computed for the
few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Shape
from mugraph.ir.sizes import divisors
from mugraph.verifier.doubt import certain_outputs, chooses
from mugraph.verifier.parallel_axes import ParallelAxis, shared_slice, slice_of, take_slices
from mugraph.verifier.vectorized_eval import Pulse, evaluate_batched

_SMALLEST = 1 << 14
"""Slices of fewer elements cost more calls than they save time."""
_GROWTH = 1.25
"""An axis is not cut where slices have so many times the elements of the whole between them: inputs without it are read again."""
_FEW = 1 << 22
"""Elements of the inputs of the few slices, unless one of each axis has more."""

_AT_ONCE = 1 << 22
"""Elements that are copied between two looks at the clock."""

Counts = tuple[int, ...]
"""How many different slices there are along each axis; they repeat."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A kernel graph of pre-defined operators, and the same at size 1 of the axes that are worth cutting: its `unit`.

    The slices along `kept` axes are evaluated together.
    """

    program: Graph
    unit: Graph
    cut: tuple[ParallelAxis, ...]
    kept: tuple[ParallelAxis, ...]

    @classmethod
    def of(cls, program: Graph) -> Reference:
        """The axes along which a program treats slices alike; of those kept, the one that most elements depend on first."""
        kept: list[tuple[int, ParallelAxis]] = []

        def worthwhile(before: Graph, after: Graph, axis: ParallelAxis) -> bool:
            slice_elements = _elements(after)
            worth = slice_elements >= _SMALLEST and axis.size * slice_elements <= _GROWTH * _elements(before)
            if not worth:
                kept.append((slice_elements, axis))
            return worth

        found = shared_slice(program, program, worthwhile)
        return cls(program, found.left, found.axes, tuple(axis for _, axis in sorted(kept, key=lambda pair: pair[0])))

    @property
    def axes(self) -> tuple[ParallelAxis, ...]:
        """Those that are cut, and those that are kept."""
        return (*self.cut, *self.kept)

    @property
    def all(self) -> Counts:
        """All slices different."""
        return tuple(axis.size for axis in self.axes)

    @property
    def few(self) -> Counts:
        """As many different slices as _FEW elements make, at least one of each axis, and rather of those that are kept."""
        counts = [1] * len(self.cut) + [axis.size for axis in self.kept]
        for position in (*range(len(self.cut), len(counts)), *range(len(self.cut))):
            for count in reversed(divisors(self.axes[position].size)):
                counts[position] = count
                if sum(map(math.prod, self.input_shapes(counts))) <= _FEW:
                    break
        return tuple(counts)

    def input_shapes(self, counts: Sequence[int]) -> list[Shape]:
        """The shapes of inputs with so many slices."""
        return [self._resized(node.output.shape, self._input_dims(i), counts) for i, node in enumerate(self.program.inputs())]

    def full_inputs(self, inputs: Sequence[Array], counts: Counts, into: Sequence[Array], pulse: Pulse = lambda: None) -> None:
        """Fill arrays of the program's input shapes by repeating slices."""
        for number, (array, full) in enumerate(zip(inputs, into, strict=True)):
            _repeat(array, self._input_dims(number), counts, full, pulse)

    def full_outputs(self, outputs: Sequence[Array], counts: Counts) -> tuple[Array, ...]:
        """The program's outputs, made of those of the different slices."""
        found = []
        for number, (array, tensor) in enumerate(zip(outputs, self.program.output_tensors, strict=True)):
            full = np.empty(tensor.shape, array.dtype)
            _repeat(array, self._output_dims(number), counts, full, lambda: None)
            found.append(full)
        return tuple(found)

    def outputs(self, inputs: Sequence[Array], counts: Counts, pulse: Pulse) -> tuple[Array, ...]:
        """The outputs of the different slices, in float64, some of them perhaps beyond the range of the outputs' types.

        They are NaN where they hang on comparisons that rounding may decide either way (`mugraph.verifier.doubt`).
        """
        choosing = chooses(self.program)
        tensors, together = self.program.output_tensors, self._together(counts)
        cut = len(self.cut)
        found = [np.empty(self._resized(t.shape, self._output_dims(i), counts)) for i, t in enumerate(tensors)]
        with np.errstate(all="ignore"):
            for index in np.ndindex(counts[:cut]):
                slices = [slice_of(array, self._input_dims(number)[:cut], index) for number, array in enumerate(inputs)]
                operands = [array.astype(np.float64) for array in slices]
                if choosing:
                    results = certain_outputs(together, operands, pulse)
                else:
                    results = evaluate_batched(together, operands, FloatArithmetic(np.float64), pulse)
                for number, result in enumerate(results):
                    slice_of(found[number], self._output_dims(number)[:cut], index)[...] = result
        return tuple(found)

    def _together(self, counts: Counts) -> Graph:
        """The unit with so many slices along the kept axes."""
        graph = self.unit
        for axis, count in zip(self.kept, counts[len(self.cut) :], strict=True):
            if count < axis.size:
                graph, _ = take_slices(graph, axis.inputs, count)
        return graph

    def _input_dims(self, number: int) -> list[int | None]:
        return [axis.inputs[number] for axis in self.axes]

    def _output_dims(self, number: int) -> list[int | None]:
        return [axis.outputs[number] for axis in self.axes]

    def _resized(self, shape: Shape, dims: Sequence[int | None], counts: Sequence[int]) -> Shape:
        sizes = list(shape)
        for dim, count in zip(dims, counts, strict=True):
            if dim is not None:
                sizes[dim] = count
        return tuple(sizes)


def _elements(graph: Graph) -> int:
    return sum(math.prod(node.output.shape) for node in graph.inputs())


def _repeat(array: Array, dims: Sequence[int | None], counts: Counts, into: Array, pulse: Pulse) -> None:
    """Fill `into` with `array`, repeated along `dims`, of which `array` has `counts` elements."""
    shape, source = list(_split(into.shape, dims, counts)), list(array.shape)
    for dim in sorted((dim for dim in dims if dim is not None), reverse=True):
        source.insert(dim, 1)
    parts = into.reshape([size for sizes in shape for size in sizes])
    repeated = np.broadcast_to(array.reshape(source), parts.shape)
    if not parts.ndim:
        parts[...] = repeated
        return
    step = max(1, len(parts) * _AT_ONCE // parts.size)
    for start in range(0, len(parts), step):
        pulse()
        parts[start : start + step] = repeated[start : start + step]


def _split(shape: Shape, dims: Sequence[int | None], counts: Counts) -> Iterator[tuple[int, ...]]:
    """Every dimension as (repetitions, different) where it repeats."""
    different = {dim: count for dim, count in zip(dims, counts, strict=True) if dim is not None}
    for dim, size in enumerate(shape):
        yield (size // different[dim], different[dim]) if dim in different else (size,)
