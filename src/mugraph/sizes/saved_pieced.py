"""A range of sizes of a function that runs in pieces on disk: a saved result in pieces (`mugraph.pieces.saved_pieces`) for each
size that others are put together of, and why these may be.

mugraph.json      the manifest, of the kind `pieced`
pieced.json       the dimension and its range, the function's calls at two sizes, what sizes cost, the claim in words
pieced/M/...      the saved result for size M: in pieces, or of one program where kernels run that size alone

That the calls do the same to every slice at every size, that each result which others are put together of is these calls, and
that its muGraphs act on slices, is decided again when the folder is read (`mugraph.sizes.symbolic_calls`,
`mugraph.sizes.pieced_functions`). PyTorch's symbols speak of sizes from 2 on, so size 1 has a result of its own, which must be
the same calls there, or return on examples what they do. Whose function all that is `mugraph verify --certificate DIR FILE.py:f`
asks PyTorch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from mugraph.errors import InvalidInput, MugraphError, StorageError
from mugraph.frontend.calls.calling import Calling, filled, same_json, structure_of
from mugraph.frontend.calls.pytree import FunctionCalling
from mugraph.frontend.calls.saved_constants import SavedConstant
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES
from mugraph.frontend.partitioning.partition import Piece
from mugraph.frontend.recording.recorded_graph import RecordedGraph
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.pieces.cutting import contradiction
from mugraph.pieces.data import CutGraph, PartitionedResult
from mugraph.pieces.plan import Plan
from mugraph.pieces.saved_graph import calls_to_json, cut_from_json
from mugraph.pieces.saved_pieces import SavedPieces, documents_of
from mugraph.results.places import check_replaceable
from mugraph.results.serialization import (
    ONE_PROGRAM,
    PIECED,
    SavedProgram,
    documents,
    kind_of,
    read_manifest,
    write_folder,
)
from mugraph.results.superoptimized import Superoptimized
from mugraph.sizes import range_folder
from mugraph.sizes.chunk_plans import Costs
from mugraph.sizes.dims import Dim, Dynamic
from mugraph.sizes.pieced_functions import LEAST, PiecedFunction, axes_between, check_results, is_in_slices, places_of_outputs
from mugraph.sizes.range_folder import RangeFolder, document_of, seconds_of
from mugraph.sizes.rescaled_calls import RescaledCalls
from mugraph.sizes.row_functions import RowFunction
from mugraph.sizes.rows import Rows
from mugraph.sizes.saved_sizes import check_rows, has_rows
from mugraph.sizes.sliced_kernels import example_of
from mugraph.sizes.sliced_programs import Places
from mugraph.sizes.symbolic_calls import check_calls
from mugraph.verifier.certificate import digest

_UNCUT: Mapping[str, Any] = {"lines": {}, "pieces": [], "library": [], "left": []}
"""What a document says of calls that are not cut."""
_NOT_FOUND = "nothing clearly faster was found at this size"
Tensors = list[tuple[tuple[int, ...], torch.dtype]]


def save(
    path: Path,
    pieced: PiecedFunction,
    dynamic: Dynamic,
    table: Mapping[int, Superoptimized],
    alone: Mapping[int, Superoptimized],
    costs: Costs,
    claim: str,
    of_rows: RowFunction | None = None,
) -> Path:
    """Write the results of a `table` that others are put together of, and those that run their size `alone`, to a folder, as
    `mugraph.results.serialization.save` does, and which two dimensions the slices are rows of.

    Raises StorageError where the function itself answers at some size, or where it is not known of its calls as they were
    recorded at two sizes, without it, that they act on slices.
    """
    check_replaceable(path)
    calls = calls_of(pieced)
    if not table:
        raise StorageError("no kernels run parts of the function at sizes that others are put together of; nothing is saved")
    if pieced.dim.low < LEAST and pieced.dim.low not in alone:
        low = f"{pieced.dim.name} {pieced.dim.low}"
        raise StorageError(f"nothing was made for {low}, and the function is not saved; list that size in `table`")
    try:
        checked = CheckedCalls.of(calls, len(pieced.calling.inputs) - len(pieced.calling.constants), pieced.dim.high)
    except SizeMatters as error:
        raise StorageError(f"of its calls at sizes {', '.join(map(str, calls))} alone nothing holds at others: {error}") from None
    structure, constants = structure_of(pieced.calling, len(pieced.outputs)), Contents.of(table[max(table)]).constants
    for size, result in alone.items():
        contents = Contents.of(result)
        if not checked.are_called_as(contents, size):
            raise StorageError(f"size {size} is called with other tensors than the others; save the results of its `table`")
        if not checked.are_computed_by(contents, size, constants, structure):
            low = f"declare {pieced.dim.name} from {size + 1} on" if size == pieced.dim.low else "leave that size out of `table`"
            raise StorageError(f"at size {size} the function is another one than its calls at others say, {low} to save it")
    if of_rows is not None:
        check_rows(of_rows.rows, checked, checked.shapes, structure)
    alone = {size: _without_function(result) for size, result in alone.items()}
    some = next(iter(table.values()))
    record = {
        **range_folder.said_of(pieced.dim, dynamic, claim, pieced.sizes),
        "name": pieced.calling.name,
        "structure": structure,
        "calls": {str(size): calls_to_json(each) for size, each in calls.items()},
        "given": checked.given,
        **range_folder.said_of_costs(costs, table),
        "alone": {str(size): costs.alone[size] for size in sorted(alone)},
    }
    if of_rows is not None:
        record["rows"] = of_rows.to_json()
    folders = {size: _documents(result) for size, result in {**table, **alone}.items()}
    return write_folder(path, range_folder.files_by_size(PIECED, record, folders, some.target))


def calls_of(pieced: PiecedFunction) -> dict[int, RecordedGraph]:
    """The function's calls by size."""
    return {size: _recorded(module, pieced.calling) for size, module in zip(pieced.sizes, pieced.graphs, strict=True)}


def _recorded(module: torch.fx.GraphModule, calling: FunctionCalling) -> RecordedGraph:
    strides = tuple(tuple(node.meta["val"].stride()) for node in module.graph.nodes if node.op == "placeholder")
    return RecordedGraph(module, calling, {}, strides)


def _documents(result: Superoptimized) -> dict[str, str]:
    return documents_of(result) if isinstance(result, PartitionedResult) else documents(result)


def _without_function(result: Superoptimized) -> Superoptimized:
    """The result; where the function itself answers in its place, the calls that PyTorch recorded of it."""
    if not isinstance(result, PartitionedResult) or result.found:
        return result
    whole = result.cut.partition
    plan = Plan(whole.without((*whole.pieces, *whole.library), _NOT_FOUND), {})
    return PartitionedResult(CutGraph(result.cut.recorded, plan), result.report, result.target, result.origin)


@dataclass(frozen=True, slots=True)
class Contents:
    """What is asked of a result for a size: its calls where it is in pieces, with the muGraph of each, else its program, and what
    it is given and returns."""

    found: bool
    program: Graph | None
    recorded: RecordedGraph | None
    graphs: Mapping[Piece, Graph]
    names: tuple[str, ...]
    """Of the tensors that a call gives."""
    tensors: Tensors
    constants: tuple[SavedConstant, ...]
    structure: Any
    """Of what a call returns, as `structure_of` describes it."""

    @classmethod
    def of(cls, result: Superoptimized) -> Contents:
        """Those of a result that can be called."""
        if not isinstance(result, PartitionedResult):
            return cls._of_program(result.found, result.program, result.calling)
        cut = result.cut
        graphs = {piece: cut.results[piece].graph for piece in cut.partition.pieces}
        return cls._of_calls(result.found, cut.recorded, graphs)

    @classmethod
    def of_folder(cls, folder: Path) -> Contents:
        """Those of a folder, of which nothing is compiled; raises InvalidInput for a file that was changed or is malformed."""
        if kind_of(read_manifest(folder)) == ONE_PROGRAM:
            program = SavedProgram.of(folder)
            return cls._of_program(program.report.found, program.program, program.calling)
        saved = SavedPieces.of(folder)
        programs = [SavedProgram.of(place) for place in saved.programs]
        saved.check([digest(each.program) for each in programs])
        graphs = {piece: programs[number].best.graph for piece, number in zip(saved.partition.pieces, saved.numbers, strict=True)}
        return cls._of_calls(saved.report.found, saved.recorded, graphs)

    @classmethod
    def _of_program(cls, found: bool, program: Graph, calling: Calling) -> Contents:
        tensors = [(node.output.shape, TORCH_DTYPES[node.output.dtype]) for node in program.inputs()]
        structure = structure_of(calling, len(program.outputs))
        return cls(found, program, None, {}, *cls._given(program.input_names, tensors, calling), structure)

    @classmethod
    def _of_calls(cls, found: bool, recorded: RecordedGraph, graphs: Mapping[Piece, Graph]) -> Contents:
        tensors = [(tuple(node.meta["val"].shape), node.meta["val"].dtype) for node in recorded.placeholders]
        structure = structure_of(recorded.calling, recorded.returned)
        return cls(found, None, recorded, graphs, *cls._given(recorded.calling.inputs, tensors, recorded.calling), structure)

    @staticmethod
    def _given(
        names: Sequence[str], tensors: Tensors, calling: Calling
    ) -> tuple[tuple[str, ...], Tensors, tuple[SavedConstant, ...]]:
        given = len(tensors) - len(calling.constants)
        return tuple(names[:given]), tensors[:given], tuple(calling.constants)

    def returned(self, given: Sequence[torch.Tensor]) -> Any:
        """What the recorded calls, or the program in float64, return for tensors."""
        constants = [constant.tensor() for constant in self.constants]
        if self.recorded is not None:
            return filled(self.structure, self.recorded.module(*given, *constants))
        assert self.program is not None, "there is either"
        made = evaluate(self.program, [each.double().numpy() for each in (*given, *constants)], FloatArithmetic())
        types = [TORCH_DTYPES[each.dtype] for each in self.program.output_tensors]
        return filled(self.structure, [torch.from_numpy(each).to(dtype) for each, dtype in zip(made, types, strict=True)])


@dataclass(frozen=True, slots=True)
class CheckedCalls:
    """Calls at two sizes that do the same to every slice, at every size from 2 on."""

    graphs: Mapping[int, torch.fx.GraphModule]
    names: tuple[str, ...]
    """Of the inputs."""
    given: int
    """How many of these a call gives: the others are constants."""
    inputs: Places
    outputs: Places
    widths: tuple[int, ...]
    """How many elements of that dimension belong to a slice."""

    @classmethod
    def of(cls, recorded: Mapping[int, RecordedGraph], given: int, high: int) -> CheckedCalls:
        """Those of sizes up to `high`; raises SizeMatters, which says why, for other calls."""
        graphs = {size: each.module for size, each in recorded.items()}
        (size, first), (other_size, other) = graphs.items()
        one = recorded[size]
        check_results(one)
        axes = check_calls(first, size, other, other_size, high)
        inputs = tuple(axes[node] for node in one.placeholders)
        if all(dim is None for dim in inputs[:given]) or any(dim is not None for dim in inputs[given:]):
            raise SizeMatters("what has the dimension is none of the tensors that it is given")
        return cls(graphs, one.calling.inputs, given, inputs, *places_of_outputs(one, axes, size))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the outputs, at one of the two sizes."""
        (output,) = (node for node in next(iter(self.graphs.values())).graph.nodes if node.op == "output")
        return [tuple(node.meta["val"].shape) for node in output.args[0]]

    def tensors_at(self, size: int) -> Tensors:
        """Shapes and types of the inputs at a size."""
        graph = next(iter(self.graphs.values())).graph
        values = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
        return [(_with_size(tuple(value.shape), dim, size), value.dtype) for value, dim in zip(values, self.inputs, strict=True)]

    def are_computed_by(self, contents: Contents, size: int, constants: Sequence[SavedConstant], structure: Any) -> bool:
        """Whether a result that runs its size alone is these calls there, with `constants` behind what they are given, in a
        `structure`: it makes the same ones or, where PyTorch records others at that size, returns the same on examples."""
        known, first = next((known, graph) for known, graph in self.graphs.items() if known != size)
        other_size, other = next((known, graph) for known, graph in self.graphs.items() if graph is not first)
        recorded = contents.recorded
        if recorded is not None and contents.constants == tuple(constants) and same_json(contents.structure, structure):
            with suppress(SizeMatters):
                axes_between(recorded.module, size, first, known)
                return not recorded.writes
        calls = RescaledCalls.of(first, known, other, other_size).at_any_size(first)
        tensors = [example_of(*each) for each in self.tensors_at(size)[: self.given]]
        with torch.no_grad(), suppress(RuntimeError, ValueError, IndexError, MugraphError):  # of calls that refuse an example
            for given in (tensors, [each.abs() if each.is_floating_point() else each for each in tensors]):
                wanted = filled(structure, calls(size, *given, *[constant.tensor() for constant in constants]))
                if contradiction(wanted, contents.returned(given)):
                    return False
            return True
        return False

    def are_called_as(self, contents: Contents, size: int) -> bool:
        """Whether a result for a size is given the same tensors, but for constants of its own."""
        tensors = dict(zip(self.names, self.tensors_at(size)[: self.given], strict=False))
        return (list(tensors), list(tensors.values())) == (list(contents.names), contents.tensors)


def _with_size(shape: tuple[int, ...], dim: int | None, size: int) -> tuple[int, ...]:
    return shape if dim is None else (*shape[:dim], size, *shape[dim + 1 :])


@dataclass(frozen=True)
class SavedPieced:
    """What a folder says, of which no program was compiled again."""

    folder: Path
    dim: Dim
    dynamic: tuple[tuple[int | str, int], ...]
    """Arguments of the function, and their dimensions of varying size."""
    claim: str
    name: str
    structure: Any
    documents: Mapping[int, Mapping[str, Any]]
    """The calls at two sizes, as JSON values."""
    recorded: Mapping[int, RecordedGraph]
    """And as graphs."""
    given: int
    """How many of their inputs a call gives: the others are constants."""
    costs: Costs
    programs: Mapping[int, Path]
    """The folders of the results, by size: those in `costs.kernels` are put together, those in `costs.alone` are not."""
    pair: Rows | None
    """The two dimensions that slices are rows of, where they are, in no arguments yet."""

    @classmethod
    def of(cls, folder: Path) -> SavedPieced:
        """What the folder says; raises InvalidInput for a file that was changed or is malformed."""
        saved = RangeFolder.of(folder, PIECED, "range of sizes in pieces")
        with saved.well_formed():
            try:
                return cls._of(saved)
            except (RuntimeError, MugraphError) as error:  # of calls that are none
                raise ValueError(str(error)) from None

    @classmethod
    def _of(cls, saved: RangeFolder) -> SavedPieced:
        record, dim = saved.record, saved.dim
        name, structure = str(record["name"]), record["structure"]
        written = {int(size): document for size, document in record["calls"].items()}
        if len(written) != 2 or not all(size >= LEAST and size in dim.sizes for size in written):
            raise ValueError(f"calls at sizes {sorted(written)} are not those at two sizes from {LEAST} on")
        recorded = {size: cut_from_json({**each, **_UNCUT}, name, structure)[0] for size, each in written.items()}
        if any(each.writes for each in recorded.values()):
            raise ValueError("its calls change what they are given")
        (one, *_) = recorded.values()
        filled(structure, list(range(len(one.outputs))))
        given = record["given"]
        if type(given) is not int or not 0 < given <= len(one.placeholders):
            raise ValueError(f"{given!r} tensors are given")
        costs = _costs(record)
        sizes = {*costs.kernels, *costs.alone}
        if not costs.kernels or costs.kernels.keys() & costs.alone.keys() or not all(size in dim.sizes for size in sizes):
            raise ValueError(f"sizes {sorted(sizes)} are not those of results from {dim.low} to {dim.high}, one each")
        if min(costs.kernels) < LEAST or not {*range(dim.low, LEAST)} <= costs.alone.keys():
            raise ValueError(f"sizes below {LEAST} are put together of no others, and have results of their own")
        pair = Rows.of_json(record["rows"], ()) if "rows" in record else None
        if pair is not None and pair.dim != dim:
            raise ValueError(f"{pair.dim} are the rows, and {dim} is the dimension")
        said = saved.folder, dim, saved.dynamic, saved.claim
        return cls(*said, name, structure, written, recorded, given, costs, saved.programs(sizes), pair)

    @cached_property
    def calls(self) -> CheckedCalls:
        """The calls; raises InvalidInput unless they do the same to every slice."""
        try:
            return CheckedCalls.of(self.recorded, self.given, self.dim.high)
        except SizeMatters as error:
            file = self.folder / document_of(PIECED)
            raise InvalidInput(f"{file}: its calls are not those of slices: {error}; do not use it") from None

    @cached_property
    def rows(self) -> Rows | None:
        """The two dimensions that slices are rows of, where they are; raises InvalidInput unless calls have both there."""
        if self.pair is None:
            return None
        file = self.folder / document_of(PIECED)
        try:
            rows = self.pair.with_inputs(self.calls.inputs[: self.given])
        except ValueError as error:
            raise InvalidInput(f"{file} is malformed: {error}") from None
        if not has_rows(rows, self.calls, self.calls.shapes, self.structure):
            raise InvalidInput(f"{file}: results have rows in other places than it says; do not use it")
        return rows

    def check(self, results: Mapping[int, Contents]) -> None:
        """Raise InvalidInput, naming the folder, unless results by size are those that others are put together of, or run their
        size alone with the same tensors."""
        constants = results[max(self.costs.kernels)].constants
        for size in (*self.costs.kernels, *self.costs.alone):
            place, contents = self.programs[size], results[size]
            if not self.calls.are_called_as(contents, size):
                raise InvalidInput(f"{place} takes other tensors than size {size} has; do not use it")
            if size in self.costs.kernels:
                self._check_calls(size, contents)
                if contents.constants != constants or len(self.calls.inputs) - len(constants) != self.given:
                    raise InvalidInput(f"{place} has other constants than others or {document_of(PIECED)} say; do not use it")
            elif not self.calls.are_computed_by(contents, size, constants, self.structure):
                said = f"{document_of(PIECED)} says at size {size}"
                raise InvalidInput(f"{place} is another function than {said}; do not use it, optimize and save again")

    def _check_calls(self, size: int, contents: Contents) -> None:
        """Raise InvalidInput unless a result is the calls of each slice."""
        place, recorded = self.programs[size], contents.recorded
        if recorded is None or not contents.found:
            raise InvalidInput(f"{place} holds no kernels for parts of the function; do not use it")
        if not is_in_slices(recorded, contents.graphs, size, self.calls.graphs):
            raise InvalidInput(f"{place} is not the calls of {document_of(PIECED)} at size {size}, slice by slice; do not use it")
        if not same_json(structure_of(recorded.calling, recorded.returned), self.structure):
            raise InvalidInput(f"{place} returns its tensors in another structure than is saved beside it; do not use it")


def _costs(record: Mapping[str, Any]) -> Costs:
    """What sizes cost; raises ValueError for what are no seconds."""
    return replace(range_folder.costs_said(record), alone={int(size): seconds_of(each) for size, each in record["alone"].items()})
