"""What PyTorch makes of operands before it computes, where a row, to which they are real numbers, would take them otherwise.

It compares a tensor with a number in the tensor's type: 200 is -56 beside int8, and 0.1 is another number in fp16. A number that
becomes an element (`clamp`, `masked_fill`), or of which multiples are taken off (`fmod`), is one of that type as well. A boolean
mask of attention hides keys, and is not added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from mugraph.frontend.operators.attention import is_boolean_mask, mask_of
from mugraph.frontend.operators.torch_casts import DTYPES, FLOATS, name_of, tensor_of
from mugraph.ir.dtypes import DType

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_CONVERTING = frozenset(
    {
        "clamp", "clamp_max", "clamp_min", "constant_pad_nd", "fill", "fmod", "full_like", "hardshrink", "hardtanh",
        "masked_fill", "maximum", "minimum", "nan_to_num", "remainder", "where",
    }
)  # fmt: skip
"""Operators that convert their numbers to the type of their result; those that compute with numbers have them in fp32 or more."""
_NARROW = frozenset({torch.float16, torch.bfloat16})


def misread(node: fx.Node) -> str:
    """Why a row would take a call's operands for something else than PyTorch does; "" where it does not."""
    if is_boolean_mask(mask_of(node)):
        return "its mask is of booleans; give it 0 and -inf, as torch.where(mask, 0.0, -torch.inf)"
    single = [tensor for tensor in _tensors(node) if not tensor.dim()]
    if name_of(node) in _CONVERTING and (narrow := _converted_to(node)) is not None:
        wide = any(tensor.dtype in FLOATS and tensor.dtype is not narrow for tensor in single)
        return f"a number in a tensor of its own is rounded to {narrow} first; round it before" if wide else ""
    if name_of(node) not in _COMPARISONS:
        return ""
    kind = _compared_in(node)
    if kind is not None and DTYPES[kind].is_fp8:
        rounded = any(t.dtype is not kind for t in single) or any(isinstance(operand, int | float) for operand in node.args)
        return f"it compares {kind} with a number that is rounded to it first; convert the tensor" if rounded else ""
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


def as_converted(node: fx.Node, arguments: Mapping[str, Any] | Sequence[Any]) -> Any:
    """The arguments of a call, numbers among them as PyTorch converts them to the type of a tensor before it computes."""
    kind = _converted_to(node)
    if kind is None:
        return arguments
    if isinstance(arguments, Mapping):
        return {name: _converted(value, kind) for name, value in arguments.items()}
    return tuple(_converted(value, kind) for value in arguments)


def _converted_to(node: fx.Node) -> torch.dtype | None:
    """The type that a call converts its numbers to; None where that changes none."""
    if name_of(node) in _CONVERTING:
        given = tensor_of(node)
        return given.dtype if given is not None and given.dtype in _NARROW else None
    kind = _compared_in(node) if name_of(node) in _COMPARISONS else None
    return None if kind is None or not DTYPES[kind].is_floating or DTYPES[kind] is DType.FP64 else kind


def _converted(value: Any, kind: torch.dtype) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return torch.tensor(value, dtype=kind).item() if number else value


def _compared_in(node: fx.Node) -> torch.dtype | None:
    """The type of the tensors that a comparison reads, of those with dimensions if there are any; None for several types, or one
    without a row."""
    tensors = _tensors(node)
    kinds = {tensor.dtype for tensor in tensors if tensor.dim()} or {tensor.dtype for tensor in tensors}
    return kinds.pop() if len(kinds) == 1 and kinds <= DTYPES.keys() else None


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    return [tensor for source in node.all_input_nodes if (tensor := tensor_of(source)) is not None]
