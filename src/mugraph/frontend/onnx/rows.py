"""What ONNX's operators mean: one row per operator of the default domain, written with the operators of the table.

A row takes a `NodeCall`. Where ONNX and ATen mean the same by a composite operator, the row of `mugraph.frontend.operators.aten`
says it. Rows follow opset 7 and later; where an operator changed since, `NodeCall.opset` tells which meaning holds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from mugraph.errors import ShapeMismatch, UnsupportedOperator
from mugraph.frontend.onnx import parts_of_tensors
from mugraph.frontend.onnx.calls import BOOLEAN, FLOATS, Constant, NodeCall, Operand, number_of, position_of
from mugraph.frontend.operators import choices, scans, tensor_parts
from mugraph.frontend.operators.aten import ROWS as ATEN
from mugraph.ir.program import ProgramTensor as Tensor

Row = Callable[[NodeCall], Operand | tuple[Operand, ...]]


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        raise ShapeMismatch(f"shapes {' and '.join(str(list(shape)) for shape in shapes)} do not broadcast") from None


# --- elementwise -----------------------------------------------------------------------------------------------------


def _pointwise(function: Callable[..., Tensor]) -> Row:
    """A row for a function of operands that broadcast; constants of one number keep their rank in the result's shape."""

    def row(call: NodeCall) -> Tensor:
        given = [operand for operand in call.operands if operand is not None]
        shape = _broadcast(*(operand.shape for operand in given))
        return function(*map(_lifted, given)).reshape(*shape)

    return row


def _lifted(operand: Tensor | Constant) -> Tensor | float:
    return operand if isinstance(operand, Tensor) else number_of(operand)


def _sum(*operands: Tensor) -> Tensor:
    return reduce(operator.add, operands)


def _mean(*operands: Tensor) -> Tensor:
    return _sum(*operands) / len(operands)


def _leaky(x: Tensor, slope: Tensor | float) -> Tensor:
    return x.relu() - (-x).relu() * slope  # one of the two is 0


def _mod(call: NodeCall) -> Operand | tuple[Operand, ...]:
    """What is left has the sign of the dividend with `fmod`, and otherwise that of the divisor."""
    return _pointwise(ATEN["fmod" if call.attributes.get("fmod", 0) else "remainder"])(call)


def _pow(call: NodeCall) -> Operand | tuple[Operand, ...]:
    if isinstance(call.optional(0), Tensor) and isinstance(call.optional(1), Tensor):
        return _pointwise(ATEN["pow"])(call)
    power: Tensor = ATEN["pow"](call[0], call.number(1))
    exponent = call.optional(1)
    return power if exponent is None else power.reshape(*_broadcast(power.shape, exponent.shape))


def _clip(call: NodeCall) -> Tensor:
    bounds = [call.attributes.get(name) for name in ("min", "max")]
    for position, index in enumerate((1, 2)):
        if call.optional(index) is not None:
            bounds[position] = call.number(index)
    clipped: Tensor = ATEN["clamp"](call[0], *bounds)
    return clipped


def _largest(*operands: Tensor) -> Tensor:
    return reduce(ATEN["maximum"], operands)


def _smallest(*operands: Tensor) -> Tensor:
    return reduce(ATEN["minimum"], operands)


def _activation(name: str, *numbers: tuple[str, float]) -> Row:
    """A row of the ATen table with numbers that are attributes here."""

    def row(call: NodeCall) -> Tensor:
        result: Tensor = ATEN[name](call[0], *(float(call.attributes.get(attribute, default)) for attribute, default in numbers))
        return result

    return row


def _hard_sigmoid(call: NodeCall) -> Tensor:
    alpha, beta = (float(call.attributes.get(name, default)) for name, default in (("alpha", 0.2), ("beta", 0.5)))
    result: Tensor = ATEN["clamp"](call[0] * alpha + beta, 0, 1)
    return result


def _elu(call: NodeCall) -> Tensor:
    result: Tensor = ATEN["elu"](call[0], float(call.attributes.get("alpha", 1.0)))
    return result


def _selu(call: NodeCall) -> Tensor:
    alpha = float(call.attributes.get("alpha", 1.67326319217681884765625))
    result: Tensor = ATEN["elu"](call[0], alpha, float(call.attributes.get("gamma", 1.05070102214813232421875)))
    return result


def _gelu(call: NodeCall) -> Tensor:
    approximate = call.attributes.get("approximate", "none")
    result: Tensor = ATEN["gelu"](call[0], approximate)
    return result


def _swish(call: NodeCall) -> Tensor:
    alpha = call.attributes.get("alpha", 1.0)
    return call[0].silu() if alpha == 1.0 else (call[0] * alpha).silu() / alpha


def _dropout(call: NodeCall) -> Tensor:
    if call.optional(2) is not None and call.number(2):
        raise UnsupportedOperator("it draws random numbers in training mode; export the model for inference")
    return call[0]


# --- products, reductions, normalisations ----------------------------------------------------------------------------


def _gemm(call: NodeCall) -> Tensor:
    if len(call[0].shape) != 2 or len(call[1].shape) != 2:
        raise ShapeMismatch(f"shapes {list(call[0].shape)} and {list(call[1].shape)} are not both of two dimensions")
    left = call[0].transpose(0, 1) if call.attributes.get("transA") else call[0]
    right = call[1].transpose(0, 1) if call.attributes.get("transB") else call[1]
    product = left @ right * float(call.attributes.get("alpha", 1.0))
    added = call.optional(2)
    return product if added is None else product + _lifted(added) * float(call.attributes.get("beta", 1.0))


def _reduction(function: Callable[[Tensor, Sequence[int], bool], Tensor]) -> Row:
    """A row for a function of a tensor, axes, and whether they stay with size 1."""

    def row(call: NodeCall) -> Tensor:
        axes = call.axes()
        if not axes:
            if call.attributes.get("noop_with_empty_axes"):
                raise UnsupportedOperator("a reduction over no axis; list the axes")
            axes = list(range(len(call[0].shape)))
        return function(call[0], axes, bool(call.attributes.get("keepdims", 1)))

    return row


def _softmax(name: str) -> Row:
    def row(call: NodeCall) -> Tensor:
        rank = len(call[0].shape)
        axis = call.axis(-1 if call.opset >= 13 else 1)
        if call.opset < 13 and axis != rank - 1:
            raise UnsupportedOperator("before opset 13 it is over all axes from `axis` on; convert the model to opset 13")
        result: Tensor = ATEN[name](call[0], axis)
        return result

    return row


def _layer_normalization(call: NodeCall) -> tuple[Tensor, ...]:
    shape, epsilon = _normalized_shape(call), call.attributes.get("epsilon", 1e-5)
    result: Tensor = ATEN["layer_norm"](call[0], shape, call.optional(1), call.optional(2), epsilon)
    axes = range(-len(shape), 0)
    mean = call[0].mean(axes, keepdim=True)
    return result, mean, ((call[0] - mean).square().mean(axes, keepdim=True) + epsilon).rsqrt()


def _rms_normalization(call: NodeCall) -> Tensor:
    result: Tensor = ATEN["rms_norm"](call[0], _normalized_shape(call), call.optional(1), call.attributes.get("epsilon", 1e-5))
    return result


def _normalized_shape(call: NodeCall) -> tuple[int, ...]:
    return call[0].shape[call.axis(-1) :]


def _batch_normalization(call: NodeCall) -> Tensor:
    if call.attributes.get("training_mode") or not call.attributes.get("spatial", 1):
        raise UnsupportedOperator("training mode, or a mean per element; export the model for inference")
    scale, shift, mean, variance = (call[index].reshape(-1, *(1,) * (len(call[0].shape) - 2)) for index in (1, 2, 3, 4))
    return (call[0] - mean) / (variance + float(call.attributes.get("epsilon", 1e-5))).sqrt() * scale + shift


def _instance_normalization(call: NodeCall) -> Tensor:
    result: Tensor = ATEN["group_norm"](call[0], call[0].shape[1], call[1], call[2], call.attributes.get("epsilon", 1e-5))
    return result


def _group_normalization(call: NodeCall) -> Tensor:
    groups, epsilon = int(call.attributes["num_groups"]), call.attributes.get("epsilon", 1e-5)
    if call.opset < 21:  # scale and shift of a group before, of a channel since
        repeats = call[0].shape[1] // groups
        scale, shift = (ATEN["repeat_interleave"](call[index], repeats) for index in (1, 2))
    else:
        scale, shift = call[1], call[2]
    result: Tensor = ATEN["group_norm"](call[0], groups, scale, shift, epsilon)
    return result


def _pooled(reduction: Callable[[Tensor, Sequence[int], bool], Tensor]) -> Row:
    return lambda call: reduction(call[0], range(2, len(call[0].shape)), True)


# --- views -----------------------------------------------------------------------------------------------------------


def _cumsum(call: NodeCall) -> Tensor:
    """Along the one axis that operand 1 is known to be; `exclusive` leaves the own element out, `reverse` begins at the end."""
    axes = call.integers(1)
    if len(axes) != 1:
        raise ShapeMismatch(f"a sum that runs along the axes {axes}; it runs along one")
    x, dim = call[0], call.position(axes[0])
    reverse, exclusive = (bool(call.attributes.get(name, 0)) for name in ("reverse", "exclusive"))
    scan = "cumsum_back" if reverse else "cumsum"
    if not exclusive:
        return scans.scanned(scan, x, dim)
    if x.shape[dim] == 1:
        return x.program.constant(0, x.dtype).expand(*x.shape)
    others = tensor_parts.sliced(x, dim, 1) if reverse else tensor_parts.sliced(x, dim, 0, -1)
    return tensor_parts.with_border(scans.scanned(scan, others, dim), dim, int(not reverse), int(reverse), 0)


def _reshape(call: NodeCall) -> Tensor:
    sizes = call.integers(1)
    if not call.attributes.get("allowzero"):
        shape = call[0].shape
        if 0 in sizes[len(shape) :]:
            raise ShapeMismatch(f"sizes {sizes} keep a dimension that shape {list(shape)} does not have")
        sizes = [shape[position] if size == 0 else size for position, size in enumerate(sizes)]
    return call[0].reshape(*sizes)


def _transpose(call: NodeCall) -> Tensor:
    permutation = [int(dim) for dim in call.attributes.get("perm", range(len(call[0].shape))[::-1])]
    return call[0].permute(*permutation)


def _flatten(call: NodeCall) -> Tensor:
    shape = call[0].shape
    axis = len(shape) if call.attributes.get("axis", 1) == len(shape) else call.axis(1)
    return call[0].reshape(math.prod(shape[:axis]), math.prod(shape[axis:]))


def _squeeze(call: NodeCall) -> Tensor:
    axes = call.axes()
    if axes is not None and any(call[0].shape[position_of(axis, len(call[0].shape))] != 1 for axis in axes):
        raise ShapeMismatch(f"axes {axes} of shape {list(call[0].shape)} are not all of size 1")
    result: Tensor = ATEN["squeeze"](call[0], axes)
    return result


def _unsqueeze(call: NodeCall) -> Tensor:
    axes = call.axes() or []
    rank = len(call[0].shape) + len(axes)
    inserted = {position_of(axis, rank) for axis in axes}
    if len(inserted) != len(axes):
        raise ShapeMismatch(f"axes {axes} name a dimension twice")
    sizes = iter(call[0].shape)
    return call[0].reshape(*(1 if axis in inserted else next(sizes) for axis in range(rank)))


def _expand(call: NodeCall) -> Tensor:
    return call[0].expand(*_broadcast(call[0].shape, call.integers(1)))


def _tile(call: NodeCall) -> Tensor:
    repeats = call.integers(1)
    if len(repeats) != len(call[0].shape):
        raise ShapeMismatch(f"repeats {repeats} are not one for each dimension of shape {list(call[0].shape)}")
    result: Tensor = ATEN["repeat"](call[0], repeats)
    return result


def _chosen(condition: Tensor | float, x: Tensor | float, y: Tensor | float) -> Tensor:
    return choices.select(condition, x, y)


def _number_or_infinity(operand: Operand) -> Tensor | float:
    """A tensor, or the one number that all elements of a constant are, which may be infinite."""
    if isinstance(operand, np.ndarray) and operand.size:
        first = operand.reshape(-1)[0]
        if np.isinf(first) and np.all(operand == first):
            return float(first)
    assert operand is not None
    return _lifted(operand)


def _choosing(function: Callable[..., Tensor | float]) -> Row:
    """As `_pointwise`, of operands that may be infinite."""

    def row(call: NodeCall) -> Tensor:
        given = [operand for operand in call.operands if operand is not None]
        result = function(*map(_number_or_infinity, given))
        assert isinstance(result, Tensor)  # of constants alone, nothing is made here
        return result.reshape(*_broadcast(*(operand.shape for operand in given)))

    return row


def _cast(call: NodeCall) -> Operand:
    """The same tensor to the algebra, if both types are floating point; whether it is not 0, if it becomes a boolean."""
    kind = call.attributes.get("to")
    like = call.optional(1)
    integral = isinstance(like, np.ndarray) and like.dtype.kind in "iub"
    if kind == BOOLEAN:
        return call[0] if choices.is_boolean(call[0]) else call[0].apply("truth")
    if integral or (kind is not None and kind not in FLOATS):
        raise UnsupportedOperator("it rounds to a type that is not 16, 32 or 64 bit floating point")
    return call.optional(0)


_OF_ONE = (
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
    *("Erf", "Floor", "Ceil", "Round"),
)
"""Functions that the ATen table has by the same name."""

ROWS: dict[str, Row] = {
    # elementwise
    "Add": _pointwise(operator.add),
    "Sub": _pointwise(operator.sub),
    "Mul": _pointwise(operator.mul),
    "Div": _pointwise(operator.truediv),
    "Sum": _pointwise(_sum),
    "Mean": _pointwise(_mean),
    "PRelu": _pointwise(_leaky),
    "Neg": _pointwise(operator.neg),
    "Reciprocal": _pointwise(lambda x: 1 / x),
    "Sqrt": _pointwise(Tensor.sqrt),
    "Exp": _pointwise(Tensor.exp),
    "Log": _pointwise(ATEN["log"]),
    "Abs": _pointwise(ATEN["abs"]),
    "Sigmoid": _pointwise(Tensor.sigmoid),
    "Tanh": _pointwise(Tensor.tanh),
    "Relu": _pointwise(Tensor.relu),
    "Max": _pointwise(_largest),
    "Min": _pointwise(_smallest),
    "Elu": _elu,
    "Selu": _selu,
    "Celu": _activation("celu", ("alpha", 1.0)),
    "Softplus": _activation("softplus"),
    "Mish": _activation("mish"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _activation("hardswish"),
    "Softsign": _pointwise(lambda x: x / (ATEN["abs"](x) + 1)),
    "LeakyRelu": lambda call: _leaky(call[0], call.attributes.get("alpha", 0.01)),
    "Pow": _pow,
    "Mod": _mod,
    **{name: _pointwise(ATEN[name.lower()]) for name in _OF_ONE},
    "Clip": _clip,
    "Gelu": _gelu,
    "Swish": _swish,
    # comparisons, choices and booleans
    "Less": _choosing(choices.less),
    "Greater": _choosing(choices.greater),
    "LessOrEqual": _choosing(choices.at_most),
    "GreaterOrEqual": _choosing(choices.at_least),
    "Equal": _choosing(choices.equal),
    "Where": _choosing(_chosen),
    "And": _choosing(choices.logical_and),
    "Or": _choosing(choices.logical_or),
    "Xor": _choosing(choices.logical_xor),
    "Not": _choosing(choices.logical_not),
    "Sign": _choosing(choices.sign),
    "IsNaN": _choosing(choices.isnan),
    # products
    "MatMul": lambda call: call[0] @ call[1],
    "Gemm": _gemm,
    # reductions and normalisations
    "ReduceSum": _reduction(Tensor.sum),
    "ReduceMean": _reduction(Tensor.mean),
    "ReduceMax": _reduction(Tensor.amax),
    "ReduceMin": _reduction(lambda x, axes, keep: -((-x).amax(axes, keep))),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: x.square().sum(axes, keep)),
    "ReduceL1": _reduction(lambda x, axes, keep: ATEN["abs"](x).sum(axes, keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: x.square().sum(axes, keep).sqrt()),
    "ReduceLogSum": _reduction(lambda x, axes, keep: ATEN["log"](x.sum(axes, keep))),
    "ReduceLogSumExp": _reduction(lambda x, axes, keep: ATEN["logsumexp"](x, axes, keep)),
    "GlobalAveragePool": _pooled(Tensor.mean),
    "GlobalMaxPool": _pooled(Tensor.amax),
    "AveragePool": parts_of_tensors.average_pooled,
    "MaxPool": parts_of_tensors.max_pooled,
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "CumSum": _cumsum,
    # views
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Tile": _tile,
    # parts
    "Slice": parts_of_tensors.sliced,
    "Split": parts_of_tensors.split,
    "Gather": parts_of_tensors.gathered,
    "Concat": parts_of_tensors.concatenated,
    "Pad": parts_of_tensors.padded,
    # copies and casts
    "Identity": lambda call: call.optional(0),
    "Cast": _cast,
    "CastLike": _cast,
    "Dropout": _dropout,
}
