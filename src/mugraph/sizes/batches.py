"""Calls in chunks of samples: arguments are cut along their batch, and results put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.calling import Calling
from mugraph.sizes.capacity_calls import CapacityCalls
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, Costs
from mugraph.sizes.covering import joined
from mugraph.sizes.dims import Dim
from mugraph.sizes.growing_kernels import argument_numbers
from mugraph.sizes.sliced_programs import Places

_NEVER = float("inf")
"""Seconds of what is not done: no sample is repeated to fill a chunk."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The dimension of a batch, and where the tensors among arguments and results have it, in the order of their trees."""

    dim: Dim
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]

    def size(self, tensors: Sequence[Any]) -> int:
        """How many samples a call has; raises ShapeMismatch where arguments disagree or have none, or for a batch that was not
        declared."""
        given = [(tensor, dim) for tensor, dim in zip(tensors, self.inputs, strict=True) if dim is not None]
        shapes = [(tuple(getattr(tensor, "shape", ())), dim) for tensor, dim in given]
        if any(dim >= len(shape) for shape, dim in shapes):
            raise ShapeMismatch(f"an input has no dimension for {self.dim.name}")
        sizes: list[int] = sorted({shape[dim] for shape, dim in shapes})
        if len(sizes) != 1:
            raise ShapeMismatch(f"dimension {self.dim.name} has sizes {', '.join(map(str, sizes))} in one call")
        self.dim.check(sizes[0])
        return sizes[0]

    def of_program(self, calling: Calling, arguments: Sequence[torch.Tensor]) -> Places:
        """Where the inputs of a program have the batch that is called with `arguments`, these tensors first."""
        dims = [*self.inputs, *[None] * (len(arguments) - len(self.inputs))]
        return tuple(None if number is None else dims[number] for number in argument_numbers(calling, arguments))

    def cut(self, tensors: Sequence[torch.Tensor], chunk: Chunk) -> list[torch.Tensor]:
        """The samples of a chunk, as views."""
        return [tensor if dim is None else tensor.narrow(dim, *chunk) for tensor, dim in zip(tensors, self.inputs, strict=True)]

    def joined(self, parts: Sequence[Sequence[torch.Tensor]], chunks: Sequence[Chunk]) -> list[torch.Tensor]:
        """The results of chunks as those of a call."""
        return joined(parts, chunks, [None if dim is None else (dim, 1) for dim in self.outputs])


C = TypeVar("C", bound=CapacityCalls[Any])


@dataclass
class BatchCalls(Generic[C]):
    """Kernels of a few batches at a few capacities, of which any batch is put together in chunks, at any length.

    `chunk` is the seconds that a chunk costs beside its kernels.
    """

    samples: Samples
    length: Dim
    tables: dict[int, C] = field(default_factory=dict)
    """By batch."""
    chunk: float = 0.0
    _shared: dict[Any, ChunkedCall] = field(default_factory=dict, init=False, repr=False)
    """What runs a batch in chunks, by all that it is made of: lengths that differ in nothing have one."""

    def plan(self, batch: int, length: int) -> ChunkPlan:
        """How a batch is put together at a length; no chunks are the function itself. Raises ShapeMismatch for sizes that were
        not declared."""
        self.samples.dim.check(batch)
        self.length.check(length)
        return Costs(self._seconds(length), self.own(length), self.chunk, _NEVER).plan(batch)

    def own(self, length: int) -> dict[int, float]:
        """Seconds of the function itself at a length, by batch, where it is here and was measured."""
        return {}

    def _seconds(self, length: int) -> dict[int, float]:
        """Seconds of kernels at a length, by batch; where nothing was measured, in proportion to slots and samples, of which a
        call costs one more."""
        best = {size: min((plan.seconds for plan in table.plans(length)), default=None) for size, table in self.tables.items()}
        measured = all(table.seconds for table in self.tables.values())
        return {size: each if measured else each * (size + 1) for size, each in best.items() if each is not None}

    def chunked(self, batch: int, length: int, chunks: tuple[Chunk, ...]) -> Callable[..., Any]:
        """What runs a batch in chunks by kernels."""
        runs = {size: self.tables[size].fastest(length) for _, size in chunks}
        if chunks == (Chunk(0, batch),):
            return runs[batch]
        key = batch, chunks, *runs.values()
        if key not in self._shared:
            some = self.tables[chunks[0].size].masked
            self._shared[key] = ChunkedCall(self.samples, batch, chunks, runs, some.structure, some.results)
        return self._shared[key]


@dataclass(frozen=True, slots=True)
class ChunkedCall:
    """What answers calls with `size` samples, in chunks, by what runs those of each size. Safe to call from several threads if
    they are."""

    samples: Samples
    size: int
    chunks: tuple[Chunk, ...]
    runs: Mapping[int, Callable[..., Any]]
    structure: TreeSpec
    """Of the arguments, the named ones in the order of their names."""
    results: TreeSpec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns; raises ShapeMismatch and InvalidInput for arguments that do not fit."""
        tensors, structure = tree_flatten((args, dict(sorted(kwargs.items()))))
        if structure != self.structure:
            raise InvalidInput(f"call with {len(self.samples.inputs)} tensors in the structure of the example call")
        if self.samples.size(tensors) != self.size:
            raise ShapeMismatch(f"dimension {self.samples.dim.name} has another size than {self.size}")
        parts = [self._part(self.samples.cut(tensors, chunk), chunk.size) for chunk in self.chunks]
        return tree_unflatten(self.samples.joined(parts, self.chunks), self.results)

    def _part(self, tensors: Sequence[torch.Tensor], size: int) -> list[torch.Tensor]:
        args, kwargs = tree_unflatten(list(tensors), self.structure)
        made: list[torch.Tensor] = tree_flatten(self.runs[size](*args, **kwargs))[0]
        return made
