"""Gradients, as PyTorch's backward graphs call for them: one row per operator of ATen.

PyTorch can decompose most of these itself; with a row, a call that no kernel takes stays the one that PyTorch has. `grad` is
what the loss changes by with the operator's result, of the same shape, and so is what a row gives for the operator's operand.
Of NaN some operators have two gradients in PyTorch, by where it lies in memory; rows have one of them. Norms are given the
statistics that their forward call kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators import tensor_parts
from mugraph.frontend.operators.choices import at_least, at_most, greater, less, logical_and, select, sign
from mugraph.frontend.operators.spelled import softplus
from mugraph.frontend.operators.tensor_parts import with_border
from mugraph.ir.program import ProgramTensor as Tensor

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of what is normalised, of its weight and of its bias; None where nobody asks for it."""


# --- activations -----------------------------------------------------------------------------------------------------


def tanh_backward(grad: Tensor, output: Tensor) -> Tensor:
    """The gradient of tanh, by its result."""
    return grad * (1 - output.square())


def sigmoid_backward(grad: Tensor, output: Tensor) -> Tensor:
    """The gradient of a sigmoid, by its result."""
    return grad * (output * (1 - output))


def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """The gradient of what passes where it is above a threshold."""
    return select(at_most(x, threshold), 0, grad)


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x sigmoid(x)."""
    gate = x.sigmoid()
    return grad * gate * (1 + x * (1 - gate))


def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """The gradient of x times the normal distribution function, or of PyTorch's approximation of it by tanh."""
    if approximate == "none":
        density = (x.square() * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
        return grad * (((x * math.sqrt(0.5)).apply("erf") + 1) * 0.5 + x * density)
    slope = math.sqrt(2 / math.pi)
    bent = ((x + x**3 * 0.044715) * slope).tanh()
    inner = (x.square() * (3 * 0.044715) + 1) * slope
    return grad * ((bent + 1) * 0.5 + x * 0.5 * (1 - bent.square()) * inner)


def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x tanh(softplus(x))."""
    bent = softplus(x).tanh()
    return grad * (bent + x * x.sigmoid() * (1 - bent.square()))


def elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    """The gradient of ELU, by its operand or by its result."""
    slope = (x + alpha * scale) * input_scale if is_result else (x * input_scale).exp() * (input_scale * alpha * scale)
    return grad * select(at_most(x, 0), slope, scale)


def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float, self_is_result: bool) -> Tensor:
    """The gradient of what is multiplied by a slope unless it is above 0."""
    return select(greater(x, 0), grad, grad * negative_slope)


def hardtanh_backward(grad: Tensor, x: Tensor, min_val: float, max_val: float) -> Tensor:
    """The gradient of what is cut off at both ends."""
    return select(logical_and(greater(x, min_val), less(x, max_val)), grad, 0)


_SIXTH = 0.1666666716337204
"""In fp32, as PyTorch has it in all types."""


def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x / 6 + 1 / 2 between -3 and 3."""
    return select(logical_and(greater(x, -3), less(x, 3)), grad * _SIXTH, 0)


def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x times that."""
    return select(at_most(x, -3), 0, select(less(x, 3), grad * (x / 3 + 0.5), grad))


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """The gradient of log(1 + exp(beta x)) / beta; beyond PyTorch's threshold of 20 the two differ by 2e-9 at most."""
    if threshold < 16:
        raise UnsupportedOperator(f"a threshold of {threshold}, from which on it is another function; use 20")
    return grad * (x * beta).sigmoid()


def shrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """The gradient of what is 0 between -lambd and lambd, and moves with x elsewhere."""
    return select(logical_and(at_least(x, -lambd), at_most(x, lambd)), 0, grad)


def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """The gradient of one half of a tensor times the sigmoid of the other."""
    values, gates = tensor_parts.chunked(x, 2, dim)
    gate = gates.sigmoid()
    return x.program.concat([grad * gate, grad * values * gate * (1 - gate)], dim)


def dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient of what a mask keeps, and `scale` makes larger."""
    return grad * (mask * scale)


# --- softmaxes and losses --------------------------------------------------------------------------------------------


def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: Any = None) -> Tensor:
    """The gradient of a softmax, by its result."""
    weighted = grad * output
    return weighted - output * weighted.sum(dim, keepdim=True)


def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: Any = None) -> Tensor:
    """The gradient of the logarithm of a softmax, by its result."""
    return grad - output.exp() * grad.sum(dim, keepdim=True)


_MEAN = 1
"""The number that stands for a loss that is the mean of all elements."""


def _of_reduced(grad: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The gradient of every element of a loss before it is reduced."""
    return grad / math.prod(x.shape) if reduction == _MEAN else grad


def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient of the square of the difference."""
    return (x - target) * 2 * _of_reduced(grad, x, reduction)


def huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """The gradient of half the square of the difference, up to `delta`, and of `delta` times the rest."""
    return _clipped(x - target, delta) * _of_reduced(grad, x, reduction)


def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """The same over `beta`."""
    slope = _clipped(x - target, beta) / beta if beta else sign(x - target)
    return slope * _of_reduced(grad, x, reduction)


def _clipped(distance: Tensor, most: float) -> Tensor:
    """A distance of at most that on either side; NaN stays NaN."""
    return select(less(most, distance), most, select(less(distance, -most), -most, distance))


# --- norms -----------------------------------------------------------------------------------------------------------


def _normalised(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, dims: Sequence[int]) -> Tensor:
    """The gradient of (x - mean) rstd, of which both are statistics of x over `dims` and broadcast to it."""
    scaled = (x - mean) * rstd
    rest = grad - grad.mean(dims, keepdim=True) - scaled * (grad * scaled).mean(dims, keepdim=True)
    return rest * rstd


def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of a layer norm, by the mean and the reciprocal deviation of each row."""
    wanted, rank = output_mask, len(x.shape) - len(normalized_shape)
    inner, outer = range(rank, len(x.shape)), range(rank)
    weighted = grad if weight is None else grad * weight
    return (
        _normalised(weighted, x, mean, rstd, inner) if wanted[0] else None,
        _summed(grad * ((x - mean) * rstd), outer) if wanted[1] else None,
        _summed(grad, outer) if wanted[2] else None,
    )


def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of a group norm, by the statistics [N, group] of groups of channels."""
    wanted = output_mask
    apart = (N, group, C // group, HxW)
    weighted = grad if weight is None else grad * weight.reshape(1, -1, *(1,) * (len(x.shape) - 2))
    grads, grouped = grad.reshape(*apart), x.reshape(*apart)
    centre, scale = (each.reshape(N, group, 1, 1) for each in (mean, rstd))
    return (
        _normalised(weighted.reshape(*apart), grouped, centre, scale, (2, 3)).reshape(*x.shape) if wanted[0] else None,
        (grads * ((grouped - centre) * scale)).sum((0, 3)).reshape(C) if wanted[1] else None,
        grads.sum((0, 3)).reshape(C) if wanted[2] else None,
    )


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of a batch norm by the statistics of its batch, or by those that were kept."""
    centre, scale = (save_mean, save_invstd) if train else (running_mean, _of_deviation(running_var, eps))
    if centre is None or scale is None:
        raise UnsupportedOperator("the gradient of a batch norm without its statistics")
    shape, wanted = (1, -1, *(1,) * (len(x.shape) - 2)), output_mask
    dims = (0, *range(2, len(x.shape)))
    centre, scale = centre.reshape(*shape), scale.reshape(*shape)
    weighted = grad if weight is None else grad * weight.reshape(*shape)
    of_x = _normalised(weighted, x, centre, scale, dims) if train else weighted * scale
    return (
        of_x if wanted[0] else None,
        (grad * ((x - centre) * scale)).sum(dims) if wanted[1] else None,
        grad.sum(dims) if wanted[2] else None,
    )


def _of_deviation(variance: Tensor | None, eps: float) -> Tensor | None:
    """The reciprocal of a deviation."""
    return None if variance is None else variance.program.constant(1) / (variance + eps).sqrt()


def _summed(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.sum(dims) if dims else x


# --- parts -----------------------------------------------------------------------------------------------------------


def slice_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    """A slice with zeros around it; without steps between its elements."""
    dim = dim % len(input_sizes)
    taken = range(input_sizes[dim])[slice(start, end, step)]
    if step != 1 or not taken:
        raise UnsupportedOperator(f"writing to {len(taken)} positions {step} apart; write to neighbours")
    return with_border(grad, dim, taken.start, input_sizes[dim] - taken.stop, 0)


def select_backward(grad: Tensor, input_sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """What lies at one position of a dimension, with zeros at the others."""
    dim = dim % len(input_sizes)
    index = index % input_sizes[dim]
    return with_border(grad.unsqueeze(dim), dim, index, input_sizes[dim] - 1 - index, 0)


ROWS: dict[str, Callable[..., Any]] = {
    "tanh_backward": tanh_backward,
    "sigmoid_backward": sigmoid_backward,
    "threshold_backward": threshold_backward,
    "silu_backward": silu_backward,
    "gelu_backward": gelu_backward,
    "mish_backward": mish_backward,
    "elu_backward": elu_backward,
    "leaky_relu_backward": leaky_relu_backward,
    "hardtanh_backward": hardtanh_backward,
    "hardsigmoid_backward": hardsigmoid_backward,
    "hardswish_backward": hardswish_backward,
    "softplus_backward": softplus_backward,
    **dict.fromkeys(("hardshrink_backward", "softshrink_backward"), shrink_backward),
    "glu_backward": glu_backward,
    "native_dropout_backward": dropout_backward,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": log_softmax_backward,
    "mse_loss_backward": mse_loss_backward,
    "huber_loss_backward": huber_loss_backward,
    "smooth_l1_loss_backward": smooth_l1_loss_backward,
    "native_layer_norm_backward": layer_norm_backward,
    "native_group_norm_backward": group_norm_backward,
    "native_batch_norm_backward": batch_norm_backward,
    "slice_backward": slice_backward,
    "select_backward": select_backward,
}
"""Rows of the ATen table."""
