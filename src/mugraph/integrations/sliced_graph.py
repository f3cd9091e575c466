"""Graphs of `torch.compile` at a size whose kernels compute the first slices alone, as many as a call has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.pieces.plan import Plan
from mugraph.sizes.rescaled_calls import RescaledCalls
from mugraph.sizes.sliced_pieces import SlicedPieces, sliced_pieces
from mugraph.support.deadline import Deadline

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class SlicedGraph:
    """A graph at a size: call it with arguments of this size, or `first` with fewer slices."""

    whole: Run
    first: SlicedPieces

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)


def sliced_graph(
    module: fx.GraphModule,
    plan: Plan,
    axis: GraphAxis,
    arguments: Sequence[Any],
    whole: Run,
    deadline: Deadline,
    at: Callable[[Sequence[Any]], fx.GraphModule],
) -> SlicedGraph | None:
    """The graph at the size of some arguments, which `whole` runs; None where `sliced_pieces` gives none.

    `module` is the graph that the plan was made for, `at` makes the one for other arguments: where PyTorch or the library make
    calls of the graph, what these are at any size is known from two.
    """
    if axis.of_rows or not axis.inputs:
        return None
    dims = dict(axis.inputs)
    inputs = tuple(dims.get(number) for number in range(len(arguments)))
    outputs = tuple(place and place[0] for place in axis.outputs)
    calls = None
    if plan.partition.left or plan.partition.library:
        size = axis.size(arguments)
        other = size + 1
        try:
            calls = RescaledCalls.of(module, size, at(axis.resized(arguments, other)), other)
        except SizeMatters:
            return None
    first = sliced_pieces(module, plan, inputs, outputs, arguments, deadline, calls)
    return None if first is None else SlicedGraph(whole, first)
