"""A program and a muGraph at some blocks of their outputs, where a host that stands in for a GPU takes long for all of them.

Along an axis that is parallel in both (`mugraph.verifier.parallel_axes`) a block of the output depends on the slices of the
inputs that are at its place and on nothing else, and all blocks compute the same. Both graphs at as many slices as some whole
blocks have are therefore what they are in these blocks: the same tiles, loops, orders of summation and roundings. Where a block
has all slices, its tiles have fewer of them then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from mugraph.errors import ShapeMismatch
from mugraph.ir.arithmetic import Array
from mugraph.ir.cores import has_lookups
from mugraph.ir.graph import Graph
from mugraph.verifier.float_report import BlockCount, FloatReport
from mugraph.verifier.parallel_axes import ParallelAxis, shared_slice, slices_of_blocks, take_slices
from mugraph.verifier.reference import work_of
from mugraph.verifier.samples import Places, affordable
from mugraph.verifier.slice_walk import NotParallel

_PRODUCTS = 256
"""Multiplications of a product of matrices that take a host as long as one element, which is drawn, converted and compared."""
_WHOLE = float(1 << 26)
"""All blocks are computed where that takes so much work (`work_of`), about a second, ..."""
_SAMPLED = float(1 << 24)
"""... and otherwise blocks that take so much, or as few as _LEAST along each axis, ..."""
_LONG = float(1 << 26)
"""... or in all, where these take more than so much."""
_LEAST = 4
_SLICES = 16
"""Slices, at least, or all, of an axis that is whole in the blocks of some kernel: a row of single elements is no tile, and too
few of them are no product for matrix units. Parts into which its blocks are put together have as many."""


@dataclass(frozen=True, slots=True)
class BlockAxis:
    """An axis along which blocks can be taken: so many `blocks` of `slices` neighbouring slices, tiles of every kernel whole, of
    which as many are taken as have the `fewest` slices at least."""

    axis: ParallelAxis
    slices: int
    fewest: int = 1

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self.axis.size // self.slices

    @property
    def least(self) -> int:
        """How many are taken at least."""
        return min(self.blocks, -(-self.fewest // self.slices))


def is_dear(program: Graph) -> bool:
    """Whether a host takes long for all outputs of a kernel graph of pre-defined operators."""
    return work_of(program, _PRODUCTS) > _WHOLE


def block_axes(program: Graph, graph: Graph) -> list[BlockAxis]:
    """The axes along which a program and its muGraph can both be taken at some blocks; none where they look something up."""
    if has_lookups(program) or has_lookups(graph):
        return []
    found = []
    for axis in shared_slice(program, graph).axes:
        try:
            tile, uncut = slices_of_blocks(graph, axis.inputs)
        except (NotParallel, ShapeMismatch):  # of the muGraph with another axis at size 1 alone
            continue
        found.append(BlockAxis(axis, _widened(tile, axis.size), _SLICES) if uncut else BlockAxis(axis, tile))
    return [each for each in found if each.blocks > (_LEAST if each.fewest > 1 else 1)]


def at_blocks(graph: Graph, axes: Sequence[BlockAxis], counts: Sequence[int]) -> Graph:
    """A kernel graph at so many blocks along each axis; raises NotParallel where it does not treat them alike."""
    for each, count in zip(axes, counts, strict=True):
        if count < each.blocks:
            graph, _ = take_slices(graph, each.axis.inputs, count * each.slices)
    return graph


@dataclass(frozen=True, slots=True)
class BlockSample:
    """A program and a muGraph `at` so many blocks along each of the axes."""

    whole: Graph
    program: Graph
    graph: Graph
    axes: tuple[BlockAxis, ...]
    at: tuple[int, ...]

    @classmethod
    def of(cls, program: Graph, graph: Graph) -> BlockSample | None:
        """A sample of a program that takes long; None where all of it is cheap, or no axis can be cut."""
        axes = block_axes(program, graph) if is_dear(program) else []
        if not axes:
            return None

        def work(counts: Sequence[int]) -> float:
            return work_of(at_blocks(program, axes, counts), _PRODUCTS)

        with suppress(NotParallel, ShapeMismatch):  # where axes cannot be cut beside each other
            counts = _chosen_counts(axes, work)
            return cls(program, at_blocks(program, axes, counts), at_blocks(graph, axes, counts), tuple(axes), counts)
        return None

    def reported(self, floats: FloatReport) -> FloatReport:
        """What was found at the sample, as a report of the whole."""
        elements = tuple(tensor.elements for tensor in self.program.output_tensors)
        return replace(
            floats,
            scales=tuple(replace(entry, compared=entry.compared or elements) for entry in floats.scales),
            elements=tuple(tensor.elements for tensor in self.whole.output_tensors),
            blocks=tuple(
                BlockCount(each.axis.outputs, count, each.blocks)
                for each, count in zip(self.axes, self.at, strict=True)
                if count < each.blocks and any(dim is not None for dim in each.axis.outputs)
            ),
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A kernel graph at the blocks at some `places` of each axis: positions of slices, for every input and output along the
    dimension that the axis is in it."""

    graph: Graph
    inputs: tuple[tuple[int | None, ...], ...]
    outputs: tuple[tuple[int | None, ...], ...]
    places: Places

    @classmethod
    def of(cls, graph: Graph, axes: Sequence[BlockAxis], needed: Callable[[Sequence[int | None], BlockAxis], Array]) -> Placed:
        """The graph at the blocks that are `needed` along an axis, by its dimension in each output; at all slices along axes that
        it does not treat alike."""
        taken: list[tuple[BlockAxis, tuple[int | None, ...], Array]] = []
        whole = graph
        for each in axes:
            with suppress(NotParallel, ShapeMismatch):
                _, dims = take_slices(whole, each.axis.inputs, each.slices)
                places = (needed(dims, each)[:, None] * each.slices + np.arange(each.slices)).reshape(-1)
                graph, _ = take_slices(graph, each.axis.inputs, len(places))
                taken.append((each, dims, places))
        inputs = tuple(tuple(each.axis.inputs[number] for each, _, _ in taken) for number in range(len(graph.inputs())))
        outputs = tuple(tuple(dims[number] for _, dims, _ in taken) for number in range(len(graph.outputs)))
        return cls(graph, inputs, outputs, tuple(places for _, _, places in taken))


def _chosen_counts(axes: Sequence[BlockAxis], work: Callable[[Sequence[int]], float]) -> tuple[int, ...]:
    """How many blocks are taken along each axis, by the work that they are."""

    def work_of_several(counts: Sequence[int]) -> float:
        return work(counts) if math.prod(counts) > _LEAST else 0.0

    def at_least(counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(count, each.least) for count, each in zip(counts, axes, strict=True))

    some = at_least(affordable([each.blocks for each in axes], work, _SAMPLED, _LEAST))
    return at_least(affordable(some, work_of_several, _LONG, 1))


def _widened(tile: int, size: int) -> int:
    """The least multiple of a tile that has _SLICES slices and divides the axis; the tile where none leaves several blocks."""
    multiples = (count for count in range(math.ceil(_SLICES / tile), size // tile) if size // tile % count == 0)
    return tile * next((count for count in multiples if size // (tile * count) > _LEAST), 1)
