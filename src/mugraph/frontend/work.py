"""What a part of a torch graph costs, whoever runs it: bytes read and written, floating-point operations.

Calls that programs can express are counted by the operator table; the few others by PyTorch's own formulas, or as one
operation for each element they give.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from mugraph.errors import MugraphError
from mugraph.frontend.node_traits import bytes_of, is_static, isolated, program_of
from mugraph.ir import ops
from mugraph.ir.graph import Graph

_GATHERING = frozenset({"embedding", "index", "index_select", "gather"})
"""Operators that read of their first operand only what they give."""
_VIEWS = frozenset({"_unsafe_view"})
"""Operators that give their operand's memory although their schema does not say so."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes read and written, each tensor once, and floating-point operations."""

    bytes: int = 0
    flops: int = 0


def work_of_call(node: fx.Node) -> Work:
    """What a call costs when torch runs it alone; views, and parts of several results, cost nothing."""
    given = _tensors(node)
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", None)
    view = getattr(node.target, "is_view", False) or name in _VIEWS
    if not given or view or node.target is operator.getitem:
        return Work()
    gathers = name in _GATHERING
    read = [node if gathers and source is node.args[0] else source for source in node.all_input_nodes]
    return Work(sum(map(bytes_of, (*read, node))), _flops_of_call(node, given))


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    return [part for part in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(part, torch.Tensor)]


def work_of_program(program: Graph, tensors: Iterable[fx.Node]) -> Work:
    """What kernels that compute `program` cost at least, `tensors` being its inputs and outputs."""
    return Work(sum(map(bytes_of, tensors)), _flops_of_program(program))


def share(taken: Iterable[int], rest: Iterable[int]) -> float:
    """The part that `taken` is of everything; 0 of nothing."""
    ours = sum(taken)
    return ours / max(ours + sum(rest), 1)


def _flops_of_call(node: fx.Node, given: list[torch.Tensor]) -> int:
    """Operations of a call; 0 where none are on floats, and where sizes vary."""
    operands = [tensor for source in node.all_input_nodes for tensor in _tensors(source)]
    if not all(tensor.dtype.is_floating_point for tensor in given) or not all(map(is_static, (*operands, *given))):
        return 0
    if len(given) == 1 and len(operands) == len(node.all_input_nodes):
        with contextlib.suppress(MugraphError):
            return _flops_of_program(program_of(isolated([node], [node])[0])[0])
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return sum(tensor.numel() for tensor in given[:1])
    arguments, options = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return int(formula(*arguments, **options, out_val=node.meta["val"]))


def _flops_of_program(program: Graph) -> int:
    total = 0
    for node in program.nodes:
        call = ops.apply_call(node.op, [program.tensor(value) for value in node.inputs], dict(node.attributes))
        total += ops.operator(node.op).flops(call, node.output.shape)
    return total
