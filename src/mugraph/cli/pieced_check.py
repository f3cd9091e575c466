"""`mugraph verify --certificate` of a range of sizes in pieces: its programs, that results are the same calls of each slice, and
whose they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mugraph.checker import Part, Status
from mugraph.cli.arguments import Subject
from mugraph.cli.certificate_check import CheckedProgram, other_tensors, same_program
from mugraph.cli.folder_answers import answered
from mugraph.cli.pieces_check import same_calls
from mugraph.cli.range_check import NOBODYS, Programs, recorded_again
from mugraph.errors import MugraphError
from mugraph.frontend import require_torch
from mugraph.frontend.calls.calling import same_json, structure_of
from mugraph.results.serialization import ONE_PROGRAM, kind_of, read_manifest
from mugraph.sizes.dims import Declared

if TYPE_CHECKING:
    from mugraph.sizes.pieced_functions import PiecedFunction
    from mugraph.sizes.rows import Rows
    from mugraph.sizes.saved_pieced import SavedPieced


def check_range_in_pieces(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each program, that all results are the same calls of each slice, and whether these are those of the function `word`
    at every size."""
    require_torch(f"to read the calls in {folder}")
    from mugraph.sizes.saved_pieced import Contents, SavedPieced

    programs: dict[Path, CheckedProgram] = {}
    places: Sequence[Path] = ()
    try:
        saved = SavedPieced.of(folder)
        places = tuple(saved.programs.values())
        programs = {place: CheckedProgram.of(place, rounds) for place in _programs(places)}
        saved.check({size: Contents.of_folder(place) for size, place in saved.programs.items()})
        calls, sizes = (", ".join(map(str, sorted(each))) for each in (saved.recorded, saved.costs.kernels))
        said = (
            f"the calls at sizes {calls} treat slices alike at every size, and those at {sizes}, with their muGraphs, are these"
        )
        if saved.rows is not None:
            said += f"; slices are rows of {saved.rows.first.name} and {saved.rows.second.name}"
        parts = {"slices": Part(Status.CHECKED, said)}
        parts["function"] = NOBODYS if word is None else _function(word, saved, programs)
    except MugraphError as error:
        parts = {"slices": Part(Status.REFUSED, str(error))}
    what = f"results in pieces at {len(places)} sizes, which cover all others"
    return answered(folder, what, programs, parts, word is not None, json_output)


def _programs(places: Iterable[Path]) -> list[Path]:
    """The folders of the programs of results; raises InvalidInput."""
    from mugraph.pieces.saved_pieces import SavedPieces

    return [
        program
        for place in places
        for program in ([place] if kind_of(read_manifest(place)) == ONE_PROGRAM else SavedPieces.of(place).programs)
    ]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A function of a range of sizes, and a call of it."""

    function: PiecedFunction
    fn: Callable[..., Any]
    declared: Declared
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, fn: Callable[..., Any], declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Recorded:
        """Raises SizeMatters for a function that does not act on slices."""
        from mugraph.sizes.pieced_functions import pieced_function
        from mugraph.sizes.sliced_functions import NoProgram, sliced_function

        try:
            program = sliced_function(fn, declared, args, kwargs)
        except NoProgram:
            program = None
        return cls(pieced_function(fn, declared, args, kwargs, program), fn, declared, args, kwargs)

    @classmethod
    def of_rows(
        cls, rows: Rows, fn: Callable[..., Any], declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> _Recorded:
        """A function of rows of two dimensions, with all of them in the second; raises SizeMatters for others."""
        from mugraph.sizes.pieced_functions import pieced_function
        from mugraph.sizes.row_functions import row_function

        found = row_function(fn, declared, args, kwargs).as_saved(rows)
        sizes = {rows.first.name: 1, rows.second.name: rows.second.low}
        positional, named = declared.resized(tuple(sizes[name] for name in declared.dims), args, kwargs)
        recorded = pieced_function(fn, found.declared, positional, named, found.sliced)
        return cls(recorded, fn, found.declared, positional, named)

    def at(self, size: int, word: str) -> Subject:
        """The function, which a word names, with arguments of a size."""
        positional, named = self.declared.resized((size,), self.args, self.kwargs)
        inputs: Any = named or tuple(positional)
        return Subject(word, "", self.fn, inputs, {})


def _function(word: str, saved: SavedPieced, programs: Programs) -> Part:
    """Whether a function acts on slices at every size of the range, and makes the saved calls."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.pieces.saved_graph import calls_to_json
    from mugraph.pieces.saved_pieces import SavedPieces
    from mugraph.sizes.saved_pieced import calls_of

    try:
        if saved.rows is None:
            recorded = recorded_again(_Recorded.of, word, [(*place, saved.dim) for place in saved.dynamic])
        else:
            recorded = recorded_again(partial(_Recorded.of_rows, saved.rows), word, saved.rows.places_in(saved.dynamic))
    except SizeMatters as error:
        return Part(Status.REFUSED, f"{word} is not what it is of each slice at every size: {error}")
    function = recorded.function
    calls = {size: calls_to_json(each) for size, each in calls_of(function).items()}
    if calls.keys() != saved.documents.keys() or not all(same_json(saved.documents[size], each) for size, each in calls.items()):
        return Part(Status.REFUSED, f"PyTorch records other calls of {word} than are saved")
    if not same_json(saved.structure, structure_of(function.calling, len(function.outputs))):
        return Part(Status.REFUSED, f"{word} returns its tensors in another structure than is saved")
    for size in saved.costs.kernels:
        calling = SavedPieces.of(saved.programs[size]).recorded.calling
        if (other := other_tensors(word, calling.constants, calling.signature_record, function.calling)) is not None:
            return other
    for size in saved.costs.alone:
        part = _alone(word, recorded.at(size, word), saved.programs[size], programs)
        if part.status is not Status.CHECKED:
            return Part(part.status, f"at size {size}: {part.reason}")
    low = max(saved.dim.low, function.least)
    return Part(Status.CHECKED, f"recorded again, it acts on slices for every size from {low} on, and makes the saved calls")


def _alone(word: str, subject: Subject, place: Path, programs: Programs) -> Part:
    """Whether a result that runs its size alone is that of a function, called with arguments of this size."""
    from mugraph.pieces.saved_pieces import SavedPieces

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        if place not in programs:
            return same_calls(word, subject, SavedPieces.of(place))
        files = programs[place].examination.saved
        return Part(Status.REFUSED, f"{place} cannot be read") if files is None else same_program(word, subject, files)
