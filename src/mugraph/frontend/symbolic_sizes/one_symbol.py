"""Tensors without data that have one symbolic size: what a graph with several sizes is written over to, to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import _disable_current_modes

_HINT = 61
"""What the symbol stands for where PyTorch wants a number, no more common than others."""


class OneSymbol:
    """A symbol of its own, `size`, and tensors that have it."""

    def __init__(self) -> None:
        with _disable_current_modes():
            real = torch.empty(_HINT)
        self._mode = FakeTensorMode(shape_env=ShapeEnv())
        context: Any = StatelessSymbolicContext([DimDynamic.DUCK])
        self.size: Any = self._mode.from_tensor(real, source=ConstantSource("size"), symbolic_context=context).shape[0]

    def called(self, operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator makes of tensors that have the symbol."""
        with _disable_current_modes(), self._mode:
            return operator(*args, **kwargs)

    def like(self, tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
        """A contiguous tensor of another shape, of the same type and on the same device."""
        with _disable_current_modes(), self._mode:
            return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
