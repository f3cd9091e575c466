"""The paper's six workloads (its Table 4), with the shapes of the models they are taken from.

The functions themselves stand in `mugraph.frontend.workload_functions`, which imports PyTorch; this table does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from mugraph.errors import InvalidInput
from mugraph.frontend import require_torch
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape

if TYPE_CHECKING:
    import torch

Chosen = TypeVar("Chosen")
Shapes = Callable[[int], Mapping[str, Shape]]
"""Shapes of the inputs by name, for a batch size."""


@dataclass(frozen=True, slots=True)
class Size:
    """One size a workload comes in, and the batch size it has unless another is asked for."""

    shapes: Shapes
    batch: int = 8


@dataclass(frozen=True, slots=True)
class Workload:
    """A program of the paper's evaluation: which function, on which tensors."""

    name: str
    description: str
    architecture: str
    """The model the shapes are taken from."""
    default: str
    """Name of the function in `mugraph.frontend.workload_functions`."""
    sizes: Mapping[str, Size]
    fill: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    """What is made of a standard normal tensor to give the input of that name; results are of order 1."""
    norms: Mapping[str, str] = field(default_factory=dict)
    """Name of the function by the norm in it, where there is a choice."""

    def function(self, norm: str | None = None) -> Callable[..., torch.Tensor]:
        """The PyTorch function. Raises InvalidInput for a norm the workload does not have."""
        require_torch(f"for workload {self.name}")
        if norm is not None and not self.norms:
            raise InvalidInput(f"workload {self.name} has no norm to choose; ask for it without one")
        name = self.default if norm is None else _choose(f"norm of workload {self.name}", norm, self.norms)
        function: Callable[..., torch.Tensor] = getattr(import_module("mugraph.frontend.workload_functions"), name)
        return function

    @property
    def norm_names(self) -> tuple[str | None, ...]:
        """What `function` can be asked for, the default first."""
        return tuple(sorted(self.norms, key=lambda norm: self.norms[norm] != self.default)) or (None,)

    def inputs(
        self, batch: int | None = None, dtype: DType | str = DType.FP32, size: str = "full", seed: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """Random tensors to call the function with, the same for the same arguments. Raises InvalidInput."""
        require_torch(f"for workload {self.name}")
        import torch

        from mugraph.frontend.operators.torch_casts import DTYPES

        types = {ours: known for known, ours in DTYPES.items() if ours.is_floating}
        if (kind := DType.parse(dtype)) not in types:
            raise InvalidInput(f"workload {self.name} has no inputs of {kind}; use one of {', '.join(map(str, types))}")
        generator = torch.Generator().manual_seed(seed)
        tensors = []
        for name, shape in self.shapes(batch, size).items():
            standard = torch.randn(shape, generator=generator)
            filled = self.fill[name](standard) if name in self.fill else standard
            tensors.append(filled.to(types[kind]))
        return tuple(tensors)

    def shapes(self, batch: int | None = None, size: str = "full") -> Mapping[str, Shape]:
        """Shapes of the inputs by name, in the order of the function's parameters. Raises InvalidInput."""
        chosen = _choose(f"size of workload {self.name}", size, self.sizes)
        if batch is not None and batch < 1:
            raise InvalidInput(f"batch {batch}: use 1 or more")
        return chosen.shapes(chosen.batch if batch is None else batch)


def workload(name: str) -> Workload:
    """The workload called `name`; raises InvalidInput with the known names otherwise."""
    return _choose("workload", name, WORKLOADS)


def _choose(what: str, name: str, among: Mapping[str, Chosen]) -> Chosen:
    if name not in among:
        raise InvalidInput(f"unknown {what} {name!r}; use one of {', '.join(among)}")
    return among[name]


def _rmsnorm(hidden: int, out: int) -> Shapes:
    return lambda batch: {"x": (batch, hidden), "g": (hidden,), "w": (hidden, out)}


def _gated_mlp(hidden: int, out: int) -> Shapes:
    return lambda batch: {"x": (batch, hidden), "w_gate": (hidden, out), "w_up": (hidden, out)}


def _lora(hidden: int, out: int, rank: int) -> Shapes:
    return lambda batch: {"x": (batch, hidden), "w": (hidden, out), "a": (hidden, rank), "b": (rank, out)}


def _attention(heads: int, queries: int, keys: int, width: int) -> Shapes:
    cached = (heads, keys, width)
    return lambda batch: {"q": (batch, heads, queries, width), "k": (batch, *cached), "v": (batch, *cached)}


def _ntrans(hidden: int, tokens: int) -> Shapes:
    return lambda batch: {"x": (batch * tokens, hidden), "h": (batch * tokens, hidden), "alpha": (hidden,)}


def _weight(standard: torch.Tensor) -> torch.Tensor:
    """A matrix that keeps the size of the vectors it is multiplied with."""
    return standard.mul_(standard.shape[0] ** -0.5)


def _gain(standard: torch.Tensor) -> torch.Tensor:
    """The gain of a trained normalisation: near 1."""
    return standard.mul_(0.1).add_(1)


def _step(standard: torch.Tensor) -> torch.Tensor:
    """nGPT's learned step sizes: near 0.05, positive."""
    return _gain(standard).mul_(0.05)


WORKLOADS: Mapping[str, Workload] = {
    row.name: row
    for row in (
        Workload(
            "rmsnorm",
            "RMSNorm and a linear layer",
            "LLaMA-2-7B",
            "rmsnorm",
            {
                "full": Size(_rmsnorm(4096, 4096)),
                "figure": Size(_rmsnorm(1024, 4096), batch=16),
                "small": Size(_rmsnorm(64, 128), batch=4),
            },
            fill={"g": _gain, "w": _weight},
        ),
        Workload(
            "gated-mlp",
            "Gated multi-layer perceptron: both input projections and the gate",
            "Falcon-7B",
            "gated_mlp",
            {"full": Size(_gated_mlp(4096, 4096)), "small": Size(_gated_mlp(64, 128), batch=4)},
            fill={"w_gate": _weight, "w_up": _weight},
        ),
        Workload(
            "lora",
            "Linear layer with a low-rank adapter",
            "GPT-3-7B-LoRA",
            "lora",
            {"full": Size(_lora(4096, 4096, 16)), "small": Size(_lora(64, 128, 16), batch=4)},
            fill={"w": _weight, "a": _weight, "b": _weight},
        ),
        Workload(
            "gqa",
            "Group-query attention, one of four tensor-parallel shards",
            "LLaMA-3-70B",
            "gqa",
            {"full": Size(_attention(2, 8, 8192, 128)), "small": Size(_attention(2, 4, 64, 16), batch=2)},
        ),
        Workload(
            "qknorm",
            "Attention over normalised queries and keys",
            "Chameleon-7B",
            "qknorm_rms",
            {"full": Size(_attention(32, 1, 4096, 128)), "small": Size(_attention(2, 1, 64, 16), batch=2)},
            norms={"rms": "qknorm_rms", "layer": "qknorm_layer"},
        ),
        Workload(
            "ntrans",
            "Normalized transformer's residual step",
            "nGPT-1B",
            "ntrans",
            {"full": Size(_ntrans(2048, 8)), "small": Size(_ntrans(64, 2), batch=4)},
            fill={"alpha": _step},
        ),
    )
}
