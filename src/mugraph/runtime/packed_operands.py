"""Weights as kernels read them: packed at the first call, and again when one of them changed."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mugraph.host.tensor_state import Place, TensorState, is_traceable, memory_of, place_of
from mugraph.lower.packing import Packing

T = TypeVar("T")

_LARGE = 1 << 22
"""Bytes from which packed weights lie in large pages where the system gives them."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Made:
    """What was made of a tensor, and what that was."""

    state: TensorState
    made: Any


_IN_USE: WeakValueDictionary[tuple[Place, Hashable], _Made] = WeakValueDictionary()
"""What kernels of this process hold, by where a tensor lies and how it is packed: weights that several read are packed once."""


@dataclass(slots=True)
class Kept(Generic[T]):
    """What is made of a constant tensor, as long as that does not change; what has one `key` is made alike.

    It is made anew in every call of what may change without a trace: NumPy arrays, and tensors that were made in inference mode.
    """

    make: Callable[[Any], T]
    key: Hashable
    _known: _Made | None = None

    def of(self, array: Any) -> T:
        """What is made of the tensor."""
        known = self._known  # once: other threads may call, too
        if known is not None and not isinstance(array, np.ndarray) and known.state.is_still(array):
            return cast(T, known.made)
        if not is_traceable(array):
            return self.make(array)
        place = place_of(array), self.key
        known = _IN_USE.get(place)
        if known is None or not known.state.is_still(array):
            state = TensorState.of(array)  # before: what changes meanwhile is seen in the next call
            known = _IN_USE[place] = _Made(state, self.make(array))
        self._known = known
        return cast(T, known.made)


class PackedArray(NamedTuple):
    """A packed tensor, and where it lies."""

    array: NDArray[Any]
    address: int


def packer(packing: Packing) -> Callable[[Any], PackedArray]:
    """What packs contiguous arrays of one shape, NumPy's or those of PyTorch on the CPU."""

    def pack(array: Any) -> PackedArray:
        memory = array.reshape(-1) if isinstance(array, np.ndarray) else memory_of(array, array.numel())
        packed = _allocated(packing.elements, memory.dtype)
        packing.pack(memory, packed)
        return PackedArray(packed, packed.ctypes.data)

    return pack


def _allocated(elements: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array without values, in large pages if it is large: a processor has the translations of these at hand."""
    size = elements * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or size < _LARGE:
        return np.empty(elements, dtype)
    pages = mmap.mmap(-1, size)
    pages.madvise(advice)
    return np.frombuffer(pages, dtype)
