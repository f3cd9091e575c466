"""A graph of ATen calls with kernels in the place of its pieces, and what became of the graphs that were compiled last."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.devices.targets import target_row
from mugraph.frontend.calls.in_place import values_behind
from mugraph.frontend.operators.torch_casts import draws_random_numbers, has_effects, tensor_of
from mugraph.frontend.partitioning.partition import Partition, Piece
from mugraph.frontend.rewriting.graph_passes import ready_to_cut
from mugraph.integrations.background import BackgroundGraph, queue
from mugraph.integrations.waiting import tell, waiting
from mugraph.integrations.whole_graph import Original, WholeGraph
from mugraph.pieces.example_tensors import example_of, recorded_sizes
from mugraph.pieces.kept_plans import KeptPlan
from mugraph.pieces.packed_memory import packed_bytes
from mugraph.pieces.piece_optimizer import GraphsByForm, Optimizer, optimizer
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.plan import Plan, plans
from mugraph.pieces.whole_calls import KeptCalls, text_of_calls
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import quickest
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event

_log = logging.getLogger("mugraph.torch_compile")
_NOTHING = "nothing of its graph runs as kernels"
"""Why PyTorch makes calls that are not left to it one by one."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one graph."""

    partition: Partition
    """Of its calls: pieces run as kernels, library kernels, and what torch runs for which reason."""
    results: Mapping[Piece, Superoptimized]

    def __str__(self) -> str:
        pieces, distinct = len(self.partition.pieces), len(set(map(id, self.results.values())))
        library, packed = len(self.partition.library), self.packed_bytes
        kernels = f" and {library} library kernel{'s' * (library != 1)}" * (library > 0)
        weights = f" ({packed / 2**20:.0f} MiB of packed weights)" * (packed > 0)
        return (
            f"{pieces} pieces ({distinct} distinct){kernels} run as kernels{weights}, {self.partition.byte_share:.0%} of the "
            f"bytes; {len(self.partition.left)} calls left to torch"
        )

    @property
    def packed_bytes(self) -> int:
        """What packed weights take beside the weights themselves, by each way of packing once."""
        return packed_bytes(self.partition, self.results)


class Compilations(deque[Compiled]):
    """What became of the graphs compiled last, in order, of `in_all`."""

    def __init__(self) -> None:
        super().__init__(maxlen=100)
        self.in_all = 0

    def append(self, compiled: Compiled) -> None:
        """Add one, in the place of the oldest where there are too many."""
        super().append(compiled)
        self.in_all += 1


compilations = Compilations()
"""Those of this process."""


def optimized(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm | None,
    graph: BackgroundGraph,
    budget: float | None,
    changed: Sequence[int] = (),
    original: Original | None = None,
) -> fx.GraphModule:
    """The graph with kernels in the place of its pieces. Its last results are what arguments of the numbers `changed` hold behind
    the call: they may be written where they lie. `graphs` is as in `plans`; a graph without, which has no other sizes, is cut as
    an earlier process has cut it.

    Whole calls of a graph that changes nothing are compared with those of its `original`, which is the answer where kernels are
    not faster.
    """
    ready = ready_to_cut(module)
    written = values_behind(ready.graph, changed)
    whole = None if original is None or changed else WholeGraph.compared(options, ready, original)
    if whole is None:
        return planned(options, ready, graphs, graph, budget, written=written).spliced(ready, written=written)
    deadline = Deadline(budget)
    with _told(options, deadline):
        calls = text_of_calls(ready.graph)
        plan = _planned(options, ready, deadline, graphs, calls=calls, before=whole.before_calls)
        by_kernels = plan.spliced(ready)
        if plan.has_kernels:
            tell(Event("compare", "calls by kernels and by PyTorch", deadline.elapsed))
        reason = whole.outcome(plan, by_kernels, deadline, calls).reason if plan.has_kernels else _NOTHING
    if reason and plan.has_kernels:
        _log.info("torch runs a graph: %s", reason)
    _note(options, plan.without_kernels(reason) if reason else plan, graph)
    return whole.original.with_code() if reason else by_kernels


def planned(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm | None,
    graph: BackgroundGraph,
    budget: float | None,
    improved: Callable[[Plan], None] | None = None,
    written: Mapping[fx.Node, fx.Node] | None = None,
) -> Plan:
    """The plan of what is ready to be cut, for `graph` to run, within a budget that is all that was asked for or a share of it;
    `improved` is given better and better ones before, `written` is as in `ways_in_place`."""
    deadline = Deadline(budget)
    with _told(options, deadline):
        plan = _planned(options, module, deadline, graphs, improved, written)
    _note(options, plan, graph)
    return plan


def _told(options: PieceOptions, deadline: Deadline) -> AbstractContextManager[None]:
    """Where those who wait for calls are told how far it is."""
    return nullcontext() if options.background else waiting(options.progress, deadline)


def _planned(
    options: PieceOptions,
    module: fx.GraphModule,
    deadline: Deadline,
    graphs: GraphsByForm | None,
    improved: Callable[[Plan], None] | None = None,
    written: Mapping[fx.Node, fx.Node] | None = None,
    calls: str | None = None,
    before: Callable[[Deadline], Deadline] = lambda deadline: deadline,
) -> Plan:
    """The plan of what is ready to be cut, whose `calls` are this text, if it is known; what has to be found out is until
    `before` the deadline."""
    count = sum(node.op == "call_function" for node in module.graph.nodes)
    limit = "without a limit of time" if deadline.budget is None else f"for up to {deadline.budget:.0f} seconds"
    _log.info("kernels are searched for a graph of %d calls, %s", count, limit)
    optimizer, device = _optimizer(options), target_row(options.target).tensors
    with _disable_current_modes():  # Dynamo's modes, under which tensors have no data
        kept = None if graphs is not None else KeptPlan.of(module.graph, optimizer, written or {}, calls)
        plan = None if kept is None else kept.recalled(deadline)
        if plan is not None:
            return plan
        choices = plans(module, device, optimizer, before(deadline), graphs, improved=improved, written=written)
        plan = choices[0] if len(choices) == 1 else _fastest(module, choices, options)
        if kept is not None:
            kept.keep(plan)
        return plan


def _note(options: PieceOptions, plan: Plan, graph: BackgroundGraph) -> None:
    """Say what became of a graph, and have what runs it tested where that is still to be done."""
    for reason, count in plan.losses.items():
        _log.info("%s%s", reason, f" ({count} such pieces)" if count > 1 else "")
    compiled = Compiled(plan.partition, plan.results)
    compilations.append(compiled)
    _log.info("%s", compiled)
    for reason, count in plan.partition.reasons().items():
        _log.debug("left to torch: %d x %s", count, reason)
    graph.confirm(_optimizer(options).untested(plan.results.values()))


def _optimizer(options: PieceOptions) -> Optimizer:
    """The optimizer of this process for these options, which has another process search where calls are not to wait."""
    alike = replace(options, progress=None)  # whoever is told
    return optimizer(alike, queue.check, queue.search) if options.background else optimizer(alike, tell)


def _fastest(module: fx.GraphModule, choices: Sequence[Plan], options: PieceOptions) -> Plan:
    """The plan of which calls with tensors like those of the graph take the least time, now or in an earlier process; the first
    where such calls would draw the random numbers of others, or have other effects."""
    if any(draws_random_numbers(node) or has_effects(node) for node in module.graph.nodes):
        return choices[0]
    tensors = [tensor_of(node) for node in module.graph.nodes if node.op == "placeholder"]
    sizes = str([None if tensor is None else recorded_sizes(tensor.shape) for tensor in tensors])
    kept = KeptCalls.of(options.cache, options.target, module.graph, choices, sizes, serving=options.background)
    known = kept.recall(lambda document: choices[int(document["fastest"])])
    if known is not None:
        return known
    examples = [None if tensor is None else example_of(tensor) for tensor in tensors]
    with torch.no_grad():
        number = quickest([functools.partial(plan.spliced(module).forward, *examples) for plan in choices])
    kept.keep({"fastest": number})
    return choices[number]
