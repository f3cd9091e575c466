"""What PyTorch's operators on numbers of 8 bits mean: two of 4 bits in each whole one, and products with such weights."""

from __future__ import annotations

import math

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.frontend.operators.choices import logical_and
from mugraph.ir.graph import Shape
from mugraph.ir.program import ProgramTensor

Tensor = ProgramTensor
Operand = ProgramTensor | int | float | bool


def _number(x: Operand) -> int | float | None:
    """The number that an operand is; None for other tensors."""
    if not isinstance(x, Tensor):
        return x
    return None if x.number is None or x.number.root else float(x.number.value)


def bitwise_and(x: Operand, y: Operand) -> Operand:
    """Of booleans whether both hold; of whole numbers of 8 bits the lower four bits, `x & 15`."""
    for whole, mask in ((x, y), (y, x)):
        if isinstance(whole, Tensor) and whole.dtype.is_whole:
            if _number(mask) == 15:
                return whole.apply("low_nibble")
            raise UnsupportedOperator(f"bits of a tensor {list(whole.shape)} of {whole.dtype}: use `w & 15` and `w >> 4`")
    return logical_and(x, y)


def right_shift(x: Operand, y: Operand) -> Tensor:
    """The upper four bits of whole numbers of 8 bits, `x >> 4`."""
    if isinstance(x, Tensor) and x.dtype.is_whole and _number(y) == 4:
        return x.apply("high_nibble")
    what = f"a tensor {list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else str(x)
    raise UnsupportedOperator(f"bits of {what}: use `w & 15` and `w >> 4` of int8 or uint8")


def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x[m, k] times the rows of a weight [n, k] of int8, each of which has a scale [n]: PyTorch's own product of such weights."""
    if len(x.shape) != 2 or len(weight.shape) != 2 or scales.shape != weight.shape[:1]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (x, weight, scales))
        raise ShapeMismatch(f"_weight_int8pack_mm({shapes}): it takes [m, k], [n, k] and a scale for each of the n rows")
    return (x @ weight.transpose(0, 1)) * scales


def scaled_mm(
    x: Tensor,
    weight: Tensor,
    scale_x: Tensor,
    scale_weight: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: object = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """x[m, k] of fp8 @ weight[k, n] of fp8, times the scales, of one element each or [m, 1] and [1, n], plus a bias[n].

    Products are exact and summed in fp32, whatever `use_fast_accum` allows.
    """
    (rows, _), columns = x.shape, weight.shape[1]
    shapes = [scale.shape for scale in (scale_x, scale_weight)]
    if scale_result is not None or not (all(math.prod(shape) == 1 for shape in shapes) or shapes == [(rows, 1), (1, columns)]):
        given = ", ".join(str(list(tensor.shape)) for tensor in (x, weight, scale_x, scale_weight))
        more = " with a scale of the result" if scale_result is not None else ""
        raise UnsupportedOperator(f"_scaled_mm({given}){more}: it takes a scale of each factor, or of each row and column")
    scales = [scale.reshape() if math.prod(scale.shape) == 1 else scale for scale in (scale_x, scale_weight)]
    product = (x @ weight) * scales[0] * scales[1]
    return product if bias is None else product + bias


def dequantize_per_channel(
    weight: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: object,
    out_dtype: object = None,
) -> Tensor:
    """Whole numbers less a zero point, times a scale, for each index of a dimension: both of shape [n] where that has n."""
    shape = tuple(size if dim == axis % len(weight.shape) else 1 for dim, size in enumerate(weight.shape))
    return _dequantized("dequantize_per_channel", weight, scales, zero_points, shape)


def dequantize_per_channel_group(
    weight: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: object,
    group_size: int = 128,
    output_dtype: object = None,
) -> Tensor:
    """The same for groups of neighbours in each row of a weight [n, k]: scales and zero points are [n, k / group_size]."""
    rows, depth = weight.shape
    size = depth if group_size > depth and scales.shape[-1] == 1 else group_size
    if depth % size:
        raise ShapeMismatch(f"dequantize_per_channel_group({list(weight.shape)}): rows do not divide into groups of {size}")
    grouped = weight.reshape(rows, depth // size, size)
    made = _dequantized("dequantize_per_channel_group", grouped, scales, zero_points, (rows, depth // size, 1))
    return made.reshape(rows, depth)


def _dequantized(name: str, weight: Tensor, scales: Tensor, zero_points: Tensor | None, shape: Shape) -> Tensor:
    """(weight - zero point) * scale, both reshaped; PyTorch would subtract whole numbers of 8 bits modulo 256."""
    if zero_points is None:
        return weight * scales.reshape(*shape)
    if zero_points.dtype.is_whole:
        given = f"zero points {list(zero_points.shape)} of {zero_points.dtype}"
        raise UnsupportedOperator(f"{name} counts {given} modulo 256; convert them to a floating-point type")
    return (weight - zero_points.reshape(*shape)) * scales.reshape(*shape)
