"""PyTorch's calls of a whole transformer layer, as the calls that they stand for.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` make one such call each at inference. It is a library's kernels one after
another; written out, programs see the products, the softmax and the norms in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of [batch, length, embed_dim] and its probabilities, where they are needed; a mask hides where it is not 0."""
    if query is key and key is value:
        projected = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        projected = tuple(map(F.linear, (query, key, value), weights, biases))
    q, k, v = (each.view(*each.shape[:2], num_head, embed_dim // num_head).transpose(1, 2) for each in projected)
    if mask is None and not need_weights:
        heads = F.scaled_dot_product_attention(q, k, v)
    else:
        logits = q @ k.transpose(-2, -1) * (embed_dim // num_head) ** -0.5
        if mask is not None:
            hidden = mask[:, None, None, :] if mask_type == _OF_KEYS else mask
            logits = logits.masked_fill(hidden.to(torch.bool), -torch.inf)
        probabilities = logits.softmax(-1)
        heads = probabilities @ v
    result = F.linear(heads.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, probabilities.mean(1) if average_attn_weights else probabilities


_OF_KEYS = 1
"""The type of a mask [batch, keys]; others are [queries, keys] and [batch, heads, queries, keys]."""


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """An encoder's layer, [batch, length, embed_dim], with its norms before or behind its two branches."""

    def attended(x: torch.Tensor) -> torch.Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attention(x, x, x, embed_dim, num_heads, *projections, mask, need_weights=False, mask_type=mask_type)[0]

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    x = src
    for branch, weight, bias in ((attended, norm_weight_1, norm_bias_1), (fed_forward, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + branch(F.layer_norm(x, (embed_dim,), weight, bias, eps))
        else:
            x = F.layer_norm(x + branch(x), (embed_dim,), weight, bias, eps)
    return x


DECOMPOSED_LAYERS: Mapping[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
"""By operator, the function that makes the calls it stands for."""

FUNCTIONS = frozenset({torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd})
"""The functions by which modules of PyTorch call them."""
