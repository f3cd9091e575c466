"""NumPy arrays as kernels run on them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from mugraph.errors import InvalidInput
from mugraph.host.array_interface import Arrays, KernelCall, RunInputs, mismatch, on_host, wrong_type
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Shape, Tensor
from mugraph.ir.lookups import taken
from mugraph.ir.ops import Call, operator


class NumpyArrays:
    """NumPy arrays; bf16 has no NumPy type, so such graphs take torch tensors only."""

    def __init__(self) -> None:
        self.dtypes = {dtype: np.dtype(dtype.torch_name) for dtype in DType if dtype.is_numpys}

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        if dtype not in self.dtypes:
            raise InvalidInput(f"NumPy has no {dtype} arrays; pass torch tensors")
        return self.dtypes[dtype]

    def expect_values(self, arrays: Sequence[Array]) -> None:
        """NumPy's have them."""

    def expect_place(self, array: Array, name: str) -> None:
        """NumPy's lie nowhere else."""

    def allocator(self, tensor: Tensor, varying: bool = False) -> Callable[[], Array]:
        return functools.partial(np.empty, tensor.shape, self.dtype(tensor.dtype))

    def fitting(self, tensor: Tensor) -> Callable[[Array], bool]:
        shape, dtype = tensor.shape, self.dtype(tensor.dtype)
        return lambda array: array.shape == shape and array.dtype == dtype and array.flags.c_contiguous and array.flags.writeable

    def workspace(self, size: int) -> Callable[[], Array]:
        return functools.partial(np.empty, size, np.uint8)

    def window(self, workspace: Array, offset: int, tensor: Tensor) -> Array:
        return workspace[offset : offset + tensor.bytes].view(self.dtype(tensor.dtype)).reshape(tensor.shape)

    @property
    def pointer(self) -> Callable[[Array], int]:
        return _ADDRESS

    def launches(self, calls: Sequence[KernelCall]) -> Callable[..., None]:
        return on_host(calls)

    def on_device(self, run: RunInputs) -> RunInputs:
        return run

    def recognizer(self, arrays: Sequence[Array], varying: Mapping[int, int] = MappingProxyType({})) -> None:
        """Their readers are as fast as anything."""

    def reader(self, name: str, tensor: Tensor) -> Callable[[Array], Array]:
        dtype = self.dtype(tensor.dtype)

        def read(array: Array) -> Array:
            if array.shape != tensor.shape:
                raise mismatch(name, array.shape, tensor)
            if array.dtype != dtype:
                raise wrong_type(name, array.dtype, tensor)
            return self.contiguous(array)

        return read

    def reshape(self, array: Array, shape: Shape) -> Array:
        return array.reshape(shape)

    def transpose(self, array: Array, permutation: Sequence[int]) -> Array:
        return array.transpose(permutation)

    def contiguous(self, array: Array) -> Array:
        return np.ascontiguousarray(array) if array.ndim else array

    def copy(self, array: Array) -> Array:
        return array.copy()

    def matmul(self, left: Array, right: Array) -> Array:
        if np.float16 in (left.dtype, right.dtype):  # NumPy multiplies these one by one, a thousand times as slowly as BLAS
            return _widened_product(left, right)
        return np.asarray(np.matmul(left, right))

    def packs(self, weight: Tensor) -> bool:
        return False

    def pack(self, matrix: Array) -> Array:
        return matrix

    def packed_product(self, left: Array, packed: Array) -> Array:
        return self.matmul(left, packed)

    def look_up(self, table: Array, index: Array, dim: int, negative: str) -> Array:
        return taken(dim, negative)([table, index])

    def compute(self, call: Call, operands: Sequence[Array], tensor: Tensor) -> Array:
        wide = np.float64 if tensor.dtype is DType.FP64 else np.float32
        arithmetic = FloatArithmetic(wide)
        return self.from_numpy(operator(call.op).compute(arithmetic, call, [array.astype(wide) for array in operands]), tensor)

    def to_numpy(self, array: Array) -> Array:
        return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)

    def from_numpy(self, array: Array, tensor: Tensor) -> Array:
        return np.require(np.broadcast_to(array, tensor.shape), self.dtype(tensor.dtype), "C")

    def repeated(self, numbers: Array, tensor: Tensor) -> Array:
        return np.resize(numbers.astype(self.dtype(tensor.dtype), copy=False), tensor.shape)

    def refilled(self, held: Array | None, array: Array, tensor: Tensor) -> Array:
        return self.from_numpy(array, tensor)  # of which nothing is kept

    def updated(self, held: Array | None, shape: Shape, index: Any, numbers: Array, tensor: Tensor) -> Array:
        made = np.empty(tensor.shape, self.dtype(tensor.dtype)) if held is None else held
        made.reshape(shape)[index] = numbers
        return made


_WIDENED = 1 << 19
"""Elements of two factors that are converted to a wider type at once: they stay in a cache."""


def _widened_product(left: Array, right: Array) -> Array:
    """The product of factors of which one at least is of fp16, rounded to the wider type once: of some of a batch at a time."""
    batch, dtype = left.shape[:-2], np.result_type(left, right)
    if not batch or batch != right.shape[:-2]:
        return _product(left, right).astype(dtype)
    members = math.prod(batch)
    x, y = (array.reshape(members, *array.shape[-2:]) for array in (left, right))
    result = np.empty((members, x.shape[-2], y.shape[-1]), dtype)
    step = max(1, members * _WIDENED // max(1, x.size + y.size))
    for start in range(0, members, step):
        result[start : start + step] = _product(x[start : start + step], y[start : start + step])
    return result.reshape(*batch, *result.shape[1:])


def _product(left: Array, right: Array) -> Array:
    """A product in fp32; many of vectors are summed in fp64 without BLAS, which wakes its threads for each: on a busy machine
    they wait a hundred times as long as they multiply."""
    if max(left.ndim, right.ndim) > 2 and 1 in (left.shape[-2], right.shape[-1]):
        return np.asarray(np.einsum("...ij,...jk->...ik", *(array.astype(np.float64, copy=False) for array in (left, right))))
    return np.asarray(np.matmul(*(array.astype(np.float32, copy=False) for array in (left, right))))


NUMPY: Arrays = NumpyArrays()


_ADDRESS: Callable[[Array], int] = attrgetter("ctypes.data")
