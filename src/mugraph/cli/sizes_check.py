"""`mugraph verify --certificate` of a range of sizes: its results, that they are one slice by slice, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mugraph.checker import Part, Status
from mugraph.checker.size_ranges import check_sizes
from mugraph.cli.certificate_check import constants_in, other_tensors
from mugraph.cli.range_check import Programs, RangeCheck, recorded_again
from mugraph.frontend import require_torch
from mugraph.frontend.calls.calling import same_json, structure_of
from mugraph.ir.serialize import graph_from_json

if TYPE_CHECKING:
    from mugraph.sizes.saved_sizes import SavedSizes
    from mugraph.sizes.sliced_functions import SlicedFunction


def check_range(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each result, that all are one program of each slice, and whether that is the function `word` at every size."""
    require_torch(f"to read {folder}")
    from mugraph.sizes.saved_sizes import SavedSizes

    check = RangeCheck(SavedSizes.of, "slices", _one_program, _function, "sizes, which cover all others")
    return check.answer(folder, word, rounds, json_output)


def _one_program(folder: Path) -> str:
    return f"programs and muGraphs at sizes {', '.join(map(str, check_sizes(folder)))} are one program of each slice"


def _function(word: str, saved: SavedSizes, programs: Programs) -> Part:
    """Whether a function acts on slices at every size of the range, and these programs are what it is of each."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters

    try:
        sliced, claim = _recorded(word, saved)
    except SizeMatters as error:
        return Part(Status.REFUSED, f"{word} is not what it is of each slice at every size: {error}")
    if sliced.inputs != saved.inputs:
        return Part(Status.REFUSED, f"{word} has {saved.dim.name} in other dimensions of its inputs than is saved")
    for place, each in programs.items():
        files = each.examination.saved
        program = None if files is None else graph_from_json(files.document("program.json"))
        if files is None or program is None or not sliced.is_program_of(program):
            return Part(Status.REFUSED, f"{word} is another program of each slice than that in {place}")
        if not same_json(saved.structure, structure_of(sliced.calling, len(program.outputs))):
            return Part(Status.REFUSED, f"{word} returns its tensors in another structure than is saved")
        if (other := other_tensors(word, constants_in(files), None, sliced.calling)) is not None:
            return other
    return Part(Status.CHECKED, f"recorded again, it acts on slices {claim.partition(':')[0]}, and is these programs of each")


def _recorded(word: str, saved: SavedSizes) -> tuple[SlicedFunction, str]:
    """The function of a range of sizes, or of rows of two dimensions, and for which sizes it is that; raises SizeMatters."""
    from mugraph.sizes.row_functions import row_function
    from mugraph.sizes.sliced_functions import sliced_function

    rows = saved.rows
    if rows is None:
        sliced = recorded_again(sliced_function, word, [(*place, saved.dim) for place in saved.dynamic])
        return sliced, sliced.claim
    found = recorded_again(row_function, word, rows.places_in(saved.dynamic)).as_saved(rows)
    return found.sliced, found.claim
