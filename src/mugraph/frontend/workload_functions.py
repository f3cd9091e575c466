"""The paper's six workloads as their users write them in PyTorch (paper, Table 4; shapes in `mugraph.frontend.workloads`)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

EPSILON = 1e-5


def rmsnorm(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm with gain g, then a linear layer: (x / rms(x) * g) @ w."""
    return _rms(x) * g @ w


def gated_mlp(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor) -> torch.Tensor:
    """Both input projections of a gated MLP: silu(x @ w_gate) * (x @ w_up)."""
    return F.silu(x @ w_gate) * (x @ w_up)


def lora(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A linear layer with a low-rank adapter: x @ w + x @ a @ b."""
    return x @ w + x @ a @ b


def gqa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in which the queries of a group share their keys and values."""
    return F.scaled_dot_product_attention(q, k, v)


def qknorm_rms(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention over queries and keys that are RMS-normalised first."""
    return _attention(_rms(q), _rms(k), v)


def qknorm_layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention over queries and keys that are layer-normalised first, as in Chameleon."""
    width = q.shape[-1:]
    return _attention(F.layer_norm(q, width, eps=EPSILON), F.layer_norm(k, width, eps=EPSILON), v)


def ntrans(x: torch.Tensor, h: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """The normalized transformer's step from x towards h: norm(x + alpha * norm(h - x))."""
    return _unit(x + alpha * _unit(h - x))


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def _unit(x: torch.Tensor) -> torch.Tensor:
    length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, dim=-1) @ v
