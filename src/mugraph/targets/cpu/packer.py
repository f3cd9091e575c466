"""Packing weights on this host, by all threads: `packing.h`, compiled once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from numpy.typing import NDArray

from mugraph.host.thread_pool import load_thread_pool
from mugraph.lower.packing import Packing
from mugraph.targets.cpu.compiler import find_compiler, load_shared
from mugraph.targets.cpu.folds import print_turning
from mugraph.targets.cpu.printer import header

_LONGS = ("size", "rows", "columns", "row_step", "column_step", "depth", "width", "group", "dimensions")


class _Arguments(ctypes.Structure):
    """What `pack` takes, as `packing.h` declares it."""

    _fields_ = [
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        *((name, ctypes.c_long) for name in _LONGS),
        ("counts", ctypes.POINTER(ctypes.c_long)),
        ("steps", ctypes.POINTER(ctypes.c_long)),
    ]


def pack(packing: Packing, memory: NDArray[Any], packed: NDArray[Any]) -> None:
    """Write what lies in a tensor's memory as it is packed; both are given as contiguous arrays of one dimension."""
    size, strips = memory.itemsize, packing.strips
    (rows, columns), (row_step, column_step) = packing.shape, (step * size for step in packing.strides)
    depth, width, group = strips.depth, strips.width, strips.together
    if row_step == size and group > 1 and size * group <= _LARGEST and rows % group == depth % group == 0:
        rows, depth, row_step, size, group = rows // group, depth // group, size * group, size * group, 1  # a group is one number
    counts, steps = zip(*packing.windows, strict=True) if packing.windows else ((), ())
    longs = (size, rows, columns, row_step, column_step, depth, width, group, len(counts))
    array = ctypes.c_long * len(counts)
    source = memory.ctypes.data + packing.offset * memory.itemsize
    _function()(
        _Arguments(source, packed.ctypes.data, *longs, array(*counts), array(*(step * memory.itemsize for step in steps)))
    )


_LARGEST = 8
"""Bytes of the largest number that is moved as one."""


@cache
def _function() -> Callable[[_Arguments], None]:
    load_thread_pool()
    lanes = find_compiler().vectors.lanes
    parts = (f"#define LANES {lanes}", header("prelude"), print_turning(lanes), header("packing"))
    function = load_shared("\n".join(parts)).pack
    function.argtypes, function.restype = [_Arguments], None
    return function
