"""Parts of graphs of `torch.compile` that reduce a symbolic size, run by kernels of a few capacities.

The first call optimizes for capacities that hold it and some growth; a call beyond all of them adds larger ones. So a cache that
grows by one with every token has kernels at every size, and they are made as often as the logarithm of its length. Kernels that
read tensors where they lie take the time of the length, and the largest of what is wanted serves all smaller sizes, too. Where
PyTorch is faster, or where sizes differ that are one in a part, PyTorch runs the calls.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.frontend.operators.attention import hides_a_row
from mugraph.frontend.operators.torch_casts import widened
from mugraph.frontend.partitioning.splice import laid_out
from mugraph.frontend.rewriting.graph_passes import concrete
from mugraph.frontend.symbolic_sizes.masked_parts import MaskedPart
from mugraph.frontend.symbolic_sizes.slots import MaskedGraph
from mugraph.integrations.background import Turn
from mugraph.integrations.own_arguments import OwnArguments
from mugraph.runtime.benchmarking import quickest
from mugraph.sizes.capacities import AtCapacity
from mugraph.support.deadline import Deadline

_SMALLEST = 128
"""The smallest number of slots: so few cost next to nothing."""
_GROWTH = 4
"""Capacities are made for sizes up to so many times that of the call that asks for them."""
_ROOM, _ROOM_BYTES = 1024, 1 << 26
"""On a CPU the first ones have so many slots at least, unless the inputs that have the axis take more than that then."""

_AGAIN = 32
"""Calls after which it is looked again which of kernels and PyTorch is faster, and then as many times as many: what other
programs did meanwhile may have slowed down one of them."""

T = TypeVar("T")

_log = logging.getLogger("mugraph.torch_compile")


@dataclass(frozen=True, slots=True)
class AtCapacityGraphs:
    """A masked graph at a capacity with kernels in it: one that takes tensors in slots, and one that takes them as they are."""

    padded: torch.fx.GraphModule
    in_place: torch.fx.GraphModule | None = None
    """None where kernels cannot read them so."""


@dataclass(slots=True)
class Decision:
    """Whether the faster way to run sizes is the one that was asked about, until so many calls have come."""

    faster: bool
    until: int = _AGAIN
    calls: int = 0

    @classmethod
    def behind(cls, before: Self | None, faster: bool) -> Self:
        """What is decided after a decision, or first: it stands for so many times as many calls."""
        return cls(faster) if before is None else cls(faster, _AGAIN * before.until)

    def is_due(self) -> bool:
        """Whether this call is to decide anew."""
        self.calls += 1
        return self.calls >= self.until


Specialize = Callable[[torch.fx.GraphModule, MaskedGraph, float | None], AtCapacityGraphs | None]
"""From a masked graph at a capacity, the one of any, and seconds for it, to graphs with kernels; None where there are none."""


class MaskedRun:
    """What runs a part of a graph at any size: kernels of the smallest capacity that holds it, or PyTorch.

    Up to `limit` capacities are made, each by `specialized`, those that one call asks for within `budget` seconds together. With
    `faster` kernels must be faster than PyTorch at about the size of the call, or, where they copy tensors, at sizes that just do
    not fit the next smaller capacity. What is raised meanwhile
    is reported, and PyTorch runs the part; with `strict` it is raised. Safe to call from several threads: while one waits for
    kernels, the others have PyTorch, and all do where they are made in the background, by `turn`.
    """

    def __init__(
        self,
        part: MaskedPart,
        specialized: Specialize,
        limit: int,
        budget: float | None = None,
        faster: bool = True,
        strict: bool = False,
        turn: Turn | None = None,
    ) -> None:
        self.part, self.specialized, self.limit, self.budget = part, specialized, limit, budget
        self.faster, self.strict = faster, strict
        self.capacities: dict[int, AtCapacity | None] = {}
        """In ascending order; None where PyTorch is to run the part."""
        self._decided: dict[tuple[int, int], Decision] = {}
        """By capacity and bits of a size, whether kernels that read tensors where they lie run such sizes."""
        self._places = [(number, place.dim) for number, place in enumerate(part.masked.inputs) if place is not None]
        self._strides = part.strides
        self._turn = turn or Turn()

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        size = self._size(inputs)
        runner = None if size is None else self._runner(size, inputs)
        made = self._by_torch(inputs) if runner is None or size is None else self._by_kernels(runner, size, inputs)
        return [
            tensor if strides is None else laid_out(tensor, strides) for tensor, strides in zip(made, self._strides, strict=True)
        ]

    def _by_kernels(self, runner: AtCapacity, size: int, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The outputs by kernels, or by PyTorch where a mask forbids them."""
        hidden = any(hides_a_row(inputs[number]) for number in self.part.masks)
        return self._by_torch(inputs) if hidden else runner(size, inputs)

    def _by_torch(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        made: Sequence[torch.Tensor] = self.part.original(*inputs)
        return made

    def _size(self, inputs: Sequence[torch.Tensor]) -> int | None:
        """The size of all inputs that have the axis; None where they differ, or where there is nothing to hold."""
        sizes = {inputs[number].shape[dim] for number, dim in self._places}
        size = sizes.pop() if len(sizes) == 1 else 0
        return size or None

    def _runner(self, size: int, inputs: Sequence[torch.Tensor]) -> AtCapacity | None:
        if max(self.capacities, default=0) < size and len(self.capacities) < self.limit:
            self._take(functools.partial(self._fill, size), inputs)
        runner = next((runner for capacity, runner in self.capacities.items() if capacity >= size), None)
        return runner if runner is None or self._is_chosen(runner, size, inputs) else None

    def _take(self, work: Callable[[Sequence[torch.Tensor]], None], inputs: Sequence[torch.Tensor], again: bool = False) -> None:
        """Have work done on inputs. It reads no floating point numbers of theirs, which a cache has many of."""

        def on_inputs(given: OwnArguments) -> None:
            work([tensor if own is None else own for tensor, own in zip(inputs, given.given, strict=True)])

        read = [None if tensor.is_floating_point() else tensor for tensor in inputs]
        self._turn.take(on_inputs, read, again=again)

    def _is_chosen(self, runner: AtCapacity, size: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether kernels run a size: those that read tensors where they lie take the time of the size, and are compared with
        PyTorch at the first call of about as many elements, and at later ones that come less and less often, behind them where
        the turn can."""
        if not self.faster or runner.in_place is None:
            return True
        about = runner.capacity, size.bit_length()
        decision = self._decided.get(about)
        if decision is None or decision.is_due():
            self._take(functools.partial(self._decide, about, runner, size), inputs, again=decision is not None)
            decision = self._decided.get(about)
        return decision is not None and decision.faster

    def _decide(self, about: tuple[int, int], runner: AtCapacity, size: int, inputs: Sequence[torch.Tensor]) -> None:
        self._decided[about] = Decision.behind(self._decided.get(about), self._is_faster(runner, size, inputs))

    def _fill(self, size: int, inputs: Sequence[torch.Tensor]) -> None:
        """Make capacities for a size, and for those that it may grow to: the largest first, which may serve the others."""
        if max(self.capacities, default=0) >= size:  # by the turn before
            return
        made, deadline, runner = dict[int, AtCapacity | None](), Deadline(self.budget), None
        wanted = self._wanted(size, inputs)
        for left, capacity in zip(range(len(wanted), 0, -1), reversed(wanted), strict=True):
            if runner is None or runner.in_place is None:
                _log.info("a part of a graph is optimized for %d elements, and all fewer", capacity)
                runner = self._tried(functools.partial(self._compiled, capacity, inputs, deadline.share(1 / min(left, 2))))
            made[capacity] = runner if runner is not None and self._is_worth(runner, capacity, inputs) else None
        self.capacities = {**self.capacities, **dict(sorted(made.items()))}

    def _wanted(self, size: int, inputs: Sequence[torch.Tensor]) -> list[int]:
        """The capacities that are missing for a size and its growth, in ascending order; if there may be few, what holds it."""
        wanted, slots, largest = list[int](), _SMALLEST, max(self.capacities, default=0)
        while slots < 2 * max(_GROWTH * size, _SMALLEST):
            capacity = slots - self.part.masked.more
            if capacity > largest and _GROWTH * slots >= size:
                wanted.append(capacity)
            slots *= 2
        room = self.limit - len(self.capacities)
        first = max(sum(capacity < size for capacity in wanted) + 1 - room, 0)
        return [*wanted, *self._roomy(wanted[-1], inputs)][first : first + room]

    def _roomy(self, capacity: int, inputs: Sequence[torch.Tensor]) -> list[int]:
        """A capacity beyond that one which costs nothing to those who read tensors where they lie, if there is one."""
        slots = start = capacity + self.part.masked.more
        one = sum(inputs[number].nbytes // inputs[number].shape[dim] for number, dim in self._places)
        while slots < _ROOM and 2 * slots * one <= _ROOM_BYTES and inputs[0].device.type == "cpu":
            slots *= 2
        return [slots - self.part.masked.more] if slots > start else []

    def _tried(self, work: Callable[[], T]) -> T | None:
        """What work without gradients makes; None where something is raised, which is reported."""
        try:
            with _disable_current_modes(), torch.no_grad():
                return work()
        except Exception:  # a model must run whatever goes wrong in here
            if self.strict:
                raise
            _log.warning("optimizing a part for any size failed, it runs without; please report this", exc_info=True)
            return None

    def _compiled(self, capacity: int, inputs: Sequence[torch.Tensor], budget: float | None) -> AtCapacity | None:
        """Kernels at a capacity; None where there are none, or what lies behind the elements reaches results."""
        graph, device = self.part.masked, inputs[0].device
        example = AtCapacity(graph, capacity, graph.module, device).arguments(capacity, self._resized(inputs, capacity))
        made = self.specialized(concrete(graph.module, example), graph, budget)
        if made is None:
            return None
        looked_at = {size: self._hiding(self._resized(inputs, size)) for size in (1, capacity // 2 + 1, capacity - 1)}
        runner = AtCapacity(graph, capacity, made.padded, device)
        if not _ignores_other_slots(runner, looked_at):
            _log.warning("what lies behind the elements reaches a result of kernels, which are not used; please report this")
            return None
        if made.in_place is not None:
            in_place = AtCapacity(graph, capacity, made.padded, device, made.in_place)
            if _ignores_other_slots(in_place, looked_at):
                return in_place
            _log.warning("kernels that read tensors where they lie give other bits, and are not used; please report this")
        return runner

    def _is_worth(self, runner: AtCapacity, capacity: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether kernels are kept: of those that copy tensors, if they are faster at the sizes that are copied most for."""
        return runner.in_place is not None or self._is_faster(runner, capacity // 2 + 1, inputs)

    def _is_faster(self, runner: AtCapacity, size: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether kernels are to run the part at a size rather than PyTorch."""
        given = self._shown(self._resized(inputs, size))
        calls: list[Callable[[], Any]] = [
            functools.partial(self._by_torch, given),
            functools.partial(self._by_kernels, runner, size, given),
        ]
        return not self.faster or self._tried(functools.partial(quickest, calls)) == 1

    def _shown(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Inputs without masks that hide a row: with these PyTorch would be compared with itself."""
        for number in self.part.masks:
            if hides_a_row(inputs[number]):
                inputs[number] = torch.ones_like(inputs[number])
        return inputs

    def _hiding(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Inputs whose masks hide the first keys of each row, of later rows fewer: what all rows hide, kernels may leave out."""
        for number in self.part.masks:
            mask = inputs[number]
            size = mask.shape[-1]
            rows = mask.numel() // size
            first = torch.arange(rows, 0, -1, device=mask.device) * size // (rows + 1)
            shown = (torch.arange(size, device=mask.device) >= first[:, None]).view(mask.shape)
            inputs[number] = shown if mask.dtype is torch.bool else torch.where(shown, mask, -math.inf)
        return inputs

    def _resized(self, inputs: Sequence[torch.Tensor], size: int) -> list[torch.Tensor]:
        """Random numbers of a size; integers are those of a call, repeated."""
        made, generator = list(inputs), torch.Generator(inputs[0].device).manual_seed(size)  # not that of the user's calls
        for number, dim in self._places:
            rows = torch.arange(size, device=made[number].device) % made[number].shape[dim]
            made[number] = made[number].index_select(dim, rows)
        return [_random_like(tensor, generator) if tensor.is_floating_point() else tensor for tensor in made]


def _random_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.empty_like(widened(tensor)).normal_(generator=generator).to(tensor.dtype)


def _ignores_other_slots(runner: AtCapacity, looked_at: Mapping[int, Sequence[torch.Tensor]]) -> bool:
    return all(runner.ignores_other_slots(size, given) for size, given in looked_at.items())
