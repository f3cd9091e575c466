"""Graphs that kernels run as a whole, piece by piece, whose kernels compute the first slices alone, as many as a call has.

The pieces are the programs that a torch graph was cut into (`mugraph.pieces.plan`), and nothing else computes anything in it. Of
each of them kernels are made for its first slices (`mugraph.sizes.sliced_kernels`), where the one before has left them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from mugraph.errors import MugraphError
from mugraph.frontend.partitioning.partition import Piece
from mugraph.frontend.partitioning.splice import Kernels, in_order
from mugraph.pieces.plan import Plan
from mugraph.sizes.sliced_kernels import SlicedKernels, first_slices, sliced_kernels
from mugraph.sizes.sliced_programs import Places, SlicedProgram
from mugraph.support.deadline import NO_LIMIT, Deadline
from mugraph.targets.machine import Machine

Steps = Sequence[tuple[Piece, Kernels]]


@dataclass(frozen=True, slots=True)
class SlicedPieces:
    """Call it with one argument per placeholder of a graph, of which those that have a place in `inputs` have the same number of
    slices along that dimension, from 1 to `capacity`; it returns the list of the graph's results, which have as many.

    Calls raise ShapeMismatch and InvalidInput for tensors that do not fit. Safe to call from several threads.
    """

    steps: Steps
    """The pieces in order, and what runs them: kernels of first slices, or those of what no piece reads slices for."""
    inputs: Places
    capacity: int
    machine: Machine
    placeholders: tuple[fx.Node, ...]
    brought: dict[fx.Node, Any]
    """What the graph has of its own."""
    results: tuple[fx.Node | None, ...]

    def __call__(self, *arguments: Any) -> list[Any]:
        return self._run(self.steps, arguments)

    def at(self, count: int) -> Callable[..., list[Any]]:
        """These kernels for one number of slices, as `SlicedKernels.at`."""
        steps = [(piece, each.at(count) if isinstance(each, SlicedKernels) else each) for piece, each in self.steps]

        def run(*arguments: Any) -> list[Any]:
            return self._run(steps, arguments)

        return run

    def first(self, count: int, example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The first slices of arguments that have more."""
        return first_slices(self.inputs, count, example)

    def _run(self, steps: Steps, arguments: Sequence[Any]) -> list[Any]:
        known = {**self.brought, **dict(zip(self.placeholders, arguments, strict=True))}
        for piece, kernels in steps:
            made = kernels(*[_without_gradient(known[node]) for node in piece.inputs])
            for node, number in zip(piece.outputs, piece.numbers, strict=True):
                known[node] = made[number]
        return [None if node is None else known[node] for node in self.results]


def sliced_pieces(
    module: fx.GraphModule,
    plan: Plan,
    inputs: Places,
    outputs: Places,
    example: Sequence[Any],
    deadline: Deadline = NO_LIMIT,
) -> SlicedPieces | None:
    """The kernels of a graph, cut as `plan` says, that compute its first slices; None where others than kernels compute
    something, where these cannot compute first slices alone, and where the deadline passes before that is known.

    `inputs` and `outputs` say where arguments and results have the slices, `example` is a call with all of them.
    """
    pieces = _pieces(module, plan)
    number, place = next((number, dim) for number, dim in enumerate(inputs) if dim is not None)
    if not pieces:
        return None
    brought = {node: attrgetter(str(node.target))(module) for node in module.graph.nodes if node.op == "get_attr"}
    placeholders = tuple(node for node in module.graph.nodes if node.op == "placeholder")
    dims: dict[fx.Node, int | None] = dict.fromkeys(brought) | dict(zip(placeholders, inputs, strict=True))
    values = {**brought, **dict(zip(placeholders, example, strict=True))}
    steps = list[tuple[Piece, Kernels]]()
    for piece in pieces:
        given = [_without_gradient(values[node]) for node in piece.inputs]
        found = _first_of(piece, plan, tuple(dims[node] for node in piece.inputs), given, deadline)
        if found is None:
            return None
        kernels, places = found
        steps.append((piece, kernels))
        made = plan.results[piece].executable(*given)
        dims |= {node: places[number] for node, number in zip(piece.outputs, piece.numbers, strict=True)}
        values |= {node: made[number] for node, number in zip(piece.outputs, piece.numbers, strict=True)}
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results = tuple(output.args[0])
    if any(dims.get(node) != dim for node, dim in zip(results, outputs, strict=True)):
        return None
    machine = plan.results[pieces[0]].executable.machine
    return SlicedPieces(steps, inputs, example[number].shape[place], machine, placeholders, brought, results)


def _first_of(
    piece: Piece, plan: Plan, inputs: Places, example: Sequence[torch.Tensor], deadline: Deadline
) -> tuple[Kernels, Places] | None:
    """What computes the first slices of a piece, and where its outputs have them; None where nothing does."""
    executable = plan.results[piece].executable
    if all(dim is None for dim in inputs):
        return executable.with_own_weights(), (None,) * len(executable.graph.outputs)
    try:
        outputs = SlicedProgram.of(piece.program, inputs).outputs
    except MugraphError:
        return None
    kernels = sliced_kernels(executable, inputs, outputs, example, deadline)
    return None if kernels is None else (kernels, outputs)


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
