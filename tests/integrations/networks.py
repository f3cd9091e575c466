"""Networks that tests compile."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    """Root-mean-square norm, linear layers and a residual."""

    def __init__(self, width: int = 32, inner: int = 64) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x of shape [rows, width]."""
        result: torch.Tensor = x + self.down(F.silu(self.up(self.norm(x))))
        return result


class Decoder(nn.Module):
    """A layer that appends a key and a value to a cache, and attends to all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 64, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, new, value = self.qkv(x).split([32, 16, 16], -1)
        k = torch.cat([k, new.view(-1, 1, 2, 8).transpose(1, 2)], 2)
        v = torch.cat([v, value.view(-1, 1, 2, 8).transpose(1, 2)], 2)
        attended = F.scaled_dot_product_attention(q.view(-1, 1, 4, 8).transpose(1, 2), k, v, enable_gqa=True)
        return x + self.out(attended.transpose(1, 2).reshape(-1, 1, 32)), k, v
