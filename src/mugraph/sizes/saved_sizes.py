"""A range of sizes on disk: what a saved program is (`mugraph.results.serialization`), for each size of the table, and how they
cover the others.

mugraph.json      the manifest, of the kind `sizes`
sizes.json        the dimension and its range, where it stands in inputs and outputs, what sizes cost, the claim in words
sizes/M/...       the saved result for size M

That the programs are one program of each slice is proved again when the folder is read. Whose function they are, and that it is
this at every other size, is not in it: `mugraph verify --certificate DIR FILE.py:f` asks PyTorch again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch.utils._pytree import tree_leaves

from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend.calls.calling import filled, structure_of
from mugraph.frontend.calls.saved_constants import ConstantsBeside
from mugraph.results.data import Shared
from mugraph.results.places import check_replaceable
from mugraph.results.serialization import RANGE
from mugraph.results.superoptimized import Superoptimized, load_program
from mugraph.sizes import range_folder
from mugraph.sizes.chunk_plans import Chunk, ChunkPlan, Costs
from mugraph.sizes.covering import CallingAtSize, Covering, OutputPlaces
from mugraph.sizes.dims import Dim, Dynamic, known_sizes
from mugraph.sizes.range_folder import RangeFolder
from mugraph.sizes.row_functions import RowFunction
from mugraph.sizes.row_results import RowCall
from mugraph.sizes.rows import Rows
from mugraph.sizes.sliced_functions import SlicedFunction
from mugraph.sizes.sliced_kernels import FirstSlices, example_inputs, sliced_kernels
from mugraph.sizes.sliced_programs import Places, SlicedProgram


def save(
    path: Path,
    sliced: SlicedFunction,
    dynamic: Dynamic,
    table: Mapping[int, Superoptimized],
    costs: Costs,
    claim: str,
    of_rows: RowFunction | None = None,
) -> Path:
    """Write the results of a table to the folder `path`, as `mugraph.results.serialization.save` does, with their `costs`, and
    which two dimensions the slices are rows of."""
    check_replaceable(path)
    some = next(iter(table.values()))
    record = {
        **range_folder.said_of(sliced.dim, dynamic, claim, sliced.sizes),
        "inputs": list(sliced.inputs),
        "structure": structure_of(sliced.calling, len(some.program.outputs)),
        **range_folder.said_of_costs(costs, table),
    }
    if of_rows is not None:
        check_rows(of_rows.rows, sliced, shapes_of_outputs(some), record["structure"])
        record["rows"] = of_rows.to_json()
    return range_folder.save(path, RANGE, record, table)


@dataclass(frozen=True, slots=True)
class SavedSizes:
    """What a folder says, of which no program was compiled again."""

    dim: Dim
    dynamic: tuple[tuple[int | str, int], ...]
    """Arguments of the function, and their dimensions of varying size."""
    claim: str
    inputs: tuple[int | None, ...]
    structure: Any
    costs: Costs
    programs: Mapping[int, Path]
    """The folders of the results, by size."""
    rows: Rows | None = None
    """The two dimensions that slices are rows of, where they are; `dim` is then of their product."""

    @classmethod
    def of(cls, folder: Path) -> SavedSizes:
        """What the folder says; raises InvalidInput for a file that was changed or is malformed."""
        saved = RangeFolder.of(folder, RANGE, "range of sizes")
        record = saved.record
        with saved.well_formed():
            costs = range_folder.costs_said(record)
            inputs = tuple(None if place is None else int(place) for place in record["inputs"])
            programs = saved.programs(costs.kernels)
            rows = Rows.of_json(record["rows"], inputs) if "rows" in record else None
            if rows is not None and rows.dim != saved.dim:
                raise ValueError(f"{rows.dim} are the rows, and {saved.dim} is the dimension")
            return cls(saved.dim, saved.dynamic, saved.claim, inputs, record["structure"], costs, programs, rows)


class SaysSizes(Protocol):
    """What folders of results for sizes that others are put together of say."""

    @property
    def dim(self) -> Dim: ...
    @property
    def claim(self) -> str: ...
    @property
    def structure(self) -> Any: ...
    @property
    def costs(self) -> Costs: ...


class LoadedSizes(Shared):
    """What `DynamicSuperoptimized.load` reads: call it with one tensor per input, in order, of any size in the range; what the
    function computes of no tensor is saved with it."""

    def __init__(self, saved: SaysSizes, inputs: Places, table: Mapping[int, Superoptimized], places: OutputPlaces) -> None:
        self.dim, self.claim, self.costs = saved.dim, saved.claim, saved.costs
        self.table = dict(table)
        self._structure, self._inputs, self._places = saved.structure, inputs, places
        self._constants = ConstantsBeside(table[max(table)].calling.constants)
        self._parts = {size: kernels for size in self.costs.parts if (kernels := self._in_part(size)) is not None}
        self.costs = replace(self.costs, parts={size: self.costs.parts[size] for size in self._parts})
        self._runs: dict[int, Callable[..., Any]] = {size: self._run(size) for (size,) in known_sizes([self.dim])}

    def __call__(self, *tensors: Any) -> Any:
        """The outputs in the structure that the function returned them; raises ShapeMismatch and InvalidInput."""
        number, place = next((number, place) for number, place in enumerate(self._inputs) if place is not None)
        if number >= len(tensors):
            raise InvalidInput(f"call with {len(self._inputs) - len(self._constants.saved)} tensors")
        shape = getattr(tensors[number], "shape", ())
        if place >= len(shape):
            raise ShapeMismatch(f"input {number} has no dimension {place}, which is {self.dim.name}")
        size = int(shape[place])
        if size not in self._runs:
            self.dim.check(size)
            self._runs[size] = self._run(size)
        return self._runs[size](*tensors)

    def plan(self, size: int) -> ChunkPlan:
        """How a size is covered."""
        self.dim.check(size)
        return self.costs.plan(size)

    def _in_part(self, size: int) -> FirstSlices | None:
        """The kernels of a size that compute its first slices, printed again from its muGraph; None where they cannot here."""
        executable, constants = self.table[size].executable, self._constants
        example = example_inputs(executable.graph)
        example = [*example[: len(example) - len(constants.saved)], *constants(example)]
        return sliced_kernels(executable, self._inputs, self._places.outputs, example)

    def _run(self, size: int) -> Callable[..., Any]:
        chunks: Sequence[Chunk] = self.costs.plan(size).chunks
        calling = self._calling(size, self.table[chunks[0].size])
        return Covering(calling, self._inputs, self._places, size, chunks, self.table, self._parts)

    def _calling(self, size: int, result: Superoptimized) -> CallingAtSize:
        """How calls of a size are looked at, of which a result runs a chunk."""
        shapes = [node.output.shape for node in result.program.inputs()]
        wanted = [
            shape if place is None else (*shape[:place], size, *shape[place + 1 :])
            for shape, place in zip(shapes, self._inputs, strict=True)
        ]
        return _AtSize(tuple(wanted[: len(wanted) - len(self._constants.saved)]), self._structure, self._constants)

    def __repr__(self) -> str:
        return f"<LoadedSizes for {self.dim.short}: {len(self.table)} sizes, which cover all others>"


@dataclass(frozen=True, slots=True)
class _AtSize:
    """One tensor per input, of these shapes, and then constants; outputs in a structure that is known as JSON."""

    shapes: tuple[tuple[int, ...], ...]
    structure: Any
    constants: ConstantsBeside

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Shapes are looked at in every call."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors and the constants; raises InvalidInput and ShapeMismatch where they do not fit."""
        if kwargs or len(args) != len(self.shapes):
            raise InvalidInput(f"call with {len(self.shapes)} tensors, in order")
        for number, (tensor, shape) in enumerate(zip(args, self.shapes, strict=True)):
            if tuple(getattr(tensor, "shape", ())) != shape:
                raise ShapeMismatch(f"input {number} has shape {list(getattr(tensor, 'shape', ()))}, wanted is {list(shape)}")
        return [*args, *self.constants(args)]

    def unflatten(self, outputs: Sequence[Any], inputs: Sequence[Any] = ()) -> Any:
        """The outputs in their structure."""
        return filled(self.structure, outputs)


class LoadedRows(Shared):
    """What `DynamicSuperoptimized.load` reads of two dimensions that are rows: call it as `LoadedSizes`, of any sizes in both
    ranges."""

    def __init__(self, rows: Rows, result: LoadedSizes) -> None:
        self.rows, self.result, self.claim = rows, result, result.claim

    def __call__(self, *tensors: Any) -> Any:
        """The outputs in the structure that the function returned them; raises ShapeMismatch and InvalidInput."""
        number, place = self.rows.places[0]
        shape = getattr(tensors[number], "shape", ()) if isinstance(number, int) and number < len(tensors) else ()
        if place + 1 >= len(shape):
            raise ShapeMismatch(f"input {number} has no dimensions {self.rows.first.name} and {self.rows.second.name}")
        sizes = shape[place], shape[place + 1]
        self.rows.check(sizes)
        return RowCall(self.rows, sizes, self.result)(*tensors)

    def plan(self, sizes: Sequence[int]) -> ChunkPlan:
        """How the rows of two sizes are covered; raises ShapeMismatch for sizes that were not declared."""
        return self.result.plan(self.rows.count(sizes))

    def __repr__(self) -> str:
        return f"<LoadedRows of {self.rows.first.name} and {self.rows.second.name}: {self.result!r}>"


def load(folder: Path, trust_sources: bool = False) -> LoadedSizes | LoadedRows:
    """The range of sizes in a folder; raises what `mugraph.load` raises, also unless its programs are one of a slice."""
    saved = SavedSizes.of(folder)
    table = {size: load_program(place, trust_sources) for size, place in saved.programs.items()}
    largest = SlicedProgram.of(table[max(table)].program, saved.inputs)
    constants = table[max(table)].calling.constants
    if any(place is not None for place in saved.inputs[len(saved.inputs) - len(constants) :]):
        raise InvalidInput(f"{folder}: a constant has the dimension {saved.dim.name}; do not use it")
    for size, result in table.items():
        if result.calling.constants != constants:
            raise InvalidInput(f"{folder}: size {size} has other constants than {max(table)}; do not use it")
        if not (largest.is_computed_by(result.program, saved.inputs) and largest.is_acted_on_by(result.graph, saved.inputs)):
            raise InvalidInput(f"{folder}: the program of size {size} is not that of the others, slice by slice; do not use it")
    loaded = LoadedSizes(saved, saved.inputs, table, largest)
    if saved.rows is None:
        return loaded
    if not has_rows(saved.rows, largest, shapes_of_outputs(table[max(table)]), saved.structure):
        raise InvalidInput(f"{folder}: results have rows in other places than it says; do not use it")
    return LoadedRows(saved.rows, loaded)


def shapes_of_outputs(result: Superoptimized) -> list[tuple[int, ...]]:
    """Shapes of what the program of a result makes."""
    return [each.shape for each in result.program.output_tensors]


def has_rows(rows: Rows, program: OutputPlaces, shapes: Sequence[Sequence[int]], structure: Any) -> bool:
    """Whether just those tensors of a structure are said to have two dimensions of rows which have the axis in the second of
    them, and 1 before it: so they are made of 1 of the first. Outputs of the program have these shapes."""
    numbers = tree_leaves(filled(structure, range(len(program.outputs))))
    if len(numbers) != len(rows.results):
        return False
    places = zip(rows.results, ((program.outputs[number], shapes[number]) for number in numbers), strict=True)
    return all(first == (axis - 1 if axis and shape[axis - 1] == 1 else None) for first, (axis, shape) in places)


def check_rows(rows: Rows, program: OutputPlaces, shapes: Sequence[Sequence[int]], structure: Any) -> None:
    """Raise StorageError where results would be refused when they are read."""
    if not has_rows(rows, program, shapes, structure):
        names = f"{rows.first.name} and {rows.second.name}"
        raise StorageError(f"a result has 1 before the rows of {names}, which stand for no dimension; leave it out to save this")
