"""Whether a tensor of PyTorch is one that was seen before, unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mugraph.ir.graph import Shape

_FORGETTING: ContextVar[list[Callable[[], None]] | None] = ContextVar("what forgets at the end", default=None)
_SAMPLES = 16
"""Elements of a tensor that are looked at in every call, since `tensor.data` is written to without a trace."""


Place = tuple[int, Shape, tuple[int, ...], Any]
"""Address, sizes and strides in elements, and PyTorch's type."""


@dataclass(frozen=True, slots=True)
class TensorState:
    """Where a tensor lay, and what it was. Its memory is kept, so that no other tensor gets it.

    Tensors that were made in inference mode have no versions, and so no state.
    """

    place: Place
    version: int
    some: npt.NDArray[np.generic]
    """Elements from everywhere in it, where they are."""
    values: bytes
    """What they were."""

    @classmethod
    def of(cls, tensor: Any) -> TensorState:
        """The tensor as it is now."""
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        some = memory_of(tensor, reach)[:: reach // _SAMPLES | 1]  # an odd step goes through all columns
        return cls(place_of(tensor), tensor._version, some, some.tobytes())

    def is_still(self, tensor: Any) -> bool:
        """Whether a tensor is this one, unchanged."""
        return place_of(tensor) == self.place and tensor._version == self.version and self.some.tobytes() == self.values


def memory_of(tensor: Any, reach: int) -> npt.NDArray[np.generic]:
    """The first elements of a tensor's memory, from its own first element on; those of types that NumPy lacks as integers."""
    import torch  # which whoever has such a tensor has imported

    flat = tensor.detach().as_strided((reach,), (1,))
    integers = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
    return np.asarray((flat.view(integers[flat.dtype]) if flat.dtype in integers else flat).numpy())


def is_traceable(array: Any) -> bool:
    """Whether an array is a tensor in this host's memory that cannot change without a trace, as far as it can be told."""
    if type(array).__module__.partition(".")[0] != "torch" or array.device.type != "cpu" or array.layout is not _strided():
        return False
    return not (array.is_inference() or array.is_neg())


def outside_inference_mode(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, whose results can be told apart from changed ones later on."""

    def made(array: Any) -> Any:
        import torch  # as above

        with torch.inference_mode(False), torch.no_grad():
            return make(array)

    return made


@functools.cache
def _strided() -> Any:
    import torch  # as above

    return torch.strided


def place_of(tensor: Any) -> Place:
    """Where a tensor lies, and as what."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def are_still(states: Sequence[TensorState], tensors: Sequence[Any]) -> bool:
    """Whether tensors are those that were seen, unchanged."""
    return len(states) == len(tensors) and all(map(TensorState.is_still, states, tensors))


@contextmanager
def forgotten() -> Iterator[None]:
    """What is made inside of tensors that never come again, as of an example's weights, is given back at the end."""
    forgetting: list[Callable[[], None]] = []
    token = _FORGETTING.set(forgetting)
    try:
        yield
    finally:
        _FORGETTING.reset(token)
        for forget in forgetting:
            forget()


def at_the_end(forget: Callable[[], None]) -> None:
    """Have something forgotten when the calls that are made `forgotten` are over; elsewhere it is kept."""
    forgetting = _FORGETTING.get()
    if forgetting is not None:
        forgetting.append(forget)
