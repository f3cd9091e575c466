"""Memory of large outputs, which the next ones have as soon as nothing refers to it: what was written last is still in a cache.

The C library gives out free blocks of one size in turns, so that outputs of a few MiB lie in memory that left the caches
meanwhile, or for which the system has yet to make pages. Where sizes vary from call to call that is so of smaller outputs, too:
no free block holds a new size. Then blocks are as large as powers of two, and sizes between these share them.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

LEAST, MOST = 4 << 20, 16 << 20
"""Bytes of outputs that are lent memory: the last cache holds several smaller ones, and no larger one."""
LEAST_VARYING = 1 << 18
"""The same of outputs whose sizes vary: their pages take longer to make than lending takes beside PyTorch's allocator, a
microsecond or two."""
_KEPT = 4
"""Blocks that are kept while nobody refers to them."""
_PAGE = 4096
"""Tensors begin with a page. Loads wait for a store to an address with the same last twelve bits: PyTorch's large inputs begin 64
bytes behind a page, and softmax takes 1.15 times as long where its output begins 64 bytes behind that."""


class _Block(NamedTuple):
    """Memory that is lent: so many bytes from an address on, which a tensor of bytes owns."""

    size: int
    address: int
    owner: Any


def lent(
    torch: ModuleType, shape: Sequence[int], dtype: Any, allocate: Callable[[], Any], varying: bool = False
) -> Callable[[], Any]:
    """What allocates contiguous tensors of a shape and type on the CPU, without values; their storages cannot be resized. Those
    of `varying` sizes share blocks, one of which has all of its pages when this returns the first time.

    Within a mode that may have something else made in the place of tensors, as of fake ones, they are those of `allocate`.
    """
    modes, frombuffer = torch._C._len_torch_dispatch_stack, torch.frombuffer
    count = math.prod(shape)
    size = count * dtype.itemsize
    room = 1 << (size - 1).bit_length() if varying else size
    loan = _loan_of(room)
    if varying and not modes():
        _set_aside(torch, room)

    def allocated() -> Any:
        if modes():
            return allocate()
        block = _taken(room) or _new(torch, room)
        buffer = loan.from_address(block.address)
        buffer.block = block
        return frombuffer(buffer, dtype=dtype, count=count).resize_(*shape)  # a tuple takes twice as long

    return allocated


class _Loan:
    """Bytes of a block, to which the storage of a tensor refers; they give the block back when that is freed."""

    __slots__ = ()
    block: _Block
    idle: ClassVar[deque[_Block]] = deque(maxlen=_KEPT)
    """Blocks to which nothing refers, the one that was given back last at the end."""

    def __del__(self) -> None:
        self.idle.append(self.block)


@functools.cache
def _loan_of(size: int) -> Any:
    """Loans of so many bytes."""
    return type("_Loan", (_Loan, ctypes.c_char * size), {"__slots__": ("block",)})


def _new(torch: ModuleType, size: int) -> _Block:
    owner = torch.empty(size + _PAGE, dtype=torch.uint8, device="cpu")
    return _Block(size, -(-owner.data_ptr() // _PAGE) * _PAGE, owner)


def _taken(size: int) -> _Block | None:
    """The block of that size that was given back last; None without one. Threads may give and take blocks meanwhile."""
    idle = _Loan.idle
    for _ in range(len(idle)):
        try:
            block = idle.pop()
        except IndexError:
            break
        if block.size == size:
            return block
        idle.appendleft(block)
    return None


_SET_ASIDE: set[int] = set()
"""Sizes of blocks that were made before they were asked for."""


def _set_aside(torch: ModuleType, size: int) -> None:
    """Have a block of a size that has its pages, the first time: no call waits for the system to make them."""
    if size not in _SET_ASIDE:
        _SET_ASIDE.add(size)
        block = _new(torch, size)
        block.owner.fill_(0)
        _Loan.idle.append(block)
