"""Graphs at a capacity whose programs read tensors where they lie, up to a length that a call gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import fx

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators.torch_casts import tensor_of
from mugraph.frontend.partitioning.partition import Piece
from mugraph.frontend.partitioning.splice import Kernels, spliced
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph
from mugraph.lower.growing_inputs import Axis, HeldSlots
from mugraph.pieces.example_tensors import example_of
from mugraph.pieces.plan import Plan
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import quickest
from mugraph.sizes.growing_kernels import GrowingKernels, growing_arguments

T = TypeVar("T")
_Way = tuple[Superoptimized, GrowingKernels]


@dataclass(frozen=True, slots=True)
class GrowingGraph:
    """A masked graph at a capacity, to be called with inputs of any smaller size.

    `plan` has the muGraphs whose kernels are called.
    """

    module: fx.GraphModule
    plan: Plan
    copies: bool
    """Whether kernels copy what is left of an input where it ends within a tile."""


@dataclass(frozen=True, slots=True)
class _GrowingInputs:
    """What of the inputs of a program has the axis, and what says how much is held of it, by number."""

    axes: Mapping[int, Axis]
    masks: Mapping[int, HeldSlots]

    def examples(self, piece: Piece) -> list[torch.Tensor]:
        """Inputs that are half as long as they may be."""
        recorded = [tensor for node in piece.inputs if (tensor := tensor_of(node)) is not None]
        number, axis = next(iter(self.axes.items()))
        size = (recorded[number].shape[axis.dim] - axis.more) // 2
        tensors = [*map(example_of, recorded)]
        for number, axis in self.axes.items():
            tensors[number] = tensors[number].narrow(axis.dim, 0, size + axis.more)
        for number, slots in self.masks.items():
            places = torch.arange(len(tensors[number])) - size
            tensors[number] = (places < slots.end) & (places >= (-size if slots.first is None else slots.first))
        return tensors


def growing_graph(module: fx.GraphModule, plan: Plan, masked: MaskedGraph, timed: bool) -> GrowingGraph | None:
    """The masked graph at a capacity as `plan` runs it; None where others than kernels read what grows, or kernels cannot.

    `module` is the graph that the plan was made for. If that is to be `timed`, of the muGraphs that were proved for a program the
    one is taken whose kernels are the fastest on inputs that are read where they lie.
    """
    axes, masks = growing_arguments(masked, [node for node in module.graph.nodes if node.op == "placeholder"])
    partition = plan.partition
    inside = {node for piece in partition.pieces for node in piece.nodes}
    if partition.library or any(not node.users.keys() <= inside for node in axes):
        return None
    if any(piece.masks or piece.causal_masks or piece.images for piece in partition.pieces):
        return None
    kernels, results, copies = dict[Piece, Kernels](), dict(plan.results), False
    for piece in partition.pieces:
        given = _GrowingInputs(_numbered(piece, axes), _numbered(piece, masks))
        if not given.axes:
            kernels[piece] = plan.results[piece].executable.with_own_weights()
            continue
        ways = _ways(plan.results[piece], given, timed)
        if not ways:
            return None
        results[piece], growing = _quickest(ways, given, piece)
        kernels[piece], copies = growing, copies or growing.copies
    return GrowingGraph(spliced(module, partition, kernels), replace(plan, results=results), copies)


def _numbered(piece: Piece, given: Mapping[fx.Node, T]) -> dict[int, T]:
    """By number of a program's input."""
    return {number: given[node] for number, node in enumerate(piece.inputs) if node in given}


def _ways(result: Superoptimized, given: _GrowingInputs, timed: bool) -> list[_Way]:
    """The result with each of its muGraphs as the best, the fastest on inputs in memory for the capacity first, if its kernels
    read inputs where they lie. If those of the first do not, there are none."""
    ways = list[_Way]()
    for number, candidate in enumerate(result.candidates if timed else result.candidates[:1]):
        made = result.with_best(candidate) if number else result
        with suppress(UnsupportedOperator):
            ways.append((made, GrowingKernels(made.executable, given.axes, given.masks)))
        if not ways:
            break
    return ways


def _quickest(ways: Sequence[_Way], given: _GrowingInputs, piece: Piece) -> _Way:
    """The way that takes the least time for inputs of a typical size."""
    if len(ways) == 1:
        return ways[0]
    tensors = given.examples(piece)
    return ways[quickest([partial(growing, *tensors) for _, growing in ways])]
