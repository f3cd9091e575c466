"""A graph whose gradients are wanted: by kernels, forward and backward, or as PyTorch records and runs it.

Pieces of both graphs that AOTAutograd makes beat PyTorch's calls for them. But calling these graphs costs time as well, and what
is computed again in the backward one may be what PyTorch keeps. So the whole step is compared, once: in the first call after
there are kernels for the backward pass, on copies of its arguments, without drawing the random numbers of later calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mugraph.runtime.benchmarking import Duel, duel
from mugraph.targets.machine import Machine

Run = Callable[..., Any]

_log = logging.getLogger("mugraph.torch_compile")


class TrainedGraph:
    """A graph that `optimized` runs, unless `original`, which is PyTorch, turns out to be as fast: call it from any thread.

    They are compared when `complete` says that there are kernels for both directions; other threads' calls are answered
    meanwhile. `duel` is what was found.
    """

    def __init__(self, optimized: Run, original: Run, complete: threading.Event, machine: Machine) -> None:
        self.duel: Duel | None = None
        self._run, self._original, self._complete, self._machine = optimized, original, complete, machine
        self._undecided = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        if self._complete.is_set() and self.duel is None and self._undecided.acquire(blocking=False):
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
        devices = sorted({each.device.index for each in arguments if isinstance(each, torch.Tensor) and each.is_cuda})
        with torch.random.fork_rng(devices), torch.enable_grad():
            ours, theirs = (self._machine.timed(_step(run, arguments)) for run in (self._run, self._original))
            return duel(ours.run, theirs.run, clock=ours.clock)


def _step(run: Run, arguments: Sequence[Any]) -> Callable[[], object]:
    """A call of a graph and of its backward pass, on copies of arguments, which it may write to."""
    given = [_copied(each) for each in arguments]
    wanted = [each for each in given if isinstance(each, torch.Tensor) and each.requires_grad]

    def step() -> object:
        results = [each for each in run(*given) if isinstance(each, torch.Tensor) and each.requires_grad]
        return torch.autograd.grad(results, wanted, [torch.ones_like(each) for each in results], allow_unused=True)

    return step


def _copied(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().clone().requires_grad_(argument.requires_grad)
