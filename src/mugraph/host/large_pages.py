"""Large pages for tensors that lie in memory of their own: where the system gives them, it makes few of these in place of many.

The C library maps memory anew for each block beyond 32 MiB and gives it back after use, so that a tensor of such a size costs its
pages in every call. `np.empty` asks for large pages by itself, PyTorch's allocator does not.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any

_MAPPED_ANEW = 32 << 20
"""Bytes from which the GNU C library maps each block by itself (`DEFAULT_MMAP_THRESHOLD_MAX`); smaller ones are used again."""


def in_large_pages(allocate: Callable[[], Any], size: int) -> Callable[[], Any]:
    """What allocates tensors of `size` bytes on the CPU, in large pages where each has memory of its own."""
    advise = _advice() if size >= _MAPPED_ANEW else None
    if advise is None:
        return allocate
    call = advise

    def allocated() -> Any:
        tensor = allocate()
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        call(first, (tensor.data_ptr() + size - first) // mmap.PAGESIZE * mmap.PAGESIZE)
        return tensor

    return allocated


@cache
def _advice() -> Callable[[int, int], object] | None:
    """Asks for large pages for so many bytes at an address, in vain where the system has none; None where it cannot be asked."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if advice is not None else None
    if madvise is None:
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda address, size: madvise(address, size, advice)
