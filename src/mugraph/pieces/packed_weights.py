"""Library kernels with packed weights: what oneDNN needs of weights is computed once, and again when one of them changed.

Weights are packed when they come the second time: what is another tensor in every call is multiplied as PyTorch does it. Those of
linear layers are packed alike for any number of rows, once in a process for all layers and graphs that read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch

from mugraph.frontend.partitioning.library import Activation, Geometry, LibraryKernel
from mugraph.host.tensor_state import Place, TensorState, are_still, at_the_end, place_of
from mugraph.pieces.image_layouts import Layout


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Packed:
    """Weights (of experts, each one's) and offsets as the library reads them, and what they were made of."""

    sources: tuple[TensorState, ...]
    weights: tuple[torch.Tensor, ...]
    bias: torch.Tensor | None


_LAYERS: WeakValueDictionary[tuple[Place, bool], _Packed] = WeakValueDictionary()
"""By the place of their weights, and whether their rows are inputs, what linear layers of this process hold."""
_Weights = tuple[tuple[torch.Tensor, ...], torch.Tensor | None]


def packed(kernel: LibraryKernel, layout: Layout) -> PackedKernel:
    """What runs a library kernel where images lie in a layout."""
    if kernel.geometry is not None:
        return PackedConvolution(kernel, layout)
    return PackedLayer(kernel) if kernel.ends is None else PackedExperts(kernel)


class PackedKernel(ABC):
    """A library kernel, called with its `operands`.

    PyTorch's own calls run the first time that weights come, where nothing may be kept of them (tensors made in inference mode
    have no versions), and where what they are multiplied by is not finite.
    """

    def __init__(self, kernel: LibraryKernel) -> None:
        self.kernel, self.fused = kernel, kernel.fused
        fused = self.fused or Activation()
        self.activation: tuple[Any, ...] = (fused.name, list(fused.numbers), fused.algorithm)
        self._by_torch: Callable[..., torch.Tensor] = kernel.as_torch()
        self._count = len(kernel.parameters)
        self._packs = self._count
        """How many of the parameters, the first ones, are in what is packed."""
        self._bias = None if kernel.bias is None else kernel.parameters.index(kernel.bias)
        self._packed: _Packed | None = None
        self._seen: tuple[TensorState, ...] = ()

    def __call__(self, source: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """The result for what weights multiply, the tensors that they are made of, and what is added."""
        parameters, others = tensors[: self._count], tensors[self._count :]
        packed = None if True in map(torch.is_inference, parameters) else self._packed_of(source, parameters)
        if packed is None:
            return self._by_torch(source, *tensors)
        result = self._run(source, packed, parameters, *others)
        return self.kernel.activate(result) if self.fused is None else result

    def _packed_of(self, source: torch.Tensor, parameters: Sequence[torch.Tensor]) -> _Packed | None:
        """The parameters packed, now or in an earlier call; None at their first."""
        packing = parameters[: self._packs]
        packed = self._packed
        if packed is None or not are_still(packed.sources, packing):
            again = self._again(source, parameters)
            if again is not None or self._packed is packed:  # else another thread packed them meanwhile
                self._packed = again
            at_the_end(self._forget)
            return again
        return packed

    def _forget(self) -> None:
        self._packed, self._seen = None, ()

    def _again(self, source: torch.Tensor, parameters: Sequence[torch.Tensor]) -> _Packed | None:
        """The parameters packed if they were here in the call before."""
        packing, seen = parameters[: self._packs], self._seen  # once: other threads may call, too
        if not are_still(seen, packing):
            self._seen = tuple(map(TensorState.of, packing))
            return None
        weights = self._weights(source.shape, parameters)
        return None if weights is None else _Packed(seen, *weights)

    @abstractmethod
    def _run(
        self, source: torch.Tensor, packed: _Packed, parameters: Sequence[torch.Tensor], other: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The library's result, with the activation that it applies; `other` is what is added, or where experts' rows end."""

    @abstractmethod
    def _weights(self, shape: Sequence[int], parameters: Sequence[torch.Tensor]) -> _Weights | None:
        """Weights and offsets for sources of a shape; None where they cannot be packed."""


class PackedLayer(PackedKernel):
    """A linear layer. Its offsets are read where they are; only the weights are packed."""

    def __init__(self, kernel: LibraryKernel) -> None:
        super().__init__(kernel)
        self._packs = 1

    def _again(self, source: torch.Tensor, parameters: Sequence[torch.Tensor]) -> _Packed | None:
        key = (place_of(parameters[0]), self.kernel.inputs_first)
        known = _LAYERS.get(key)
        if known is not None and are_still(known.sources, parameters[:1]):
            return known
        packed = super()._again(source, parameters)
        if packed is not None:
            _LAYERS[key] = packed
        return packed

    def _run(
        self, source: torch.Tensor, packed: _Packed, parameters: Sequence[torch.Tensor], other: torch.Tensor | None = None
    ) -> torch.Tensor:
        bias = None if self._bias is None else parameters[self._bias]
        return self._multiplied(source, packed.weights[0], bias)

    def _multiplied(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, *self.activation)  # type: ignore[no-any-return]

    def _weights(self, shape: Sequence[int], parameters: Sequence[torch.Tensor]) -> _Weights | None:
        weight = parameters[0].detach()
        matrices = weight.transpose(-2, -1) if self.kernel.inputs_first else weight
        each = matrices if weight.dim() == 3 else [matrices]
        return tuple(torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous()) for matrix in each), None


class PackedExperts(PackedLayer):
    """A layer of experts: consecutive rows for each."""

    def _run(
        self, source: torch.Tensor, packed: _Packed, parameters: Sequence[torch.Tensor], other: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert other is not None, "experts have ends"
        result = source.new_zeros(len(source), parameters[0].shape[-1])
        start = 0
        for weight, end in zip(packed.weights, other.tolist(), strict=True):
            if end > start:
                result[start:end] = self._multiplied(source[start:end], weight)
            start = end
        return result


class PackedConvolution(PackedKernel):
    """A convolution of which images come and go in a layout."""

    def __init__(self, kernel: LibraryKernel, layout: Layout) -> None:
        super().__init__(kernel)
        assert kernel.geometry is not None, "a convolution has windows"
        self.layout, self.geometry = layout, kernel.geometry
        self._affine = kernel.affine_steps() if kernel.affine else None
        self._steps_read = tuple(kernel.parameters.index(node) for node in kernel.affine_operands[1:])
        self._windows = self._windows_of(kernel)

    def _windows_of(self, kernel: LibraryKernel) -> tuple[Any, ...]:
        """What the library is told of windows, as arguments."""
        padding, stride, dilation, extra = _sizes(self.geometry)
        if self.geometry.transposed and kernel.added is None:
            return padding, extra, stride, dilation, self.geometry.groups
        return padding, stride, dilation, self.geometry.groups

    def __call__(self, source: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """As of every kernel, in the layout."""
        return self.layout.of(super().__call__(source, *tensors))

    def _run(
        self, source: torch.Tensor, packed: _Packed, parameters: Sequence[torch.Tensor], other: torch.Tensor | None = None
    ) -> torch.Tensor:
        geometry, lone = self.geometry, self.geometry.rank == 1
        image = self.layout.of(source)
        given = image.unsqueeze(2) if lone else image
        library, weights, windows = torch.ops.mkldnn, (packed.weights[0], packed.bias), self._windows
        if other is not None:
            sums: tuple[Any, ...] = ("add", 1.0, None, [], None)
            result = library._convolution_pointwise.binary(given, self.layout.of(other), *weights, *windows, *sums)
        elif geometry.transposed:
            result = library._convolution_transpose_pointwise.default(given, *weights, *windows, *self.activation)
        else:
            result = library._convolution_pointwise.default(given, *weights, *windows, *self.activation)
        return result.squeeze(2) if lone else result  # type: ignore[no-any-return]

    def _weights(self, shape: Sequence[int], parameters: Sequence[torch.Tensor]) -> _Weights | None:
        weight, bias = parameters[0], None if self._bias is None else parameters[self._bias]
        if self._affine is not None:
            slope, offset = self._slope_and_offset(parameters)
            bias = offset if bias is None else slope * bias.double() + offset
            if not (slope.isfinite().all() and bias.isfinite().all()):
                return None
            weight, bias = _scaled(weight, slope, self.geometry).to(weight.dtype), bias.to(weight.dtype)
        return (_packed(weight, shape, self.geometry),), bias

    def _slope_and_offset(self, parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the affine steps multiply each channel by, and what they add, in float64: their values at 0 and 1."""
        assert self._affine is not None
        weight, geometry = parameters[0], self.geometry
        channels = weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0]
        shape = (1, channels, *(1 for _ in range(geometry.rank)))
        values = []
        for value in (0.0, 1.0):
            probe = torch.full(shape, value, dtype=torch.float64)
            values.append(self._affine(probe, *(parameters[place].double() for place in self._steps_read)).flatten())
        return values[1] - values[0], values[0]


def _scaled(weight: torch.Tensor, slope: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Weights whose outputs are multiplied by a slope per channel, in float64."""
    places = [1] * geometry.rank
    if not geometry.transposed:
        return weight.double() * slope.reshape(-1, 1, *places)
    groups = geometry.groups
    grouped = weight.double().reshape(groups, -1, *weight.shape[1:])
    return (grouped * slope.reshape(groups, 1, -1, *places)).reshape(weight.shape)


def _packed(weight: torch.Tensor, image: Sequence[int], geometry: Geometry) -> torch.Tensor:
    """Weights in the layout that the library has for images of a shape."""
    weight, image = weight.detach(), list(image)
    if geometry.rank == 1:
        weight, image = weight.unsqueeze(2), [*image[:2], 1, image[2]]
    padding, stride, dilation, extra = _sizes(geometry)
    if geometry.transposed:
        pack = torch.ops.mkldnn._reorder_convolution_transpose_weight
        return pack(weight.contiguous(), padding, extra, stride, dilation, geometry.groups, image)  # type: ignore[no-any-return]
    pack = torch.ops.mkldnn._reorder_convolution_weight
    return pack(weight.contiguous(), padding, stride, dilation, geometry.groups, image)  # type: ignore[no-any-return]


def _sizes(geometry: Geometry) -> tuple[list[int], list[int], list[int], list[int]]:
    """Padding, stride, dilation and additional places at the end, along two dimensions or three."""
    lone = geometry.rank == 1
    sides = ((geometry.padding, 0), (geometry.stride, 1), (geometry.dilation, 1), (geometry.output_padding, 0))
    padding, stride, dilation, extra = ([*([neutral] if lone else []), *sizes] for sizes, neutral in sides)
    return padding, stride, dilation, extra
