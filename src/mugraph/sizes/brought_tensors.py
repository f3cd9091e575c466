"""Tensors that a function brings along, where kernels were made of a graph that holds them, and reads no others.

Values that are written into one of them in place are seen, as they lie in the same memory. One that is replaced would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.captured_tensors import CapturedSource, kinds, lies_alike
from mugraph.frontend.calls.origins import READ_ERRORS, quick_reader
from mugraph.frontend.calls.pytree import Traced
from mugraph.frontend.symbolic_sizes.axes import SizeMatters


class _Place(NamedTuple):
    """Where the numbers of a tensor lie, and how they are read: its transpose begins where it does, and so does its negative."""

    address: int
    strides: tuple[int, ...]
    negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        return cls(tensor.data_ptr(), tuple(tensor.stride()), tensor.is_neg())

    def is_of(self, tensor: torch.Tensor) -> bool:
        address, strides, negative = self
        return tensor.data_ptr() == address and lies_alike(tensor, strides) and tensor.is_neg() is negative


@dataclass(frozen=True, slots=True)
class BroughtTensors:
    """What a function brings along: tensors that a graph holds (`read`), and those that it asked what they are."""

    read: tuple[CapturedSource, ...] = ()
    places: tuple[_Place, ...] = ()
    """Where those that are read lie."""
    asked: tuple[CapturedSource, ...] = ()

    @classmethod
    def of(cls, programs: Iterable[Traced], held: Iterable[torch.Tensor]) -> Self:
        """What `programs` of a function bring along, of which a graph holds the tensors `held`. Raises SizeMatters where it holds
        a copy of one, in which no later value would be seen."""
        traced = list(programs)
        read = {source.name: source for each in traced for source in each.sources if not source.constant}
        asked = {source.name: source for each in traced for source in each.asked}
        known = {_Place.of(tensor) for tensor in held}
        places = {name: _Place.of(source.tensor()) for name, source in read.items()}
        if copied := next((name for name, place in places.items() if place not in known), None):
            raise SizeMatters(f"what PyTorch records for all sizes has a copy of tensor {copied} of the function")
        return cls(tuple(read.values()), tuple(places.values()), tuple(asked.values()))

    def watching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, each of whose calls first looks whether all is what it was, and raises InvalidInput or ShapeMismatch, naming the
        tensor, where it is not."""
        if not self.read and not self.asked:
            return run
        are_still = kinds((*self.read, *self.asked))
        places = [(quick_reader(source.origins[0]), place) for source, place in zip(self.read, self.places, strict=True)]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not are_still() or not _lie_there(places):
                self._refuse()
            return run(*args, **kwargs)

        return call

    def _refuse(self) -> None:
        for source in (*self.read, *self.asked):
            source.expect()
        for source, place in zip(self.read, self.places, strict=True):
            if not place.is_of(source.tensor()):
                what = f"tensor {source.name} of the function is another one than when it was optimized"
                raise InvalidInput(f"{what}, which kernels of any length read; write new values into it, or optimize again")


def _lie_there(places: Sequence[tuple[Callable[[], Any], _Place]]) -> bool:
    try:
        return all(place.is_of(read()) for read, place in places)
    except (AttributeError, *READ_ERRORS):
        return False
