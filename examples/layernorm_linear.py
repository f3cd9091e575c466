"""LayerNorm followed by a linear layer, as a module with parameters.

    mugraph optimize examples/layernorm_linear.py:model

Expect one kernel. Of rows of equal elements LayerNorm makes 0, and what rounding leaves of it there is divided by the root of a
tiny epsilon. So candidates that subtract the mean once are dropped, and those that subtract the mean of what is left as well
are kept. The weight becomes an input of it; calls pass the module's current one.
"""

import torch


class NormalisedLinear(torch.nn.Module):
    """LayerNorm without gain and bias, then a linear layer without bias."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(features, elementwise_affine=False)
        self.linear = torch.nn.Linear(features, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(self.norm(x))
        return y


model = NormalisedLinear(1024, 1024)


def example_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 1024),)
