"""What PyTorch's operators mean: one row per ATen operator, written with the operators of the table.

A row takes what ATen's schema of that name lists, with tensors of the program in place of torch tensors, and serves all
overloads. Composite operators (softmax, layer_norm) are spelled out here, and attention in
`mugraph.frontend.operators.attention`, so that the search sees their algebra. Casts do nothing here: which of them round, and
which precision a value has, is decided by the caller (see `mugraph.frontend.operators.conversion`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators import (
    choices,
    elementary,
    gradients,
    lookups,
    scans,
    spelled,
    tensor_parts,
    whole_numbers,
    windows,
)
from mugraph.frontend.operators.attention import attention, attention_backward, attention_for_cpu
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Value
from mugraph.ir.program import ProgramTensor

Tensor = ProgramTensor
Operand = ProgramTensor | int | float
Dims = int | Sequence[int] | None
Rule = Callable[..., Any]

_FP32_EPSILON, _FP64_EPSILON = Fraction(1, 2**23), Fraction(1, 2**52)


def _unsupported(why: str) -> NoReturn:
    raise UnsupportedOperator(why)


def _same(x: Tensor, *ignored: Any, **also_ignored: Any) -> Tensor:
    """Copies, casts and layouts: the same tensor to the algebra."""
    return x


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _add(x: Operand, y: Operand, *, alpha: float = 1) -> Operand:
    x, y = _without_repeats(x, y)
    return x + y * alpha


def _sub(x: Operand, y: Operand, *, alpha: float = 1) -> Operand:
    x, y = _without_repeats(x, y)
    return x - y * alpha


def _rsub(x: Operand, y: Operand, alpha: float = 1) -> Operand:
    return _sub(y, x, alpha=alpha)


def _mul(x: Operand, y: Operand) -> Operand:
    x, y = _without_repeats(x, y)
    for gate, tensor in ((x, y), (y, x)):
        if isinstance(gate, Tensor) and isinstance(tensor, Tensor) and _operands(gate, "sigmoid") == (tensor.value,):
            return tensor.silu()
    return x * y


def _div(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Operand:
    if rounding_mode is not None:
        return elementary.divided(x, y, rounding_mode)
    x, y = _without_repeats(x, y)
    return x / y


def _clamp(x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    x = x if min is None or min == -math.inf else x.maximum(min)
    return x if max is None or max == math.inf else x.minimum(max)


def _clamp_max(x: Tensor, max: Operand) -> Tensor:
    return _clamp(x, None, max)


def _hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return _clamp(x, min_val, max_val)


def _hardsigmoid(x: Tensor) -> Tensor:
    return _clamp(x + 3, 0, 6) / 6


def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return x.relu() - (-x).relu() * negative_slope


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    slope = weight if len(x.shape) < 2 else weight.reshape(1, -1, *(1,) * (len(x.shape) - 2))
    return x.relu() - (-x).relu() * slope


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """exp(y) - 1 of numbers y that are not positive is 2 t / (1 - t) for t = tanh(y / 2), which cancels nothing near 0."""
    half = ((-x).relu() * (-input_scale / 2)).tanh()
    return (x.relu() + half / (1 - half) * (2 * alpha)) * scale


def _celu(x: Tensor, alpha: float = 1) -> Tensor:
    return _elu(x, alpha, 1, 1 / alpha)


def _selu(x: Tensor) -> Tensor:
    return _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x)) / beta; beyond PyTorch's threshold of 20 the two differ by 2e-9 at most."""
    if threshold < 16:
        _unsupported(f"a threshold of {threshold}, from which on it is another function; use 20")
    return spelled.softplus(x * beta) / beta


def _log_sigmoid(x: Tensor) -> Tensor:
    return -_softplus(-x)


def _lerp(start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return start + (end - start) * weight


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return x.gelu()
    inner = (x + x**3 * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.tanh() + 1)


# --- losses ----------------------------------------------------------------------------------------------------------

_MEAN, _SUM = 1, 2
"""Numbers that stand for PyTorch's reductions of losses."""


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return loss.mean()
    return loss.sum() if reduction == _SUM else loss


def _mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced((x - target).square(), reduction)


def _huber_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1) -> Tensor:
    """With what of the distance lies below `delta`: half its square, and `delta` times the rest."""
    distance = (x - target).apply("abs")
    near = distance.minimum(delta)
    return _reduced(near.square() * 0.5 + (distance - near) * delta, reduction)


def _smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1) -> Tensor:
    if beta == 0:
        return _reduced((x - target).apply("abs"), reduction)
    return _huber_loss(x, target, reduction, beta) / beta


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN) -> Tensor:
    """PyTorch takes logarithms below -100 as -100."""
    likely, unlikely = (probability.apply("log").maximum(-100) for probability in (x, 1 - x))
    loss = (target - 1) * unlikely - target * likely
    return _reduced(loss if weight is None else loss * weight, reduction)


def _binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    return _reduced(spelled.binary_cross_entropy_of_logits(x, target, weight, pos_weight), reduction)


def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced(spelled.soft_margin(x, target), reduction)


# --- contractions ----------------------------------------------------------------------------------------------------


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x @ (weight.transpose(0, 1) if len(weight.shape) == 2 else weight)
    return product if bias is None else product + bias


# --- reductions and normalisations -----------------------------------------------------------------------------------


def _sum(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return x.sum(spelled.all_if_empty(dim), keepdim)


def _mean(x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return x.mean(spelled.all_if_empty(dim), keepdim)


def _amax(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return x.amax(spelled.all_if_empty(dim), keepdim)


def _max(x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | tuple[Tensor, None]:
    if isinstance(dim, Tensor):
        return x.maximum(dim)
    largest = x.amax(dim, keepdim)
    return largest if dim is None else (largest, None)


def _min(x: Tensor, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | tuple[Tensor, None]:
    if isinstance(dim, Tensor):
        return x.minimum(dim)
    least = spelled.amin(x, dim, keepdim)
    return least if dim is None else (least, None)


def _var(
    x: Tensor, dim: Dims | bool = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    if isinstance(dim, bool):  # the overload without dimensions
        return _var(x, None, dim)
    dims = spelled.all_if_empty(dim)
    spread = (x - x.mean(dims, keepdim=True)).square().sum(dims, keepdim)
    freedom = math.prod(x.shape) // math.prod(spread.shape) - (int(unbiased) if correction is None else correction)
    if freedom <= 0:
        _unsupported(f"the variance of tensor {list(x.shape)} with {freedom:g} degrees of freedom, which is no number")
    return spread / freedom


def _std(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    return _var(x, *arguments, **options).sqrt()


def _var_mean(
    x: Tensor, dim: Dims | bool = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> tuple[Tensor, Tensor]:
    variance = _var(x, dim, unbiased, keepdim, correction=correction)
    return variance, _mean(x, None if isinstance(dim, bool) else dim, keepdim)


def _std_mean(x: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(x, *arguments, **options)
    return variance.sqrt(), mean


def _softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return x.softmax(dim)


def _log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).apply("log")


def _logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """Rows with infinities are shifted by a finite number, too: inf - inf is no number, where the sum is 0 or inf."""

    def largest(keepdim: bool) -> Tensor:
        return x.amax(dim, keepdim).maximum(x.dtype.least).minimum(x.dtype.largest)

    return (x - largest(keepdim=True)).exp().sum(dim, keepdim).apply("log") + largest(keepdim)


def _layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    normalised, _, _ = _standardised(x, tuple(range(-len(normalized_shape), 0)), eps)
    scaled = normalised if weight is None else normalised * weight
    return scaled if bias is None else scaled + bias


def _standardised(x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor with mean 0 and variance 1 over `dims`, the mean that it had, and the reciprocal of its deviation."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    deviation = (centred.square().mean(dims, keepdim=True) + eps).sqrt()
    return centred / deviation, mean, 1 / deviation


def _group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Channels are the second dimension; each group of them is normalised with all that lies behind it."""
    return _native_group_norm(x, weight, bias, x.shape[0], x.shape[1], -1, num_groups, eps)[0]


def _native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    normalised, mean, rstd = _standardised(x.reshape(N, group, -1), (-1,), eps)
    return _by_channel(normalised.reshape(*x.shape), weight, bias), mean.squeeze(-1), rstd.squeeze(-1)


def _by_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1, *(1,) * (len(x.shape) - 2))
    scaled = x if weight is None else x * weight.reshape(*shape)
    return scaled if bias is None else scaled + bias.reshape(*shape)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, None, None]:
    """In inference: by statistics that are given."""
    shape = (1, -1, *(1,) * (len(x.shape) - 2))
    normalised = (x - mean.reshape(*shape)) / (variance.reshape(*shape) + eps).sqrt()
    return _by_channel(normalised, weight, bias), None, None


def _batch_norm_of_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """By the statistics of what is given, which nobody keeps: instance norms are this on a batch of one."""
    normalised, mean, rstd = _standardised(x, (0, *range(2, len(x.shape))), eps)
    return _by_channel(normalised, weight, bias), mean.reshape(-1), rstd.reshape(-1)


def _training_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """By the statistics of what is given, of which part goes into those that are kept."""
    if not training:
        _unsupported("statistics that are given and kept; call model.eval()")
    dims = (0, *range(2, len(x.shape)))
    mean, variance = x.mean(dims), _var(x, dims)
    kept = (running_mean * (1 - momentum) + mean * momentum, running_var * (1 - momentum) + variance * momentum)
    return *_batch_norm_of_batch(x, weight, bias, training, momentum, eps), *kept


def _native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _, mean, rstd = _standardised(x, tuple(range(-len(normalized_shape), 0)), eps)
    return _layer_norm(x, normalized_shape, weight, bias, eps), mean, rstd


def _rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    # PyTorch's default is the epsilon of the type it computes in, which is fp32 for the 16-bit types.
    shift = (_FP64_EPSILON if x.dtype is DType.FP64 else _FP32_EPSILON) if eps is None else eps
    normalised = x / (x.square().mean(dims, keepdim=True) + shift).sqrt()
    return normalised if weight is None else normalised * weight


def _fused_rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, None]:
    return _rms_norm(x, normalized_shape, weight, eps), None


# --- views -----------------------------------------------------------------------------------------------------------


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    if not isinstance(shape, Sequence):
        return _unsupported(f"a view of the bits of {x.dtype} as {shape}")
    return x.reshape(*shape)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(-2, -1) if len(x.shape) > 1 else x


def _squeeze(x: Tensor, dim: Dims = None) -> Tensor:
    rank = len(x.shape)
    dims = range(rank) if dim is None else ((dim,) if isinstance(dim, int) else dim)
    dropped = {position % rank for position in dims if rank}
    return x.reshape(*(size for position, size in enumerate(x.shape) if size != 1 or position not in dropped))


def _expand(x: Tensor, sizes: Sequence[int], *, implicit: bool = False) -> Tensor:
    return x.expand(*sizes)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    x = x.reshape(*(1,) * (len(repeats) - len(x.shape)), *x.shape)
    for dim, times in enumerate(repeats):
        x = x.repeat(dim, times)
    return x


def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    if isinstance(repeats, Tensor):
        _unsupported("repeats given as a tensor; give one number")
    x = x.reshape(-1) if dim is None else x
    position = (dim or 0) % len(x.shape)
    spread = x.unsqueeze(position + 1).repeat(position + 1, repeats)
    return spread.reshape(*x.shape[:position], x.shape[position] * repeats, *x.shape[position + 1 :])


def _full_like(x: Tensor, number: float, **layout: Any) -> Tensor:
    number = float(number) if isinstance(number, bool) else number
    if not math.isfinite(number) or choices.is_negative_zero(number):
        return choices.tensor_of(number, x).expand(*x.shape)
    return x.program.constant(number, x.dtype.of_arithmetic).expand(*x.shape)


def _fill(x: Tensor, value: Operand) -> Tensor:
    return value.expand(*x.shape) if isinstance(value, Tensor) else _full_like(x, value)


# --- inside ----------------------------------------------------------------------------------------------------------


def _operands(tensor: Tensor, op: str) -> tuple[Value, ...]:
    """The operands of a tensor computed by `op`, nothing for a tensor of another origin."""
    node = tensor.program.node(tensor)
    return node.inputs if node.op == op else ()


def _without_repeats(x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Operands of an elementwise operator, without the expansions that broadcasting makes unnecessary."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return x, y
    x = _unexpanded(x, y)
    return x, _unexpanded(y, x)


def _unexpanded(x: Tensor, other: Tensor) -> Tensor:
    """The smallest tensor `x` was expanded from that broadcasts with `other` to the same shape."""
    operand = _operands(x, "repeat") or _operands(x, "reshape")
    if not operand:
        return x
    source = Tensor(x.program, operand[0])
    lead = len(x.shape) - len(source.shape)
    aligned = (1,) * lead + source.shape
    expanded = lead >= 0 and all(old in (1, new) for old, new in zip(aligned, x.shape, strict=True))
    if not expanded or np.broadcast_shapes(source.shape, other.shape) != np.broadcast_shapes(x.shape, other.shape):
        return x
    return _unexpanded(source, other)


ROWS: dict[str, Rule] = {
    # arithmetic
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": _mul,
    "div": _div,
    "true_divide": _div,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "square": Tensor.square,
    "sqrt": Tensor.sqrt,
    "rsqrt": Tensor.rsqrt,
    "exp": Tensor.exp,
    "log": lambda x: x.apply("log"),
    "log10": lambda x: x.apply("log") * (1 / math.log(10)),
    "abs": lambda x: x.apply("abs"),
    "sigmoid": Tensor.sigmoid,
    "silu": Tensor.silu,
    "relu": Tensor.relu,
    "tanh": Tensor.tanh,
    "gelu": _gelu,
    "lerp": _lerp,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp_max,
    "maximum": Tensor.maximum,
    "minimum": Tensor.minimum,
    "hardtanh": _hardtanh,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: x * _hardsigmoid(x),
    "relu6": lambda x: _clamp(x, 0, 6),
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "_prelu_kernel": lambda x, weight: x.relu() - (-x).relu() * weight,
    "elu": _elu,
    "celu": _celu,
    "selu": _selu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "log_sigmoid_forward": lambda x: (_log_sigmoid(x), None),
    "mish": lambda x: x * _softplus(x).tanh(),
    **elementary.ROWS,
    "threshold": choices.threshold,
    "hardshrink": choices.hardshrink,
    "softshrink": choices.softshrink,
    # comparisons, choices and booleans
    "lt": choices.less,
    "gt": choices.greater,
    "le": choices.at_most,
    "ge": choices.at_least,
    "eq": choices.equal,
    "ne": choices.not_equal,
    "where": choices.select,
    "masked_fill": choices.masked_fill,
    "logical_and": choices.logical_and,
    **dict.fromkeys(("bitwise_and", "__and__"), whole_numbers.bitwise_and),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__"), whole_numbers.right_shift),
    "_weight_int8pack_mm": whole_numbers.weight_int8pack_mm,
    "_scaled_mm": whole_numbers.scaled_mm,
    "dequantize_per_channel": whole_numbers.dequantize_per_channel,
    "dequantize_per_channel_group": whole_numbers.dequantize_per_channel_group,
    **dict.fromkeys(("logical_or", "bitwise_or", "__or__"), choices.logical_or),
    **dict.fromkeys(("logical_xor", "bitwise_xor", "__xor__"), choices.logical_xor),
    **dict.fromkeys(("logical_not", "bitwise_not"), choices.logical_not),
    "any": choices.any_of,
    "all": choices.all_of,
    **dict.fromkeys(("sign", "sgn"), choices.sign),
    "isnan": choices.isnan,
    "isinf": choices.isinf,
    "isfinite": choices.isfinite,
    "nan_to_num": choices.nan_to_num,
    "xlogy": choices.xlogy,
    # losses
    "mse_loss": _mse_loss,
    "huber_loss": _huber_loss,
    "smooth_l1_loss": _smooth_l1_loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "soft_margin_loss": _soft_margin_loss,
    # gradients
    **gradients.ROWS,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    # windows
    **{f"avg_pool{rank}d": functools.partial(windows.avg_pool, rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d": functools.partial(windows.max_pool, rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": functools.partial(windows.max_pool_with_indices, rank) for rank in (2, 3)},
    **{f"adaptive_avg_pool{rank}d": functools.partial(windows.adaptive_avg_pool, rank) for rank in (1, 2, 3)},
    **{f"_adaptive_avg_pool{rank}d": functools.partial(windows.adaptive_avg_pool, rank) for rank in (2, 3)},
    "convolution": windows.convolution,
    # contractions
    **spelled.ROWS,
    "linear": _linear,
    "scaled_dot_product_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu": attention_for_cpu,
    # reductions and normalisations
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "max": _max,
    "amin": spelled.amin,
    "min": _min,
    "var": _var,
    "std": _std,
    "var_mean": _var_mean,
    "std_mean": _std_mean,
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _log_softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "layer_norm": _layer_norm,
    "native_layer_norm": _native_layer_norm,
    "group_norm": _group_norm,
    "native_group_norm": _native_group_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_native_batch_norm_legit": _batch_norm_of_batch,
    "_native_batch_norm_legit_functional": _training_batch_norm,
    "rms_norm": _rms_norm,
    "_fused_rms_norm": _fused_rms_norm,
    # scans
    "cumsum": scans.cumsum,
    "cumprod": scans.cumprod,
    # views
    "view": _reshape,
    "_unsafe_view": _reshape,
    "transpose": Tensor.transpose,
    "permute": lambda x, dims: x.permute(*dims),
    "t": _transposed,
    "unsqueeze": Tensor.unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "full_like": _full_like,
    "fill": _fill,
    "zeros_like": lambda x, **layout: _full_like(x, 0, **layout),
    "ones_like": lambda x, **layout: _full_like(x, 1, **layout),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    "slice": tensor_parts.sliced,
    "select": tensor_parts.selected,
    "narrow": tensor_parts.narrowed,
    "split": tensor_parts.split,
    "split_with_sizes": tensor_parts.split,
    "unsafe_split": tensor_parts.split,
    "unsafe_split_with_sizes": tensor_parts.split,
    "chunk": tensor_parts.chunked,
    "unsafe_chunk": tensor_parts.chunked,
    "unbind": tensor_parts.unbound,
    "cat": tensor_parts.concatenated,
    "stack": tensor_parts.stacked,
    "constant_pad_nd": tensor_parts.padded,
    "flip": tensor_parts.flipped,
    "roll": tensor_parts.rolled,
    "unfold": tensor_parts.unfolded,
    **{f"reflection_pad{rank}d": tensor_parts.reflected for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d": tensor_parts.replicated for rank in (1, 2, 3)},
    # lookups
    "embedding": lookups.embedding,
    "index_select": lookups.index_select,
    "index": lookups.indexed,
    # copies and casts
    "alias": _same,
    "clone": _same,
    "detach": _same,
    "_to_copy": _same,
    "type_as": _same,
    "getitem": operator.getitem,
}
