"""The equations of `einsum`, and under which letters its operands have the axis of symbolic size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation with a letter for every dimension of operands and result."""

    operands: tuple[str, ...]
    """The letters of each operand."""
    result: str
    axis: frozenset[str]
    """Those that an operand has the axis under."""

    @classmethod
    def of(cls, text: str, axes: Sequence[int | None]) -> Equation | None:
        """The equation of a call, with the axis of each operand; None where it does not name the dimensions of its result."""
        read, arrow, made = text.replace(" ", "").partition("->")
        if not arrow or "." in read + made:
            return None
        operands = tuple(read.split(","))
        axis = {names[dim] for names, dim in zip(operands, axes, strict=True) if dim is not None}
        return cls(operands, made, frozenset(axis))

    @property
    def has_diagonal(self) -> bool:
        """Whether the axis stands twice in one tensor."""
        return any(names.count(letter) > 1 for letter in self.axis for names in (*self.operands, self.result))
