"""Graphs of `torch.compile` at a size whose kernels compute the first slices alone, as many as a call has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from mugraph.errors import MugraphError
from mugraph.frontend.partition import Piece
from mugraph.frontend.splice import Kernels, in_order
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.pieces.plan import Plan
from mugraph.sizes.sliced_kernels import sliced_kernels
from mugraph.sizes.sliced_programs import SlicedProgram
from mugraph.support.deadline import Deadline

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class SlicedGraph:
    """A graph at a size: call it with arguments of this size, or `first` with fewer slices."""

    whole: Run
    first: Run

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)


def sliced_graph(
    module: fx.GraphModule, plan: Plan, axis: GraphAxis, arguments: Sequence[Any], whole: Run, deadline: Deadline
) -> SlicedGraph | None:
    """The graph at the size of some arguments, which `whole` runs; None where others than kernels compute something, where these
    cannot compute first slices alone, and where the deadline passes before that is known.

    `module` is the graph that the plan was made for.
    """
    pieces = _pieces(module, plan)
    if pieces is None or axis.of_rows:
        return None
    brought = {node: attrgetter(str(node.target))(module) for node in module.graph.nodes if node.op == "get_attr"}
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    dims: dict[fx.Node, int | None] = dict.fromkeys((*brought, *placeholders)) | {
        placeholders[number]: dim for number, dim in axis.inputs
    }
    values = {**brought, **dict(zip(placeholders, arguments, strict=True))}
    steps = list[tuple[Piece, Kernels]]()
    for piece in pieces:
        executable = plan.results[piece].executable
        example = [_without_gradient(values[node]) for node in piece.inputs]
        inputs = tuple(dims[node] for node in piece.inputs)
        outputs: Sequence[int | None] = [None] * len(executable.graph.outputs)
        kernels: Kernels | None = executable.with_own_weights()
        if any(dim is not None for dim in inputs):
            try:
                outputs = SlicedProgram.of(piece.program, inputs).outputs
            except MugraphError:
                return None
            kernels = sliced_kernels(executable, inputs, tuple(outputs), example, deadline)
        if kernels is None:
            return None
        steps.append((piece, kernels))
        made = executable(*example)
        dims |= {node: outputs[number] for node, number in zip(piece.outputs, piece.numbers, strict=True)}
        values |= {node: made[number] for node, number in zip(piece.outputs, piece.numbers, strict=True)}
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = output.args[0]
    if any(dims.get(node) != (place and place[0]) for node, place in zip(results, axis.outputs, strict=True)):
        return None

    def first(*arguments: Any) -> list[Any]:
        known = {**brought, **dict(zip(placeholders, arguments, strict=True))}
        for piece, kernels in steps:
            made = kernels(*[_without_gradient(known[node]) for node in piece.inputs])
            for node, number in zip(piece.outputs, piece.numbers, strict=True):
                known[node] = made[number]
        return [None if node is None else known[node] for node in results]

    return SlicedGraph(whole, first)


def _without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as calls are recognized by: of parameters they would be looked at one by one."""
    return tensor.detach() if tensor.requires_grad else tensor


def _pieces(module: fx.GraphModule, plan: Plan) -> list[Piece] | None:
    """The pieces that have all calls of a graph, in order, and whose results each are one contiguous tensor; None where they have
    not."""
    steps = [*in_order(module.graph, plan.partition)]
    pieces = [step for step in steps if isinstance(step, Piece)]
    if len(pieces) < len(steps) or any(each.masks or each.causal_masks or each.images or each.image_results for each in pieces):
        return None
    alone = all(len({*each.numbers}) == len(each.numbers) for each in pieces)
    return pieces if alone and all(node.meta["val"].is_contiguous() for each in pieces for node in each.outputs) else None
