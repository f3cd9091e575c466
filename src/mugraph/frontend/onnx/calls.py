"""A node of an ONNX graph as the rows of the table see it: its operands, attributes, opset, and how many results it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.program import ProgramTensor as Tensor

FLOATS = {1: DType.FP32, 10: DType.FP16, 11: DType.FP64, 16: DType.BF16}
"""Floating-point types by ONNX's numbers for them (`TensorProto.DataType`)."""
INTEGERS = {6: DType.INT32, 7: DType.INT64}
"""Types of integers that name places, by ONNX's numbers."""
BOOLEAN = 9
"""ONNX's number for booleans."""

Constant = NDArray[Any]
Operand = Tensor | Constant | None


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A node of an ONNX graph: operands (tensors of the program, arrays known now, None where left out), attributes, and how many
    results are asked for."""

    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any]
    opset: int
    results: int = 1

    def __getitem__(self, index: int) -> Tensor:
        """The operand at a place that must have a tensor of the program."""
        operand = self.optional(index)
        if not isinstance(operand, Tensor):
            raise UnsupportedOperator(f"operand {index} is left out, or a constant; only tensors can stand there")
        return operand

    def optional(self, index: int) -> Operand:
        """The operand at a place that may be left out."""
        return self.operands[index] if index < len(self.operands) else None

    def number(self, index: int) -> float:
        """The one number that the operand at a place is known to be."""
        return number_of(self._known(index))

    def integers(self, index: int) -> list[int]:
        """The integers that the operand at a place is known to be."""
        return [int(value) for value in self._known(index).reshape(-1)]

    def _known(self, index: int) -> Constant:
        operand = self.optional(index)
        if not isinstance(operand, np.ndarray):
            raise UnsupportedOperator(f"operand {index} is computed from inputs; it must be known beforehand (`fixed`)")
        return operand

    def axes(self, index: int = 1) -> list[int] | None:
        """The axes that an attribute or, in later opsets, the operand at a place lists."""
        if "axes" in self.attributes:
            return [int(axis) for axis in self.attributes["axes"]]
        return None if self.optional(index) is None else self.integers(index)

    def axis(self, default: int) -> int:
        """The axis of operand 0 that the attribute `axis` names, counted from the front."""
        return self.position(self.attributes.get("axis", default))

    def position(self, axis: int, rank: int | None = None) -> int:
        """An axis of operand 0, or of so many dimensions, counted from the front."""
        return position_of(axis, len(self[0].shape) if rank is None else rank)

    def filled(self, index: int, like: Tensor) -> Tensor:
        """The operand at a place as a tensor of a type, if it is a constant of one number everywhere."""
        operand = self.optional(index)
        if isinstance(operand, np.ndarray):
            return like.program.constant(number_of(operand), like.dtype).expand(*operand.shape)
        return self[index]


def position_of(axis: int, rank: int) -> int:
    """An axis of so many dimensions, counted from the front."""
    if not -rank <= axis < rank:
        raise ShapeMismatch(f"axis {axis} is none of {rank} dimensions")
    return axis % rank


def number_of(constant: Constant) -> float:
    """The one finite number that all elements of a constant are; raises UnsupportedOperator where they are none."""
    first = float(constant.reshape(-1)[0]) if constant.size else math.nan
    if not math.isfinite(first) or not np.all(constant == constant.reshape(-1)[0]):
        raise UnsupportedOperator("a constant that is not one finite number; pass it as an input")
    return first
