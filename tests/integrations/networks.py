"""Networks that tests compile."""

from __future__ import annotations

import torch
from torch import nn


class Mlp(nn.Module):
    """Root-mean-square norm, linear layers and a residual."""

    def __init__(self, width: int = 32, inner: int = 64) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x of shape [rows, width]."""
        result: torch.Tensor = x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))
        return result
