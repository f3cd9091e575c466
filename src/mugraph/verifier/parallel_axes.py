"""Axes along which a program does the same to every slice: one slice then stands for all of them.

The rows of a linear layer, the heads and sequences of an attention: where every operator of two graphs acts on slices
along an axis independently, the graphs are equal at any size of that axis if and only if they are equal at size 1.
Where slices are added up in the end, as in losses and in products of matrices, equal slices stand for all, too: their sum is
one of them, times their number. `shared_slice` proves this operator by operator and gives the graphs at size 1. docs/theory.md
has the theorems.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mugraph.errors import ShapeMismatch
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.graph import Graph, Level, Node, Tensor, Value
from mugraph.verifier.axis_candidates import Candidate, candidates
from mugraph.verifier.axis_marks import ONE, Mark, Widths
from mugraph.verifier.slice_walk import NotParallel, SliceWalk, Unmarked


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """A parallel axis: the dimension it takes in each input and each output (None where it does not occur), and its size.

    `sums` are the numbers of the outputs to which its slices are added up. A slice is so many neighbours along the dimension as
    `input_widths` and `output_widths` say, as the elements of a head are in a row of all heads; and so many of each stretch
    where a dimension is put together of several that have all slices. `narrow` says whether slices are at single positions of all
    tensors of both graphs, and every operator carries these over one by one.
    """

    size: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    sums: tuple[int, ...] = ()
    input_widths: tuple[Widths, ...] = ()
    output_widths: tuple[Widths, ...] = ()
    narrow: bool = True
    apart: tuple[int, ...] = ()
    """Numbers of inputs that the graphs of slices take once more, as a whole, behind the others."""

    @property
    def simple(self) -> bool:
        """Whether slices are at single positions of inputs and of outputs."""
        return not self.sums and not self.apart and {*self.input_widths, *self.output_widths} <= {ONE}


@dataclass(frozen=True, slots=True)
class Slice:
    """Two graphs with all parallel axes at size 1, and those axes, in the order in which they were reduced.

    Of an axis with sums, the graphs give what the originals do where all slices are equal.
    """

    left: Graph
    right: Graph
    axes: tuple[ParallelAxis, ...]


def shared_slice(
    left: Graph,
    right: Graph,
    worthwhile: Callable[[Graph, Graph, ParallelAxis], bool] = lambda *cut: True,
    *,
    simple: bool = True,
) -> Slice:
    """Both kernel graphs at size 1 of every axis that is proved parallel in both; raises nothing where there is none.

    `worthwhile` may decline an axis: it is given the left graph before and after the cut. Axes that are not
    `simple` are cut only where they are wanted, too.
    """
    axes: list[ParallelAxis] = []
    tried: set[Candidate] = set()
    while (found := _next_axis(left, right, tried, simple)) is not None:
        if not worthwhile(left, found[0], found[2]):
            continue
        left, right, axis = found
        axes.append(axis)
        if not axis.simple:
            tried.clear()  # what views merged with the axis may stand alone now
    return Slice(left, right, tuple(axes))


@functools.lru_cache(maxsize=8)
def simple_slice(left: Graph, right: Graph) -> Slice:
    """What `shared_slice` gives of two graphs, which takes long where they are."""
    return shared_slice(left, right)


def uniform_slice(left: Graph, right: Graph, known: Collection[int]) -> Slice:
    """What `shared_slice` gives of the axes along which no input of those numbers stands: one slice of known values would not be
    all of them."""
    return shared_slice(left, right, lambda before, after, axis: all(axis.inputs[number] is None for number in known))


def slices_at(axes: Sequence[ParallelAxis], inputs: Sequence[Array], output: int, index: Sequence[int]) -> list[Array]:
    """The slices of the inputs that an element of an output depends on."""
    positions = [0 if (dim := axis.outputs[output]) is None else index[dim] for axis in axes]
    return [slice_of(array, [axis.inputs[number] for axis in axes], positions) for number, array in enumerate(inputs)]


def slice_of(array: Array, dims: Sequence[int | None], index: Sequence[int]) -> Array:
    """The part of an array at these positions along `dims`, as a view of the same rank."""
    places: list[Any] = [slice(None)] * array.ndim
    for position, dim in zip(index, dims, strict=True):
        if dim is not None:
            places[dim] = slice(position, position + 1)
    return np.asarray(array[(*places, ...)])


def take_slice(graph: Graph, inputs: Sequence[int | None]) -> tuple[Graph, tuple[int | None, ...]]:
    """A kernel graph at size 1 of the axis that is dimension `inputs[i]` of input i, and that axis' dimension in each output.

    Raises NotParallel where some operator does not act on slices along that axis independently.
    """
    return take_slices(graph, inputs, 1)


def take_slices(graph: Graph, inputs: Sequence[int | None], size: int) -> tuple[Graph, tuple[int | None, ...]]:
    """As `take_slice`, at another size of the axis. Blocks that cut it keep their tiles where `size` is a multiple of
    `slices_of_blocks`, and there are fewer of them; in general tiles are as large as is a divisor of both."""
    taken, marks = SliceWalk(graph, _marks(inputs, size)).run()
    if any(mark is not None and (mark.summed or mark.widths != ONE) for mark in marks):
        raise NotParallel("slices are added up, or have several elements")
    return taken, tuple(None if mark is None else mark.dim for mark in marks)


def at_equal_slices(graph: Graph, axes: Sequence[ParallelAxis]) -> Graph:
    """A kernel graph at size 1 of axes that `shared_slice` found of a graph with these nodes, whichever its outputs are: what
    these are where all slices along an axis are equal, and one slice of those that have it."""
    for axis in axes:
        marks = [
            None if dim is None else Mark(dim, widths=widths) for dim, widths in zip(axis.inputs, axis.input_widths, strict=True)
        ]
        graph, _ = SliceWalk(graph, marks, slices=axis.size).run()
    return graph


def marks_behind(node: Node, operands: Sequence[Tensor], marks: Sequence[Mark | None], slices: int) -> list[Mark | None]:
    """The axis of so many slices in the results of a node of a kernel graph, from where it is in the operands. Raises NotParallel
    where slices are neither kept apart nor added up."""
    builder = GraphBuilder(Level.KERNEL)
    given = tuple(builder.input(f"x{number}", tensor.shape, tensor.dtype) for number, tensor in enumerate(operands))
    made = builder.append(replace(node, inputs=given))
    return SliceWalk(builder.build([Value(made.node, number) for number in range(len(node.outputs))]), marks, slices).run()[1]


class BlockSlices(NamedTuple):
    """How many neighbouring slices along an axis are whole tiles of all blocks that cut it, at least, 1 where none does. It is
    `uncut` where a block of some kernel has all slices, or a product without blocks has them as its rows or columns."""

    slices: int
    uncut: bool


def slices_of_blocks(graph: Graph, inputs: Sequence[int | None]) -> BlockSlices:
    """How blocks of a kernel graph cut an axis. Raises NotParallel as `take_slice` does, and where a for-loop runs over it."""
    sizes = (node.output.shape[dim] for node, dim in zip(graph.inputs(), inputs, strict=True) if dim is not None)
    walk = SliceWalk(graph, _marks(inputs, next(sizes)))
    walk.run()
    return BlockSlices(walk.tile, walk.uncut)


def _marks(inputs: Sequence[int | None], taken: int) -> list[Mark | None]:
    return [None if dim is None else Mark(dim, taken=taken) for dim in inputs]


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph at size 1 of an axis of so many `slices`: the dimension it has in each output, with how slices lie there, and the
    outputs that add slices up. `narrow` says whether slices are at single positions in all tensors, carried over one by one."""

    graph: Graph
    slices: int
    dims: tuple[int | None, ...]
    widths: tuple[Widths, ...]
    sums: tuple[int, ...]
    narrow: bool

    @classmethod
    def of(cls, graph: Graph, axis: Sequence[int | None], widths: Sequence[Widths] = (), unmarked: Unmarked | None = None) -> Cut:
        """Cut an axis: for each input the dimension, or None, and how slices lie in it, at single positions by default. Who tries
        many axes has what is left of the graph as it is `unmarked`. Raises NotParallel where slices are neither kept apart nor
        added up."""
        places = list(zip(axis, widths or [ONE] * len(axis), strict=True))
        sizes = [
            divmod(node.output.shape[dim], sum(of_input))
            for node, (dim, of_input) in zip(graph.inputs(), places, strict=True)
            if dim is not None
        ]
        if len({*sizes}) > 1 or sizes[0][1]:
            raise NotParallel("the axis has different sizes in the inputs")
        marks = [None if dim is None else Mark(dim, widths=of_input) for dim, of_input in places]
        walk = SliceWalk(graph, marks, slices=sizes[0][0], unmarked=unmarked)
        found, outputs = walk.run()
        if not all(mark is None or mark.complete or (mark.dim is not None and not mark.summed) for mark in outputs):
            raise NotParallel("an output has sums of some slices")
        return cls(
            found,
            sizes[0][0],
            tuple(None if mark is None else mark.dim for mark in outputs),
            tuple(ONE if mark is None else mark.widths for mark in outputs),
            tuple(number for number, mark in enumerate(outputs) if mark is not None and mark.summed),
            walk.narrow,
        )


def _next_axis(left: Graph, right: Graph, tried: set[Candidate], simple: bool) -> tuple[Graph, Graph, ParallelAxis] | None:
    sides: list[tuple[Graph, Unmarked]] = []
    for candidate in candidates(left, right, simple=simple):
        if candidate in tried:
            continue
        tried.add(candidate)
        try:
            sides = sides or [(graph, Unmarked.of(graph)) for graph in (left, right)]
            ours, theirs = (Cut.of(graph, *candidate, unmarked) for graph, unmarked in sides)
        except (NotParallel, ShapeMismatch):
            continue
        narrow = ours.narrow and theirs.narrow
        axis = ParallelAxis(ours.slices, candidate.inputs, ours.dims, ours.sums, candidate.widths, ours.widths, narrow)
        if replace(ours, graph=theirs.graph, narrow=theirs.narrow) == theirs and (axis.simple or not simple):
            return ours.graph, theirs.graph, axis
    return None
