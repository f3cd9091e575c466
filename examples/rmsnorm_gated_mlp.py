"""The first half of a LLaMA feed-forward block: RMSNorm, then both projections of the gated MLP.

    mugraph optimize examples/rmsnorm_gated_mlp.py:normalised_gate

Expect one kernel that reads x once: both products and the sum of squares come first, and the root mean square is divided
out of the products.
"""

import torch
import torch.nn.functional as F


def normalised_gate(x: torch.Tensor, gain: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(norm(x) @ gate) * (norm(x) @ up)"""
    y = F.rms_norm(x, x.shape[-1:], gain, eps=1e-5)
    return F.silu(y @ gate) * (y @ up)


def example_inputs() -> tuple[torch.Tensor, ...]:
    width, hidden = 1024, 2048
    gain = 1 + torch.randn(width) / 10
    return torch.randn(8, width), gain, torch.randn(width, hidden) / 32, torch.randn(width, hidden) / 32
