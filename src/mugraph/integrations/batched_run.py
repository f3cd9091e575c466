"""Parts of graphs of `torch.compile` with a batch and a length that is reduced, run in chunks of samples at any length.

Where several chunks are to be compared with PyTorch's calls, the first call of a batch times both.

Dynamo makes graphs of their own for batches of 0 and 1, so that every other one is put together of two and more samples, the last
chunk overlapping the one before (docs/theory.md, "A batch beside a length").
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from mugraph.frontend.partitioning.splice import laid_out
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.masked_parts import BatchedPart, MaskedPart
from mugraph.runtime.benchmarking import quickest
from mugraph.sizes.chunk_plans import Chunk, Costs
from mugraph.sizes.covering import joined

_SIZES = (2, 8, 32)
"""The batches that have kernels."""
_PER_CHUNK = 1.0
"""What a chunk costs, in samples."""

Run = Callable[..., Sequence[torch.Tensor]]


class BatchedRun:
    """What runs a part of a graph at any batch and length, by what `made` makes of the part for a few batches, each with its
    share of the budget: one call may ask for all. Several chunks run where they are faster than PyTorch's calls, if that is
    `compared`. Safe to call from several threads if what is made is."""

    def __init__(self, part: BatchedPart, made: Callable[[MaskedPart, float], Run], *, compared: bool) -> None:
        self.part, self.compared = part, compared
        self.runs: dict[int, Run] = {}
        for size in _SIZES:
            try:
                self.runs[size] = made(part.at(size), 1 / len(_SIZES))
            except SizeMatters:  # sizes beyond are chunks of smaller ones
                break
        self._places = [(number, dim) for number, dim in enumerate(part.places) if dim is not None]
        self._costs = Costs({size: float(size) for size in self.runs}, chunk=_PER_CHUNK, padding=float("inf"))
        self._ways: dict[int, Run] = {}
        """What runs a batch."""

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        number, dim = self._places[0]
        batch = inputs[number].shape[dim]
        if batch not in self._ways:
            self._ways[batch] = self._way(batch, inputs)
        return self._ways[batch](*inputs)

    def _way(self, batch: int, inputs: Sequence[torch.Tensor]) -> Run:
        """PyTorch's calls for a batch smaller than all chunks, or at which they are as fast as several chunks; else these."""
        if batch < min(self.runs):
            return self.part.at(batch).original
        chunks = self._costs.plan(batch).chunks
        in_chunks = functools.partial(self._in_chunks, chunks)
        if not self.compared or len(chunks) == 1:
            return in_chunks
        try:
            sides: tuple[Run, Run] = (self.part.at(batch).original, in_chunks)
        except SizeMatters:
            return in_chunks
        return sides[quickest([functools.partial(side, *inputs) for side in sides])]

    def _in_chunks(self, chunks: Sequence[Chunk], *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        parts = [self.runs[chunk.size](*self._cut(inputs, chunk)) for chunk in chunks]
        if len(parts) == 1:
            return parts[0]
        whole = joined(parts, chunks, [None if dim is None else (dim, 1) for dim in self.part.results])
        return [
            tensor if strides is None else laid_out(tensor, strides)
            for tensor, strides in zip(whole, self.part.strides, strict=True)
        ]

    def _cut(self, inputs: Sequence[torch.Tensor], chunk: Chunk) -> list[torch.Tensor]:
        cut = list(inputs)
        for number, dim in self._places:
            cut[number] = inputs[number].narrow(dim, *chunk)
        return cut
