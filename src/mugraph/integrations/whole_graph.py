"""Graphs of `torch.compile` of fixed sizes by kernels, beside the same graphs as PyTorch has them, in whole calls.

Each piece of a graph beat PyTorch's calls for it. All pieces between PyTorch's other calls may be slower all the same, as each is
a call of Python and finds its operands where another one left them. So both ways are called before the first call is answered:
they must give the same, and kernels must be clearly faster. Tensors that a model holds are its own, others stand for those of
calls, as where pieces are timed; graphs that write to tensors or draw random numbers are not compared. What was found is kept for
later processes.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.devices import device_for
from mugraph.devices.host import free_memory, slowdown
from mugraph.devices.targets import target_row
from mugraph.frontend.operators.torch_casts import draws_random_numbers, has_effects, tensor_of
from mugraph.frontend.rewriting.node_traits import is_static
from mugraph.integrations.trained_graph import is_compared
from mugraph.pieces.cutting import contradiction
from mugraph.pieces.example_tensors import examples
from mugraph.pieces.piece_options import PieceOptions
from mugraph.pieces.plan import Plan
from mugraph.pieces.predicted_cost import seconds_of_calls
from mugraph.pieces.whole_calls import LOOKED_AT, CallBudget, KeptCalls, least_of_calls, may_begin, taken_if_long
from mugraph.runtime.benchmarking import Duel, duel
from mugraph.support.deadline import Deadline
from mugraph.targets.machine import machine_for

_CALLS = CallBudget(seconds=1.0, calls=12, most=0.1, most_of_least=0.25)
"""What pieces leave for whole calls: three to see that both agree, and a few rounds."""
_MOST_SECONDS = 20.0
"""After this time no round starts, whatever is left."""
_MEMORY = 0.5
"""The part of the memory that is free that tensors may take which stand for those of calls."""

_DRAWS = 3
"""Arguments nearby at which it is seen whether a graph does what it does whatever roundings are."""

_log = logging.getLogger("mugraph.torch_compile")


@dataclass(frozen=True, slots=True)
class Original:
    """A graph as PyTorch has it, and by the numbers of its arguments the tensors that a model holds, which no call changes."""

    module: fx.GraphModule
    held: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def with_code(self) -> fx.GraphModule:
        """The graph with its code written, where it is to be called: else each call asks whether that was done."""
        _LazyGraphModule.force_recompile(self.module)
        return self.module

    @classmethod
    def of(cls, module: fx.GraphModule, arguments: Sequence[Any], held: Sequence[int]) -> Original:
        """The graph, of whose `arguments` those of the numbers `held` are a model's, as far as they are tensors with data."""
        plain = {number: arguments[number] for number in held if type(arguments[number]) in (torch.Tensor, torch.nn.Parameter)}
        return cls(module, plain)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What whole calls showed: kernels as the challenger of PyTorch, or where these give something else."""

    duel: Duel | None
    wrong: str = ""

    @property
    def reason(self) -> str:
        """Why PyTorch runs the graph; "" where kernels do. Each beat PyTorch alone: what time ended while they led stays so."""
        if self.wrong:
            return f"its kernels give something else than PyTorch: {self.wrong}"
        if self.duel is None or self.duel.clear or self.duel.undecided:
            return ""
        return f"calls by its kernels are not clearly faster ({self.duel.speedup:.2f} times as fast as PyTorch)"

    @property
    def stands(self) -> bool:
        """Whether more time would not have shown more."""
        return bool(self.wrong) or (self.duel is not None and (self.duel.clear or not self.duel.cut_short))

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {"duel": None if self.duel is None else self.duel.to_json(), "wrong": self.wrong}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """The outcome `to_json` wrote; raises KeyError, TypeError or ValueError for anything else."""
        return cls(None if values["duel"] is None else Duel.from_json(values["duel"]), str(values["wrong"]))


@dataclass(frozen=True, slots=True)
class WholeGraph:
    """A graph of ATen calls that is `ready` to be cut, beside its `original`."""

    options: PieceOptions
    ready: fx.GraphModule
    original: Original

    @classmethod
    def compared(cls, options: PieceOptions, ready: fx.GraphModule, original: Original) -> WholeGraph | None:
        """The graph, where whole calls of it are compared: what runs is measured, on the CPU, and both ways may be called some
        times more, on tensors like those of calls; else None."""
        measured = options.keep == "faster" and options.profile and not options.background
        if not measured or target_row(options.target).tensors != "cpu" or not is_compared(original.module):
            return None
        if any(draws_random_numbers(node) or has_effects(node) for node in ready.graph.nodes):
            return None
        if not all(map(_is_plain, _arguments(ready))):
            return None
        return cls(options, ready, original)

    def before_calls(self, deadline: Deadline) -> Deadline:
        """The deadline of pieces, which leaves time for whole calls."""
        return _CALLS.before(deadline, self._predicted_seconds)

    def outcome(self, plan: Plan, by_kernels: fx.GraphModule, deadline: Deadline, calls: str) -> Outcome:
        """What whole calls by the kernels of a plan show, now or in an earlier process, of a graph with these `calls` as text;
        nothing where there is no time for a few, or where PyTorch does not take tensors like those of calls."""
        asked = str(self.original.module.graph)
        kept = KeptCalls.of(self.options.cache, self.options.target, calls, [plan], asked)
        known = kept.recall(Outcome.from_json)
        if known is None:
            with _disable_current_modes(), torch.no_grad():
                known = self._measured(by_kernels, deadline)
            if known.stands:
                kept.keep(known.to_json())
        if known.wrong:
            _log.error("kernels of a graph give something else than PyTorch, which runs it; please report this: %s", known.wrong)
        return known

    @property
    def _predicted_seconds(self) -> float:
        nodes = [node for node in self.ready.graph.nodes if node.op == "call_function"]
        return seconds_of_calls(nodes, device_for(self.options.target)) if nodes else 0.0

    def _measured(self, by_kernels: fx.GraphModule, deadline: Deadline) -> Outcome:
        if not may_begin(deadline, least_of_calls(self._predicted_seconds * slowdown())) or not self._fits():
            return Outcome(None)
        with self._examples() as arguments:
            begun = time.perf_counter()
            try:
                wanted = self.original.with_code().forward(*arguments)
            except Exception as error:  # what stands for an argument may be none that it takes
                _log.info("whole calls of a graph are not compared, which PyTorch does not make so: %s", error)
                return Outcome(None)
            wrong = self._difference(by_kernels, arguments, wanted)
            if wrong:
                return Outcome(None, wrong)
            taken = (time.perf_counter() - begun) / LOOKED_AT
            if not may_begin(deadline, least_of_calls(taken) - LOOKED_AT * taken):
                return Outcome(None)
            return Outcome(self._duel(by_kernels, arguments, deadline, taken_if_long(taken)))

    def _difference(self, by_kernels: fx.GraphModule, arguments: Sequence[torch.Tensor], wanted: Any) -> str:
        """Where one of two calls by kernels, of which the second finds packed weights, gives something else than PyTorch; ""
        where roundings of PyTorch do so, too."""
        differences = (contradiction(wanted, by_kernels.forward(*arguments)) for _ in range(2))
        wrong = next(filter(None, differences), "")
        if wrong and self._hangs_on_roundings(arguments, wanted):
            _log.info("what a graph gives hangs on roundings where it is compared: %s", wrong)
            return ""
        return wrong

    def _hangs_on_roundings(self, arguments: Sequence[torch.Tensor], wanted: Any) -> bool:
        """Whether PyTorch itself gives something else at arguments nearby, as far as there is memory for these."""
        if sum(tensor.nbytes for tensor in arguments) > _MEMORY * free_memory():
            return False
        nearby = (map(functools.partial(_nearby, draw=draw), arguments) for draw in range(_DRAWS))
        return any(contradiction(wanted, self.original.module.forward(*moved)) for moved in nearby)

    def _duel(self, by_kernels: fx.GraphModule, arguments: Sequence[torch.Tensor], deadline: Deadline, taken: float) -> Duel:
        machine, left = machine_for(self.options.target), deadline.remaining
        sides = by_kernels, self.original.module
        ours, theirs = (machine.timed(functools.partial(side.forward, *arguments)) for side in sides)
        limit = min(_MOST_SECONDS, math.inf if left is None else left)
        return duel(ours.run, theirs.run, clock=ours.clock, limit=limit, taken=taken)

    def _fits(self) -> bool:
        """Whether there is memory for tensors that stand for those of calls."""
        return sum(tensor.nbytes for tensor in self._recorded()) <= _MEMORY * free_memory()

    def _recorded(self) -> list[torch.Tensor]:
        """The arguments that a model does not hold, without data."""
        tensors = map(tensor_of, _arguments(self.ready))
        return [tensor for number, tensor in enumerate(tensors) if tensor is not None and number not in self.original.held]

    @contextmanager
    def _examples(self) -> Iterator[list[torch.Tensor]]:
        """The tensors that a model holds, and others for the arguments of calls."""
        with examples(self._recorded()) as made:
            others, held = iter(made), self.original.held
            yield [held[number] if number in held else next(others) for number, _ in enumerate(_arguments(self.ready))]


def _arguments(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _is_plain(node: fx.Node) -> bool:
    """Whether an argument is a tensor of fixed sizes and strides in this machine's memory."""
    tensor = tensor_of(node)
    if tensor is None or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return is_static(tensor) and all(isinstance(stride, int) for stride in tensor.stride())


def _nearby(tensor: torch.Tensor, draw: int) -> torch.Tensor:
    """A tensor that differs from another one by about as much as its type rounds, up or down; integers and booleans are equal."""
    if not tensor.is_floating_point():
        return tensor
    wide = tensor if tensor.element_size() >= torch.float32.itemsize else tensor.float()
    generator = torch.Generator().manual_seed(draw)
    signs = torch.randint(2, tensor.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
    return (wide * (1 + torch.finfo(tensor.dtype).eps * signs.to(wide.dtype))).to(tensor.dtype)
