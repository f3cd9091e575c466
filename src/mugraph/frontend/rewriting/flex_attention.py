"""PyTorch's FlexAttention, as the calls that it stands for.

It is one operator that runs graphs of its caller's: what becomes of a score, and whether a key is seen, at (batch, head, query,
key). They are mapped over positions, as PyTorch maps them where it compiles no kernel. The block mask beside them says which
blocks of scores need not be computed, and nothing of what is.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.rewriting.safe_softmax import unexpanded

OPERATOR: Any = torch.ops.higher_order.flex_attention
_EAGER = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
"""The attribute of PyTorch's module by which calls reach the operator without being compiled first."""
_BUFFERS = 7
"""The position of the first argument that holds buffers."""
_LARGEST = 1 << 26
"""Elements of a mask that is looked at."""
Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A result, and two numbers for each of its rows."""
_AUTOCAST = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Mapping[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> Statistics:
    """What the operator gives: attention [batch, heads, queries, width], and of each row of scores, [batch, heads, queries] in
    fp32 or more, the logarithm to base 2 of the sum of their exponentials, and their maximum over log(2).

    A row of which every key is hidden is 0, and its logarithm and maximum are -inf.
    """
    functions = _Functions(score_mod, block_mask[-1], score_mod_other_buffers, mask_mod_other_buffers)
    device = query.device.type
    if not torch.is_autocast_enabled(device):
        return _attention(query, key, value, functions, scale, kernel_options)
    if _AUTOCAST.get(device) not in OPERATOR.py_kernels:
        raise UnsupportedOperator("flex_attention under autocast chooses its own types; cast its operands by hand")
    kind = torch.get_autocast_dtype(device)
    query, key, value = (each if each.dtype is torch.float64 else each.to(kind) for each in (query, key, value))
    with torch.autocast(device, enabled=False):
        return _attention(query, key, value, functions, scale, kernel_options)


@dataclass(frozen=True, slots=True)
class _Functions:
    """What becomes of a score, and which keys are seen, and what else these functions of scalars read."""

    score_mod: Callable[..., torch.Tensor]
    mask_mod: Callable[..., torch.Tensor]
    score_buffers: tuple[Any, ...]
    mask_buffers: tuple[Any, ...]

    def scores(self, scores: torch.Tensor) -> torch.Tensor:
        """What becomes of all scores, [batch, heads, queries, keys]."""
        return _mapped(self.score_mod, scores.shape, (scores,), self.score_buffers, scores.device)

    def mask(self, sizes: Sequence[int], device: torch.device) -> torch.Tensor:
        """Which keys are seen, with dimensions of size 1 where it is the same along them."""
        return unexpanded(_mapped(self.mask_mod, sizes, (), self.mask_buffers, device))

    def keep_scores(self, like: torch.Tensor) -> bool:
        """Whether a score, in the type of a tensor, stays what it is."""
        score = like.new_zeros(())
        with _IndexedByScalars():
            places = (like.new_zeros((), dtype=torch.int32) for _ in range(4))
            return self.score_mod(score, *places, *self.score_buffers) is score

    def known_mask(self, shown: torch.Tensor, sizes: Sequence[int]) -> _Known | None:
        """Which mask it is, as far as that can be said: where positions alone decide about it, it is computed and looked at.

        `shown` is like it, and may have no data.
        """
        if self.mask_mod is flex_attention.noop_mask:
            return _Known.ALL
        fixed = all(isinstance(size, int) for size in sizes) and shown.numel() <= _LARGEST
        if not fixed or self.mask_buffers or not isinstance(self.mask_mod, fx.GraphModule) or _reads_more(self.mask_mod):
            return None
        with _disable_current_modes():
            mask = self.mask(sizes, shown.device)
            if bool(mask.all()):
                return _Known.ALL
            causal = torch.ones(tuple(sizes[2:]), dtype=torch.bool, device=mask.device).tril()
            return _Known.CAUSAL if bool((mask == causal).all()) else None


class _Known(Enum):
    """Masks that have a name."""

    ALL = auto()
    """Every query sees every key."""
    CAUSAL = auto()
    """Query i sees the keys up to key i."""


def _reads_more(function: fx.GraphModule) -> bool:
    """Whether a graph reads something beside its arguments."""
    return any(node.op == "get_attr" for node in function.graph.nodes)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    functions: _Functions,
    scale: float,
    kernel_options: Mapping[str, Any],
) -> Statistics:
    if key.shape[0] != query.shape[0]:
        key, value = (each.expand(query.shape[0], *each.shape[1:]) for each in (key, value))
    sizes = (*query.shape[:3], key.shape[2])
    shown = functions.mask(sizes, query.device)
    known = functions.known_mask(shown, sizes)
    scores = functions.scores(_scores(query, key) * scale)
    if known is not _Known.ALL:
        scores = torch.where(shown, scores, -torch.inf)
    if functions.keep_scores(query) and not _asks_for_statistics(kernel_options):
        mask, causal = (shown, False) if known is None else (None, known is _Known.CAUSAL)
        grouped = query.shape[1] != key.shape[1]
        result = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    else:
        result = _by_group(torch._safe_softmax(scores, -1).to(query.dtype), value)
    return _lying_like(query, result), scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def written_out(module: fx.GraphModule) -> fx.GraphModule:
    """A graph of torch calls that Dynamo made, with `attention` in the place of the operator.

    It stays where its functions read numbers that vary, which cannot be mapped.
    """
    found = {node for node in module.graph.nodes if node.target is OPERATOR and not _reads_numbers(node)}
    if not found:
        return module
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in found:
            copies[node].target = attention
    return fx.GraphModule(module, graph)


def _reads_numbers(node: fx.Node) -> bool:
    """Whether the buffers of a call, its last arguments, are not all tensors."""
    buffers: list[Any] = []
    fx.map_arg(node.args[_BUFFERS:], buffers.append)
    return not all(isinstance(buffer.meta.get("example_value"), torch.Tensor) for buffer in buffers)


@contextlib.contextmanager
def reaching_the_operator() -> Iterator[None]:
    """Calls of FlexAttention make that of the operator, where PyTorch can leave out to compile it first."""
    before = getattr(flex_attention, _EAGER, None)
    if before is not None:
        setattr(flex_attention, _EAGER, True)
    try:
        yield
    finally:
        if before is not None:
            setattr(flex_attention, _EAGER, before)


def failed_to_reach_it(error: BaseException) -> bool:
    """Whether an error came of FlexAttention in a PyTorch where it is always compiled first."""
    frames = traceback.walk_tb(error.__traceback__)
    return not hasattr(flex_attention, _EAGER) and any(frame.f_code.co_filename == flex_attention.__file__ for frame, _ in frames)


def _scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Products of queries and keys, [batch, heads, queries, keys] in fp32 or more."""
    kind = torch.promote_types(query.dtype, torch.float32)
    return _by_group(query.to(kind), key.to(kind).transpose(-2, -1))


def _by_group(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Products [batch, heads, rows, columns] with matrices that groups of heads share: their rows are simply more rows."""
    batch, heads, length, width = rows.shape
    groups = matrices.shape[1]
    if heads == groups:
        return rows @ matrices
    together = rows.reshape(batch, groups, heads // groups * length, width) @ matrices
    return together.reshape(batch, heads, length, matrices.shape[-1])


def _lying_like(query: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A result in memory in the order of the query's dimensions, its last one innermost."""
    order = [*sorted(range(3), key=query.stride, reverse=True), 3]
    if order == [0, 1, 2, 3]:
        return result.contiguous()
    back = [order.index(dim) for dim in range(4)]
    return result.permute(order).contiguous().permute(back)


def _asks_for_statistics(kernel_options: Mapping[str, Any]) -> bool:
    """Whether more than the result may be read."""
    return bool(kernel_options.get("OUTPUT_LOGSUMEXP", True) or kernel_options.get("OUTPUT_MAX", False))


def _mapped(
    function: Callable[..., Any],
    sizes: Sequence[int],
    scores: tuple[torch.Tensor, ...],
    buffers: Sequence[Any],
    device: torch.device,
) -> torch.Tensor:
    """A function of scalars at all positions: of a score, where there are any, of batch, head, query and key, and of buffers."""
    at = [torch.arange(size, dtype=torch.int32, device=device) for size in sizes]
    for dim in reversed(range(4)):
        places = [0 if dim == other else None for other in range(4)]
        function = torch.vmap(function, in_dims=(*[0] * len(scores), *places, *[None] * len(buffers)))
    with _IndexedByScalars():
        result: torch.Tensor = function(*scores, *at, *buffers)
    return result


class _IndexedByScalars(TorchFunctionMode):
    """Tensors of one integer index others as tensors, where PyTorch would read them to make views."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            source, given = args
            indices = given if isinstance(given, tuple) else (given,)
            if any(isinstance(index, torch.Tensor) for index in indices) and all(map(_is_integer, indices)):
                places = [torch.as_tensor(index, dtype=torch.int64, device=source.device) for index in indices]
                return torch.ops.aten.index.Tensor(source, places)
        return func(*args, **(kwargs or {}))


def _is_integer(index: Any) -> bool:
    if isinstance(index, torch.Tensor):
        return index.dtype in _INTEGERS
    return isinstance(index, int) and not isinstance(index, bool)
