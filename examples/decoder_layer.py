"""A layer of a decoder with its embedding: no program as a whole, as PyTorch looks tokens up and splits the projection.

mugraph coverage examples/decoder_layer.py:layer
mugraph optimize examples/decoder_layer.py:layer
"""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Root mean square norms, rotary embeddings, causal attention and a gated MLP."""

    def __init__(self, width: int = 256, heads: int = 4, tokens: int = 64, words: int = 1000) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(words, width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        angles = torch.outer(torch.arange(tokens), 10000 ** -torch.arange(0, 1, 2 * heads / width)).repeat(1, 2)
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Queries or keys [batch, heads, tokens, width], turned by angles that grow with their places."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens [batch, tokens] to features [batch, tokens, width]."""
        x = self.embedding(tokens)
        parts = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


torch.manual_seed(0)
layer = Layer().eval().requires_grad_(False)


def example_inputs() -> tuple[torch.Tensor, ...]:
    """A batch of two sequences."""
    return (torch.randint(1000, (2, 64)),)
