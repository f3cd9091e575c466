"""Compiled kernels of the CPU as functions, and several of them as one function, which runs them in one parallel region."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from struct import Struct
from typing import cast

import numpy as np

from mugraph.errors import UntrustedSources
from mugraph.host.array_interface import KernelCall
from mugraph.ir.dtypes import DType
from mugraph.ir.lookups import NEGATIVE, places
from mugraph.lower.tile_form import Kernel

_RUN = "run_kernels"
_INTEGERS = {DType.INT32: ctypes.c_int32, DType.INT64: ctypes.c_int64}


class CompiledKernel:
    """A kernel of a shared object. Called with the addresses of its operands, inputs first, it runs on the threads of the pool.

    It raises IndexOutOfRange where integers name no rows of a table that it looks up, MemoryError where a block has no memory.
    """

    def __init__(self, library: ctypes.CDLL, kernel: Kernel) -> None:
        """Raises UntrustedSources for an object without it, or of sources that another version of mugraph printed."""
        if not (hasattr(library, _RUN) and hasattr(library, kernel.name)):
            raise UntrustedSources(f"the sources of {kernel.name} are of another version of mugraph; optimize again")
        self.kernel, self.library = kernel, library
        self.address = ctypes.addressof(ctypes.c_byte.in_dll(library, kernel.name))
        operands = range(len(kernel.inputs) + len(kernel.outputs))
        self._alone = self.in_one_call([KernelCall(self, operands, 0)])

    def __call__(self, *addresses: int) -> None:
        self._alone(*addresses)

    @staticmethod
    def in_one_call(calls: Sequence[KernelCall]) -> Callable[..., None]:
        """Compiled kernels as one function of all their addresses, which may run at the same time as those that are not to be
        over before them. Safe to call from several threads."""
        kernels = [cast("CompiledKernel", call.function) for call in calls]
        run = getattr(kernels[0].library, _RUN)
        run.restype = ctypes.c_long
        steps = _plan(calls, kernels)
        plan = ctypes.byref((ctypes.c_int64 * len(steps))(*steps))
        pack = Struct(f"={1 + max((number for call in calls for number in call.operands), default=-1)}Q").pack

        def together(*addresses: int) -> None:
            if (refused := run(plan, pack(*addresses))) < 0:
                raise MemoryError(f"no memory for a block of {' or '.join(each.kernel.name for each in kernels)}")
            if refused:
                integers, number = divmod(refused - 1, len(calls))
                _raise_for(kernels[number].kernel, integers, [addresses[place] for place in calls[number].operands])

        return together


def _plan(calls: Sequence[KernelCall], kernels: Sequence[CompiledKernel]) -> list[int]:
    """What `run_kernels` is given, as `region.h` says."""
    plan = [len(calls), sum(len(call.operands) for call in calls)]
    for call, each in zip(calls, kernels, strict=True):
        plan += [each.address, call.after, len(call.operands), *call.operands]
    return plan


def _raise_for(kernel: Kernel, number: int, addresses: Sequence[int]) -> None:
    """Raise IndexOutOfRange for integers that name no rows."""
    wrong = kernel.integers[number]
    buffer = kernel.buffer(wrong.buffer)
    numbers = _INTEGERS[buffer.dtype] * buffer.elements
    given = np.ctypeslib.as_array(numbers.from_address(addresses[kernel.inputs.index(wrong.buffer)]))
    places(given, wrong.rows, NEGATIVE[wrong.least < 0])
