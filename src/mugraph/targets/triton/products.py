"""Products of tiles: on matrix units where both sides have rows, by a sum over broadcast products where one is a vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape
from mugraph.lower.tile_form import Kernel, Matmul
from mugraph.targets.triton.expressions import unwrapped
from mugraph.targets.triton.tensors import ELEMENT_TYPES, Padding, TileText, aligned, axis_of, product_of, sizes
from mugraph.targets.triton.units import Units, has_dot, is_dot

_PART = 32
"""Values of k in a part of a product that is shared out among threads or warps by k."""


@dataclass(frozen=True, slots=True)
class _Dot:
    """In which type the matrix units take both factors, and what `tl.dot` is told of it."""

    dtype: DType
    option: str = ""

    @classmethod
    def of(cls, statement: Matmul, units: Units) -> _Dot:
        """How a product is multiplied, whose factors `narrowing.py` has allowed to go in TF32 or not."""
        if units.factor_type(statement) is DType.FP32 and not (statement.tf32 and units.tf32):
            return cls(DType.FP32, ', input_precision="ieee"')
        return cls(DType.FP32, ', input_precision="tf32"') if statement.tf32 else cls(statement.dtype)

    @property
    def exact(self) -> bool:
        """Whether threads multiply, and not the matrix units."""
        return "ieee" in self.option


def padding_for(form: Kernel, units: Units) -> Padding:
    """The padding of a kernel's tiles: rows and columns of products that matrix units multiply are as many as these take."""
    products = (each for each in form.statements if isinstance(each, Matmul) and units.factor_type(each) in units.types)
    extents = {size for each in products if is_dot(each) for size in each.target.shape[-2:]}
    return Padding(frozenset(size for size in extents if size < units.least), units.least)


@dataclass(frozen=True, slots=True)
class Products:
    """How the products of a kernel are written: for which units and so many warps, over tiles with which padding."""

    units: Units
    warps: int
    padding: Padding

    def text(self, statement: Matmul, left: TileText, right: TileText, total: str = "") -> str:
        """The text of `left @ right`, the statement's factors, plus the tile `total` of its target's shape if there is one.

        Padding along k must be 0.
        """
        shape, dot = statement.target.shape, _Dot.of(statement, self.units)
        rows, columns, depth = left.shape[-2], right.shape[-1], left.shape[-1]
        if not has_dot(rows, columns, depth):
            text = _multiplied_and_summed(left, right, shape)
        elif self._is_shared_out_by_depth(statement, dot):
            text = self._summed_in_parts(dot, left, right)
        else:
            return self._dot(dot, left, right, shape, total)
        return f"{total} + {text}" if total else text

    def _is_shared_out_by_depth(self, statement: Matmul, dot: _Dot) -> bool:
        """Whether parts of k are products of their own: Triton shares out rows and columns alone, and where those are few, AMD's
        warps would each hold all of both factors."""
        *batch, rows, columns = statement.target.shape
        if self.padding.size(statement.left.shape[-1]) <= 2 * _PART or sizes(tuple(batch)):
            return False
        if dot.exact and dot.dtype not in self.units.types:
            return True
        tiles = self.padding.size(rows) * self.padding.size(columns) // self.units.least**2
        return self.units.least > 1 and tiles < self.warps

    def _summed_in_parts(self, dot: _Dot, left: TileText, right: TileText) -> str:
        """A product of many values of k as a batch of products of parts of it, which different threads take, and their sum."""
        (rows, depth), columns = self.padding.held(left.shape[-2:]), self.padding.size(right.shape[-1])
        parts = depth // _PART
        first, second = (self._factor(factor, (), dot) for factor in (left, right))
        across = f"tl.permute(tl.reshape({first}, {(rows, parts, _PART)}), (1, 0, 2))"
        down = f"tl.reshape({second}, {(parts, _PART, columns)})"
        return f"tl.sum(tl.dot({across}, {down}{dot.option}), axis=0)"

    def _dot(self, dot: _Dot, left: TileText, right: TileText, shape: Shape, total: str) -> str:
        one_batch = len(sizes(shape[:-2])) <= 1
        terms = [self._factor(factor, shape[:-2], dot) for factor in (left, right)]
        if total and one_batch:
            terms.append(total)
        text = f"tl.dot({', '.join(terms)}{dot.option})"
        if one_batch:
            return text
        text = f"tl.reshape({text}, {self.padding.held(shape)})"
        return f"{total} + {text}" if total else text

    def _factor(self, factor: TileText, batch: Shape, dot: _Dot) -> str:
        """A factor as `tl.dot` takes it: rounded, with one dimension for all the batches if there are any."""
        text, held = factor.wide, self.padding.held
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
    factors = aligned(across.wide, across.shape, points), aligned(down.wide, down.shape, points)
    text = product_of(points).format(*factors)
    return text if depth == 1 else f"tl.sum({unwrapped(text)}, axis={axis_of(points, len(points) - 2)})"
