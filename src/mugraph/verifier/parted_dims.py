"""A program as one on inputs whose dimensions are parted where a parallel axis lies in them with wider slices.

The elements of a head are neighbours in a row of all heads: the axis of heads is no dimension of such inputs, and becomes one
where each row is parted into heads. Arrays are parted without a copy, and hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Graph, Level, Shape, Value
from mugraph.verifier.axis_marks import ONE, Widths
from mugraph.verifier.parallel_axes import ParallelAxis, shared_slice
from mugraph.verifier.reference import work_of


@dataclass(frozen=True, slots=True)
class PartedDims:
    """A kernel graph of pre-defined operators, and the `program` that does the same on parted inputs, to parted outputs."""

    original: Graph
    program: Graph

    @classmethod
    def none(cls, program: Graph) -> PartedDims:
        """With all dimensions as they are."""
        return cls(program, program)

    @classmethod
    def of(cls, program: Graph) -> PartedDims:
        """Dimensions parted by an axis whose slices are neighbours, the one of the least work for a slice; none where there is
        no such axis."""
        axes: list[tuple[float, ParallelAxis]] = []

        def noted(_whole: Graph, one: Graph, axis: ParallelAxis) -> bool:
            neighbours = all(len(widths) == 1 for widths in (*axis.input_widths, *axis.output_widths))
            if neighbours and not axis.simple and not axis.sums:
                axes.append((work_of(one), axis))
            return False

        shared_slice(program, program, noted, simple=False)
        if not axes:
            return cls.none(program)
        _, axis = min(axes, key=lambda found: found[0])
        return cls(program, _parted(program, axis))

    def inputs(self, arrays: Sequence[Array]) -> list[Array]:
        """Views of the program's inputs with these dimensions."""
        shapes = [node.output.shape for node in self.program.inputs()]
        return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]

    def outputs(self, results: Sequence[Any]) -> list[Array]:
        """The program's outputs with these dimensions."""
        tensors = self.program.output_tensors
        return [np.asarray(result).reshape(tensor.shape) for result, tensor in zip(results, tensors, strict=True)]

    def index_of(self, output: int, index: Sequence[int]) -> tuple[int, ...]:
        """Where an element of a parted output is in the output as it was."""
        parted, whole = self.program.output_tensors[output].shape, self.original.output_tensors[output].shape
        if parted == whole:
            return tuple(index)
        return tuple(map(int, np.unravel_index(int(np.ravel_multi_index(tuple(index), parted)), whole)))


def _parted(program: Graph, axis: ParallelAxis) -> Graph:
    """The program on inputs in which the axis is a dimension, to outputs in which it is."""
    builder, values = GraphBuilder(Level.KERNEL), dict[Value, Value]()
    places = iter(zip(axis.inputs, axis.input_widths, strict=True))
    for number, node in enumerate(program.nodes):
        if node.is_input:
            shape = node.output.shape
            given = builder.input(str(node["name"]), _with_axis(shape, axis.size, *next(places)), node.output.dtype)
            value = given if builder.tensor(given).shape == shape else builder.add("reshape", given, shape=shape)
        else:
            value = builder.add(node.op, *(values[source] for source in node.inputs), **dict(node.attributes))
        values[Value(number)] = value
    outputs = []
    for source, dim, widths in zip(program.outputs, axis.outputs, axis.output_widths, strict=True):
        shape = program.tensor(source).shape
        parted = _with_axis(shape, axis.size, dim, widths)
        outputs.append(values[source] if parted == shape else builder.add("reshape", values[source], shape=parted))
    return builder.build(outputs)


def _with_axis(shape: Shape, slices: int, dim: int | None, widths: Widths) -> Shape:
    """A shape with the axis that lies in one of its dimensions as a dimension of its own, before that of a slice."""
    if dim is None or widths == ONE:
        return shape
    return (*shape[:dim], slices, *widths, *shape[dim + 1 :])
