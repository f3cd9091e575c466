"""PyTorch's own transformer layer and FlexAttention through `torch.compile`, beside eager calls and inductor.

    python benchmarks/pytorch_layers.py                    # all four, some minutes
    python benchmarks/pytorch_layers.py --only flex        # some, whose names contain this word
    python benchmarks/pytorch_layers.py --threads 1 --json

fp32, in bursts by turns (`benchmarks/contestants.py`), errors against float64. Results go to
`benchmarks/results/pytorch-layers.json`.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from contestants import by_inductor, compared, run_cases, tensors
from mugraph.integrations.torch_compile import compilations

RESULT = Path(__file__).parent / "results" / "pytorch-layers.json"
LENGTH = 512


class Flex(nn.Module):
    """Causal FlexAttention with a function of scores."""

    def __init__(self, score_mod: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.score_mod = score_mod
        self.mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, device="cpu")

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k and v of shape [batch, heads, LENGTH, width]."""
        result: torch.Tensor = flex_attention(q, k, v, score_mod=self.score_mod, block_mask=self.mask)
        return result


def layer(width: int, heads: int, norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=norm_first, activation="gelu")


HEADS = ((1, 8, LENGTH, 64),) * 3
CASES: Mapping[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "encoder layer, 8 x 64 x 256, norms first": (lambda: layer(256, 4, True), ((8, 64, 256),)),
    "encoder layer, 1 x 128 x 768, norms last": (lambda: layer(768, 12, False), ((1, 128, 768),)),
    "flex, soft cap": (lambda: Flex(lambda s, b, h, i, j: 20 * torch.tanh(s / 20)), HEADS),
    "flex, distances": (lambda: Flex(lambda s, b, h, i, j: s - (i - j) * 0.1), HEADS),
}


def measured(name: str, budget: float, rounds: int) -> dict[str, Any]:
    """Seconds and errors of all contestants, and what of the graph runs in kernels."""
    torch.manual_seed(0)
    make, shapes = CASES[name]
    module, inputs = make().eval(), tuple(torch.randn(shape) for shape in shapes)

    def by_mugraph() -> Callable[[], Any]:
        torch._dynamo.reset()
        chosen: dict[str, Any] = {"budget": budget}
        run: Any = torch.compile(module, backend="mugraph", options=chosen)
        run(*inputs)
        return lambda: run(*inputs)

    with torch.no_grad():
        exact = tensors(copy.deepcopy(module).double()(*(each.double() for each in inputs)))
        makers = {
            "eager": lambda: lambda: module(*inputs),
            "inductor": lambda: by_inductor(module, inputs),
            "inductor, frozen": lambda: by_inductor(module, inputs, freezing=True),
            "mugraph": by_mugraph,
        }
        record = compared(makers, exact, rounds)
    return {"name": name, "threads": torch.get_num_threads(), **record, "kernels": str(compilations[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for mugraph")
    parser.add_argument("--rounds", type=int, default=15)
    run_cases(parser, CASES, measured, RESULT)


if __name__ == "__main__":
    main()
