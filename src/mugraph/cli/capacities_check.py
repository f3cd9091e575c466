"""`mugraph verify --certificate` of kernels of capacities: their results, that other slots reach none, and whose they are."""

from __future__ import annotations

from pathlib import Path

from mugraph.checker import Part, Rejected, Status, Undecided
from mugraph.checker.capacity_ranges import check_capacities
from mugraph.cli.certificate_check import CheckedProgram
from mugraph.cli.folder_answers import answered
from mugraph.cli.sizes_check import NOBODYS, recorded_again
from mugraph.errors import MugraphError
from mugraph.frontend import require_torch
from mugraph.ir.serialize import graph_from_json


def check_range_of_capacities(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each result, what lies behind the elements, and whether the masked programs are those of the function `word`."""
    require_torch(f"to read {folder}")
    from mugraph.sizes.saved_capacities import SavedCapacities

    programs: dict[Path, CheckedProgram] = {}
    try:
        saved = SavedCapacities.of(folder)
        programs = {place: CheckedProgram.of(place, rounds) for place in saved.programs.values()}
        told = ", ".join(map(str, check_capacities(folder)))
        reason = f"in float64 nothing behind the elements reaches a result of capacities {told}, and results are the same"
        parts = {"slots": Part(Status.CHECKED, reason)}
        parts["function"] = NOBODYS if word is None else _function(word, saved, programs)
    except Rejected as error:
        status = Status.NOT_CHECKED if isinstance(error, Undecided) else Status.REFUSED
        parts = {"slots": Part(status, str(error)), "function": NOBODYS}
    except MugraphError as error:
        parts = {"slots": Part(Status.REFUSED, str(error))}
    what = f"results at {len(programs)} capacities, which hold all sizes"
    return answered(folder, what, programs, parts, word is not None, json_output)


def _function(word: str, saved: object, programs: dict[Path, CheckedProgram]) -> Part:
    """Whether a function is one masked graph at every size of the range, and these programs are that at their capacities."""
    from mugraph.frontend.symbolic_axis import SizeMatters
    from mugraph.sizes.masked_functions import masked_function
    from mugraph.sizes.saved_capacities import SavedCapacities

    assert isinstance(saved, SavedCapacities)
    try:
        masked = recorded_again(masked_function, word, saved.dim, saved.dynamic)
    except SizeMatters as error:
        return Part(Status.REFUSED, f"{word} is no masked program at every size: {error}")
    for capacity, place in saved.programs.items():
        files = programs[place].examination.saved
        program = None if files is None else graph_from_json(files.document("program.json"))
        if program is None or not saved.is_at(capacity, program, masked):
            return Part(Status.REFUSED, f"{word} is another masked program than that in {place}")
    return Part(
        Status.CHECKED, f"recorded again, its masked programs are these {masked.claim.partition(':')[0]}, and so are its results"
    )
