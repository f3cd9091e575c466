"""Scaled dot-product attention as PyTorch defines it, spelled out in operators of the table; and its masks in torch graphs.

A mask is a tensor that is added to the scores; -inf hides a key. Where it hides every key of a query, attention is 0 in
PyTorch, but 0 / 0 in a program. So a program can stand for masked attention only where somebody looks at the mask first
(`hides_a_row`). The mask of causal attention hides no row; it becomes a further input of the program.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators.torch_casts import tensor_of
from mugraph.ir.program import ProgramTensor as Tensor
from mugraph.ir.scalar import Scalar


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    mask_is_watched: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value, over [..., heads, tokens, width].

    Raises UnsupportedOperator for dropout, and for masks unless `mask_is_watched`: the caller sees to it that none of them hides
    a row, and gives what `causal_mask` makes for the inputs that causal attention adds to the program.
    """
    scores = _scores(query, key, attn_mask, dropout_p, is_causal, scale, enable_gqa, mask_is_watched)
    mixed = scores.softmax(-1) @ value
    return mixed.reshape(*query.shape[:-1], value.shape[-1])


def _scores(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    mask_is_watched: bool,
) -> Tensor:
    """query @ key.T * scale + mask, [..., heads, tokens, keys], or [..., heads of keys, queries that share them, keys]."""
    if is_causal and key.shape[-2] > 1:  # query 0 sees key 0, and only it, however many of both there are
        attn_mask = _causal_input(query, (query.shape[-2], key.shape[-2]))
    if attn_mask is not None and not mask_is_watched:
        raise UnsupportedOperator(
            "masked attention, which is 0 in PyTorch where a mask hides every key; write softmax(scores + mask) @ value, "
            "where such rows are not a number in both"
        )
    if dropout_p:
        raise UnsupportedOperator("attention with dropout draws random numbers; pass dropout_p=0.0, or call model.eval()")
    *batch, heads, length, width = query.shape if len(query.shape) > 2 else (1, *query.shape)
    groups = key.shape[-3] if enable_gqa else heads
    # The queries of heads that share keys are simply more queries: no key is repeated.
    queries = query.reshape(*batch, groups, heads // groups * length, width) if groups != heads else query
    scores = queries @ key.transpose(-2, -1) * _factor(query, scale)
    if attn_mask is None:
        return scores
    keys = key.shape[-2]
    masked = scores.reshape(*query.shape[:-1], keys) + attn_mask
    return masked.reshape(*queries.shape[:-1], keys)


def _factor(query: Tensor, scale: float | None) -> Scalar | float:
    """What products of queries and keys are multiplied by."""
    return Scalar(Fraction(1, query.shape[-1]), root=True) if scale is None else scale


def attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    mask_is_watched: bool = False,
) -> tuple[Tensor, Tensor]:
    """What PyTorch makes of attention on a CPU: the result, and [..., heads, tokens] the logarithms of the sums of exponentials
    that it divides by, which the backward pass reads."""
    grouped = query.shape[1] != key.shape[1]
    scores = _scores(query, key, attn_mask, dropout_p, is_causal, scale, grouped, mask_is_watched)
    largest = scores.amax(-1, keepdim=True)
    exponentials = (scores - largest).exp()
    sums = exponentials.sum(-1, keepdim=True)
    mixed = exponentials / sums @ value
    return mixed.reshape(*query.shape[:-1], value.shape[-1]), (sums.apply("log") + largest).reshape(*query.shape[:-1])


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    mask_is_watched: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, by what `attention_for_cpu` gave: probabilities are computed again from their scores."""
    grouped = query.shape[1] != key.shape[1]
    scores = _scores(query, key, attn_mask, dropout_p, is_causal, scale, grouped, mask_is_watched)

    def by_keys(tensor: Tensor) -> Tensor:
        """A tensor [..., heads, tokens, width] with the queries of heads that share keys side by side, as in `scores`."""
        return tensor.reshape(*scores.shape[:-1], tensor.shape[-1]) if grouped else tensor

    given = by_keys(grad)
    probabilities = (scores - by_keys(logsumexp.unsqueeze(-1))).exp()
    weighted = by_keys((grad * out).sum(-1, keepdim=True))
    of_scores = probabilities * (given @ value.transpose(-2, -1) - weighted) * _factor(query, scale)
    of_query = (of_scores @ key).reshape(*query.shape)
    return of_query, of_scores.transpose(-2, -1) @ by_keys(query), probabilities.transpose(-2, -1) @ given


WATCHED_ROWS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": functools.partial(attention, mask_is_watched=True),
    "_scaled_dot_product_flash_attention_for_cpu": functools.partial(attention_for_cpu, mask_is_watched=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": functools.partial(attention_backward, mask_is_watched=True),
}
"""Rows for those who look at masks before they run a program."""


def _causal_input(query: Tensor, shape: tuple[int, int]) -> Tensor:
    program, name = query.program, f"causal_mask_{shape[0]}x{shape[1]}"
    known = program.named(name)
    return program.input(name, shape, query.dtype) if known is None else known


def mask_of(node: fx.Node) -> fx.Node | None:
    """The mask that a call of attention adds to its scores."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "attn_mask":
            given = node.kwargs.get("attn_mask", node.args[position] if position < len(node.args) else None)
            return given if isinstance(given, fx.Node) else None
    return None


def is_boolean_mask(mask: fx.Node | None) -> bool:
    """Whether a mask says which keys are not hidden, and is not added."""
    value = None if mask is None else tensor_of(mask)
    return value is not None and value.dtype is torch.bool


@functools.lru_cache(maxsize=8)
def causal_mask(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The mask [queries, keys] that hides from query i the keys after key i; the layers of a model share one."""
    return torch.full(shape, -math.inf, dtype=dtype, device=device).triu(1)


def hides_a_row(mask: torch.Tensor) -> bool:
    """Whether a mask [..., queries, keys] hides every key of some query; one of booleans says which keys are not hidden.

    A GPU's answer has to be waited for: it is asked once for a tensor, and again when PyTorch has changed it. While a CUDA graph
    is captured nothing may be waited for, and of a mask that is not known by then it is said that it does.
    """
    return _hides_a_row(mask) if mask.device.type != "cuda" else _WATCHED.hides_a_row(mask)


class _Watched:
    """What GPUs have said of masks, as long as these are there."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], tuple[int, int], bool]] = {}

    def hides_a_row(self, mask: torch.Tensor) -> bool:
        """As the function of that name."""
        # tensors made in inference mode have no version, and `mask.data = other` changes none
        version = None if mask.is_inference() else (mask._version, mask.data_ptr())
        match self._known.get(id(mask)):
            case (reference, seen, hides) if reference() is mask and seen == version:
                return hides
        if torch.cuda.is_current_stream_capturing():
            return True
        hides = _hides_a_row(mask)
        if version is not None:
            number = id(mask)
            self._known[number] = weakref.ref(mask, lambda _: self._known.pop(number, None)), version, hides
        return hides


_WATCHED = _Watched()


def _hides_a_row(mask: torch.Tensor) -> bool:
    if mask.dtype is torch.bool:
        return not bool(mask.any(-1).all())
    return bool((mask.amax(-1) == -math.inf).any())
