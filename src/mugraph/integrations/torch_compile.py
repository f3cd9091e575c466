"""`torch.compile(model, backend="mugraph")`: what programs can express of a model runs as verified kernels, the rest as torch.

Graphs come from Dynamo, functional and in ATen operators. Each is split into pieces (`mugraph.frontend.partitioning.partition`);
equal pieces, such as those of a model's layers, are optimized once; a piece whose kernels do not beat torch on this machine, or
that cannot be optimized, stays with torch, and the log `mugraph.torch_compile` says why. Where gradients are wanted AOTAutograd
makes two graphs, forward and backward, which are optimized alike; together they must beat PyTorch, too
(`mugraph.integrations.trained_graph`).

Graphs with symbolic sizes run as `mugraph.integrations.graph_sizes` says, those of fixed sizes by
`mugraph.integrations.optimized_graph`. With the option `background` nothing is waited for: `mugraph.integrations.background`.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx._lazy_graph_module import _LazyGraphModule

from mugraph.devices.targets import target_row
from mugraph.errors import InvalidInput, LeftToPyTorch, TargetUnavailable
from mugraph.frontend.calls.in_place import changes_written, with_changes_returned
from mugraph.frontend.operators.torch_casts import draws_random_numbers
from mugraph.frontend.partitioning.library import mark_constant
from mugraph.frontend.recording.capture import captured
from mugraph.frontend.recording.decompositions import DECOMPOSITIONS
from mugraph.frontend.rewriting.flex_attention import written_out
from mugraph.frontend.rewriting.graph_passes import numbers_of, ready_to_cut
from mugraph.integrations.background import BackgroundGraph, Run, queue
from mugraph.integrations.graph_sizes import at_all_sizes
from mugraph.integrations.optimized_graph import Compilations, Compiled, compilations, planned
from mugraph.integrations.trained_graph import StepGraphs, TrainedGraph, is_compared
from mugraph.integrations.whole_graph import Original
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.plan import OwnKernels, Plan
from mugraph.support.garbage import old_objects_frozen
from mugraph.support.user_warnings import warn_user
from mugraph.targets.gpu import target_of
from mugraph.targets.machine import machine_for

__all__ = ["BUDGETS", "Compilations", "Compiled", "backend", "compilations"]

_log = logging.getLogger("mugraph.torch_compile")

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
    _warn_of_others(chosen.target, example_inputs)
    graph = _captured(module, example_inputs)
    if graph is not None:
        held = [number for number, given in enumerate(example_inputs) if _is_of_a_module(given)]
        _mark_constants(graph, held)
        return _run(chosen, graph, Original.of(module, example_inputs, held))
    graphs = StepGraphs()
    compiler = aot_autograd(
        fw_compiler=functools.partial(_forward, chosen, graphs),
        bw_compiler=functools.partial(_backward, chosen, graphs),
        inference_compiler=functools.partial(_compiled, chosen),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        decompositions=dict(DECOMPOSITIONS),
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


def _warn_of_others(target: str, example_inputs: Sequence[Any]) -> None:
    """Warn (LeftToPyTorch) where all tensors of a graph lie elsewhere than kernels for a target read them."""
    kinds = {given.device.type for given in example_inputs if isinstance(given, torch.Tensor)}
    wanted = target_row(target).tensors
    if kinds and wanted not in kinds:
        remedy = "move them, or leave option target out; mugraph.superoptimize searches for a GPU that is elsewhere"
        where = " and ".join(sorted(kinds))
        text = (
            f"kernels for {target} read tensors on {wanted}, and those of a graph lie on {where}, where PyTorch runs it: {remedy}"
        )
        warn_user(text, LeftToPyTorch)


def _captured(module: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule | None:
    """The graph in ATen calls, where nothing but inference on unchanged tensors is asked for; None is for AOTAutograd to do."""
    if _needs_gradients(example_inputs):
        return None
    try:
        with old_objects_frozen():
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
    functional, changes = with_changes_returned(module)
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    if metadata is not None and trained:
        metadata.bw_donated_idxs = []  # saved tensors are read and never written to: graphs may be retained
    elif metadata is not None:
        _mark_constants(functional, [number for number in metadata.static_input_indices if number not in changes.changed])
    with torch.no_grad():  # each graph computes what it says, and autograd is around both
        run = _run(options, functional, Original(functional), changes.changed, not trained)
        return make_boxed_func(changes_written(run, changes))


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


def _run(
    options: PieceOptions, module: fx.GraphModule, original: Original, changed: Sequence[int] = (), whole: bool = True
) -> Run:
    """What runs a graph of ATen calls, which `original` does as PyTorch has it.

    Its last results are what arguments of the numbers `changed` hold behind the call: they may be written where they lie. Calls
    of both are compared unless it is no `whole`, but one of the two graphs of a step.
    """
    graph = BackgroundGraph(original.with_code().forward if options.background else original.module.forward, queue)
    if options.background:
        graph.later(functools.partial(_in_background, options, module))
        return graph
    try:
        with old_objects_frozen():
            graph.settle(at_all_sizes(options, module, graph, changed, original if whole else None))
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
        run = at_all_sizes(options, module, graph)
        if _guards_of(module) != guards:  # calls are no longer guarded for more
            graph.leave("to cut it, its symbolic sizes were asked what calls may not keep to")
        else:
            graph.settle(run)
        return
    ready, own = ready_to_cut(module), OwnKernels()

    def improved(plan: Plan) -> None:
        graph.offer(plan.spliced(ready, own).forward)

    plan = planned(options, ready, {}, graph, options.budget, improved)
    if not plan.has_kernels:
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
