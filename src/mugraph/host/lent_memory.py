"""Memory of large outputs, which the next ones have as soon as nothing refers to it: what was written last is still in a cache.

The C library gives out free blocks of one size in turns, so that outputs of a few MiB lie in memory that left the caches
meanwhile, or for which the system has yet to make pages.
"""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

LEAST, MOST = 4 << 20, 16 << 20
"""Bytes of outputs that are lent memory: the last cache holds several smaller ones, and no larger one."""
_KEPT = 4
"""Blocks that are kept while nobody refers to them."""
_PAGE = 4096
"""Tensors begin with a page. Loads wait for a store to an address with the same last twelve bits: PyTorch's large inputs begin 64
bytes behind a page, and softmax takes 1.15 times as long where its output begins 64 bytes behind that."""


def lent(torch: ModuleType, shape: Sequence[int], dtype: Any, allocate: Callable[[], Any]) -> Callable[[], Any]:
    """What allocates contiguous tensors of a shape and type on the CPU, without values; their storages cannot be resized.

    Within a mode that may have something else made in the place of tensors, as of fake ones, they are those of `allocate`.
    """
    modes = torch._C._len_torch_dispatch_stack
    size = math.prod(shape) * dtype.itemsize
    loan: Any = type("_Loan", (_Loan, ctypes.c_char * size), {})

    def allocated() -> Any:
        if modes():
            return allocate()
        block = _taken(size + _PAGE)
        if block is None:
            block = torch.empty(size + _PAGE, dtype=torch.uint8, device="cpu")
        buffer = loan.from_address(-(-block.data_ptr() // _PAGE) * _PAGE)
        buffer.block = block
        return torch.frombuffer(buffer, dtype=dtype).resize_(shape)

    return allocated


class _Loan:
    """Bytes of a block, to which the storage of a tensor refers; they give the block back when that is freed."""

    block: Any
    idle: ClassVar[deque[Any]] = deque(maxlen=_KEPT)
    """Blocks to which nothing refers, as tensors of bytes, the one that was given back last at the end."""

    def __del__(self) -> None:
        self.idle.append(self.block)


def _taken(size: int) -> Any | None:
    """The block of that size that was given back last; None without one. Threads may give and take blocks meanwhile."""
    idle = _Loan.idle
    for _ in range(len(idle)):
        try:
            block = idle.pop()
        except IndexError:
            break
        if block.nbytes == size:
            return block
        idle.appendleft(block)
    return None
