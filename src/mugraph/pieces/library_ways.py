"""Which calls are better off as library kernels, by what they take here, and how images lie between convolutions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import fx

from mugraph.devices import Device, device_for
from mugraph.devices.host import slowdown_of_calls
from mugraph.frontend.operators.torch_casts import arguments_of_call, tensor_of
from mugraph.frontend.partitioning.library import LibraryKernel, is_constant, linear_layers
from mugraph.frontend.partitioning.partition import Left, Partition, Piece
from mugraph.frontend.partitioning.splice import as_torch, spliced
from mugraph.frontend.rewriting.graph_passes import owner_of
from mugraph.pieces.example_tensors import examples, memory_reused, recorded_sizes
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.other_ways import Way
from mugraph.pieces.packed_weights import packed
from mugraph.pieces.piece_duels import torch_here
from mugraph.pieces.predicted_cost import seconds_of_calls
from mugraph.runtime.benchmarking import in_turns, still_counts, while_serving
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event, ProgressCallback
from mugraph.support.store import Store, digest_of

KIND = "library"
"""What the store calls the seconds of library kernels."""
_SECONDS, _ROUNDS = 0.1, 5
"""After so long no further round of calls of one library kernel starts; and the most rounds."""
_SHARE = 0.25
"""The part of the budget that goes into timing library kernels of one sort."""
_CALLS = 6
"""Those in which a linear layer is timed at the least: of each side two that warm it up, and one."""
_FASTER = 1.05
"""So many times as fast as PyTorch's calls the kernel of a linear layer is taken: more than the noise of a few rounds."""
_NOT_SLOWER = 1.1
"""So many times the time of PyTorch's calls a convolution may take by itself: what follows in its layout gains from it."""
_Times = tuple[float, ...]
"""Seconds of PyTorch's calls, then those of the library kernel in each layout that it has."""


class Library:
    """What library kernels take on this machine, each kind timed once and kept."""

    def __init__(self, target: str, store: Store, serving: bool = False) -> None:
        """`serving` says that a model is served while kernels are timed."""
        self._store, self._serving, self._device = store, serving, device_for(target)
        self._here = (repr(self._device), *torch_here())
        self._times: dict[str, _Times] = {}

    def layouts(self, kernel: LibraryKernel, deadline: Deadline) -> tuple[Layout, ...] | None:
        """The layouts in which a convolution is not slower than PyTorch's calls on contiguous images; None for want of time."""
        times = self._timed(kernel, deadline)
        if times is None:
            return None
        by_torch, *ours = times
        layouts = _layouts(kernel)
        return tuple(layout for layout, seconds in zip(layouts, ours, strict=True) if seconds < _NOT_SLOWER * by_torch)

    def known_seconds(self, kernel: LibraryKernel) -> tuple[float, float] | None:
        """Seconds of PyTorch's calls and of the kernel of a linear layer, where they were measured before."""
        times = self._timed(kernel, Deadline(0.0))
        return None if times is None else (times[0], times[1])

    def is_faster(self, kernel: LibraryKernel, deadline: Deadline) -> bool:
        """Whether the kernel of a linear layer beats PyTorch's calls, as far as there is time to see."""
        times = self._timed(kernel, deadline)
        return times is not None and times[1] * _FASTER < times[0]

    @memory_reused()
    def faster(self, kernels: Sequence[LibraryKernel], deadline: Deadline, tell: ProgressCallback) -> tuple[LibraryKernel, ...]:
        """The linear layers whose kernels are; those with the most work that there is time for are timed first, as it may not
        last for all."""
        if not kernels:
            return ()
        _announce("linear layer", kernels, deadline, tell)
        until = Deadline(deadline.share(_SHARE))
        ordered = sorted(kernels, key=_products, reverse=True)
        timed = {kernel: self.is_faster(kernel, until) for kernel in ordered}
        return tuple(kernel for kernel in kernels if timed[kernel])

    def _timed(self, kernel: LibraryKernel, deadline: Deadline) -> _Times | None:
        """Seconds of a kernel and of PyTorch's calls, now or in an earlier call; None where there is no time for that."""
        return self._known(
            str(_kind(kernel)),
            functools.partial(_measured, kernel),
            deadline,
            functools.partial(_seconds_of_timing, kernel, self._device),
        )

    def faster_ways(self, ways: Mapping[fx.Node, Way], deadline: Deadline) -> dict[fx.Node, Way]:
        """The calls that PyTorch answers faster in another way, with that way, as far as there is time to see."""
        until = Deadline(deadline.share(_SHARE))
        times = {
            node: self._known(f"another way of {_described(node)}", functools.partial(_measured_call, node, way), until)
            for node, way in ways.items()
        }
        return {node: ways[node] for node, known in times.items() if known is not None and known[1] * _FASTER < known[0]}

    def _known(
        self, kind: str, measure: Callable[[Deadline], _Times], deadline: Deadline, needed: Callable[[], float] = lambda: 0.0
    ) -> _Times | None:
        """Seconds of one kind, as measured now or in an earlier call; None where the deadline has passed before, or allows less
        than the seconds that are `needed`."""
        key = digest_of(kind, *self._here)
        if key not in self._times:
            with suppress(KeyError, TypeError, ValueError):  # a document that is none: it is measured again
                record = self._store.get(KIND, key)
                if record is not None and still_counts(record, self._serving):
                    self._times[key] = tuple(float(seconds) for seconds in record["seconds"])
        if key not in self._times and not deadline.passed and deadline.allows(needed()):
            self._times[key] = measure(deadline)
            self._store.put(KIND, key, while_serving({"seconds": list(self._times[key])}, self._serving))
        return self._times.get(key)


@dataclass(frozen=True, slots=True)
class Ways:
    """By convolution that is not slower as a library kernel, the layouts of images in which it is not."""

    layouts: Mapping[LibraryKernel, Sequence[Layout]]

    @classmethod
    def of(cls, kernels: Sequence[LibraryKernel], library: Library, deadline: Deadline, tell: ProgressCallback) -> Ways:
        """Those of candidates; of what there is no time for, the whole call decides."""
        if not kernels:
            return cls({})
        _announce("convolution", kernels, deadline, tell)
        until = Deadline(deadline.share(_SHARE))
        found = {kernel: library.layouts(kernel, until) for kernel in kernels}
        everywhere = tuple(Layout)
        return cls({kernel: everywhere if layouts is None else layouts for kernel, layouts in found.items() if layouts != ()})

    @property
    def turn_images(self) -> bool:
        """Whether images may have to lie with channels last."""
        return any(Layout.CHANNELS_LAST in layouts for layouts in self.layouts.values())

    @classmethod
    def untimed(cls, kernels: Sequence[LibraryKernel]) -> Ways:
        """All of them, with images as PyTorch has them by default."""
        return cls(dict.fromkeys(kernels, (Layout.CONTIGUOUS,)))

    def choices(self, whole: Partition) -> list[tuple[Partition, Layout]]:
        """A graph that is cut, for each layout in which some library kernels are not slower, with these."""
        choices = []
        images = [kernel for kernel in whole.library if kernel.geometry is not None]
        for layout in Layout:
            slower = [kernel for kernel in images if layout not in self.layouts[self._known(kernel)]]
            if len(slower) < len(images):
                choices.append((whole.without(slower, "with packed weights it is not faster"), layout))
        return choices or [(whole, Layout.CONTIGUOUS)]

    def _known(self, kernel: LibraryKernel) -> LibraryKernel:
        """The kernel of the same convolution before it was given its level."""
        return next(known for known in self.layouts if known.product is kernel.product)


def layers_of(piece: Piece) -> tuple[LibraryKernel, ...]:
    """The linear layers of a piece that could be library kernels."""
    return linear_layers(piece.nodes, piece.inputs[0].meta["val"].device.type)


def weights_of(piece: Piece) -> tuple[str, ...]:
    """The inputs of a piece's program that are matrices, or views of matrices, which are the same in every call."""
    matrices = (is_constant(node) and owner_of(node).meta["val"].dim() == 2 for node in piece.inputs)
    return tuple(name for name, matrix in zip(piece.program.input_names, matrices, strict=False) if matrix)


def with_packed_weights(piece: Piece, layers: Iterable[LibraryKernel]) -> fx.GraphModule:
    """The calls of a piece as PyTorch makes them, but for linear layers of it, whose weights are packed."""
    copies = piece.copies
    left = tuple(Left(copies[node], "", 0) for node in piece.nodes)
    whole = Partition((), left).with_library(layer.of_copies(copies) for layer in layers)
    return spliced(as_torch(piece), whole, {}, {kernel: packed(kernel, Layout.CONTIGUOUS) for kernel in whole.library})


def _announce(what: str, kernels: Sequence[LibraryKernel], deadline: Deadline, tell: ProgressCallback) -> None:
    count = len({_kind(kernel) for kernel in kernels})
    tell(Event("library", f"{count} kind{'s' * (count != 1)} of {what}, with packed weights and without", deadline.elapsed))


def _kind(kernel: LibraryKernel) -> tuple[object, ...]:
    """What the time of a library kernel depends on."""
    tensors = [tensor_of(node) for node in (kernel.source, kernel.weight)]
    shapes = tuple((recorded_sizes(tensor.shape), tensor.dtype) for tensor in tensors if tensor is not None)
    return shapes, kernel.geometry, kernel.bias is None, tuple(str(node.target) for node in kernel.nodes)


def _products(layer: LibraryKernel) -> int:
    """How many numbers a linear layer multiplies."""
    return math.prod(recorded_sizes(layer.product.meta["val"].shape)) * recorded_sizes(layer.source.meta["val"].shape)[-1]


def _seconds_of_timing(kernel: LibraryKernel, device: Device) -> float:
    """What timing a linear layer takes at the least on this machine, as busy as it is, as its product is predicted."""
    return 0.0 if kernel.geometry is not None else _CALLS * seconds_of_calls([kernel.product], device) * slowdown_of_calls()


def _layouts(kernel: LibraryKernel) -> list[Layout]:
    """The layouts that there are for what a kernel reads: one for rows, and for images along one dimension."""
    geometry = kernel.geometry
    return [Layout.CONTIGUOUS] if geometry is None or geometry.rank == 1 else list(Layout)


def _measured(kernel: LibraryKernel, deadline: Deadline) -> _Times:
    """Seconds of PyTorch's calls on contiguous images, and of the kernel in each layout."""
    with examples(node.meta["val"] for node in kernel.operands) as tensors:
        return _medians(_sides(kernel, tensors), deadline)


def _sides(kernel: LibraryKernel, tensors: list[torch.Tensor]) -> list[Callable[[], Any]]:
    """PyTorch's calls with these operands, and the kernel's in each layout."""
    source, *others = tensors
    if kernel.ends is not None:  # as many rows for each expert
        experts = len(others[0])
        tensors[-1] = others[-1] = (
            torch.arange(1, experts + 1).mul(len(source)).div(experts, rounding_mode="floor").to(others[-1].dtype)
        )
    parameters, added = others[: len(kernel.parameters)], others[len(kernel.parameters) :]
    sides: list[Callable[[], Any]] = [functools.partial(kernel.as_torch(), *tensors)]
    for layout in _layouts(kernel):
        images = (source, *added) if kernel.geometry is None else tuple(map(layout.of, (source, *added)))
        sides.append(functools.partial(packed(kernel, layout), images[0], *parameters, *images[1:]))
    return sides


def _medians(sides: Sequence[Callable[[], Any]], deadline: Deadline) -> _Times:
    """Seconds of calls in turns."""
    left = deadline.remaining
    with torch.no_grad():
        times = in_turns(sides, _SECONDS, math.inf if left is None else left, _ROUNDS)
    return tuple(median(taken) for taken in times)


def _described(node: fx.Node) -> str:
    """What the time of a call depends on."""
    arguments = fx.map_arg(arguments_of_call(node), lambda source: str(source.meta["val"]))
    return f"{node.target} {arguments}"


def _measured_call(node: fx.Node, way: Way, deadline: Deadline) -> _Times:
    """Seconds of a call by PyTorch and in another way."""
    assert callable(node.target), "an operator is called"
    sources = list[fx.Node]()
    fx.map_arg(arguments_of_call(node), sources.append)
    with examples(source.meta["val"] for source in sources) as tensors:
        arguments = fx.map_arg(arguments_of_call(node), dict(zip(sources, tensors, strict=True)).__getitem__)
        return _medians([functools.partial(called, *arguments) for called in (node.target, way)], deadline)
