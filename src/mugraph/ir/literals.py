"""Numbers and sizes as people write them: exact constants, and shapes of whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np

from mugraph.errors import InvalidInput
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.scalar import Scalar

Number = int | float | Fraction | Scalar | np.floating[Any] | np.integer[Any]


def exact_number(number: Number) -> Scalar:
    """The exact constant meant by any real number, NumPy's scalars included."""
    if isinstance(number, (Scalar, Fraction)):
        return Scalar.of(number)
    if isinstance(number, Integral):
        return Scalar.of(int(number))
    if isinstance(number, Real):
        return Scalar.of(float(number))
    raise InvalidInput(f"{number!r} is neither a tensor of the program nor a real number")


def rounded_to(number: Scalar, dtype: DType) -> Scalar:
    """A constant as the nearest number of `dtype`; raises InvalidInput where that is infinite."""
    return Scalar(Fraction(_finite(float(round_to(dtype, float(number))), number, dtype)), readings=number.readings)


def _finite(rounded: float, number: Scalar, dtype: DType) -> float:
    if not math.isfinite(rounded):
        raise InvalidInput(f"the constant {number} is infinite in {dtype}; only finite constants can be verified")
    return rounded


def whole_number(number: Any, what: str) -> int:
    """A size or dimension, NumPy's included, as a Python integer; raises InvalidInput, calling it `what`, for what is none."""
    if not isinstance(number, Integral) or isinstance(number, bool):
        raise InvalidInput(f"{what} {number!r} is no whole number")
    return int(number)


def sizes_of(arguments: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    """Sizes given as separate arguments or as one sequence."""
    sizes: list[int] = []
    for argument in arguments:
        sizes.extend(argument if isinstance(argument, Sequence) else (argument,))
    return tuple(whole_number(size, "size") for size in sizes)


def completed(sizes: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The shape with its -1, if any, replaced by what `elements` leave for it."""
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) != 1:
        return sizes
    if known < 1 or elements % known:
        raise InvalidInput(f"cannot reshape {elements} elements to {list(sizes)}")
    return tuple(elements // known if size == -1 else size for size in sizes)
