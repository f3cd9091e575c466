"""`torch.compile(model, backend="mugraph")`: what programs can express of a model runs as verified kernels, the rest as torch.

Graphs come from Dynamo, functional and in ATen operators. Each is split into pieces (`mugraph.frontend.partition`); equal pieces,
such as those of a model's layers, are optimized once; a piece whose kernels do not beat torch on this machine, or that
cannot be optimized, stays with torch, and the log `mugraph.torch_compile` says why. Where gradients are wanted AOTAutograd makes
two graphs, forward and backward, which are optimized alike; together they must beat PyTorch, too
(`mugraph.integrations.trained_graph`).

Kernels are compiled for sizes, and a size costs seconds. Of a graph with one symbolic size along which slices are independent, as
batches are, a few sizes are optimized and cover all others from their first call on (`mugraph.integrations.covered_graph`). Parts
that reduce a symbolic size, as attention does a growing cache of keys, run by kernels of a few capacities
(`mugraph.integrations.masked_run`). Where a batch and a length vary, parts that do the same to every row run in chunks of rows,
and PyTorch makes the calls between them, as attention (`mugraph.frontend.row_parts`). Of other graphs with symbolic sizes, and
where more is computed at such a size than these parts, a size gets kernels when it comes the third time (`SizedGraph`), and only
so many sizes do.

With the option `background` nothing is waited for: `mugraph.integrations.background`.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.devices.targets import target_row
from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.frontend.capture import captured
from mugraph.frontend.flex_attention import written_out
from mugraph.frontend.fused_layers import WRITTEN_OUT
from mugraph.frontend.graph_passes import concrete, numbers_of, owner_of, ready_to_cut
from mugraph.frontend.in_place import WRITTEN_OVER, changes_written, values_behind, with_changes_returned
from mugraph.frontend.library import mark_constant
from mugraph.frontend.masked_axis import MaskedGraph
from mugraph.frontend.masked_parts import (
    BatchedPart,
    MaskedPart,
    batched_parts,
    computes_elsewhere,
    masked_parts,
    with_parts,
)
from mugraph.frontend.node_traits import bytes_of
from mugraph.frontend.partition import Partition, Piece
from mugraph.frontend.row_parts import RowPart, row_parts
from mugraph.frontend.symbolic_axis import SizeMatters, varies
from mugraph.frontend.torch_casts import draws_random_numbers, has_effects, tensor_of, tensors_of
from mugraph.integrations.background import BackgroundGraph, Later, Run, Turn, queue
from mugraph.integrations.batched_run import BatchedRun
from mugraph.integrations.covered_graph import CoveredGraph
from mugraph.integrations.graph_axis import GraphAxis
from mugraph.integrations.growing_graph import growing_graph
from mugraph.integrations.masked_run import AtCapacityGraphs, MaskedRun
from mugraph.integrations.sliced_graph import sliced_graph
from mugraph.integrations.trained_graph import StepGraphs, TrainedGraph, is_compared
from mugraph.integrations.waiting import tell, waiting
from mugraph.pieces.library_ways import example_of
from mugraph.pieces.piece_optimizer import GraphsByForm, Optimizer, PieceOptions, optimizer
from mugraph.pieces.plan import OwnKernels, Plan, plans
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.benchmarking import quickest
from mugraph.search.constraints import SearchSpace
from mugraph.selection.structure_key import form_of
from mugraph.sizes.growing_kernels import short_iterations
from mugraph.support.deadline import Deadline
from mugraph.support.garbage import old_objects_frozen
from mugraph.targets.gpu import target_of
from mugraph.targets.machine import machine_for

_USES = 3
"""How often a size must come to be worth seconds."""
_REMEMBERED = 4096
"""Sizes that are counted before counting starts anew."""
_TRIED = 0.75
"""Of the time that is left, what a part of the search space may take where another one is tried behind it."""


class SizedGraph:
    """A graph as it runs at any size (`general`), and by what `specialized` makes of its arguments for up to `limit` sizes.

    `numbers` are the arguments that decide all sizes. Safe to call from several threads: while one waits for kernels, the
    others run the general graph, and all do where they are made in the background, by `later`. What `specialized` raises is
    reported, and that size stays with the general graph; with `strict` it is raised.
    """

    def __init__(
        self,
        general: Run,
        specialized: Callable[[Sequence[Any]], Run],
        numbers: Sequence[int],
        limit: int,
        strict: bool = False,
        later: Later | None = None,
    ) -> None:
        self.general, self.specialized = general, specialized
        self.numbers, self.limit, self.strict = tuple(numbers), limit, strict
        self.runs: dict[tuple[Any, ...], Run] = {}
        """By size, what runs it."""
        self._uses: Counter[tuple[Any, ...]] = Counter()
        self._turn = Turn(later)

    def __call__(self, *arguments: Any) -> Any:
        sizes = tuple([arguments[number] for number in self.numbers])
        run = self.runs.get(sizes)
        if run is None:
            run = self._counted(sizes, arguments)
        return run(*arguments)

    def _counted(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> Run:
        if len(self.runs) < self.limit:
            if len(self._uses) == _REMEMBERED:
                self._uses.clear()
            self._uses[sizes] += 1
            if self._uses[sizes] >= _USES:
                self._turn.take(functools.partial(self._add, sizes, arguments))
        return self.runs.get(sizes, self.general)

    def _add(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> None:
        if sizes not in self.runs and len(self.runs) < self.limit:
            self.runs[sizes] = self._made(sizes, arguments)

    def _made(self, sizes: tuple[Any, ...], arguments: Sequence[Any]) -> Run:
        _log.info("sizes %s of a graph keep coming: they get kernels (%d of %d)", sizes, len(self.runs) + 1, self.limit)
        if len(self.runs) + 1 == self.limit:
            _log.info("no more sizes of this graph get kernels; option sizes=... allows more than %d", self.limit)
        try:
            return self.specialized(arguments)
        except Exception:  # a model must run whatever goes wrong in here
            if self.strict:
                raise
            _log.warning("optimizing a graph for sizes %s failed, it runs without; please report this", sizes, exc_info=True)
            return self.general


_log = logging.getLogger("mugraph.torch_compile")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one graph."""

    partition: Partition
    """Of its calls: pieces run as kernels, library kernels, and what torch runs for which reason."""
    results: Mapping[Piece, Superoptimized]

    def __str__(self) -> str:
        pieces, distinct = len(self.partition.pieces), len(set(map(id, self.results.values())))
        library = len(self.partition.library)
        more = f" and {library} library kernel{'s' * (library != 1)} ({self.packed_bytes / 2**20:.0f} MiB of packed weights)"
        return (
            f"{pieces} pieces ({distinct} distinct){more * (library > 0)} run as kernels, {self.partition.byte_share:.0%} of the "
            f"bytes; {len(self.partition.left)} calls left to torch"
        )

    @property
    def packed_bytes(self) -> int:
        """What the weights of library kernels take once more in the library's layout, but for how it rounds their sizes up."""
        return sum({owner_of(kernel.weight): bytes_of(kernel.weight) for kernel in self.partition.library}.values())


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


BUDGETS = {"default": 40.0, "reduce-overhead": 40.0, "max-autotune": 300.0, "max-autotune-no-cudagraphs": 300.0}
"""Seconds for the pieces of a graph in each mode of `torch.compile`. Calls of kernels are as cheap in all of them."""


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend called "mugraph". Raises InvalidInput for unknown options and modes.

    `mode`, which PyTorch takes instead of options, says how long to search, as `BUDGETS` has it.
    """
    if mode is not None and mode not in BUDGETS:
        raise InvalidInput(f"backend mugraph has no mode {mode!r}; use one of {', '.join(BUDGETS)}, or options={{...}}")
    wanted = {**({} if mode is None else {"budget": BUDGETS[mode]}), **(options or {})}
    try:
        chosen = PieceOptions.of({"target": _target_of(example_inputs), **wanted} if "target" not in wanted else wanted)
    except TargetUnavailable as reason:
        if "target" in wanted or wanted.get("strict"):
            raise
        _log.warning("torch runs a graph: %s", reason)
        return module.forward
    graph = _captured(module, example_inputs)
    if graph is not None:
        _mark_constants(graph, [number for number, given in enumerate(example_inputs) if _is_of_a_module(given)])
        return _run(chosen, graph, module.forward)
    graphs = StepGraphs()
    compiler = aot_autograd(
        fw_compiler=functools.partial(_forward, chosen, graphs),
        bw_compiler=functools.partial(_backward, chosen, graphs),
        inference_compiler=functools.partial(_compiled, chosen),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        decompositions={**WRITTEN_OVER, **WRITTEN_OUT},
    )
    if not _needs_gradients(example_inputs) and (whole := written_out(module)) is not module:
        try:
            return compiler(whole, example_inputs)
        except Exception as error:  # torch itself has then the same to say, or does better
            if chosen.strict:
                raise
            _log.debug("FlexAttention stays one operator: %s: %s", type(error).__name__, error)
    optimized = compiler(module, example_inputs)
    compared = chosen.keep == "faster" and chosen.profile and not chosen.background and is_compared(module)
    if not compared or not _needs_gradients(example_inputs) or not _is_of_fixed_sizes(example_inputs):
        return optimized
    _LazyGraphModule.force_recompile(module)  # a method that was taken before writes nothing, but asks in every call
    return TrainedGraph(optimized, module.forward, graphs, machine_for(chosen.target))


def _target_of(example_inputs: Sequence[Any]) -> str:
    """The target that the tensors of a graph lie on; raises TargetUnavailable where it has none, or its compiler is missing."""
    target = target_of(given for given in example_inputs if isinstance(given, torch.Tensor))
    machine_for(target)
    return target


def _captured(module: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule | None:
    """The graph in ATen calls, where nothing but inference on unchanged tensors is asked for; None is for AOTAutograd to do."""
    if _needs_gradients(example_inputs):
        return None
    try:
        return captured(module)
    except Exception as error:  # torch itself has then the same to say, or does better
        _log.debug("AOTAutograd makes the graph: %s: %s", type(error).__name__, error)
        return None


def _needs_gradients(example_inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(given, torch.Tensor) and given.requires_grad for given in example_inputs)


def _compiled(
    options: PieceOptions, module: fx.GraphModule, example_inputs: Sequence[Any], *, trained: bool = False
) -> Callable[..., Any]:
    """What runs a graph that AOTAutograd made: of inference or, of a step in which something is `trained`, forward or backward.

    There is nothing constant in training: an optimizer changes parameters behind each step.
    """
    functional, changed = with_changes_returned(module)
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is not None and trained:
        metadata.bw_donated_idxs = []  # saved tensors are read and never written to: graphs may be retained
    elif metadata is not None:
        _mark_constants(functional, [number for number in metadata.static_input_indices if number not in changed])
    with torch.no_grad():  # each graph computes what it says, and autograd is around both
        return make_boxed_func(changes_written(_run(options, functional, functional.forward, changed), changed))


def _forward(
    options: PieceOptions, graphs: StepGraphs, module: fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """What runs the forward graph of a step."""
    graphs.draws = any(map(draws_random_numbers, module.graph.nodes))
    return _compiled(options, module, example_inputs, trained=True)


def _backward(
    options: PieceOptions, graphs: StepGraphs, module: fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """What runs the backward graph of a step, which is complete with it."""
    run = _compiled(options, module, example_inputs, trained=True)
    graphs.complete.set()
    return run


def _is_of_fixed_sizes(example_inputs: Sequence[Any]) -> bool:
    return not any(isinstance(given, torch.SymInt | torch.SymFloat) for given in example_inputs)


def _is_of_a_module(given: Any) -> bool:
    """Whether Dynamo made an argument of a parameter or buffer."""
    return isinstance(given, torch.nn.Parameter) or hasattr(given, "_dynamo_static_input_type")


def _mark_constants(module: fx.GraphModule, numbers: Sequence[int]) -> None:
    """Say of arguments of a graph that they are the same tensors in every call."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for number in numbers:
        mark_constant(placeholders[number])


def _run(options: PieceOptions, module: fx.GraphModule, original: Run, changed: Sequence[int] = ()) -> Run:
    """What runs a graph of ATen calls, which `original` does as PyTorch has it.

    Its last results are what arguments of the numbers `changed` hold behind the call: they may be written where they lie.
    """
    graph = BackgroundGraph(original, queue)
    if options.background:
        graph.later(functools.partial(_in_background, options, module))
        return graph
    try:
        with old_objects_frozen():
            graph.settle(_at_all_sizes(options, module, graph, changed))
        return graph
    except Exception:  # a model must run whatever goes wrong in here
        if options.strict:
            raise
        _log.warning("optimizing a graph failed, torch runs it; please report this", exc_info=True)
        return module.forward


def _in_background(options: PieceOptions, module: fx.GraphModule, graph: BackgroundGraph) -> None:
    """Find what runs a graph that serves meanwhile; PyTorch does where nothing is found."""
    guards = _guards_of(module)
    if guards or numbers_of(module) != ():
        run = _at_all_sizes(options, module, graph)
        if _guards_of(module) != guards:  # calls are no longer guarded for more
            graph.leave("to cut it, its symbolic sizes were asked what calls may not keep to")
        else:
            graph.settle(run)
        return
    ready, own = ready_to_cut(module), OwnKernels()

    def improved(plan: Plan) -> None:
        graph.offer(plan.spliced(ready, own).forward)

    plan = _planned(options, ready, {}, graph, options.budget, improved)
    if not (plan.partition.pieces or plan.partition.library or plan.others):
        graph.leave("no piece of it runs as kernels")
    elif options.keep == "faster" and options.profile and target_row(options.target).tensors == "cpu":
        graph.try_out(plan.spliced(ready, own).forward)
    else:
        graph.settle(plan.spliced(ready, own).forward)


def _guards_of(module: fx.GraphModule) -> tuple[int, ...]:
    """How much is assumed of the symbolic sizes of a graph; () where it has none."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    sizes = itertools.chain.from_iterable(value.shape if isinstance(value, torch.Tensor) else (value,) for value in values)
    environment = next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)
    if environment is None:
        return ()
    return len(environment.guards), len(environment.replacements), len(environment.deferred_runtime_asserts)


def _at_all_sizes(options: PieceOptions, module: fx.GraphModule, graph: BackgroundGraph, changed: Sequence[int] = ()) -> Run:
    """The optimized graph; with symbolic sizes, what has fixed ones in it, and at sizes that keep coming everything.

    `changed` is as in `_run`, for graphs of fixed sizes.
    """
    numbers = numbers_of(module)
    if numbers == ():
        return _optimized(options, module, {}, graph, options.budget, changed).forward
    graphs: GraphsByForm = {}
    later = graph.later if options.background else None
    parts: Sequence[MaskedPart | BatchedPart] = masked_parts(module) if options.sizes else []
    if parts and not computes_elsewhere(module, parts):
        return _with_masked_parts(options, module, parts, graphs, graph)
    axis = _axis_of(module, numbers) if numbers and options.sizes else None
    if axis is None and numbers and options.sizes and not parts:
        by_rows = _with_row_parts(options, module, graphs, graph)
        if by_rows is not None:
            return by_rows
        parts = batched_parts(module)
        if parts and not computes_elsewhere(module, parts):
            return _with_masked_parts(options, module, parts, graphs, graph)
    general = (
        _with_masked_parts(options, module, parts, graphs, graph)
        if parts
        else _optimized(options, module, graphs, graph, options.budget).forward
    )
    if numbers is None:
        _log.info("a graph has symbolic sizes that its integer arguments do not decide; what depends on them stays with torch")
    if not numbers or not options.sizes:
        return general

    if axis is not None:
        at_size = functools.partial(_in_slices, options, module, axis, graphs, graph)
        return CoveredGraph(general, at_size, axis, options.sizes, options.budget, options.strict, Turn(later))

    def specialized(arguments: Sequence[Any]) -> Callable[..., Any]:
        with _disable_current_modes():
            return _optimized(options, concrete(module, arguments), graphs, graph, options.budget).forward

    _log.info("sizes of a graph are optimized one by one, when they come the third time")
    return SizedGraph(general, specialized, numbers, options.sizes, options.strict, later)


def _in_slices(
    options: PieceOptions,
    module: fx.GraphModule,
    axis: GraphAxis,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    arguments: Sequence[Any],
    budget: float | None,
) -> Run:
    """The optimized graph at the size of some arguments, which computes its first slices alone if its kernels can."""
    deadline = Deadline(budget)
    with _disable_current_modes():
        ready = ready_to_cut(concrete(module, arguments))
        plan = _planned(options, ready, graphs, graph, budget)
        whole = plan.spliced(ready).forward
        with torch.no_grad():
            return sliced_graph(ready, plan, axis, arguments, whole, deadline) or whole


def _with_row_parts(options: PieceOptions, module: fx.GraphModule, graphs: GraphsByForm, graph: BackgroundGraph) -> Run | None:
    """The optimized graph, whose parts that do the same to every row of two symbolic sizes run in chunks of rows; None where
    there are no such parts."""
    try:
        ordered, parts = row_parts(module)
    except SizeMatters as reason:
        _log.debug("a graph has no parts of rows: %s", reason)
        return None
    axes = {part: axis for part in parts if (axis := _axis_of(part.module, (0, 1))) is not None}
    if not axes:
        return None
    shares = _shares(options.budget, [*axes])
    turn = None if options.background else Turn()  # a call waits for one part at a time, and no other thread for the next one

    def covered(part: RowPart, axis: GraphAxis) -> CoveredGraph:
        def within(arguments: Sequence[Any], budget: float | None) -> Run:
            with _disable_current_modes():
                return _optimized(options, concrete(part.module, arguments), graphs, graph, budget).forward

        share = shares[part.form]
        general = _optimized(options, part.module, graphs, graph, share).forward
        return CoveredGraph(general, within, axis, options.sizes, share, options.strict, turn or Turn(graph.later))

    _log.info("%d parts of a graph do the same to every row: they run in chunks of rows at any two sizes", len(axes))
    whole = with_parts(ordered, [*axes], [covered(part, axis) for part, axis in axes.items()])
    return _optimized(options, whole, graphs, graph, options.budget).forward


def _shares(budget: float | None, parts: Sequence[RowPart]) -> dict[str, float | None]:
    """What parts have of a budget, by form: half of it equally, and half by the bytes that they read of fixed sizes, as weights
    are, which say how much is to be computed for a row."""
    weights = {part.form: sum(map(bytes_of, filter(_is_fixed, part.inputs))) for part in parts}
    total, deadline = max(sum(weights.values()), 1), Deadline(budget)
    return {form: deadline.share((1 / len(weights) + weight / total) / 2) for form, weight in weights.items()}


def _is_fixed(node: fx.Node) -> bool:
    return bool(tensors_of(node)) and not varies(node)


def _axis_of(module: fx.GraphModule, numbers: Sequence[int]) -> GraphAxis | None:
    """The axis of a graph along which slices are independent; None where there is none, which the log says why."""
    try:
        return GraphAxis.of(module, numbers)
    except SizeMatters as reason:
        _log.info("%d calls with symbolic sizes do not run in slices: %s", len(module.graph.nodes), reason)
        return None


def _with_masked_parts(
    options: PieceOptions,
    module: fx.GraphModule,
    parts: Sequence[MaskedPart | BatchedPart],
    graphs: GraphsByForm,
    graph: BackgroundGraph,
) -> Run:
    """The optimized graph, whose parts that reduce a symbolic size run by kernels of a few capacities; equal ones share them."""

    def specialized(
        known: GraphsByForm, at_capacity: fx.GraphModule, masked: MaskedGraph, budget: float | None
    ) -> AtCapacityGraphs | None:
        ready, deadline, best = ready_to_cut(at_capacity), Deadline(budget), None
        spaces = _spaces(options, at_capacity, masked)
        for left, space in zip(range(len(spaces), 0, -1), spaces, strict=True):
            chosen = replace(options, keep="all", space=space, strict=options.strict and space is options.space)
            plan = _planned(chosen, ready, known, graph, deadline.share(_TRIED if left > 1 else 1.0))
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

    later = graph.later if options.background else None

    faster = options.keep == "faster"

    def masked_run(part: MaskedPart, share: float = 1.0) -> MaskedRun:
        of_part = functools.partial(specialized, {})  # what one part knows no thread changes that works on another
        budget = Deadline(options.budget).share(share)
        return MaskedRun(part, of_part, options.sizes, budget, faster, options.strict, later)

    runs: dict[str, MaskedRun | BatchedRun] = {}
    for part in parts:
        if part.form not in runs:
            batched = functools.partial(BatchedRun, made=masked_run, compared=faster)
            runs[part.form] = batched(part) if isinstance(part, BatchedPart) else masked_run(part)
    _log.info("%d parts of a graph reduce a symbolic size: kernels of a few capacities run them", len(parts))
    whole = with_parts(module, parts, [runs[part.form] for part in parts])
    return _optimized(options, whole, graphs, graph, options.budget).forward


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


def _optimized(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    budget: float | None,
    changed: Sequence[int] = (),
) -> fx.GraphModule:
    """The graph with kernels in the place of its pieces; `changed` is as in `_run`."""
    ready = ready_to_cut(module)
    written = values_behind(ready.graph, changed)
    return _planned(options, ready, graphs, graph, budget, written=written).spliced(ready, written=written)


def _planned(
    options: PieceOptions,
    module: fx.GraphModule,
    graphs: GraphsByForm,
    graph: BackgroundGraph,
    budget: float | None,
    improved: Callable[[Plan], None] | None = None,
    written: Mapping[fx.Node, fx.Node] | None = None,
) -> Plan:
    """The plan of what is ready to be cut, for `graph` to run, within a budget that is all that was asked for or a share of it;
    `improved` is given better and better ones before, `written` is as in `ways_in_place`."""
    deadline, chosen = Deadline(budget), _optimizer(options)
    calls = sum(node.op == "call_function" for node in module.graph.nodes)
    limit = "without a limit of time" if budget is None else f"for up to {budget:.0f} seconds"
    _log.info("kernels are searched for a graph of %d calls, %s", calls, limit)
    with waiting(options.progress, deadline) if not options.background else nullcontext(), _disable_current_modes():
        # Dynamo's modes, under which tensors have no data
        choices = plans(module, target_row(options.target).tensors, chosen, deadline, graphs, improved=improved, written=written)
        plan = choices[0] if len(choices) == 1 else _fastest(module, choices)
    reasons = Counter(f"a piece of {len(piece.nodes)} calls stays with torch: {reason}" for piece, reason in plan.lost.items())
    for reason, count in reasons.items():
        _log.info("%s%s", reason, f" ({count} such pieces)" if count > 1 else "")
    compiled = Compiled(plan.partition, plan.results)
    compilations.append(compiled)
    _log.info("%s", compiled)
    for reason, count in plan.partition.reasons().items():
        _log.debug("left to torch: %d x %s", count, reason)
    graph.confirm(chosen.untested(plan.results.values()))
    return plan


def _optimizer(options: PieceOptions) -> Optimizer:
    """The optimizer of this process for these options, which has another process search where calls are not to wait."""
    alike = replace(options, progress=None)  # whoever is told
    return optimizer(alike, queue.check, queue.search) if options.background else optimizer(alike, tell)


def _fastest(module: fx.GraphModule, choices: Sequence[Plan]) -> Plan:
    """The plan of which calls with tensors like those of the graph take the least time; the first where such calls would draw the
    random numbers of others, or have other effects."""
    if any(draws_random_numbers(node) or has_effects(node) for node in module.graph.nodes):
        return choices[0]
    tensors = [tensor_of(node) for node in module.graph.nodes if node.op == "placeholder"]
    examples = [None if tensor is None else example_of(tensor) for tensor in tensors]
    with torch.no_grad():
        return choices[quickest([functools.partial(plan.spliced(module).forward, *examples) for plan in choices])]
