"""Tensors that a function brings along, where kernels were made of a graph that holds them, and reads no others.

Values that are written into one of them in place are seen, as they lie in the same memory. One that is replaced would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.captured_tensors import CapturedSource, kinds
from mugraph.frontend.calls.origins import READ_ERRORS, quick_reader
from mugraph.frontend.calls.pytree import Traced
from mugraph.frontend.symbolic_sizes.axes import SizeMatters


@dataclass(frozen=True, slots=True)
class BroughtTensors:
    """What a function brings along: tensors that a graph holds (`read`), and those that it asked what they are."""

    read: tuple[CapturedSource, ...] = ()
    addresses: tuple[int, ...] = ()
    """Where those that are read lie."""
    asked: tuple[CapturedSource, ...] = ()

    @classmethod
    def of(cls, programs: Iterable[Traced], held: Iterable[torch.Tensor]) -> Self:
        """What `programs` of a function bring along, of which a graph holds the tensors `held`. Raises SizeMatters where it holds
        a copy of one, in which no later value would be seen."""
        traced = list(programs)
        read = {source.name: source for each in traced for source in each.sources if not source.constant}
        asked = {source.name: source for each in traced for source in each.asked}
        places = {tensor.data_ptr() for tensor in held}
        addresses = {name: source.tensor().data_ptr() for name, source in read.items()}
        if copied := next((name for name, address in addresses.items() if address not in places), None):
            raise SizeMatters(f"what PyTorch records for all sizes has a copy of tensor {copied} of the function")
        return cls(tuple(read.values()), tuple(addresses.values()), tuple(asked.values()))

    def watching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, each of whose calls first looks whether all is what it was, and raises InvalidInput or ShapeMismatch, naming the
        tensor, where it is not."""
        if not self.read and not self.asked:
            return run
        are_still = kinds((*self.read, *self.asked))
        places = [(quick_reader(source.origins[0]), address) for source, address in zip(self.read, self.addresses, strict=True)]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not are_still() or not _lie_there(places):
                self._refuse()
            return run(*args, **kwargs)

        return call

    def _refuse(self) -> None:
        for source in (*self.read, *self.asked):
            source.expect()
        for source, address in zip(self.read, self.addresses, strict=True):
            if source.tensor().data_ptr() != address:
                what = f"tensor {source.name} of the function is another one than when it was optimized"
                raise InvalidInput(f"{what}, which kernels of any length read; write new values into it, or optimize again")


def _lie_there(places: Sequence[tuple[Callable[[], Any], int]]) -> bool:
    try:
        return all(read().data_ptr() == address for read, address in places)
    except (AttributeError, *READ_ERRORS):
        return False
