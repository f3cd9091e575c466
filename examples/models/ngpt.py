"""nGPT, the normalised transformer: every weight row and every hidden state lies on the unit sphere.

A layer moves the hidden state towards what attention or the feed-forward block proposes, by a learned step per dimension, and
projects back onto the sphere: `h = unit(h + step * (unit(block(h)) - h))`. Queries and keys are normalised per head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kept = tuple[Tensor, Tensor]
"""Keys and values of one layer, [batch, heads, tokens, width] each."""
Join = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocabulary: int


class Output(NamedTuple):
    """Logits [batch, tokens, vocabulary], and the keys and values of every layer so far."""

    logits: Tensor
    past_key_values: list[Kept]


def appended(past: Tensor, new: Tensor) -> Tensor:
    """Keys or values behind those of a cache, as a tensor of their own."""
    return torch.cat((past, new), -2)


def unit(x: Tensor) -> Tensor:
    """x scaled to length 1 along its last dimension."""
    return x / (x * x).sum(-1, keepdim=True).sqrt()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, tokens, width]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Layer(nn.Module):
    """Attention and a gated feed-forward block, both as steps on the sphere."""

    def __init__(self, config: Config, join: Join = appended) -> None:
        super().__init__()
        self.heads, self.width, self.join = config.heads, config.hidden // config.heads, join

        def rows(outputs: int, inputs: int) -> nn.Parameter:
            return nn.Parameter(unit(torch.randn(outputs, inputs)))

        self.query, self.key, self.value, self.out = (rows(config.hidden, config.hidden) for _ in range(4))
        self.gate, self.up = rows(config.intermediate, config.hidden), rows(config.intermediate, config.hidden)
        self.down = rows(config.hidden, config.intermediate)
        self.query_scale = nn.Parameter(torch.ones(self.width))
        self.attention_step = nn.Parameter(torch.full((config.hidden,), 0.5))
        self.feed_forward_step = nn.Parameter(torch.full((config.hidden,), 0.5))

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, past: Kept | None) -> tuple[Tensor, Kept]:
        """The next hidden state, and the layer's keys and values so far."""
        batch, tokens, hidden = h.shape

        def split(x: Tensor) -> Tensor:
            return x.view(batch, tokens, self.heads, self.width).transpose(1, 2)

        query = unit(rotated(split(h @ self.query.t()), cos, sin)) * self.query_scale
        key = unit(rotated(split(h @ self.key.t()), cos, sin)) * self.query_scale
        value = split(h @ self.value.t())
        if past is not None:
            key, value = self.join(past[0], key), self.join(past[1], value)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=bool(tokens > 1), scale=self.width**0.5)
        attended = mixed.transpose(1, 2).reshape(batch, tokens, hidden) @ self.out.t()
        h = unit(h + self.attention_step * (unit(attended) - h))
        gated = F.silu(h @ self.gate.t() * hidden**0.5) * (h @ self.up.t())
        h = unit(h + self.feed_forward_step * (unit(gated @ self.down.t()) - h))
        return h, (key, value)


class NGpt(nn.Module):
    """The model with random weights; `join` puts new keys or values behind those of a cache."""

    def __init__(self, config: Config, join: Join = appended) -> None:
        super().__init__()
        self.embedding = nn.Parameter(unit(torch.randn(config.vocabulary, config.hidden)))
        self.layers = nn.ModuleList(Layer(config, join) for _ in range(config.layers))
        self.logit_scale = nn.Parameter(torch.full((config.vocabulary,), config.hidden**0.5))
        self.width = config.hidden // config.heads

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: Sequence[Kept] | None = None,
        use_cache: bool = True,
        start: int | None = None,
    ) -> Output:
        """Logits of `input_ids` [batch, tokens], which follow what is in `past_key_values`.

        `start` is the position of the first of them where the cache has room for more tokens than it holds.
        """
        if start is None:
            start = past_key_values[0][0].shape[-2] if past_key_values else 0
        positions = torch.arange(start, start + input_ids.shape[1], dtype=torch.float32)
        speeds = 10_000 ** (-torch.arange(0, self.width, 2, dtype=torch.float32) / self.width)
        angles = torch.outer(positions, speeds).repeat(1, 2)
        h = self.embedding[input_ids]
        cos, sin = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
        cache: list[Kept] = []
        for number, layer in enumerate(self.layers):
            h, kept = layer(h, cos, sin, past_key_values[number] if past_key_values else None)
            cache.append(kept)
        return Output(h @ self.embedding.t() * self.logit_scale, cache)
