"""Which convolutions are better off as library kernels, by what calls of them take here, and how images lie between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import fx

from mugraph.frontend.library import LibraryKernel
from mugraph.frontend.node_traits import tensor_of
from mugraph.pieces.convolutions import Layout, PackedConvolution
from mugraph.pieces.data import CutGraph
from mugraph.runtime.benchmarking import in_turns
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, ProgressCallback

_SECONDS, _ROUNDS = 0.1, 5
"""After so long no further round of calls of one convolution starts; and the most rounds."""
_SHARE = 0.25
"""The part of the budget that goes into timing convolutions."""
_NOT_SLOWER = 1.1
"""So many times the time of PyTorch's calls a library kernel may take by itself: what follows in its layout gains from it."""


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
            slower = [kernel for kernel in whole.library if layout not in self.layouts[self._known(kernel)]]
            if len(slower) == len(whole.library):
                continue
            part = whole.without(slower, "with packed weights it is not faster")
            choices.append(replace(cut, partition=part, layout=layout))
            images = [piece for piece in part.pieces if any(_is_image(node) for node in piece.inputs)]
            if images and layout is Layout.CHANNELS_LAST:
                part = part.without(images, "between convolutions PyTorch's calls are faster with channels last")
                choices.append(replace(cut, partition=part, layout=layout))
        return choices or [cut]

    def _known(self, kernel: LibraryKernel) -> LibraryKernel:
        """The kernel of the same convolution before it was given its level."""
        return next(known for known in self.layouts if known.convolution is kernel.convolution)


def _is_image(node: fx.Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dim() in (4, 5)


def _kind(kernel: LibraryKernel) -> tuple[object, ...]:
    """What the time of a library kernel depends on."""
    tensors = [tensor_of(node) for node in (kernel.image, kernel.weight)]
    shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors if tensor is not None)
    return shapes, kernel.geometry, kernel.bias is None, tuple(str(node.target) for node in kernel.nodes)


def _faster_layouts(kernel: LibraryKernel, deadline: Deadline) -> tuple[Layout, ...]:
    """The layouts of its images in which a kernel is not slower than PyTorch's calls on contiguous ones."""
    image, *others = tensors = [_random(node.meta["val"]) for node in kernel.operands]
    parameters, added = others[: len(kernel.parameters)], others[len(kernel.parameters) :]
    packed = {
        layout: functools.partial(
            PackedConvolution(kernel, layout), layout.of(image), *parameters, *[layout.of(tensor) for tensor in added]
        )
        for layout in Layout
    }
    if image.dim() == 3:  # which lie in one way only
        del packed[Layout.CHANNELS_LAST]
    sides: Sequence[Callable[[], Any]] = [functools.partial(kernel.as_torch(), *tensors), *packed.values()]
    limit = deadline.remaining
    with torch.no_grad():
        times = in_turns(sides, _SECONDS, rounds=_ROUNDS, **({} if limit is None else {"limit": limit}))
    by_torch, *ours = map(median, times)
    return tuple(layout for layout, seconds in zip(packed, ours, strict=True) if seconds < _NOT_SLOWER * by_torch)


def _random(recorded: torch.Tensor) -> torch.Tensor:
    """Positive numbers, as variances are, in the shape, type and strides of a tensor."""
    with torch.inference_mode(False):  # whose tensors have no versions
        memory = torch.empty_strided(recorded.shape, recorded.stride(), dtype=recorded.dtype)
        return memory.copy_(torch.rand(recorded.shape, dtype=recorded.dtype) + 0.1)
