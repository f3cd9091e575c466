"""`mugraph verify --certificate` of kernels of capacities: their results, that other slots reach none, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mugraph.checker import Part, Status
from mugraph.checker.capacity_ranges import check_capacities
from mugraph.cli.certificate_check import constants_in
from mugraph.cli.range_check import Programs, RangeCheck, recorded_again
from mugraph.frontend import require_torch
from mugraph.ir.serialize import graph_from_json

if TYPE_CHECKING:
    from mugraph.sizes.masked_functions import MaskedFunction
    from mugraph.sizes.saved_capacities import SavedCapacities


def check_range_of_capacities(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each result, what lies behind the elements, and whether the masked programs are those of the function `word`."""
    require_torch(f"to read {folder}")
    from mugraph.sizes.saved_capacities import SavedCapacities

    check = RangeCheck(SavedCapacities.of, "slots", _none_reached, _function, "capacities, which hold all sizes")
    return check.answer(folder, word, rounds, json_output)


def other_program(saved: SavedCapacities, programs: Programs, masked: MaskedFunction) -> Path | None:
    """The first of the folders whose program is not the masked one of a function at its capacity."""
    for capacity, place in saved.programs.items():
        files = programs[place].examination.saved
        document = None if files is None else files.document("program.json")
        if files is None or not saved.is_at(capacity, graph_from_json(document), constants_in(files), masked):
            return place
    return None


def _none_reached(folder: Path) -> str:
    told = ", ".join(map(str, check_capacities(folder)))
    return f"in float64 nothing behind the elements reaches a result of capacities {told}, and results are the same"


def _function(word: str, saved: SavedCapacities, programs: Programs) -> Part:
    """Whether a function is one masked graph at every size of the range, and these programs are that at their capacities."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.masked_functions import masked_function

    try:
        masked = recorded_again(masked_function, word, [(*place, saved.dim) for place in saved.dynamic])
    except SizeMatters as error:
        return Part(Status.REFUSED, f"{word} is no masked program at every size: {error}")
    other = other_program(saved, programs, masked)
    if other is not None:
        return Part(Status.REFUSED, f"{word} is another masked program than that in {other}")
    return Part(
        Status.CHECKED, f"recorded again, its masked programs are these {masked.claim.partition(':')[0]}, and so are its results"
    )
