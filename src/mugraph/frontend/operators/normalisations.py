"""Reductions, softmaxes and norms: one row per operator of ATen, spelled out so that the search sees their algebra."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators import spelled
from mugraph.ir.dtypes import DType
from mugraph.ir.program import ProgramTensor as Tensor

Dims = int | Sequence[int] | None

_FP32_EPSILON, _FP64_EPSILON = Fraction(1, 2**23), Fraction(1, 2**52)


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
        raise UnsupportedOperator(
            f"the variance of tensor {list(x.shape)} with {freedom:g} degrees of freedom, which is no number"
        )
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
    """Rows with infinities are shifted by a finite number, too: inf - inf is no number, where the sum is 0 or inf. A row of one
    element is that element: its logarithm of an exponential would keep the search from the algebra of what it is made of."""
    if math.prod((only := x.amax(dim, keepdim)).shape) == math.prod(x.shape):
        return only

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
        raise UnsupportedOperator("statistics that are given and kept; call model.eval()")
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


ROWS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "max": _max,
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
}
