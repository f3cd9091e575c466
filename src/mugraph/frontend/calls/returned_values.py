"""What a function returned, to be given again by whatever runs in its place: its structure, and the tensors and values in it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import selection

VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Fraction, np.generic, enum.Enum, range, slice, type(...)),
    *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Kinds of results that are no tensors and hold none: they were traced, and are given again."""


View = Callable[[Any], Any]
"""Makes of a tensor the view of it that a function returned."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place in what a function returned: a constant, or a tensor, which is the program's output `number`.

    Where its memory is that of another tensor, a call gives it as such: `view` of the program's input `input`, or of what
    stands at the place `base`, which may also be the very same tensor. `copied` where an equal tensor, but not the same, stands
    before. `order` has the dimensions from the outermost in memory to the innermost where they are not in their order.
    """

    constant: Any = None
    number: int | None = None
    input: int | None = None
    base: int | None = None
    view: View | None = None
    copied: bool = False
    order: tuple[int, ...] | None = field(default=None, compare=False)  # which is another at size 1


@dataclass(frozen=True, slots=True)
class Results:
    """What a function returned: its structure, and what stood at each place."""

    structure: TreeSpec
    places: tuple[Place, ...]
    _select: Callable[[Sequence[Any]], Any] | None = field(init=False, repr=False, compare=False)
    """What `unflatten` does, where the function returns one output of the program or a tuple of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_select", _selection(self.structure, self.places))

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The outputs where the function has its tensors; `inputs` are those of the call, for results that are one of them."""
        if self._select is not None:
            return self._select(outputs)
        made: dict[int, Any] = {}
        for index in sorted(range(len(self.places)), key=lambda index: self.places[index].base is not None):
            made[index] = _made(self.places[index], made, outputs, inputs)
        return tree_unflatten([made[index] for index in range(len(self.places))], self.structure)

    @property
    def numbers(self) -> tuple[int | None, ...]:
        """By place, which output of the program it is; None for constants."""
        return tuple(place.number for place in self.places)


def _selection(structure: TreeSpec, places: Sequence[Place]) -> Callable[[Sequence[Any]], Any] | None:
    """A selection of the program's outputs, where the function returns one or a tuple of them, and no views or copies."""
    plain = [place for place in places if place == Place(number=place.number) and place.order is None]
    numbers = [place.number for place in plain if place.number is not None]
    if len(numbers) < len(places):
        return None
    if structure.is_leaf():
        return selection(numbers[0])
    if structure.type is tuple and all(child.is_leaf() for child in structure.children()):
        return selection(numbers)
    return None


def _made(place: Place, made: Mapping[int, Any], outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
    if place.number is None:
        return place.constant
    if place.input is not None and inputs:
        source = inputs[place.input]
    else:
        source = outputs[place.number] if place.base is None else made[place.base]
    if place.view is not None and (place.base is not None or inputs):
        return place.view(source)
    if place.order is not None and isinstance(source, torch.Tensor):  # and no slot that stands for one
        return _lying_in(source, place.order, place.copied)
    return source.clone() if place.copied else source


def order_in_memory(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory to the innermost; None where they are in their order, or do not fill it."""
    if tensor.is_contiguous():
        return None
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True))
    return order if tensor.permute(order).is_contiguous() else None


def _lying_in(tensor: torch.Tensor, order: tuple[int, ...], copied: bool) -> torch.Tensor:
    """The tensor where its dimensions are in this order in memory, as in results of PyTorch's own calls; else, and where it is to
    be `copied`, a copy that is so."""
    if not copied and tensor.permute(order).is_contiguous():
        return tensor
    return torch.empty_permuted(tensor.shape, order, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def check_value(what: str, value: object) -> None:
    """Raise InvalidInput for a value that may hold tensors where PyTorch's pytree does not find them, or may change."""
    if not isinstance(value, VALUES):
        remedy = "use tensors, numbers, tuples, lists and dicts, or register the class with torch.utils._pytree"
        raise InvalidInput(f"{what} a {type(value).__name__}, into which PyTorch does not look; {remedy}")
