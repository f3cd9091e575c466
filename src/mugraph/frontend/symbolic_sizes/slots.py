"""Graphs of a capacity: where their tensors have the axis, and what they are told of the slots that hold its elements."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor has the axis, and how much larger than the symbol that is there."""

    dim: int
    more: int


@dataclass(frozen=True, slots=True)
class Slots:
    """Which slots are meant, where n is the symbol: from n + `first` (None: from the beginning) to before n + `end`."""

    first: int | None
    end: int


@dataclass(frozen=True, slots=True)
class SlotPlaces:
    """Where inputs and outputs of a masked graph have the axis, and what it reads behind its inputs: booleans that say which
    slots are meant, and sizes as numbers."""

    inputs: tuple[Place | None, ...]
    """By input of the original; None where it has no axis."""
    slots: tuple[Slots, ...]
    """What further inputs say, a vector each, in order."""
    counts: tuple[int, ...]
    """After these come sizes of the axis, so much larger than the symbol, as vectors of one number of fp32."""
    outputs: tuple[Place | None, ...]
    zeroed: frozenset[int]
    """Inputs by number, of which the slots that are not held are 0; those of others may hold anything."""

    @property
    def places(self) -> SlotPlaces:
        """These alone, of whatever else is a graph."""
        return SlotPlaces(self.inputs, self.slots, self.counts, self.outputs, self.zeroed)

    @property
    def more(self) -> int:
        """How much larger than the symbol the axis gets."""
        places = [place.more for place in (*self.inputs, *self.outputs) if place is not None]
        return max(*places, *(slots.end for slots in self.slots))


@dataclass(frozen=True, slots=True)
class MaskedGraph(SlotPlaces):
    """A graph that reads, behind the inputs of the one it is made of, what is said of slots and sizes."""

    module: fx.GraphModule
