"""What PyTorch's operators mean: one row per ATen operator, written with the operators of the table.

A row takes what ATen's schema of that name lists, with tensors of the program in place of torch tensors, and serves all
overloads. Composite operators (softmax, layer_norm, attention) are spelled out, most of them in modules of their own whose rows
this table gathers, so that the search sees their algebra. Casts do nothing here: which of them round, and which precision a value
has, is decided by the caller (see `mugraph.frontend.operators.conversion`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mugraph.frontend.operators import (
    activations,
    choices,
    elementary,
    gradients,
    lookups,
    losses,
    normalisations,
    scans,
    shapes,
    spelled,
    tensor_parts,
    whole_numbers,
    windows,
)
from mugraph.frontend.operators.attention import attention, attention_backward, attention_for_cpu
from mugraph.ir.graph import Value
from mugraph.ir.program import ProgramTensor

Tensor = ProgramTensor
Operand = ProgramTensor | int | float
Rule = Callable[..., Any]


def _same(x: Tensor, *ignored: Any, **also_ignored: Any) -> Tensor:
    """Copies, casts and layouts: the same tensor to the algebra."""
    return x


def _add(x: Operand, y: Operand, *, alpha: float = 1) -> Operand:
    x, y = _without_repeats(x, y)
    return x + y * alpha


def _sub(x: Operand, y: Operand, *, alpha: float = 1) -> Operand:
    x, y = _without_repeats(x, y)
    return x - y * alpha


def _rsub(x: Operand, y: Operand, alpha: float = 1) -> Operand:
    return _sub(y, x, alpha=alpha)


def _mul(x: Operand, y: Operand) -> Operand:
    x, y = _without_repeats(x, y)
    for gate, tensor in ((x, y), (y, x)):
        if isinstance(gate, Tensor) and isinstance(tensor, Tensor) and _operands(gate, "sigmoid") == (tensor.value,):
            return tensor.silu()
    return x * y


def _div(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Operand:
    if rounding_mode is not None:
        return elementary.divided(x, y, rounding_mode)
    x, y = _without_repeats(x, y)
    return x / y


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = x @ (weight.transpose(0, 1) if len(weight.shape) == 2 else weight)
    return product if bias is None else product + bias


def _operands(tensor: Tensor, op: str) -> tuple[Value, ...]:
    """The operands of a tensor computed by `op`, nothing for a tensor of another origin."""
    node = tensor.program.node(tensor)
    return node.inputs if node.op == op else ()


def _without_repeats(x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """Operands of an elementwise operator, without the expansions that broadcasting makes unnecessary."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return x, y
    x = _unexpanded(x, y)
    return x, _unexpanded(y, x)


def _unexpanded(x: Tensor, other: Tensor) -> Tensor:
    """The smallest tensor `x` was expanded from that broadcasts with `other` to the same shape."""
    operand = _operands(x, "repeat") or _operands(x, "reshape")
    if not operand:
        return x
    source = Tensor(x.program, operand[0])
    lead = len(x.shape) - len(source.shape)
    aligned = (1,) * lead + source.shape
    expanded = lead >= 0 and all(old in (1, new) for old, new in zip(aligned, x.shape, strict=True))
    if not expanded or np.broadcast_shapes(source.shape, other.shape) != np.broadcast_shapes(x.shape, other.shape):
        return x
    return _unexpanded(source, other)


ROWS: dict[str, Rule] = {
    # arithmetic
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": _mul,
    "div": _div,
    "true_divide": _div,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "square": Tensor.square,
    "sqrt": Tensor.sqrt,
    "rsqrt": Tensor.rsqrt,
    "exp": Tensor.exp,
    "log": lambda x: x.apply("log"),
    "log10": lambda x: x.apply("log") * (1 / math.log(10)),
    "abs": lambda x: x.apply("abs"),
    "sigmoid": Tensor.sigmoid,
    "silu": Tensor.silu,
    "relu": Tensor.relu,
    "tanh": Tensor.tanh,
    "maximum": Tensor.maximum,
    "minimum": Tensor.minimum,
    **activations.ROWS,
    **elementary.ROWS,
    "threshold": choices.threshold,
    "hardshrink": choices.hardshrink,
    "softshrink": choices.softshrink,
    # comparisons, choices and booleans
    "lt": choices.less,
    "gt": choices.greater,
    "le": choices.at_most,
    "ge": choices.at_least,
    "eq": choices.equal,
    "ne": choices.not_equal,
    "where": choices.select,
    "masked_fill": choices.masked_fill,
    "logical_and": choices.logical_and,
    **dict.fromkeys(("bitwise_and", "__and__"), whole_numbers.bitwise_and),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__"), whole_numbers.right_shift),
    "_weight_int8pack_mm": whole_numbers.weight_int8pack_mm,
    "_scaled_mm": whole_numbers.scaled_mm,
    "dequantize_per_channel": whole_numbers.dequantize_per_channel,
    "dequantize_per_channel_group": whole_numbers.dequantize_per_channel_group,
    **dict.fromkeys(("logical_or", "bitwise_or", "__or__"), choices.logical_or),
    **dict.fromkeys(("logical_xor", "bitwise_xor", "__xor__"), choices.logical_xor),
    **dict.fromkeys(("logical_not", "bitwise_not"), choices.logical_not),
    "any": choices.any_of,
    "all": choices.all_of,
    **dict.fromkeys(("sign", "sgn"), choices.sign),
    "isnan": choices.isnan,
    "isinf": choices.isinf,
    "isfinite": choices.isfinite,
    "nan_to_num": choices.nan_to_num,
    "xlogy": choices.xlogy,
    **losses.ROWS,
    # gradients
    **gradients.ROWS,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
    # windows
    **{f"avg_pool{rank}d": functools.partial(windows.avg_pool, rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d": functools.partial(windows.max_pool, rank) for rank in (1, 2, 3)},
    **{f"max_pool{rank}d_with_indices": functools.partial(windows.max_pool_with_indices, rank) for rank in (2, 3)},
    **{f"adaptive_avg_pool{rank}d": functools.partial(windows.adaptive_avg_pool, rank) for rank in (1, 2, 3)},
    **{f"_adaptive_avg_pool{rank}d": functools.partial(windows.adaptive_avg_pool, rank) for rank in (2, 3)},
    "convolution": windows.convolution,
    # contractions
    **spelled.ROWS,
    "linear": _linear,
    "scaled_dot_product_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu": attention_for_cpu,
    # reductions and normalisations
    **normalisations.ROWS,
    "amin": spelled.amin,
    # scans
    "cumsum": scans.cumsum,
    "cumprod": scans.cumprod,
    # views
    **shapes.ROWS,
    "transpose": Tensor.transpose,
    "permute": lambda x, dims: x.permute(*dims),
    "unsqueeze": Tensor.unsqueeze,
    "slice": tensor_parts.sliced,
    "select": tensor_parts.selected,
    "narrow": tensor_parts.narrowed,
    "split": tensor_parts.split,
    "split_with_sizes": tensor_parts.split,
    "unsafe_split": tensor_parts.split,
    "unsafe_split_with_sizes": tensor_parts.split,
    "chunk": tensor_parts.chunked,
    "unsafe_chunk": tensor_parts.chunked,
    "unbind": tensor_parts.unbound,
    "cat": tensor_parts.concatenated,
    "stack": tensor_parts.stacked,
    "constant_pad_nd": tensor_parts.padded,
    "flip": tensor_parts.flipped,
    "roll": tensor_parts.rolled,
    "unfold": tensor_parts.unfolded,
    **{f"reflection_pad{rank}d": tensor_parts.reflected for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d": tensor_parts.replicated for rank in (1, 2, 3)},
    # lookups
    "embedding": lookups.embedding,
    "index_select": lookups.index_select,
    "index": lookups.indexed,
    # copies and casts
    "alias": _same,
    "clone": _same,
    "detach": _same,
    "_to_copy": _same,
    "type_as": _same,
    "getitem": operator.getitem,
}
