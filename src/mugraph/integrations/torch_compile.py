"""`torch.compile(model, backend="mugraph")`: what programs can express of a model runs as verified kernels, the rest as torch.

Graphs come from Dynamo, functional and in ATen operators. Each is split into pieces (`mugraph.frontend.partition`); equal pieces,
such as those of a model's layers, are optimized once; a piece whose kernels do not beat torch on this machine, or that
cannot be optimized, stays with torch, and the log `mugraph.torch_compile` says why. Nothing here has gradients: graphs that
need them are run by torch as they are.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.errors import InvalidInput
from mugraph.frontend.capture import captured
from mugraph.frontend.graph_passes import concrete, numbers_of, with_arrangements, with_views_of_results
from mugraph.frontend.partition import Partition, Piece, partition
from mugraph.frontend.splice import stitched
from mugraph.integrations.piece_optimizer import Known, Options, optimizer
from mugraph.integrations.symbolic_sizes import SizedGraph
from mugraph.results.superoptimized import Superoptimized

_log = logging.getLogger("mugraph.torch_compile")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one graph."""

    partition: Partition
    """Of its calls: pieces run as kernels, and what torch runs for which reason."""
    results: Mapping[Piece, Superoptimized]

    def __str__(self) -> str:
        pieces, distinct = len(self.partition.pieces), len(set(map(id, self.results.values())))
        return (
            f"{pieces} pieces ({distinct} distinct) run as kernels, {self.partition.byte_share:.0%} of the bytes; "
            f"{len(self.partition.left)} calls left to torch"
        )


compilations: deque[Compiled] = deque(maxlen=100)
"""What became of the graphs compiled last in this process, in order."""


def backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend called "mugraph". Raises InvalidInput for unknown options and for every `mode`."""
    if mode is not None:
        raise InvalidInput(f"backend mugraph has no mode {mode!r}; pass options={{...}}")
    chosen = Options.of(options)
    graph = _captured(module, example_inputs)
    if graph is not None:
        return _run(chosen, graph)
    compiler = aot_autograd(fw_compiler=_with_gradients, inference_compiler=functools.partial(_compiled, chosen))
    return compiler(module, example_inputs)


def _captured(module: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule | None:
    """The graph in ATen calls, where nothing but inference on unchanged tensors is asked for; None is for AOTAutograd to do."""
    if torch.is_grad_enabled() and any(isinstance(given, torch.Tensor) and given.requires_grad for given in example_inputs):
        return None
    try:
        return captured(module)
    except Exception as error:  # torch itself has then the same to say, or does better
        _log.debug("AOTAutograd makes the graph: %s: %s", type(error).__name__, error)
        return None


def _with_gradients(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    _log.info("a graph that needs gradients is run by torch; use torch.no_grad() or torch.inference_mode() to optimize it")
    return make_boxed_func(module.forward)


def _compiled(options: Options, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(_run(options, module))


def _run(options: Options, module: fx.GraphModule) -> Callable[..., Any]:
    try:
        return _at_all_sizes(options, module)
    except Exception:  # a model must run whatever goes wrong in here
        if options.strict:
            raise
        _log.warning("optimizing a graph failed, torch runs it; please report this", exc_info=True)
        return module.forward


def _at_all_sizes(options: Options, module: fx.GraphModule) -> Callable[..., Any]:
    """The optimized graph; with symbolic sizes, what has fixed ones in it, and at sizes that keep coming everything."""
    known: Known = {}
    general = _optimized(options, module, known).forward
    numbers = numbers_of(module)
    if numbers is None:
        _log.info("a graph has symbolic sizes that its integer arguments do not decide; what depends on them stays with torch")
    if not numbers or not options.sizes:
        return general

    def specialized(arguments: Sequence[Any]) -> Callable[..., Any]:
        with _disable_current_modes():
            return _optimized(options, concrete(module, arguments), known).forward

    return SizedGraph(general, specialized, numbers, options.sizes, options.strict)


def _optimized(options: Options, module: fx.GraphModule, known: Known) -> fx.GraphModule:
    """The graph with kernels in the place of its pieces."""
    module = with_arrangements(with_views_of_results(module))
    whole = partition(module.graph, options.target.partition(":")[0])
    results: dict[Piece, Superoptimized] = {}
    reasons: Counter[str] = Counter()
    for piece, outcome in zip(whole.pieces, optimizer(options).outcomes(whole.pieces, known), strict=True):
        if outcome.reason or outcome.result is None:
            whole = whole.without([piece], outcome.reason)
            reasons[f"a piece of {len(piece.nodes)} calls stays with torch: {outcome.reason}"] += 1
        else:
            results[piece] = outcome.result
    for reason, count in reasons.items():
        _log.info("%s%s", reason, f" ({count} such pieces)" if count > 1 else "")
    compiled = Compiled(whole, results)
    compilations.append(compiled)
    _log.info("%s", compiled)
    for reason, count in whole.reasons().items():
        _log.debug("left to torch: %d x %s", count, reason)
    kernels = {piece: result.executable for piece, result in results.items()}
    return stitched(module, whole, kernels)
