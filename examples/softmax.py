"""Softmax over the rows of a matrix product, and the same written out with the shift that keeps exp in range.

    mugraph optimize examples/softmax.py:scores
    mugraph verify examples/softmax.py:scores examples/softmax.py:shifted_scores

Expect the two to be the same program. The shift by the row's maximum cancels, so mugraph leaves it out of the algebra, and
derives it anew for the kernels it proposes; without it they would fail the check against float64 at large input scales.
"""

import torch


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Attention probabilities of queries over keys."""
    return torch.softmax(q @ k.T / 8, dim=-1)


def shifted_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The same with the row's maximum subtracted first."""
    logits = q @ k.T / 8
    exponentials = torch.exp(logits - logits.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def example_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(64, 64), torch.randn(1024, 64)
