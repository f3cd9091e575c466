"""What runs a graph of ATen calls at every size it may be called with.

Kernels are compiled for sizes, and a size costs seconds. Of a graph with one symbolic size along which slices are independent, as
batches are, a few sizes are optimized and cover all others from their first call on (`mugraph.integrations.covered_graph`). Parts
that reduce a symbolic size, as attention does a growing cache of keys, run by kernels of a few capacities
(`mugraph.integrations.masked_run`). Where more is computed, the graph is cut: parts that do the same to every row of a batch or a
length run in chunks of rows (`mugraph.frontend.symbolic_sizes.row_parts`), parts that reduce a size by capacities, and PyTorch
makes the calls between them. That serves any size from its first call on. Where it is slower than the graph as a whole
(`mugraph.integrations.compared_graph`) PyTorch makes the calls that depend on a size. Sizes that keep coming get kernels of their
own in the background (`mugraph.integrations.sized_graph`), and only so many do.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.devices.targets import target_row
from mugraph.frontend.operators.torch_casts import draws_random_numbers, has_effects, tensor_of, tensors_of
from mugraph.frontend.rewriting.graph_passes import concrete, numbers_of, owner_of, ready_to_cut
from mugraph.frontend.rewriting.node_traits import bytes_of, mutates
from mugraph.frontend.symbolic_sizes.axes import SizeMatters, varies
from mugraph.frontend.symbolic_sizes.masked_parts import (
    BatchedPart,
    MaskedPart,
    batched_parts,
    computes_elsewhere,
    masked_parts,
    with_parts,
)
from mugraph.frontend.symbolic_sizes.row_parts import RowPart, row_parts
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph
from mugraph.integrations.background import BackgroundGraph, Run, Turn
from mugraph.integrations.batched_run import BatchedRun
from mugraph.integrations.compared_graph import ComparedGraph
from mugraph.integrations.covered_graph import CoveredGraph
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.integrations.growing_graph import growing_graph
from mugraph.integrations.masked_run import AtCapacityGraphs, MaskedRun
from mugraph.integrations.optimized_graph import optimized, planned
from mugraph.integrations.sized_graph import RecurringSizes, SizedGraph, UncutGraph
from mugraph.integrations.sliced_graph import sliced_graph
from mugraph.integrations.whole_graph import Original
from mugraph.pieces.piece_optimizer import GraphsByForm
from mugraph.pieces.piece_options import PieceOptions
from mugraph.search.constraints import SearchSpace
from mugraph.selection.structure_key import form_of
from mugraph.sizes.growing_kernels import short_iterations
from mugraph.support.deadline import Deadline

_TRIED = 0.75
"""Of the time that is left, what a part of the search space may take where another one is tried behind it."""
_COMPILED_SECONDS = 5.0
"""What kernels may take, behind the search for them, to be compiled once more as those of first slices."""
_AHEAD = 4
"""Parts of rows have kernels for calls of up to so many times as many rows as that which asks for them, where first slices of
kernels can run: lengths vary widely."""

_log = logging.getLogger("mugraph.torch_compile")


def at_all_sizes(
    options: PieceOptions,
    module: fx.GraphModule,
    graph: BackgroundGraph,
    changed: Sequence[int] = (),
    original: Original | None = None,
) -> Run:
    """The optimized graph; with symbolic sizes, what has fixed ones in it, and at sizes that keep coming everything.

    `changed` and `original` are as in `optimized`, for graphs of fixed sizes.
    """
    numbers = numbers_of(module)
    if numbers == ():
        return optimized(options, module, None, graph, options.budget, changed, original).forward
    graphs: GraphsByForm = {}
    later = graph.later if options.background else None
    masked_run = functools.partial(_with_masked_parts, options, graphs, graph, {})
    parts: Sequence[MaskedPart | BatchedPart] = masked_parts(module) if options.sizes else []
    if parts and not computes_elsewhere(module, parts):
        return masked_run(module, parts)
    axis = _axis_of(module, numbers) if numbers and options.sizes else None
    if axis is None and numbers and options.sizes and not parts:
        parts = batched_parts(module)
        if parts and not computes_elsewhere(module, parts):
            return masked_run(module, parts)
    cut = _cut(options, module, graphs, graph, masked_run) if axis is None and numbers and options.sizes else None
    if cut is not None and options.keep == "all":
        return cut
    general = masked_run(module, parts) if parts else optimized(options, module, graphs, graph, options.budget).forward
    if numbers is None:
        _log.info("a graph has symbolic sizes that its integer arguments do not decide; what depends on them stays with torch")
    if not numbers or not options.sizes:
        return general

    if axis is not None:
        at_size = functools.partial(_in_slices, axis, options, module, graphs, graph)
        return CoveredGraph(general, at_size, axis, options.sizes, options.budget, options.strict, Turn(later))

    behind = functools.partial(_behind_calls, options, module, graphs, graph, {})
    if cut is not None:
        compared = ComparedGraph(cut, general, numbers, module.forward, options.strict, _turn(options, graph))
        return RecurringSizes(compared, behind, options.sizes, graph.later)
    if not options.strict and _can_be_called_again(module) and target_row(options.target).tensors == "cpu":
        _log.info("sizes of a graph get kernels behind its calls, when they come the third time")
        faster = options.keep == "faster" and options.profile
        return RecurringSizes(UncutGraph(general, tuple(numbers)), behind, options.sizes, graph.later, faster)

    def specialized(arguments: Sequence[Any]) -> Run:
        return _at_size(options, module, graphs, graph, arguments, options.budget)

    _log.info("sizes of a graph are optimized one by one, when they come the third time")
    return SizedGraph(general, specialized, numbers, options.sizes, options.strict, later)


def _turn(options: PieceOptions, graph: BackgroundGraph) -> Turn:
    """What has calls wait for work, but for comparisons that are made once more; with `strict`, which has them raise what goes
    wrong, for these, too."""
    return Turn(graph.later if options.background else None, None if options.strict else graph.later)


def _can_be_called_again(module: fx.GraphModule) -> bool:
    """Whether a call that is made once more, for a comparison, changes nothing, and returns the same."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(draws_random_numbers(node) or has_effects(node) for node in calls):
        return False
    changed = {owner_of(source) for node in calls if mutates(node) for source in node.all_input_nodes}
    return not any(node.op != "call_function" for node in changed)


def _at_size(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    arguments: Sequence[Any],
    budget: float | None,
) -> Run:
    """The optimized graph at the sizes of some arguments."""
    with _disable_current_modes():
        return optimized(options, concrete(module, arguments), graphs, graph, budget).forward


def _behind_calls(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    known: GraphsByForm,
    arguments: Sequence[Any],
) -> Run:
    """The same, made in the background while calls go on: another process searches. `known` is what was found so, which no other
    thread changes."""
    known.update({form: found for form, found in dict(graphs).items() if form not in known})
    quiet = replace(options, background=True, progress=None, strict=False)
    return _at_size(quiet, module, known, graph, arguments, options.budget)


def _in_slices(
    axis: GraphAxis,
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    arguments: Sequence[Any],
    budget: float | None,
) -> Run | None:
    """The optimized graph at the size of some arguments, which computes its first slices alone if its kernels can; None where it
    has none."""
    deadline = Deadline(None if budget is None else budget + _COMPILED_SECONDS)

    def at(arguments: Sequence[Any]) -> fx.GraphModule:
        return ready_to_cut(concrete(module, arguments))

    with _disable_current_modes():
        ready = at(arguments)
        plan = planned(options, ready, graphs, graph, budget)
        if not (plan.partition.pieces or plan.partition.library):
            return None
        whole = plan.spliced(ready).forward
        with torch.no_grad():
            return sliced_graph(ready, plan, axis, arguments, whole, deadline, at) or whole


def _cut(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    masked_run: Callable[[fx.GraphModule, Sequence[MaskedPart | BatchedPart]], Run],
) -> Run | None:
    """The optimized graph in parts: those that do the same to every row of symbolic sizes run in chunks of rows, and those that
    reduce a size as `masked_run` has them. None where no part of rows is worth a call, and where the graph is to be compared as a
    whole and its calls draw random numbers, or have other effects."""
    if options.keep == "faster" and not _can_be_called_again(module):
        return None
    ordered, parts = row_parts(module)
    axes = {part: axis for part in parts if (axis := _axis_of(part.module, part.numbers)) is not None}
    if not any(axis.of_rows or any(map(_is_given, part.inputs)) for part, axis in axes.items()):
        return None  # rows without weights take less than calls of parts do
    shares = _shares(options.budget, [*axes])
    turn = None if options.background else Turn()  # a call waits for one part at a time, and no other thread for the next one

    def covered(part: RowPart, axis: GraphAxis) -> CoveredGraph:
        share = shares[part.form]
        general = optimized(options, part.module, graphs, graph, share).forward
        at_size = functools.partial(_in_slices, axis, options, part.module, graphs, graph)
        ahead = _AHEAD if options.target == "cpu" and not axis.of_rows else 1  # of others nobody knows what these cost
        return CoveredGraph(general, at_size, axis, options.sizes, share, options.strict, turn or Turn(graph.later), ahead)

    _log.info("%d parts of a graph do the same to every row: they run in chunks of rows at any size", len(axes))
    whole = with_parts(ordered, [*axes], [covered(part, axis) for part, axis in axes.items()])
    reducing = masked_parts(whole) or batched_parts(whole)
    return masked_run(whole, reducing) if reducing else optimized(options, whole, graphs, graph, options.budget).forward


def _shares(budget: float | None, parts: Sequence[RowPart]) -> dict[str, float | None]:
    """What parts have of a budget, by form: half of it equally, and half by the bytes that they read of fixed sizes, as weights
    are, which say how much is to be computed for a row."""
    weights = {part.form: sum(map(bytes_of, filter(_is_fixed, part.inputs))) for part in parts}
    total, deadline = max(sum(weights.values()), 1), Deadline(budget)
    return {form: deadline.share((1 / len(weights) + weight / total) / 2) for form, weight in weights.items()}


def _is_fixed(node: fx.Node) -> bool:
    return bool(tensors_of(node)) and not varies(node)


def _is_given(node: fx.Node) -> bool:
    """Whether a node is a tensor of fixed sizes that the graph is given, as weights are."""
    return _is_fixed(node) and node.op != "call_function"


def _axis_of(module: fx.GraphModule, numbers: Sequence[int]) -> GraphAxis | None:
    """The axis of a graph along which slices are independent; None where there is none, which the log says why."""
    try:
        return GraphAxis.of(module, numbers)
    except SizeMatters as reason:
        _log.info("%d calls with symbolic sizes do not run in slices: %s", len(module.graph.nodes), reason)
        return None


def _with_masked_parts(
    options: PieceOptions,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    runs: dict[str, MaskedRun | BatchedRun],
    module: fx.GraphModule,
    parts: Sequence[MaskedPart | BatchedPart],
) -> Run:
    """The optimized graph, whose parts that reduce a symbolic size run by kernels of a few capacities; equal ones share them.
    `runs` has by form what runs parts, and is added to."""

    def specialized(
        known: GraphsByForm, at_capacity: fx.GraphModule, masked: MaskedGraph, budget: float | None
    ) -> AtCapacityGraphs | None:
        ready, deadline, best = ready_to_cut(at_capacity), Deadline(budget), None
        spaces = _spaces(options, at_capacity, masked)
        for left, space in zip(range(len(spaces), 0, -1), spaces, strict=True):
            chosen = replace(options, keep="all", space=space, strict=options.strict and space is options.space)
            plan = planned(chosen, ready, known, graph, deadline.share(_TRIED if left > 1 else 1.0))
            for form in [form for form, best_graph in known.items() if form_of(best_graph) == form]:
                del known[form]  # of what is best as it is written at one capacity others may have kernels
            if not plan.partition.pieces:
                continue
            growing = growing_graph(ready, plan, masked, options.profile)
            if growing is None:
                best = best or AtCapacityGraphs(plan.spliced(ready))
                continue
            best = AtCapacityGraphs(growing.plan.spliced(ready), growing.module)
            if not growing.copies:
                break
        return best

    faster = options.keep == "faster"

    def masked_run(part: MaskedPart, share: float = 1.0) -> MaskedRun:
        of_part = functools.partial(specialized, {})  # what one part knows no thread changes that works on another
        budget = Deadline(options.budget).share(share)
        return MaskedRun(part, of_part, options.sizes, budget, faster, options.strict, _turn(options, graph))

    for part in parts:
        if part.form not in runs:
            batched = functools.partial(BatchedRun, made=masked_run, compared=faster)
            runs[part.form] = batched(part) if isinstance(part, BatchedPart) else masked_run(part)
    _log.info("%d parts of a graph reduce a symbolic size: kernels of a few capacities run them", len(parts))
    whole = with_parts(module, parts, [runs[part.form] for part in parts])
    return optimized(options, whole, graphs, graph, options.budget).forward


def _spaces(options: PieceOptions, at_capacity: fx.GraphModule, masked: MaskedGraph) -> list[SearchSpace | None]:
    """The parts of the search space that are tried for a masked graph at a capacity, until one has kernels that copy nothing."""
    short = short_iterations(_slots(at_capacity, masked)) if options.space is None and options.target == "cpu" else None
    return [options.space] if short is None else [None, short]


def _slots(at_capacity: fx.GraphModule, masked: MaskedGraph) -> int:
    """How many slots the axis has in a masked graph at a capacity."""
    placeholders = [node for node in at_capacity.graph.nodes if node.op == "placeholder"]
    tensor = tensor_of(placeholders[len(masked.inputs)])
    assert tensor is not None, "a vector that says what is held"
    return int(tensor.shape[0])
