"""What tensors of a torch graph are in a call that PyTorch makes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes


class _Watched(fx.Interpreter):
    """A call of a graph as PyTorch makes it, that keeps some of its tensors."""

    def __init__(self, module: fx.GraphModule, watched: Container[fx.Node]) -> None:
        super().__init__(module)
        self.watched, self.values = watched, dict[fx.Node, Any]()

    def run_node(self, node: fx.Node) -> Any:
        """What a call gives."""
        made = super().run_node(node)
        if node in self.watched:
            self.values[node] = made
        return made


def values_of(module: fx.GraphModule, example: Sequence[Any], watched: Container[fx.Node]) -> dict[fx.Node, Any]:
    """Some tensors of a call with these arguments."""
    interpreter = _Watched(module, watched)
    with _disable_current_modes(), torch.no_grad():
        interpreter.run(*example)
    return interpreter.values
