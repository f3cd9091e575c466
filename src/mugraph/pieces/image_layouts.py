"""How images lie in memory, and copies from one layout to the other by generated kernels.

PyTorch copies between channels first and channels last element by element. A kernel of ours turns squares of them in registers;
it is compiled once for each size, and where it cannot be, or an image is small, PyTorch copies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from enum import StrEnum

import torch

from mugraph.errors import MugraphError
from mugraph.frontend.calls.captured_tensors import lies_alike
from mugraph.frontend.operators.torch_casts import DTYPES
from mugraph.frontend.partitioning.channels_last import IMAGE_RANKS
from mugraph.frontend.partitioning.splice import laid_out
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Level
from mugraph.ir.sizes import divisors
from mugraph.runtime import build

_SMALL = 1 << 14
"""Elements of an image below which calling a kernel takes longer than PyTorch's copy."""
_NARROW = 4
"""Channels, or places, below which there are no squares to turn."""
_PARTS = 16
"""Blocks along the places of each image, at most."""
_KNOWN = 256
"""Sizes whose kernels a process keeps."""


class Layout(StrEnum):
    """How images lie in memory between convolutions."""

    CONTIGUOUS = "contiguous"
    """Batch, channels, places."""
    CHANNELS_LAST = "channels_last"
    """Batch, places, channels."""

    def of(self, image: torch.Tensor) -> torch.Tensor:
        """The image in this layout, itself or a copy."""
        wanted = self.format_of(image.dim())
        if image.is_contiguous(memory_format=wanted):
            return image
        copied = _turned(image, last=self is Layout.CHANNELS_LAST)
        return image.contiguous(memory_format=wanted) if copied is None else copied

    def format_of(self, dims: int) -> torch.memory_format:
        """What PyTorch calls the layout for tensors of so many dimensions; those of three have but one."""
        if self is Layout.CONTIGUOUS or dims not in IMAGE_RANKS:
            return torch.contiguous_format
        return torch.channels_last if dims == 4 else torch.channels_last_3d


def as_recorded(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with these strides, as `mugraph.frontend.partitioning.splice.laid_out` gives it, by a kernel of ours if one does
    it."""
    if lies_alike(tensor, strides):
        return tensor
    layout = _layout_of(tensor.shape, strides)
    return laid_out(tensor, strides) if layout is None else layout.of(tensor)


@functools.lru_cache(maxsize=_KNOWN)
def _layout_of(shape: torch.Size, strides: tuple[int, ...]) -> Layout | None:
    """The layout in which an image has these strides."""
    if len(shape) not in IMAGE_RANKS:
        return None
    images = {layout: torch.empty(shape, device="meta", memory_format=layout.format_of(len(shape))) for layout in Layout}
    return next((layout for layout, image in images.items() if lies_alike(image, strides)), None)


def _turned(image: torch.Tensor, last: bool) -> torch.Tensor | None:
    """A copy of an image whose channels come last, or first; None where PyTorch is to make it."""
    if image.dim() not in IMAGE_RANKS or image.device.type != "cpu" or image.dtype not in DTYPES or image.numel() < _SMALL:
        return None
    batch, channels, *places = image.shape
    count = math.prod(places)
    now = Layout.CONTIGUOUS if last else Layout.CHANNELS_LAST
    if min(channels, count) < _NARROW or not image.is_contiguous(memory_format=now.format_of(image.dim())):
        return None
    kernel = _kernel(batch, channels, count, DTYPES[image.dtype], last)
    if kernel is None:
        return None
    rows = image.view(batch, channels, count) if last else image.movedim(1, -1).view(batch, count, channels)
    (copied,) = kernel(rows)
    return copied.view(batch, *places, channels).movedim(-1, 1) if last else copied.view(image.shape)


@functools.lru_cache(maxsize=_KNOWN)
def _kernel(batch: int, channels: int, places: int, dtype: DType, last: bool) -> Callable[..., Sequence[torch.Tensor]] | None:
    """A kernel from [batch, channels, places] to [batch, places, channels] or back; None where there is no compiler, say."""
    try:
        return build(turning(batch, channels, places, dtype, last))
    except MugraphError:
        return None


def turning(batch: int, channels: int, places: int, dtype: DType, last: bool) -> Graph:
    """The muGraph that brings channels to the last dimension of [batch, channels, places], or from there."""
    parts = max(count for count in divisors(places) if count <= _PARTS)
    kernel, block = GraphBuilder(Level.KERNEL), GraphBuilder(Level.BLOCK, grid=(batch, parts))
    image = kernel.input("image", (batch, channels, places) if last else (batch, places, channels), dtype)
    first, second = (2, 1) if last else (1, 2)
    rows = block.iterator(0, kernel.tensor(image), (0, first), None)
    saved = block.add("output_saver", block.add("transpose", rows, permutation=(0, 2, 1)), omap=(0, second))
    return kernel.build(kernel.graph_defined(block.build([saved]), [image]))
