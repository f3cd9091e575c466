"""Calls that give their operand in eager PyTorch and a copy where they are recorded or taken apart, or the other way around.

To who writes to what a call gives these are two answers. Such calls become those that are one and the same, or are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators.torch_casts import arguments_by_name, draws_random_numbers


def with_operands_as_given(program: ExportedProgram) -> ExportedProgram:
    """The program, whose calls give operands or copies as they do in eager PyTorch.

    Raises UnsupportedOperator where what is recorded does not say which.
    """
    nodes = [node for node in program.graph.nodes if node.target in _SPELLED]
    for node in nodes:
        _SPELLED[node.target](node)
    if nodes:
        program.graph_module.recompile()
    return program


def _drops_nothing(dropout: fx.Node) -> bool:
    return not draws_random_numbers(dropout) or arguments_by_name(dropout)["p"] == 0


def _dropout(node: fx.Node) -> None:
    """A dropout that drops nothing gives its operand."""
    if _drops_nothing(node):
        _cast(node)


def _native_dropout(node: fx.Node) -> None:
    """A native dropout that drops nothing gives a copy, and its operand while it is recorded: what is written to one was read of
    the other."""
    if _drops_nothing(node):
        raise UnsupportedOperator("operator aten.native_dropout: it drops nothing; call torch.nn.functional.dropout instead")


def _type_as(node: fx.Node) -> None:
    """A tensor of the type and on the device of another one is itself."""
    if node.meta["val"].device == node.all_input_nodes[0].meta["val"].device:
        _cast(node)


def _cast(node: fx.Node) -> None:
    """Make a call a cast of its first operand to the type that it gives, which of that type is the operand itself."""
    node.target, node.args, node.kwargs = torch.ops.aten.to.dtype, (node.args[0], node.meta["val"].dtype), {}


_SPELLED: Mapping[Any, Callable[[fx.Node], None]] = {
    torch.ops.aten.dropout.default: _dropout,
    torch.ops.aten.native_dropout.default: _native_dropout,
    torch.ops.aten.type_as.default: _type_as,
}
"""What becomes of calls of these operators."""
