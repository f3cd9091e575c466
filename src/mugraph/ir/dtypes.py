"""Element types of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mugraph.errors import InvalidInput


class DType(StrEnum):
    """Element type of a tensor; the value is its name in text, JSON and on the command line.

    Booleans are bytes of 0 or 1, which kernels read and write as these numbers, and so are whole numbers of 8 bits, which weights
    may be: each is a number of every floating-point type, and what is computed of them is of one. So are floating-point numbers
    of 8 bits, as weights have them beside scales: `e4m3fn` has no infinities and one NaN of each sign, `e5m2` is the upper half
    of fp16 (OCP 8-bit Floating Point Specification). Wider integers are inputs that say where a lookup reads its table
    (`mugraph.ir.lookups`): nothing is computed with them.
    """

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP64 = "fp64"
    BOOL = "bool"
    INT8 = "int8"
    UINT8 = "uint8"
    E4M3 = "e4m3fn"
    E5M2 = "e5m2"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return _ROWS[self].bytes

    @property
    def torch_name(self) -> str:
        """PyTorch's name of the type, which NumPy has too where it has the type."""
        return _ROWS[self].torch_name

    @property
    def is_index(self) -> bool:
        """Whether it is an integer type that says where a lookup reads."""
        return self in (DType.INT32, DType.INT64)

    @property
    def is_whole(self) -> bool:
        """Whether it is a type of whole numbers of 8 bits, which are computed with."""
        return self in (DType.INT8, DType.UINT8)

    @property
    def is_fp8(self) -> bool:
        """Whether it is a floating-point type of 8 bits."""
        return _ROWS[self].mantissa is not None

    @property
    def is_stored(self) -> bool:
        """Whether only inputs are of it: its numbers are read, and computed with in another type."""
        return self.is_whole or self.is_fp8

    @property
    def is_floating(self) -> bool:
        """Whether it is a floating-point type that is computed in."""
        return not (self is DType.BOOL or self.is_stored or self.is_index)

    @property
    def is_numpys(self) -> bool:
        """Whether NumPy has it."""
        return not (self is DType.BF16 or self.is_fp8)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return _ROWS[self].largest

    @property
    def least(self) -> float:
        """The least finite number."""
        least = _ROWS[self].least
        return -self.largest if least is None else least

    @property
    def of_arithmetic(self) -> DType:
        """The type that is computed with where numbers of this one are: fp32 for booleans and what is only stored."""
        return DType.FP32 if self is DType.BOOL or self.is_stored else self

    def holds(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Where the numbers are within the range of the type; infinity and NaN are not."""
        return np.asarray((values >= self.least) & (values <= self.largest))

    def has(self, number: float) -> bool:
        """Whether a number is one of the type; NaN is not."""
        return float(round_to(self, number)) == number

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
        """The result type of an operator on both, as in PyTorch (fp16 with bf16 gives fp32, and so do two stored types here)."""
        if self is other:
            return self
        if {self, other} == {DType.FP16, DType.BF16} or (self.is_stored and other.is_stored):
            return DType.FP32
        if self is DType.BOOL and other.is_stored:
            return other
        return max(self, other, key=lambda dtype: dtype.bytes)


@dataclass(frozen=True, slots=True)
class _Row:
    """An element type: PyTorch's name, bytes of an element, the largest finite number, the type of NumPy that holds its numbers,
    the least finite number where that is not the largest one's negative, and bits of the mantissa of a type of fp8."""

    torch_name: str
    bytes: int
    largest: float
    held_as: type[np.floating[Any]] = np.float32
    least: float | None = None
    mantissa: int | None = None


_ROWS = {
    DType.FP16: _Row("float16", 2, 65504.0, np.float16),
    DType.BF16: _Row("bfloat16", 2, float.fromhex("0x1.fep127")),
    DType.FP32: _Row("float32", 4, float(np.finfo(np.float32).max)),
    DType.FP64: _Row("float64", 8, float(np.finfo(np.float64).max), np.float64),
    DType.BOOL: _Row("bool", 1, 1.0, least=0.0),
    DType.INT8: _Row("int8", 1, 127.0, least=-128.0),
    DType.UINT8: _Row("uint8", 1, 255.0, least=0.0),
    DType.E4M3: _Row("float8_e4m3fn", 1, 448.0, mantissa=3),
    DType.E5M2: _Row("float8_e5m2", 1, 57344.0, mantissa=2),
    DType.INT32: _Row("int32", 4, float(2**31 - 1), np.float64, -(2.0**31)),
    DType.INT64: _Row("int64", 8, float(2**63 - 1), np.float64, -(2.0**63)),
}


def round_to(dtype: DType, array: npt.ArrayLike) -> npt.NDArray[Any]:
    """The values of `array` rounded to the nearest of `dtype` (ties to even), as a NumPy array of the same shape.

    NumPy has no bf16: its values come as float32 (where numbers of float64 are rounded twice). So do booleans: 1 for
    what is not 0. Whole numbers and numbers of fp8 do too, the nearest within the range of their type.
    Integers that name places come as float64, which has those that any table has rows for.
    """
    if dtype is DType.BOOL:
        return np.not_equal(array, 0).astype(np.float32)
    if dtype.is_whole:
        return np.asarray(np.rint(np.clip(array, dtype.least, dtype.largest)), np.float32)
    if dtype.is_fp8:
        return fp8_numbers(dtype, fp8_codes(dtype, array))
    with np.errstate(over="ignore"):
        rounded = np.asarray(array).astype(_ROWS[dtype].held_as)
    return _rounded_to_bf16(rounded) if dtype is DType.BF16 else rounded


def rounded_in_place(dtype: DType, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As `round_to`, of an array that nobody else reads: it is changed where it lies if its type holds the result."""
    if not dtype.is_floating or array.dtype != _ROWS[dtype].held_as:
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


@cache
def _fp8_numbers(dtype: DType) -> npt.NDArray[np.float32]:
    """The number of each of the 256 codes, [256]."""
    mantissa = _ROWS[dtype].mantissa or 0
    bias = (1 << (6 - mantissa)) - 1
    codes = np.arange(128)
    exponents, fractions = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
    numbers = np.where(exponents > 0, (1 + fractions) * 2.0 ** (exponents - bias), fractions * 2.0 ** (1 - bias))
    if dtype is DType.E4M3:
        numbers[-1] = np.nan
    else:
        numbers[exponents == exponents[-1]] = np.where(fractions[exponents == exponents[-1]] == 0, np.inf, np.nan)
    return np.concatenate((numbers, -numbers)).astype(np.float32)


def fp8_numbers(dtype: DType, codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The numbers that bytes of a floating-point type of 8 bits stand for, exactly, as float32 of the same shape."""
    return _fp8_numbers(dtype)[codes]


def fp8_codes(dtype: DType, numbers: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """The bytes of the nearest numbers of a floating-point type of 8 bits (ties to even), of the same shape.

    Beyond its range they are those of the largest finite numbers, but infinities and NaN stay where it has them.
    """
    array = np.asarray(numbers, np.float64)
    sizes = _fp8_numbers(dtype)[:128].astype(np.float64)
    finite = sizes[np.isfinite(sizes)]
    size = np.minimum(np.abs(array), finite[-1])
    above = np.clip(np.searchsorted(finite, size), 1, len(finite) - 1)
    up, down = finite[above] - size, size - finite[above - 1]
    nearest = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    if np.isinf(sizes).any():
        nearest = np.where(np.isinf(array), int(np.flatnonzero(np.isinf(sizes))[0]), nearest)
    nearest = np.where(np.isnan(array), 127, nearest)
    return np.asarray(nearest + 128 * np.signbit(array), np.uint8)
