"""What PyTorch makes of operands before it computes, where a row, to which they are real numbers, would take them otherwise.

It compares a tensor with a number in the tensor's type: 200 is -56 beside int8, and 0.1 is another number in fp16. A boolean
mask of attention hides keys, and is not added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from mugraph.frontend.attention import is_boolean_mask, mask_of
from mugraph.frontend.torch_casts import DTYPES, name_of, tensor_of
from mugraph.ir.dtypes import DType

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def misread(node: fx.Node) -> str:
    """Why a row would take a call's operands for something else than PyTorch does; "" where it does not."""
    if is_boolean_mask(mask_of(node)):
        return "its mask is of booleans; give it 0 and -inf, as torch.where(mask, 0.0, -torch.inf)"
    if name_of(node) not in _COMPARISONS:
        return ""
    kind, single = _compared_in(node), [tensor for tensor in _tensors(node) if not tensor.dim()]
    if kind is None or (all(tensor.dtype is kind for tensor in single) and not DTYPES[kind].is_whole):
        return ""
    if DTYPES[kind].is_whole:
        numbers = [operand for operand in node.args if isinstance(operand, int) and not isinstance(operand, bool)]
        held = torch.iinfo(kind)
        if any(not held.min <= number <= held.max for number in numbers) or any(t.dtype is not kind for t in single):
            return f"it compares {kind} with a number that is converted to it first, modulo 256; convert the tensor"
        return ""
    if any(tensor.dtype.is_floating_point and tensor.dtype.itemsize > kind.itemsize for tensor in single):
        return f"it compares {kind} with a number that is rounded to it first; round it before"
    return ""


def as_compared(node: fx.Node, arguments: Any) -> Any:
    """The arguments of a call, numbers that are compared with a tensor rounded to its type."""
    kind = _compared_in(node) if name_of(node) in _COMPARISONS else None
    if kind is None or not DTYPES[kind].is_floating or DTYPES[kind] is DType.FP64:
        return arguments
    return tuple(torch.tensor(x, dtype=kind).item() if isinstance(x, float) else x for x in arguments)


def _compared_in(node: fx.Node) -> torch.dtype | None:
    """The type of the tensors with dimensions that a comparison reads; None where these have several, or one without a row."""
    kinds = {tensor.dtype for tensor in _tensors(node) if tensor.dim()}
    return kinds.pop() if len(kinds) == 1 and kinds <= DTYPES.keys() else None


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [tensor for source in node.all_input_nodes if (tensor := tensor_of(source)) is not None]
