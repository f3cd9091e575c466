"""Products of tiles: on matrix units where both sides have rows, by a sum over broadcast products where one is a vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower.tile_form import Matmul
from mugraph.targets.triton.tensors import ELEMENT_TYPES, TileText, aligned, axis_of, held, padded, sizes

_LEAST_DEPTH = 16
"""Values of k from which on `tl.dot` takes factors of any type."""
_PART = 32
"""Values of k that one thread multiplies and sums in exact products, which Triton shares out by rows and columns alone."""


@dataclass(frozen=True, slots=True)
class _Dot:
    """In which type the matrix units take both factors, and what `tl.dot` is told of it."""

    dtype: DType
    option: str = ""

    @classmethod
    def of(cls, statement: Matmul) -> _Dot:
        """How a product is multiplied, whose factors `narrowing.py` has allowed to go in TF32 or not."""
        if statement.dtype is DType.FP32:
            return cls(DType.FP32, ', input_precision="ieee"')
        return cls(DType.FP32, ', input_precision="tf32"') if statement.tf32 else cls(statement.dtype)

    @property
    def exact(self) -> bool:
        """Whether threads multiply, and not the matrix units."""
        return "ieee" in self.option


def is_dot(product: Matmul) -> bool:
    """Whether `tl.dot` multiplies the factors of a lowered product."""
    *_, rows, columns = product.target.shape
    return _has_dot(rows, columns, product.left.shape[-1])


def _has_dot(rows: int, columns: int, depth: int) -> bool:
    """Whether `tl.dot` takes factors of such sizes."""
    return rows > 1 and columns > 1 and padded(depth) >= _LEAST_DEPTH


def product(statement: Matmul, left: TileText, right: TileText, total: str = "") -> str:
    """The text of `left @ right`, the statement's factors, plus the tile `total` of its target's shape if there is one.

    Padding along k must be 0.
    """
    shape, dot = statement.target.shape, _Dot.of(statement)
    rows, columns, depth = left.shape[-2], right.shape[-1], left.shape[-1]
    if not _has_dot(rows, columns, depth):
        text = _multiplied_and_summed(left, right, shape)
    elif dot.exact and padded(depth) > 2 * _PART and not sizes(shape[:-2]):
        text = _summed_in_parts(dot, left, right)
    else:
        return _dot(dot, left, right, shape, total)
    return f"{total} + {text}" if total else text


def _summed_in_parts(dot: _Dot, left: TileText, right: TileText) -> str:
    """A product of many values of k as a batch of products of parts of it, which different threads take, and their sum."""
    (rows, depth), columns = held(left.shape[-2:]), padded(right.shape[-1])
    parts = depth // _PART
    across = f"tl.permute(tl.reshape({left.wide}, {(rows, parts, _PART)}), (1, 0, 2))"
    down = f"tl.reshape({right.wide}, {(parts, _PART, columns)})"
    return f"tl.sum(tl.dot({across}, {down}{dot.option}), axis=0)"


def _dot(dot: _Dot, left: TileText, right: TileText, shape: Shape, total: str) -> str:
    one_batch = len(sizes(shape[:-2])) <= 1
    terms = [_factor(factor, shape[:-2], dot) for factor in (left, right)]
    if total and one_batch:
        terms.append(total)
    text = f"tl.dot({', '.join(terms)}{dot.option})"
    if one_batch:
        return text
    text = f"tl.reshape({text}, {held(shape)})"
    return f"{total} + {text}" if total else text


def _factor(factor: TileText, batch: Shape, dot: _Dot) -> str:
    """A factor as `tl.dot` takes it: rounded, with one dimension for all the batches if there are any."""
    text = factor.wide
    if dot.dtype is not DType.FP32:
        text = factor.text if factor.narrow is dot.dtype else f"{text}.to(tl.{ELEMENT_TYPES[dot.dtype]})"
    elif not dot.exact and factor.exact is not DType.FP16:
        text = f"to_tf32({text})"
    matrix = factor.shape[-2:]
    missing = (1,) * (len(batch) + 2 - len(factor.shape))
    if sizes((*missing, *factor.shape[:-2])) != sizes(batch):
        text = f"tl.broadcast_to({aligned(text, factor.shape, (*batch, *matrix))}, {held((*batch, *matrix))})"
    if len(sizes(batch)) > 1:
        text = f"tl.reshape({text}, {(math.prod(held(batch)), *held(matrix))})"
    return text


def _multiplied_and_summed(left: TileText, right: TileText, shape: Shape) -> str:
    rows, columns, depth = left.shape[-2], right.shape[-1], left.shape[-1]
    points = (*shape[:-2], rows, depth, columns)
    across = replace(left, shape=(*left.shape, 1))
    down = replace(right, shape=(*right.shape[:-2], 1, depth, columns))
    text = f"{aligned(across.wide, across.shape, points)} * {aligned(down.wide, down.shape, points)}"
    return text if depth == 1 else f"tl.sum({text}, axis={axis_of(points, len(points) - 2)})"
