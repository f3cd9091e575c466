"""A call at one size, put together of kernels for others: each runs on a chunk of the slices and writes its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES
from mugraph.pieces.data import PartitionedResult
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes.chunk_plans import Chunk
from mugraph.sizes.sliced_kernels import FirstSlices
from mugraph.sizes.sliced_programs import Places


class CallingAtSize(Protocol):
    """What `mugraph.frontend.calls.calling.Calling` has for calls."""

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None: ...
    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]: ...
    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any: ...


class OutputPlaces(Protocol):
    """Where outputs have the axis, and how many elements of that dimension belong to a slice."""

    @property
    def outputs(self) -> Places: ...
    @property
    def widths(self) -> tuple[int, ...]: ...


class Covering:
    """What runs a function at `size` by kernels for the sizes of `chunks`. Safe to call from several threads.

    Of a lone chunk that is larger than the size the first slices are computed, by kernels of `parts` if there are some for it.
    """

    def __init__(
        self,
        calling: CallingAtSize,
        inputs: Places,
        places: OutputPlaces,
        size: int,
        chunks: Sequence[Chunk],
        results: Mapping[int, Superoptimized],
        parts: Mapping[int, FirstSlices],
    ) -> None:
        self.size, self.calling = size, calling
        part = parts.get(chunks[0].size) if chunks[0].size > size else None
        axes = [(number, dim) for number, dim in enumerate(inputs) if dim is not None]
        self._outputs = _Chunks(axes, places, size, chunks, results) if part is None else part.at(size)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns; raises ShapeMismatch and InvalidInput as its results do."""
        given = self.calling.plain(args, kwargs)
        inputs = self.calling.flatten(args, kwargs) if given is None else given
        try:
            outputs = self._outputs(*inputs)
        except (InvalidInput, ShapeMismatch):
            self.calling.flatten(args, kwargs)  # which says what of the whole arguments does not fit
            raise
        return self.calling.unflatten(outputs, inputs)


class _Computing(Protocol):
    """What computes all outputs of a chunk: those that are asked for are written in place where that is possible."""

    def __call__(self, *inputs: Any) -> Sequence[Any]: ...
    def into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True)
class _InPieces:
    """A function of which only parts are programs, as the executable of one program computes."""

    result: PartitionedResult

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        with torch.no_grad():
            return self.result.outputs(list(inputs))

    def into(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """New tensors: nothing is written in place."""
        return self(*inputs)


def _computing(result: Superoptimized) -> _Computing:
    return _InPieces(result) if isinstance(result, PartitionedResult) else result.executable


def _made_by(result: Superoptimized) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and types of the outputs."""
    if isinstance(result, PartitionedResult):
        values = [node.meta["val"] for node in result.cut.recorded.outputs]
        return [(tuple(value.shape), value.dtype) for value in values]
    return [(tensor.shape, TORCH_DTYPES[tensor.dtype]) for tensor in result.program.output_tensors]


class _Chunks:
    """The outputs of a function at a size, by results for the sizes of chunks, of its inputs, which have the axis in `axes`.

    Chunks are views of the inputs where the dimension is their first. Kernels write their parts of the outputs in place there;
    elsewhere these are copied. A lone chunk that is larger than the size gets its last slice repeated: what is computed besides
    is defined, and integers are places of tables, where they are for the function. Its results are left out.
    """

    def __init__(
        self,
        axes: Sequence[tuple[int, int]],
        places: OutputPlaces,
        size: int,
        chunks: Sequence[Chunk],
        results: Mapping[int, Superoptimized],
    ) -> None:
        self._axes, self._size = axes, size
        self._places = list(zip(places.outputs, places.widths, strict=True))
        self._chunks = [self._chunk(chunk, results[chunk.size]) for chunk in chunks]
        reached = max(chunk.start + chunk.size for chunk in chunks)
        self._rows = None if reached == size else torch.arange(reached).clamp_(max=size - 1)
        self._whole = [None if dim is None else _slice(dim, 0, size * width) for dim, width in self._places]
        self._made = [
            None if dim is None else (_with_size(shape, dim, size * width), dtype)
            for (shape, dtype), (dim, width) in zip(_made_by(results[chunks[0].size]), self._places, strict=True)
        ]

    def __call__(self, *inputs: Any) -> list[Any]:
        for number, dim in self._axes:
            if inputs[number].shape[dim] != self._size:
                raise ShapeMismatch(f"an input has size {inputs[number].shape[dim]} where others have {self._size}")
        return self._written(inputs) if self._rows is None else self._padded(inputs, self._rows)

    def _written(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, in which each chunk writes its part."""
        device = inputs[0].device
        outputs: list[Any] = [None if made is None else torch.empty(made[0], dtype=made[1], device=device) for made in self._made]
        for computing, read, written in self._chunks:
            parts = list(inputs)
            for number, place in read:
                parts[number] = inputs[number][place]
            wanted = [None if place is None else output[place] for output, place in zip(outputs, written, strict=True)]
            for number, (part, made) in enumerate(zip(wanted, computing.into(parts, wanted), strict=True)):
                if part is None:
                    outputs[number] = made  # of no slice, and the same in each chunk
                elif made is not part:
                    part.copy_(made)
        return outputs

    def _padded(self, inputs: Sequence[Any], rows: torch.Tensor) -> list[Any]:
        """The outputs by one chunk that is larger than this size."""
        parts, rows = list(inputs), rows.to(inputs[0].device)
        for number, dim in self._axes:
            parts[number] = inputs[number].index_select(dim, rows)
        ((computing, _, _),) = self._chunks
        made = computing(*parts)
        return [output if place is None else output[place].contiguous() for output, place in zip(made, self._whole, strict=True)]

    def _chunk(self, chunk: Chunk, result: Superoptimized) -> tuple[_Computing, list[tuple[int, _Part]], list[_Part | None]]:
        """What computes a chunk, which parts of the inputs it reads, and which of the outputs it writes."""
        start, size = chunk
        read = [(number, _slice(dim, start, size)) for number, dim in self._axes]
        written = [None if dim is None else _slice(dim, start * width, size * width) for dim, width in self._places]
        return _computing(result), read, written


def joined(parts: Sequence[Sequence[Any]], chunks: Sequence[Chunk], places: Sequence[tuple[int, int] | None]) -> list[Any]:
    """Results of chunks as one, without what the last repeats of those before it. `places` has the dimension of the axis in each
    result and how many elements of it a slice has; None of a result without it, which is that of the first chunk."""
    repeated = sum(chunk.size for chunk in chunks) - (chunks[-1].start + chunks[-1].size)
    made: list[Any] = []
    for place, outputs in zip(places, zip(*parts, strict=True), strict=True):
        if place is None:
            made.append(outputs[0])
            continue
        dim, width = place
        last = outputs[-1].narrow(dim, repeated * width, (chunks[-1].size - repeated) * width)
        made.append(torch.cat([*outputs[:-1], last], dim))
    return made


_Part = tuple[slice, ...]


def _slice(dim: int, start: int, size: int) -> _Part:
    return (*[slice(None)] * dim, slice(start, start + size))


def _with_size(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
