"""Training steps (forward and backward) through `torch.compile(backend="mugraph")`, beside eager PyTorch and inductor.

    python benchmarks/training.py                       # all, some minutes
    python benchmarks/training.py --only encoder        # some, whose names contain this word
    python benchmarks/training.py --threads 2 --json

fp32, in bursts by turns (`benchmarks/contestants.py`), on one thread by the time of the process; errors are those of the loss
and of all gradients against float64. `dynamo` is eager PyTorch behind Dynamo's guards, which no backend can spare, `aot_eager`
the same partition of the joint graph, run by PyTorch alone, and `mugraph, all` has kernels wherever there are any, whether they
win or not. Results go to `benchmarks/results/training.json`.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn.functional as F
from torch import nn

from contestants import compared, run_cases
from mugraph.integrations.torch_compile import compilations

RESULT = Path(__file__).parent / "results" / "training.json"
Tensors = tuple[torch.Tensor, ...]


class GatedMlp(nn.Module):
    """RMSNorm and SwiGLU with a residual, and the mean square of what comes out."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss; x and target of shape [tokens, width]."""
        y = self.norm(x)
        return F.mse_loss(x + self.down(F.silu(self.gate(y)) * self.up(y)), target)


class Encoder(nn.Module):
    """One layer of a BERT-like encoder, and the mean square of what comes out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, activation="gelu")

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss; x and target of shape [batch, length, width]."""
        return F.mse_loss(self.layer(x), target)


class Classifier(nn.Module):
    """Layers of a perceptron with norms and GELU, and the cross-entropy of classes."""

    def __init__(self, width: int, inner: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, inner), nn.Linear(inner, inner)
        self.norm, self.head = nn.LayerNorm(inner), nn.Linear(inner, classes)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss; x of shape [rows, width], target [rows] of integers."""
        hidden = F.gelu(self.first(x))
        return F.cross_entropy(self.head(self.norm(hidden + F.gelu(self.second(hidden)))), target)


class Gate(nn.Module):
    """What memory bounds: a gate of a norm, and the mean square of what comes out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss; x and target of shape [rows, width]."""
        y = self.norm(x)
        return F.mse_loss(x + F.gelu(y + self.shift) * torch.sigmoid(y), target)


Case = tuple[Callable[[], nn.Module], Callable[[], Tensors]]
CASES: Mapping[str, Case] = {
    "gate of a norm, 512 x 1024": (lambda: Gate(1024), lambda: (torch.randn(512, 1024), torch.randn(512, 1024))),
    "gated MLP, 64 x 256": (lambda: GatedMlp(256, 688), lambda: (torch.randn(64, 256), torch.randn(64, 256))),
    "encoder layer, 2 x 64 x 128": (lambda: Encoder(128, 4), lambda: (torch.randn(2, 64, 128), torch.randn(2, 64, 128))),
    "classifier, 128 x 256": (
        lambda: Classifier(256, 512, 1000),
        lambda: (torch.randn(128, 256), torch.randint(1000, (128,))),
    ),
}


def step(model: Callable[..., torch.Tensor], module: nn.Module, inputs: Tensors) -> list[torch.Tensor]:
    """The loss, and the gradient of every parameter, of one step of `model`, which runs `module`."""
    module.zero_grad()
    loss = model(*inputs)
    torch.autograd.backward(loss)
    return [loss.detach(), *(each.grad for each in module.parameters() if each.grad is not None)]


def measured(name: str, budget: float, rounds: int) -> dict[str, Any]:
    """Seconds and errors of all contestants, and what of the two graphs runs in kernels."""
    torch.manual_seed(0)
    make, draw = CASES[name]
    module, inputs = make(), draw()
    doubles = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    precise = copy.deepcopy(module).double()
    exact = step(precise, precise, doubles)

    def by(**how: Any) -> Callable[[], Callable[[], Any]]:
        def made() -> Callable[[], Any]:
            own = copy.deepcopy(module)
            compiled: Any = torch.compile(own, dynamic=False, **how)
            for _ in range(2):  # the second one decides who runs the others
                step(compiled, own, inputs)
            return lambda: step(compiled, own, inputs)

        return made

    makers = {
        "eager": lambda: lambda: step(module, module, inputs),
        "dynamo": by(backend="eager"),
        "aot_eager": by(backend="aot_eager"),
        "inductor": by(),
        "mugraph, all": by(backend="mugraph", options={"budget": budget, "keep": "all"}),
        "mugraph": by(backend="mugraph", options={"budget": budget}),
    }
    torch._dynamo.reset()
    compilations.clear()
    record = compared(makers, exact, rounds, time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
    return {"name": name, "threads": torch.get_num_threads(), **record, "kernels": [str(each) for each in compilations]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds for each of the two graphs, for mugraph")
    parser.add_argument("--rounds", type=int, default=9)
    run_cases(parser, CASES, measured, RESULT)


if __name__ == "__main__":
    main()
