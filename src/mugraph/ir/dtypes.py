"""Element types of tensors."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from mugraph.errors import InvalidInput


class DType(StrEnum):
    """Element type of a tensor; the value is its name in text, JSON and on the command line.

    Booleans are bytes of 0 or 1, which kernels read and write as these numbers, and so are whole numbers of 8 bits, which weights
    may be: each is a number of every floating-point type, and what is computed of them is of one. Wider integers are inputs that
    say where a lookup reads its table (`mugraph.ir.lookups`): nothing is computed with them.
    """

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP64 = "fp64"
    BOOL = "bool"
    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return _BYTES[self]

    @property
    def is_index(self) -> bool:
        """Whether it is an integer type that says where a lookup reads."""
        return self in (DType.INT32, DType.INT64)

    @property
    def is_whole(self) -> bool:
        """Whether it is a type of whole numbers of 8 bits, which are computed with."""
        return self in (DType.INT8, DType.UINT8)

    @property
    def is_floating(self) -> bool:
        """Whether it is a floating-point type."""
        return not (self is DType.BOOL or self.is_whole or self.is_index)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return _LARGEST[self]

    @property
    def least(self) -> float:
        """The least finite number."""
        return _LEAST.get(self, -self.largest)

    @property
    def of_arithmetic(self) -> DType:
        """The type that is computed with where numbers of this one are: fp32 for booleans and whole numbers."""
        return DType.FP32 if self is DType.BOOL or self.is_whole else self

    def holds(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Where the numbers are within the range of the type; infinity and NaN are not."""
        return np.asarray((values >= self.least) & (values <= self.largest))

    def contains(self, other: DType) -> bool:
        """Whether every number of `other` is one of this type; neither of the 16-bit types contains the other."""
        return self is other or self.bytes > other.bytes

    @classmethod
    def parse(cls, text: str) -> DType:
        """The type called `text`; raises InvalidInput with the known names otherwise."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidInput(f"unknown dtype {text!r}; use one of {known}") from None

    def promote(self, other: DType) -> DType:
        """The result type of an operator on both, as in PyTorch (fp16 with bf16 gives fp32, and so does int8 with uint8 here)."""
        if self is other:
            return self
        if {self, other} in ({DType.FP16, DType.BF16}, {DType.INT8, DType.UINT8}):
            return DType.FP32
        if self is DType.BOOL and other.is_whole:
            return other
        return max(self, other, key=lambda dtype: dtype.bytes)


_BYTES = {
    DType.FP16: 2,
    DType.BF16: 2,
    DType.FP32: 4,
    DType.FP64: 8,
    DType.BOOL: 1,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT32: 4,
    DType.INT64: 8,
}
_LARGEST = {
    DType.FP16: 65504.0,
    DType.BF16: float.fromhex("0x1.fep127"),
    DType.FP32: float(np.finfo(np.float32).max),
    DType.FP64: float(np.finfo(np.float64).max),
    DType.BOOL: 1.0,
    DType.INT8: 127.0,
    DType.UINT8: 255.0,
    DType.INT32: float(2**31 - 1),
    DType.INT64: float(2**63 - 1),
}
_LEAST = {DType.BOOL: 0.0, DType.INT8: -128.0, DType.UINT8: 0.0}
_NUMPY = {
    DType.FP16: np.float16,
    DType.BF16: np.float32,
    DType.FP32: np.float32,
    DType.FP64: np.float64,
    DType.BOOL: np.float32,
    DType.INT8: np.float32,
    DType.UINT8: np.float32,
    DType.INT32: np.float64,
    DType.INT64: np.float64,
}


def round_to(dtype: DType, array: npt.ArrayLike) -> npt.NDArray[Any]:
    """The values of `array` rounded to the nearest of `dtype` (ties to even), as a NumPy array of the same shape.

    NumPy has no bf16: its values come as float32 (where numbers of float64 are rounded twice). So do booleans: 1 for
    what is not 0. Whole numbers do too, the nearest within the range of their type.
    Integers that name places come as float64, which has those that any table has rows for.
    """
    if dtype is DType.BOOL:
        return np.not_equal(array, 0).astype(np.float32)
    if dtype.is_whole:
        return np.asarray(np.rint(np.clip(array, dtype.least, dtype.largest)), np.float32)
    with np.errstate(over="ignore"):
        rounded = np.asarray(array).astype(_NUMPY[dtype])
    return _rounded_to_bf16(rounded) if dtype is DType.BF16 else rounded


def rounded_in_place(dtype: DType, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As `round_to`, of an array that nobody else reads: it is changed where it lies if its type holds the result."""
    if not dtype.is_floating or array.dtype != _NUMPY[dtype]:
        return round_to(dtype, array)
    return _rounded_to_bf16(array) if dtype is DType.BF16 else array


_AT_ONCE = 1 << 16
"""Numbers that are rounded to bf16 at once: their bits stay in a cache."""


def _rounded_to_bf16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The numbers of an array that nobody else reads, rounded where they lie; NaN stays as it is."""
    if not (numbers.flags.c_contiguous or numbers.flags.f_contiguous):
        numbers = np.ascontiguousarray(numbers)
    flat = numbers.ravel(order="K")
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        missing = np.isnan(part)
        held, bits = part[missing], part.view(np.uint32)
        bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        bits &= np.uint32(0xFFFF0000)
        part[missing] = held
    return numbers
