"""A graph whose gradients are wanted: by kernels, forward and backward, or as PyTorch records and runs it.

Pieces of both graphs that AOTAutograd makes beat PyTorch's calls for them. But calling these graphs costs time as well, and what
is computed again in the backward one may be what PyTorch keeps. So the whole step is compared, once: in the first call after
there are kernels for the backward pass, on copies of its arguments, without drawing the random numbers of later calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from mugraph.frontend.operators.torch_casts import has_effects
from mugraph.integrations.own_arguments import copies_of
from mugraph.runtime.benchmarking import Duel, duel
from mugraph.targets.machine import Machine

Run = Callable[..., Any]

_log = logging.getLogger("mugraph.torch_compile")

_MOST_SECONDS = 20.0
"""After this time no round of a comparison starts, however few there were."""


@dataclass(slots=True)
class StepGraphs:
    """What is known of the two graphs of a step; the backward one is compiled in the first backward pass."""

    draws: bool = False
    """Whether the forward one draws random numbers."""
    complete: threading.Event = field(default_factory=threading.Event)
    """Set when there are kernels for both."""


def is_compared(module: fx.GraphModule) -> bool:
    """Whether a step by a graph as Dynamo recorded it may run some times more, and does the same by the graph as it stands: the
    operator of activation checkpointing, for one, draws other random numbers there when it computes something again."""
    graphs = [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]
    return not any(has_effects(node) for graph in graphs for node in graph.nodes)


class TrainedGraph:
    """A graph that `optimized` runs, unless `original`, which is PyTorch, turns out to be as fast: call it from any thread.

    They are compared when the graphs of the step are complete; other threads' calls are answered meanwhile. `duel` is what was
    found.
    """

    def __init__(self, optimized: Run, original: Run, graphs: StepGraphs, machine: Machine) -> None:
        self.duel: Duel | None = None
        self._run, self._original, self._graphs, self._machine = optimized, original, graphs, machine
        self._undecided = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        if self._graphs.complete.is_set() and self.duel is None and _nobody_watches() and self._undecided.acquire(blocking=False):
            self._decide(arguments)
        return self._run(*arguments)

    def _decide(self, arguments: Sequence[Any]) -> None:
        """Compare both; the lock stays taken, so that nobody does it again."""
        try:
            self.duel = self._compared(arguments)
        except Exception:  # a model must run whatever goes wrong in here
            _log.warning("comparing a training step with PyTorch failed, torch runs it; please report this", exc_info=True)
            self._run = self._original
            return
        speedup = f"a training step by kernels is {self.duel.speedup:.2f} times as fast as by PyTorch"
        if self.duel.clear:
            _log.info("%s", speedup)
        else:
            _log.info("torch runs a graph that needs gradients: %s", speedup)
            self._run = self._original

    def _compared(self, arguments: Sequence[Any]) -> Duel:
        given = copies_of(arguments)
        with _random_numbers_of(given) if self._graphs.draws else nullcontext(), torch.enable_grad():
            ours, theirs = (self._machine.timed(_step(run, given, arguments)) for run in (self._run, self._original))
            return duel(ours.run, theirs.run, clock=ours.clock, limit=_MOST_SECONDS)


def _nobody_watches() -> bool:
    """Whether nobody is told of tensors that are saved for a backward pass, or records what a GPU is to do. Activation
    checkpointing around a graph counts these tensors and calls the graph again, which must save the same then."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]  # torch's
        return False
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("a training step is compared"):
            return True
    except RuntimeError:
        return False


def _random_numbers_of(tensors: Sequence[Any]) -> AbstractContextManager[None]:
    """A context behind which random numbers go on as before it, on the devices of tensors."""
    devices = sorted({each.device.index for each in tensors if isinstance(each, torch.Tensor) and each.is_cuda})
    context: AbstractContextManager[None] = torch.random.fork_rng(devices)
    return context


def _step(run: Run, given: Sequence[Any], arguments: Sequence[Any]) -> Callable[[], object]:
    """A call of a graph and of its backward pass on copies of `arguments`, which it may write to."""
    wanted = [each for each in given if isinstance(each, torch.Tensor) and each.requires_grad]
    computed = [isinstance(each, torch.Tensor) and not each.is_leaf for each in arguments]

    def step() -> object:
        # What was computed a graph may change in place, which PyTorch refuses of leaves.
        called = [each.clone() if inner else each for each, inner in zip(given, computed, strict=True)]
        results = [each for each in run(*called) if isinstance(each, torch.Tensor) and each.requires_grad]
        gradients = torch.autograd.grad(results, wanted, [torch.ones_like(each) for each in results], allow_unused=True)
        torch.clear_autocast_cache()  # each step casts its parameters, as an optimizer changes them between two
        return gradients

    return step
