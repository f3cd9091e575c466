"""A masked graph at a capacity, called at any smaller size: inputs are put into slots, and outputs taken out of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mugraph.frontend.symbolic_sizes.slots import Place, SlotPlaces, Slots
from mugraph.host.arrays import torch_arrays

_NEAREST = 0.75
"""A capacity is at most this part of the next."""
_STEPS = 4
"""Binary digits of the largest capacity that are not 0."""
_GARBAGE = (torch.nan, torch.inf, -torch.inf)
"""What is put into slots that are not held, and need not be 0, to see that none of it reaches a result."""


class AtCapacity:
    """What runs a masked graph at every size from 1 to `capacity`, by `run`, which takes its inputs at that size.

    Inputs are copied into slots, of which others than are held are 0, unless the size is the capacity. The memory for that is
    kept; of several threads one has it, and the others take new memory. Where `in_place` is given it is called instead, with the
    inputs as they are, `recognized` says what it returns for arguments that need not be looked at, or None, and `at_once` gives
    what does so for those of one size alone, of which so many are inputs. Safe to call from
    several threads if all of them are.
    """

    def __init__(
        self,
        graph: SlotPlaces,
        capacity: int,
        run: Callable[..., Sequence[Any]],
        device: torch.device,
        in_place: Callable[..., Sequence[Any]] | None = None,
        recognized: Callable[[Sequence[torch.Tensor]], Sequence[Any] | None] | None = None,
        at_once: Callable[[Sequence[torch.Tensor], int], Callable[[Sequence[Any]], Any] | None] | None = None,
    ) -> None:
        self.graph, self.capacity, self.run, self.device, self.in_place = graph, capacity, run, device, in_place
        self._recognized, self._at_once = recognized, at_once
        self._slots = capacity + graph.more
        with torch.inference_mode(False):  # or calls tell them from those of others that were made outside
            self._lines = [_line(slots, self._slots, device) for slots in graph.slots]
        self._kept: dict[int, _Kept] = {}
        self._one_at_a_time = threading.Lock()
        self._last_told: tuple[int, list[torch.Tensor]] = (0, [])
        self._varies = any(place is not None for place in graph.outputs)
        self._places = [(number, place.dim, place.more) for number, place in enumerate(graph.inputs) if place is not None]

    def __call__(self, size: int, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs at a size for inputs of that size, which were checked; raises InvalidInput where gradients are asked
        for."""
        torch_arrays(str(self.device)).expect_values(inputs)
        if self.in_place is not None:
            return self._held(size, self.in_place(*inputs, *self._told(size)))
        alone = self._one_at_a_time.acquire(blocking=False)
        try:
            return self._held(size, self.run(*self.arguments(size, inputs, self._kept if alone else {})))
        finally:
            if alone:
                self._one_at_a_time.release()

    def recognized(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The outputs for inputs that kernels recognize, which read them where they lie; else None."""
        if self._recognized is None or len(inputs) != len(self.graph.inputs):
            return None
        number, dim, more = self._places[0]
        shape = getattr(inputs[number], "shape", ())
        size = shape[dim] - more if dim < len(shape) else 0
        made = self._recognized([*inputs, *self._told(size)]) if 0 < size <= self.capacity else None
        return None if made is None else self._held(size, made)

    def at_once(self, size: int, inputs: Sequence[torch.Tensor]) -> Callable[[Sequence[Any]], Any] | None:
        """What gives the outputs for inputs that cannot be told from these, and None for others; None where there is nothing that
        is faster than looking at them."""
        return None if self._at_once is None or self._varies else self._at_once([*inputs, *self._told(size)], len(inputs))

    def arguments(
        self, size: int, inputs: Sequence[torch.Tensor], kept: dict[int, _Kept] | None = None, behind: float = 0.0
    ) -> list[torch.Tensor]:
        """What `run` is called with, contiguous: the inputs in slots, `behind` which other ones are that number, or 0 where they
        have to be, and what is held.

        `kept` is memory of earlier calls with the same number behind, by input; it is added to.
        """
        memory = {} if kept is None else kept
        padded = [self._padded(number, given, memory, behind) for number, given in enumerate(inputs)]
        return [*padded, *self._told(size)]

    def ignores_other_slots(self, size: int, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the outputs at a size are the same, bit by bit, whatever floating-point numbers lie in slots that are not
        held and need not be 0."""
        plain = self(size, inputs)
        made = (self._held(size, self.run(*self.arguments(size, inputs, behind=garbage))) for garbage in _GARBAGE)
        return all(_same_bits(one, other) for outputs in made for one, other in zip(plain, outputs, strict=True))

    def _told(self, size: int) -> list[torch.Tensor]:
        """What is held, and how much that is: tensors that nobody may change."""
        last, told = self._last_told
        if last != size:
            counts = [torch.full((1,), float(size + more), device=self.device) for more in self.graph.counts]
            told = [*map(partial(self._meant, size), self.graph.slots, self._lines), *counts]
            self._last_told = size, told
        return told

    def _padded(self, number: int, given: torch.Tensor, kept: dict[int, _Kept], behind: float) -> torch.Tensor:
        place = self.graph.inputs[number]
        if place is None or given.shape[place.dim] == self._slots:
            return given.contiguous()
        if number not in kept:
            kept[number] = _Kept.of(given, place.dim, self._slots, 0.0 if number in self.graph.zeroed else behind)
        return kept[number].filled(given)

    def _meant(self, size: int, slots: Slots, line: torch.Tensor) -> torch.Tensor:
        """A vector that is true in the slots that are meant."""
        before = size + (slots.end if slots.first is None else slots.first)
        return line[self._slots - before : 2 * self._slots - before]

    def _held(self, size: int, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is held of the outputs, in memory of its own."""
        if not self._varies:
            return [*outputs]
        return [_first(output, place, size) for output, place in zip(outputs, self.graph.outputs, strict=True)]


@dataclass
class _Kept:
    """Memory for an input in slots: behind the first `reached` of dimension `dim` there is one number."""

    memory: torch.Tensor
    dim: int
    behind: float
    reached: int = 0

    @classmethod
    def of(cls, given: torch.Tensor, dim: int, slots: int, behind: float) -> _Kept:
        number = torch.tensor(behind).to(given.dtype).item() if given.is_floating_point() else 0  # e4m3fn has no infinities
        shape = (*given.shape[:dim], slots, *given.shape[dim + 1 :])
        with torch.inference_mode(False):  # what is made in it cannot be written to outside
            return cls(torch.full(shape, number, dtype=given.dtype, device=given.device), dim, number)

    def filled(self, given: torch.Tensor) -> torch.Tensor:
        """The memory with a tensor in its first slots."""
        size, before = given.shape[self.dim], self.reached
        self.reached = max(size, before)  # as long as this may be interrupted
        with torch.no_grad():
            self.memory.narrow(self.dim, 0, size).copy_(given)
            if before > size:
                self.memory.narrow(self.dim, size, before - size).fill_(self.behind)
        self.reached = size
        return self.memory


def _line(slots: Slots, length: int, device: torch.device) -> torch.Tensor:
    """A line of booleans, any part of which is what a vector of that length says at some size."""
    if slots.first is None:
        return torch.arange(2 * length, device=device) < length
    places = torch.arange(2 * length + slots.end - slots.first, device=device)
    return (places >= length) & (places < length + slots.end - slots.first)


def _first(output: torch.Tensor, place: Place | None, size: int) -> torch.Tensor:
    """What is held of an output, in memory of its own if that is not all of it."""
    if place is None or output.shape[place.dim] == size + place.more:
        return output
    return output.narrow(place.dim, 0, size + place.more).clone(memory_format=torch.contiguous_format)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def capacities(low: int, high: int, more: int, smallest: int) -> Iterator[int]:
    """Capacities for sizes from `low` to `high`, the largest first, which holds `high`. With what the axis gets `more` they have
    few prime factors but 2, so that loops can cut them; each holds about twice as much as the next."""
    slots = high + more
    step = 1 << max(slots.bit_length() - _STEPS, 0)
    slots = -(-slots // step) * step
    yield slots - more
    slots = 1 << max(int(slots * _NEAREST).bit_length() - 1, 0)
    while slots >= smallest and slots - more >= low:
        yield slots - more
        slots //= 2
