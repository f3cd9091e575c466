"""Which calls are better off as library kernels, by what they take here, and how images lie between convolutions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import fx

from mugraph.frontend.library import LibraryKernel, linear_layers
from mugraph.frontend.node_traits import tensor_of
from mugraph.pieces.data import CutGraph
from mugraph.pieces.packed_weights import Layout, packed
from mugraph.runtime.benchmarking import in_turns
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, ProgressCallback

_SECONDS, _ROUNDS = 0.1, 5
"""After so long no further round of calls of one convolution starts; and the most rounds."""
_SHARE = 0.25
"""The part of the budget that goes into timing convolutions."""
_FASTER = 1.05
"""So many times as fast as PyTorch's calls the kernel of a linear layer is taken: more than the noise of a few rounds."""
_NOT_SLOWER = 1.1
"""So many times the time of PyTorch's calls a convolution may take by itself: what follows in its layout gains from it."""


@dataclass(frozen=True, slots=True)
class Ways:
    """By library kernel that is not slower than PyTorch's calls, the layouts of images in which it is not."""

    layouts: Mapping[LibraryKernel, Sequence[Layout]]

    @classmethod
    def of(cls, kernels: Sequence[LibraryKernel], deadline: Deadline, tell: ProgressCallback) -> Ways:
        """Those of candidates, of which alike ones are timed once; of what there is no time for, the whole call decides."""
        if not kernels:
            return cls({})
        alike = {_kind(kernel): kernel for kernel in kernels}
        what = f"{len(alike)} kind{'s' * (len(alike) != 1)} of convolution, with packed weights and without"
        tell(Event("library", what, deadline.elapsed))
        until = Deadline(deadline.share(_SHARE))
        everywhere = tuple(Layout)
        faster = {kind: everywhere if until.passed else _faster_layouts(kernel, until) for kind, kernel in alike.items()}
        return cls({kernel: faster[_kind(kernel)] for kernel in kernels if faster[_kind(kernel)]})

    @classmethod
    def untimed(cls, kernels: Sequence[LibraryKernel]) -> Ways:
        """All of them, with images as PyTorch has them by default."""
        return cls(dict.fromkeys(kernels, (Layout.CONTIGUOUS,)))

    def choices(self, cut: CutGraph) -> list[CutGraph]:
        """A graph that is cut, with library kernels where they are not slower, in one way for each layout, or more.

        With channels last there is one without the programs that read images, as these have channels first.
        """
        whole, choices = cut.partition, []
        for layout in Layout:
            images = [kernel for kernel in whole.library if kernel.geometry is not None]
            slower = [kernel for kernel in images if layout not in self.layouts[self._known(kernel)]]
            if len(slower) == len(images):
                continue
            part = whole.without(slower, "with packed weights it is not faster")
            choices.append(replace(cut, partition=part, layout=layout))
            reading = [piece for piece in part.pieces if any(_is_image(node) for node in piece.inputs)]
            if reading and layout is Layout.CHANNELS_LAST:
                part = part.without(reading, "between convolutions PyTorch's calls are faster with channels last")
                choices.append(replace(cut, partition=part, layout=layout))
        return choices or [cut]

    def _known(self, kernel: LibraryKernel) -> LibraryKernel:
        """The kernel of the same convolution before it was given its level."""
        return next(known for known in self.layouts if known.product is kernel.product)


def with_linear_layers(cut: CutGraph, timed: bool, deadline: Deadline, tell: ProgressCallback) -> CutGraph:
    """A graph that is cut, with library kernels for linear layers left to PyTorch: if `timed`, those that are faster."""
    layers = linear_layers((left.node for left in cut.partition.left), cut.recorded.device)
    alike = {_kind(kernel): kernel for kernel in layers}
    if timed and layers:
        what = f"{len(alike)} kind{'s' * (len(alike) != 1)} of linear layer, with packed weights and without"
        tell(Event("library", what, deadline.elapsed))
        until = Deadline(deadline.share(_SHARE))
        alike = {kind: kernel for kind, kernel in alike.items() if not until.passed and _is_faster(kernel, until)}
    return replace(cut, partition=cut.partition.with_library(kernel for kernel in layers if _kind(kernel) in alike))


def _is_faster(kernel: LibraryKernel, deadline: Deadline) -> bool:
    """Whether the kernel of a linear layer beats PyTorch's calls."""
    tensors = [_random(node.meta["val"]) for node in kernel.operands]
    sides: list[Callable[..., Any]] = [kernel.as_torch(), packed(kernel, Layout.CONTIGUOUS)]
    by_torch, ours = _seconds(sides, [tensors, tensors], deadline)
    return ours * _FASTER < by_torch


def _seconds(sides: Sequence[Callable[..., Any]], tensors: Sequence[Sequence[torch.Tensor]], deadline: Deadline) -> list[float]:
    """What calls take, each of its own tensors."""
    calls = [functools.partial(side, *given) for side, given in zip(sides, tensors, strict=True)]
    left = deadline.remaining
    with torch.no_grad():
        times = in_turns(calls, _SECONDS, math.inf if left is None else left, _ROUNDS)
    return [median(taken) for taken in times]


def _is_image(node: fx.Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dim() in (4, 5)


def _kind(kernel: LibraryKernel) -> tuple[object, ...]:
    """What the time of a library kernel depends on."""
    tensors = [tensor_of(node) for node in (kernel.source, kernel.weight)]
    shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors if tensor is not None)
    return shapes, kernel.geometry, kernel.bias is None, tuple(str(node.target) for node in kernel.nodes)


def _faster_layouts(kernel: LibraryKernel, deadline: Deadline) -> tuple[Layout, ...]:
    """The layouts of its images in which a kernel is not slower than PyTorch's calls on contiguous ones."""
    image, *others = tensors = [_random(node.meta["val"]) for node in kernel.operands]
    layouts = list(Layout) if image.dim() > 3 else [Layout.CONTIGUOUS]  # of three dimensions there is one
    parameters, added = others[: len(kernel.parameters)], others[len(kernel.parameters) :]
    given = [[layout.of(image), *parameters, *map(layout.of, added)] for layout in layouts]
    sides: list[Callable[..., Any]] = [kernel.as_torch(), *(packed(kernel, layout) for layout in layouts)]
    by_torch, *ours = _seconds(sides, [tensors, *given], deadline)
    return tuple(layout for layout, seconds in zip(layouts, ours, strict=True) if seconds < _NOT_SLOWER * by_torch)


def _random(recorded: torch.Tensor) -> torch.Tensor:
    """Positive numbers, as variances are, in the shape, type and strides of a tensor."""
    with torch.inference_mode(False):  # whose tensors have no versions
        memory = torch.empty_strided(recorded.shape, recorded.stride(), dtype=recorded.dtype)
        return memory.copy_(torch.rand(recorded.shape, dtype=recorded.dtype) + 0.1)
