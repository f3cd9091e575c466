"""Losses: one row per operator of ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mugraph.frontend.operators import spelled
from mugraph.ir.program import ProgramTensor as Tensor

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


ROWS: dict[str, Callable[..., Any]] = {
    "mse_loss": _mse_loss,
    "huber_loss": _huber_loss,
    "smooth_l1_loss": _smooth_l1_loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "soft_margin_loss": _soft_margin_loss,
}
