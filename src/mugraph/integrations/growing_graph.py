"""Graphs at a capacity whose programs read tensors where they lie, up to a length that a call gives."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.masked_axis import MaskedGraph
from mugraph.frontend.partition import Piece
from mugraph.frontend.splice import Kernels, spliced
from mugraph.lower.growing_inputs import Axis, HeldSlots
from mugraph.pieces.plan import Plan
from mugraph.sizes.growing_kernels import GrowingKernels, growing_arguments


def growing_graph(module: fx.GraphModule, plan: Plan, masked: MaskedGraph) -> fx.GraphModule | None:
    """The masked graph at a capacity as `plan` runs it, to be called with inputs of any smaller size; None where others than
    kernels read these, or kernels cannot. `module` is the graph that the plan was made for."""
    axes, masks = growing_arguments(masked, [node for node in module.graph.nodes if node.op == "placeholder"])
    partition = plan.partition
    inside = {node for piece in partition.pieces for node in piece.nodes}
    if partition.library or any(not node.users.keys() <= inside for node in axes):
        return None
    if any(piece.masks or piece.causal_masks or piece.images for piece in partition.pieces):
        return None
    try:
        kernels = {piece: _kernels(plan, piece, axes, masks) for piece in partition.pieces}
    except UnsupportedOperator:
        return None
    return spliced(module, partition, kernels)


def _kernels(plan: Plan, piece: Piece, axes: Mapping[fx.Node, Axis], masks: Mapping[fx.Node, HeldSlots]) -> Kernels:
    """The kernels of a program, which may read some of these."""
    executable = plan.results[piece].executable
    read = {number: axes[node] for number, node in enumerate(piece.inputs) if node in axes}
    slots = {number: masks[node] for number, node in enumerate(piece.inputs) if node in masks}
    return GrowingKernels(executable, read, slots) if read else executable.with_own_weights()
