"""A range of sizes of a function that runs in pieces, read from a folder (`mugraph.sizes.saved_pieced`), to be called at any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from mugraph.frontend.recording.recorded_graph import TensorsInOrder
from mugraph.host.tensor_state import forgotten
from mugraph.pieces.data import PartitionedResult
from mugraph.pieces.partitioned import load as load_pieces
from mugraph.results.serialization import ONE_PROGRAM, kind_of, read_manifest
from mugraph.results.superoptimized import Superoptimized, load_program
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan
from mugraph.sizes.covering import CallingAtSize
from mugraph.sizes.first_calls import call_each_once, is_of_the_library
from mugraph.sizes.rescaled_calls import RescaledCalls
from mugraph.sizes.saved_pieced import Contents, SavedPieced
from mugraph.sizes.saved_sizes import LoadedRows, LoadedSizes
from mugraph.sizes.sliced_kernels import FirstSlices, example_of
from mugraph.sizes.sliced_pieces import sliced_pieces


class LoadedPieced(LoadedSizes):
    """What `DynamicSuperoptimized.load` reads of a function that runs in pieces: call it as `LoadedSizes`.

    Sizes in `alone` have results of their own, which no others are put together of.
    """

    def __init__(self, saved: SavedPieced, table: Mapping[int, Superoptimized], alone: Mapping[int, Superoptimized]) -> None:
        self.alone = dict(alone)
        self._name, self._calls = saved.name, saved.calls
        with forgotten():  # the weights of examples, of which kernels would hold copies
            super().__init__(saved, saved.calls.inputs, table, saved.calls)
            if is_of_the_library(next(iter(table.values())).target):
                example = {
                    number: each for number, each in enumerate(self._example(self.dim.low)) if self._inputs[number] is None
                }
                call_each_once(self._runs, lambda size: (self._example(size, example), {}))

    def plan(self, size: int) -> ChunkPlan:
        """How a size is covered."""
        self.dim.check(size)
        return ChunkPlan((Chunk(0, size),), self.costs.alone[size]) if size in self.alone else self.costs.plan(size)

    def _run(self, size: int) -> Callable[..., Any]:
        return self.alone[size] if size in self.alone else super()._run(size)

    def _in_part(self, size: int) -> FirstSlices | None:
        """The kernels of a size that compute its first slices, made again of its muGraphs; None where they cannot here."""
        made = self.table[size]
        assert isinstance(made, PartitionedResult), "as was checked"
        example = made.calling.flatten(self._example(size), {})
        module = made.cut.recorded.module
        other_size, other = next((known, graph) for known, graph in self._calls.graphs.items() if known != size)
        calls = RescaledCalls.of(module, size, other, other_size)
        with torch.no_grad(), suppress(RuntimeError, IndexError):  # PyTorch's, of calls that refuse the example's numbers
            return sliced_pieces(module, made.cut.plan, self._inputs, self._places.outputs, example, calls=calls)
        return None

    def _example(self, size: int, known: Mapping[int, torch.Tensor] = MappingProxyType({})) -> list[torch.Tensor]:
        """Tensors for a call of a size, of which some are `known` by their numbers."""
        tensors = self._calls.tensors_at(size)[: self._calls.given]
        return [known[number] if number in known else example_of(*each) for number, each in enumerate(tensors)]

    def _calling(self, size: int, result: Superoptimized) -> CallingAtSize:
        """Types of tensors are looked at, too: PyTorch's calls take any."""
        tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self._calls.tensors_at(size)]
        named = dict(zip(self._calls.names, tensors, strict=True))
        return TensorsInOrder(self._name, named, self._structure, self._constants.saved)

    def __repr__(self) -> str:
        own = f", and {len(self.alone)} alone" if self.alone else ""
        sizes = f"{len(self.table)} sizes in pieces, which cover all others{own}"
        return f"<LoadedPieced for {self.dim.short}: {sizes}>"


def load(folder: Path, trust_sources: bool = False) -> LoadedPieced | LoadedRows:
    """The range of sizes in a folder; raises what `mugraph.load` raises, also unless results are the same calls of each slice,
    and muGraphs act on slices."""
    saved = SavedPieced.of(folder)
    results = {size: _loaded(place, trust_sources) for size, place in saved.programs.items()}
    saved.check({size: Contents.of(result) for size, result in results.items()})
    table, alone = ({size: results[size] for size in sizes} for sizes in (saved.costs.kernels, saved.costs.alone))
    loaded = LoadedPieced(saved, table, alone)
    return loaded if saved.rows is None else LoadedRows(saved.rows, loaded)


def _loaded(place: Path, trust_sources: bool) -> Superoptimized:
    """A result of one program, or in pieces; raises what `mugraph.load` raises."""
    return (load_program if kind_of(read_manifest(place)) == ONE_PROGRAM else load_pieces)(place, trust_sources)
