"""Which casts of a program round, and which only say that a tensor is stored in fewer bytes (docs/verification.md, "Precision").

A cast to a type that loses something is written as a rounding where its value comes back (a wider operator reads it, directly or
through operators that round nothing), and where it is made of something wider that the program was given. Between tensors of the
narrow type, precision is free: there a cast says no more than where the wide part of the program ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from mugraph.ir.dtypes import DType


class PrecisionOrigin(Enum):
    """Where a tensor of a program comes from, as far as precision goes."""

    GIVEN = auto()
    """An input, a parameter, or made of no tensor."""
    NUMBER = auto()
    """A constant that the program is written with, which takes part in no type promotion."""
    CAST = auto()
    MOVED = auto()
    """Elements of the operands, up to sign: nothing was rounded on the way."""
    COMPUTED = auto()


@dataclass(frozen=True, slots=True)
class PrecisionStep:
    """A tensor of a program: its type (None for integers and the like), how it is made, and of which steps, by number."""

    dtype: DType | None
    origin: PrecisionOrigin
    operands: tuple[int, ...] = ()


def written_roundings(steps: Sequence[PrecisionStep]) -> frozenset[int]:
    """The casts, by number, that are roundings."""
    readers: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for operand in step.operands:
            readers[operand].append(number)
    losing = [number for number, step in enumerate(steps) if step.origin is PrecisionOrigin.CAST and _loses(steps, step)]
    return frozenset(number for number in losing if _comes_back(steps, readers, number) or _made_of_wider(steps, number))


def _loses(steps: Sequence[PrecisionStep], cast: PrecisionStep) -> bool:
    """Whether a cast, whose first operand is what it casts, is to a type that lacks numbers of the operand's."""
    before = steps[cast.operands[0]].dtype if cast.operands else None
    return cast.dtype is not None and before is not None and not cast.dtype.contains(before)


def _comes_back(steps: Sequence[PrecisionStep], readers: Sequence[Sequence[int]], cast: int) -> bool:
    """Whether the value of a cast is read where more than its type is computed with."""
    reached = _reached(cast, lambda number: readers[number] if number == cast or steps[number].origin in _UNROUNDED else ())
    return any(_is_wide(steps, number, cast) for number in reached if steps[number].dtype is not None)


def _made_of_wider(steps: Sequence[PrecisionStep], cast: int) -> bool:
    """Whether something enters the wide part of the program before a cast that is not of the narrow type."""

    def sources(number: int) -> list[int]:
        floats = [operand for operand in steps[number].operands if steps[operand].dtype is not None]
        return [operand for operand in floats or steps[number].operands if _is_wide(steps, operand, cast)]

    return any(steps[number].origin is PrecisionOrigin.GIVEN for number in _reached(cast, sources))


def _is_wide(steps: Sequence[PrecisionStep], number: int, cast: int) -> bool:
    """Whether a tensor may hold what the type of a cast does not."""
    narrow, dtype = steps[cast].dtype, steps[number].dtype
    return narrow is None or dtype is None or not narrow.contains(dtype)


_UNROUNDED = (PrecisionOrigin.MOVED, PrecisionOrigin.CAST)
"""What readers of a value pass on as it is, or as a cast of their own says."""


def _reached(start: int, following: Callable[[int], Iterable[int]]) -> set[int]:
    """What is reached from a number, without it."""
    found: set[int] = set()
    stack = list(following(start))
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(following(number))
    return found
