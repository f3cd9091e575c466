"""The programs that the muGraphs in examples/paper are written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mugraph.frontend.workloads import WORKLOADS

DTYPE = "fp16"
"""Of all inputs, as in the paper's evaluation."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload with its norm, where there is a choice, and its size."""

    workload: str
    size: str = "full"
    norm: str | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The PyTorch function."""
        return WORKLOADS[self.workload].function(self.norm)

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Tensors to call it with."""
        return WORKLOADS[self.workload].inputs(None, DTYPE, self.size)


WRITTEN_FOR = {
    "rmsnorm": Subject("rmsnorm", "figure"),
    "gqa": Subject("gqa"),
    "qknorm": Subject("qknorm", norm="layer"),
    "lora": Subject("lora"),
    "gated_mlp": Subject("gated-mlp"),
    "ntrans": Subject("ntrans"),
}
"""By the name of the file."""
