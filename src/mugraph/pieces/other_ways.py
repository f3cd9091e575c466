"""Calls that PyTorch answers faster if it is asked otherwise: by another operator, or on images that lie otherwise.

Each gives what the call gives, bit for bit but for the order of sums. Which are faster depends on sizes, so that they are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from mugraph.frontend.operators.torch_casts import arguments_of_call, tensor_of
from mugraph.frontend.rewriting.node_traits import is_static
from mugraph.pieces.image_layouts import Layout

aten = torch.ops.aten
Way = Callable[..., torch.Tensor]


def _by_extremum(extremum: Callable[..., Any]) -> Way:
    """Where the largest or smallest is, by the operator that gives both: of equal ones it takes the first, too, and any NaN."""

    def place(x: torch.Tensor, dim: int | None, keepdim: bool) -> torch.Tensor:
        assert dim is not None, "of a tensor as a whole nothing is faster"
        return extremum(x, dim, keepdim)[1]  # type: ignore[no-any-return]

    return place


def _with_channels_last(pool: Callable[..., Any]) -> Way:
    """A pool of an image whose channels lie together, so that they are taken side by side."""

    def pooled(image: torch.Tensor, *arguments: Any) -> torch.Tensor:
        return Layout.CONTIGUOUS.of(pool(Layout.CHANNELS_LAST.of(image), *arguments))

    return pooled


def _means_of_rows(rows: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """The means of windows of rows [batch, channels, places], as those of images of one row."""
    size, stride, padding = ([each] if isinstance(each, int) else list(each) for each in arguments[:3])
    image, sizes = rows.unsqueeze(2), ([1, *size], [1, *(stride or size)], [0, *padding])
    return _with_channels_last(aten.avg_pool2d.default)(image, *sizes, *arguments[3:]).squeeze(2)


_WAYS: Mapping[object, tuple[Way, int | None]] = {
    aten.argmax.default: (_by_extremum(aten.max.dim), None),
    aten.argmin.default: (_by_extremum(aten.min.dim), None),
    aten.avg_pool1d.default: (_means_of_rows, 3),
    aten.avg_pool2d.default: (_with_channels_last(aten.avg_pool2d.default), 4),
    aten.avg_pool3d.default: (_with_channels_last(aten.avg_pool3d.default), 5),
    aten.max_pool2d.default: (_with_channels_last(aten.max_pool2d.default), 4),
    aten.max_pool3d.default: (_with_channels_last(aten.max_pool3d.default), 5),
}
"""By operator, another way, and the dimensions that its operand must have: those of a whole batch."""


def other_ways(calls: Iterable[fx.Node]) -> dict[fx.Node, Way]:
    """The calls, of those that PyTorch makes, which it can be asked for otherwise, each with how: called with all arguments."""
    return {node: _WAYS[node.target][0] for node in calls if node.target in _WAYS and _has_another_way(node)}


def _has_another_way(node: fx.Node) -> bool:
    """Whether a call reads one contiguous tensor of numbers, of the right dimensions, and gives another."""
    operand, *others = arguments_of_call(node)
    read, given = tensor_of(operand), tensor_of(node)
    if read is None or given is None or any(isinstance(other, fx.Node) for other in others):
        return False
    plain = all(is_static(tensor) and tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in (read, given))
    dims = _WAYS[node.target][1]
    fits = others[0] is not None and read.dim() > 0 if dims is None else read.dim() == dims
    return plain and fits and read.is_floating_point() and read.numel() > 0
