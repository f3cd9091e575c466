"""Weights as kernels read them: packed at the first call, and again when one of them changed."""

from __future__ import annotations

import functools
import mmap
import random
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mugraph.devices.host import memory_lasts
from mugraph.host.tensor_state import Place, TensorState, at_the_end, is_traceable, memory_of, place_of
from mugraph.lower.packing import Packing
from mugraph.targets.cpu.packer import pack

T = TypeVar("T")

_MOST = 256
"""Tensors of which kernels of one kind keep something: a kernel that equal layers share is called with the weights of each."""
_ANY = random.Random(0)
"""Draws of its own: a call of kernels leaves those of its caller alone."""
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
    _known: dict[Place, _Made] = field(default_factory=dict)

    def of(self, array: Any) -> T:
        """What is made of the tensor."""
        if not is_traceable(array):
            return self.make(array)
        place = place_of(array)
        known = self._known.get(place)
        if known is None or not known.state.is_still(array):
            known = _IN_USE.get((place, self.key))
            if known is None or not known.state.is_still(array):
                known = None  # what is old is given back before there is more
                self._forget(place)
                state = TensorState.of(array)  # before: what changes meanwhile is seen in the next call
                known = _IN_USE[place, self.key] = _Made(state, self.make(array))
            self._keep(place, known)
        return cast(T, known.made)

    def _keep(self, place: Place, made: _Made) -> None:
        """Keep what was made, in the place of any other where there are many or memory is short.

        Layers are called in turn: the one that was called longest ago is the next, and giving up that one would have each packed
        in every call. A tensor that is not used any more is given up sooner or later, too.
        """
        others = dict(self._known)  # anew: other threads may read
        if others and (len(others) >= _MOST or not memory_lasts()):
            del others[_ANY.choice([*others])]
        self._known = {**others, place: made}
        at_the_end(functools.partial(self._forget, place))

    def _forget(self, place: Place) -> None:
        self._known = {other: made for other, made in self._known.items() if other != place}


class PackedArray(NamedTuple):
    """A packed tensor, and where it lies."""

    array: NDArray[Any]
    address: int


def packer(packing: Packing) -> Callable[[Any], PackedArray]:
    """What packs contiguous arrays of one shape, NumPy's or those of PyTorch on the CPU."""

    def made(array: Any) -> PackedArray:
        memory = array.reshape(-1) if isinstance(array, np.ndarray) else memory_of(array, array.numel())
        packed = _allocated(packing.elements, memory.dtype)
        pack(packing, memory, packed)
        return PackedArray(packed, packed.ctypes.data)

    return made


def _allocated(elements: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array without values, in large pages if it is large: a processor has the translations of these at hand."""
    size = elements * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or size < _LARGE:
        return np.empty(elements, dtype)
    pages = _spare_pages(size)
    if pages is None:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has none
        with suppress(OSError):  # of a system without such pages
            pages.madvise(advice)
    array = np.frombuffer(pages, dtype)
    weakref.finalize(array, _give_back, pages)
    return array


_SPARE: ContextVar[list[mmap.mmap] | None] = ContextVar("spare pages", default=None)
"""Pages of packed weights that are gone, where they are kept for others."""


@contextmanager
def pages_reused() -> Iterator[None]:
    """Weights that are packed inside lie in the pages of others that are gone, as those of one candidate after the other, and of
    one kind of numbers after the other: a system takes longer to make pages than they take to be filled."""
    token = _SPARE.set([])
    try:
        yield
    finally:
        _SPARE.reset(token)


def _spare_pages(size: int) -> mmap.mmap | None:
    """Pages of this size that nobody has, if there are some."""
    spare = _SPARE.get() or []
    fitting = next((pages for pages in spare if len(pages) == size), None)
    if fitting is not None:
        spare.remove(fitting)
    return fitting


def _give_back(pages: mmap.mmap) -> None:
    """Keep the pages of an array that is gone, if somebody wants pages and memory lasts."""
    spare = _SPARE.get()
    if spare is not None and memory_lasts():
        spare.append(pages)
