"""Kernels for a batch and a length on disk: a folder of capacities (`mugraph.sizes.saved_capacities`) for each of a few batches.

mugraph.json      the manifest, of the kind `batches`
batches.json      the dimension of the batch and its range, where arguments and outputs have it, what chunks cost, the claim
batches/M/...     the folder of capacities for batch M

That the programs are one program of each sample is proved again when the folder is read. Whose function they are, and that
samples are independent at other batches, is not in it: `mugraph verify --certificate DIR FILE.py:f` asks PyTorch again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch, StorageError
from mugraph.results.data import Shared
from mugraph.results.places import check_replaceable
from mugraph.results.serialization import BATCHES, write_folder
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes import loaded_capacities, range_folder, saved_capacities
from mugraph.sizes.batched_results import BatchTable
from mugraph.sizes.batches import BatchCalls, Samples
from mugraph.sizes.capacity_calls import CapacityCalls
from mugraph.sizes.chunk_plans import ChunkPlan
from mugraph.sizes.dims import Declared, Dim, Sizes, known_sizes
from mugraph.sizes.loaded_capacities import LoadedCapacities
from mugraph.sizes.masked_calls import MaskedCalls
from mugraph.sizes.range_folder import RangeFolder, document_of, seconds_of
from mugraph.sizes.saved_capacities import SavedCapacities
from mugraph.sizes.sliced_programs import Places, SlicedProgram


def save(path: Path, table: BatchTable, declared: Declared, claim: str) -> Path:
    """Write the results to the folder `path`, as `mugraph.results.serialization.save` does.

    Raises StorageError where nothing in the folder could run the smallest batches or the longest lengths.
    """
    check_replaceable(path)
    batch = table.samples.dim
    if min(table.tables) > batch.low:
        raise StorageError(
            f"no kernels run {batch.name} from {batch.low} to {min(table.tables) - 1}, where the function itself is called; "
            "raise the budget, or declare a smaller range"
        )
    of_length = declared.only(table.length.name).dynamic
    folders = {size: saved_capacities.files_of(each, of_length, each.claim) for size, each in table.tables.items()}
    record = {
        **range_folder.said_of(batch, declared.only(batch.name).dynamic, claim, sorted(table.function.masked)),
        "inputs": list(table.samples.inputs),
        "outputs": list(table.samples.outputs),
        "chunk": table.chunk,
        "seconds": {str(size): None if not each.seconds else _at_most(each) for size, each in sorted(table.tables.items())},
    }
    some = next(iter(next(iter(table.tables.values())).kernels.values()))
    return write_folder(path, range_folder.files_by_size(BATCHES, record, folders, some.target))


def _at_most(table: CapacityCalls[Any]) -> float:
    """Seconds of a call of the longest length."""
    return min(plan.seconds for plan in table.plans(table.masked.dim.high))


@dataclass(frozen=True, slots=True)
class SavedBatches:
    """What a folder says, of which no program was compiled again."""

    samples: Samples
    dynamic: tuple[tuple[int | str, int], ...]
    """Arguments of the function, and their dimensions of the batch."""
    claim: str
    chunk: float
    capacities: Mapping[int, SavedCapacities]
    """By batch."""
    folders: Mapping[int, Path]

    @classmethod
    def of(cls, folder: Path) -> SavedBatches:
        """What the folder says; raises InvalidInput for a file that was changed or is malformed."""
        saved = RangeFolder.of(folder, BATCHES, "kernels of batches")
        with saved.well_formed():
            folders = saved.programs(map(int, saved.record["seconds"]))
            capacities = {size: SavedCapacities.of(each) for size, each in folders.items()}
            samples = Samples(saved.dim, _places(saved.record["inputs"]), _places(saved.record["outputs"]))
            found = cls(samples, saved.dynamic, saved.claim, seconds_of(saved.record["chunk"]), capacities, folders)
            found.check()
            return found

    def check(self) -> None:
        """Raise ValueError where folders do not fit each other."""
        first = next(iter(self.capacities.values()))
        for each in self.capacities.values():
            if (each.dim, each.dynamic, each.places, each.arguments) != (
                first.dim,
                first.dynamic,
                first.places,
                first.arguments,
            ) or each.structure != first.structure:
                raise ValueError("batches are called differently, or with other lengths")
        sizes, dim = sorted(self.capacities), self.samples.dim
        if not (sizes[0] <= dim.low and sizes[-1] <= dim.high) or any(size % dim.multiple_of for size in sizes):
            raise ValueError("no kernels run the smallest batch, or there are kernels for another one than declared")
        if len(self.samples.inputs) > len(first.places.inputs) or len(self.samples.outputs) != len(first.places.outputs):
            raise ValueError("arguments or outputs of the programs are others")
        if all(dim is None for dim in self.samples.inputs):
            raise ValueError("nothing has the batch")

    @property
    def length(self) -> Dim:
        """The other dimension."""
        return next(iter(self.capacities.values())).dim

    @property
    def programs(self) -> Mapping[int, Path]:
        """The folders of all results, numbered."""
        return dict(enumerate(place for each in self.capacities.values() for place in each.programs.values()))

    def places(self, constants: int) -> Places:
        """Where the inputs of a program have the batch, of which the last are so many constants."""
        some = next(iter(self.capacities.values()))
        dims = [*self.samples.inputs, *[None] * (len(some.arguments) - len(self.samples.inputs))]
        return (*(dims[number] for number in some.arguments), *[None] * constants)

    def of_calls(self) -> Samples:
        """Where the tensors of a call have the batch, those that the function brings along among them."""
        brought = len(next(iter(self.capacities.values())).places.inputs) - len(self.samples.inputs)
        return Samples(self.samples.dim, (*self.samples.inputs, *[None] * brought), self.samples.outputs)


class LoadedBatches(Shared):
    """What `DynamicSuperoptimized.load` reads of a batch and a length: call it with one tensor per input, of any sizes in both
    ranges: the tensors of the function in order, then what it brings along."""

    def __init__(self, saved: SavedBatches, calls: BatchCalls[CapacityCalls[MaskedCalls]]) -> None:
        self.samples, self.length, self.claim, self.batches = calls.samples, calls.length, saved.claim, calls
        self._runs: dict[Sizes, Callable[..., Any]] = {
            sizes: self._run(*sizes) for sizes in known_sizes([self.samples.dim, self.length])
        }
        self._first = next(
            (number, place.dim)
            for number, place in enumerate(next(iter(calls.tables.values())).masked.graph.inputs)
            if place is not None
        )

    def __call__(self, *tensors: Any) -> Any:
        """The outputs in the structure that the function returned them; raises ShapeMismatch and InvalidInput."""
        if len(tensors) != len(self.samples.inputs):
            raise InvalidInput(f"call with {len(self.samples.inputs)} tensors")
        batch, (number, dim) = self.samples.size(tensors), self._first
        shape = tuple(getattr(tensors[number], "shape", ()))
        if dim >= len(shape):
            raise ShapeMismatch(f"input {number} has no dimension for {self.length.name}")
        sizes = batch, shape[dim]
        run = self._runs.get(sizes)
        if run is None:
            run = self._runs[sizes] = self._run(*sizes)
        return run(*tensors)

    def _run(self, batch: int, length: int) -> Callable[..., Any]:
        return self.batches.chunked(batch, length, self.plan(batch, length).chunks)

    def plan(self, batch: int, length: int) -> ChunkPlan:
        """How a batch is put together at a length; raises ShapeMismatch for sizes that are out of range."""
        return self.batches.plan(batch, length)

    def __repr__(self) -> str:
        ranges = ", ".join(dim.short for dim in (self.samples.dim, self.length))
        return f"<LoadedBatches for {ranges}: {len(self.batches.tables)} batches, which hold all sizes>"


def load(folder: Path, trust_sources: bool = False) -> LoadedBatches:
    """The kernels of batches in a folder; raises what `mugraph.sizes.loaded_capacities.load` raises, also unless all programs are
    one of a sample, and all muGraphs act on samples."""
    saved = SavedBatches.of(folder)
    loaded = {size: loaded_capacities.load(place, trust_sources) for size, place in saved.folders.items()}
    try:
        _check_samples(saved, loaded)
    except MugraphError as error:
        raise InvalidInput(f"{folder / document_of(BATCHES)} does not fit the programs beside it: {error}") from None
    tables = {size: each.capacities for size, each in loaded.items()}
    return LoadedBatches(saved, BatchCalls(saved.of_calls(), saved.length, tables, saved.chunk))


def _check_samples(saved: SavedBatches, loaded: Mapping[int, LoadedCapacities]) -> None:
    """Raise MugraphError unless programs of one capacity are one program of a sample, and muGraphs act on samples with the same
    outputs."""
    capacity = min(max(each.capacities.kernels) for each in loaded.values())
    slices = dict[int, SlicedProgram]()
    for size, each in sorted(loaded.items(), reverse=True):
        for held, made in each.capacities.kernels.items():
            cut = _sliced(saved, size, made)
            if held in slices and not slices[held].is_computed_by(made.program, saved.places(len(made.calling.constants))):
                raise InvalidInput(f"the program for {held} of {saved.length.name} is another one of a sample at {size}")
            slices.setdefault(held, cut)
        if capacity not in each.capacities.kernels:
            raise InvalidInput(f"batches {size} and others have no capacity in common that holds all of {saved.length.name}")
    if tuple(slices[capacity].outputs) != saved.samples.outputs:
        raise InvalidInput("outputs have the batch in other places")


def _sliced(saved: SavedBatches, size: int, made: Superoptimized) -> SlicedProgram:
    """A program of one sample; its muGraph acts on samples, too."""
    places = saved.places(len(made.calling.constants))
    if any(node.output.shape[dim] != size for node, dim in zip(made.program.inputs(), places, strict=True) if dim is not None):
        raise InvalidInput(f"a program does not take {size} of {saved.samples.dim.name}")
    cut = SlicedProgram.of(made.program, places)
    if size > 1 and SlicedProgram.of(made.graph, places).outputs != cut.outputs:
        raise InvalidInput("a muGraph has the batch in other dimensions of its outputs than the program")
    return cut


def _places(dims: Sequence[Any]) -> tuple[int | None, ...]:
    if not all(dim is None or (type(dim) is int and dim >= 0) for dim in dims):
        raise ValueError(f"{dims!r} are no dimensions")
    return tuple(dims)
