"""`mugraph verify --certificate` of kernels for a batch and a length: their results, what these are of a sample, and whose."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mugraph.checker import Part, Status
from mugraph.checker.batch_ranges import check_batches
from mugraph.cli.capacities_check import other_program
from mugraph.cli.range_check import Programs, RangeCheck, recorded_again
from mugraph.frontend import require_torch

if TYPE_CHECKING:
    from mugraph.sizes.saved_batches import SavedBatches


def check_range_of_batches(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each result, what they have in common, and whether the masked programs are those of the function `word`."""
    require_torch(f"to read {folder}")
    from mugraph.sizes.saved_batches import SavedBatches

    check = RangeCheck(SavedBatches.of, "samples", _alone, _function, "batches and capacities, which hold all sizes")
    return check.answer(folder, word, rounds, json_output)


def _alone(folder: Path) -> str:
    told = ", ".join(map(str, check_batches(folder)))
    return (
        f"the programs for batches {told} are one program of a sample, and in float64 nothing reaches it from behind the elements"
    )


def _function(word: str, saved: SavedBatches, programs: Programs) -> Part:
    """Whether a function is these masked programs at every length, and does the same to every sample."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.batched_functions import batched_function

    lengths = next(iter(saved.capacities.values())).dynamic
    places = [(*place, saved.samples.dim) for place in saved.dynamic] + [(*place, saved.length) for place in lengths]
    try:
        found = recorded_again(partial(batched_function, wanted=[*saved.capacities]), word, places)
    except SizeMatters as error:
        return Part(Status.REFUSED, f"{word} does not do the same to every sample at every length: {error}")
    if found.samples != saved.samples:
        return Part(Status.REFUSED, f"{word} has the batch in other places than the folder says")
    others = (other_program(each, programs, found.masked[size]) for size, each in saved.capacities.items())
    if (other := next((place for place in others if place is not None), None)) is not None:
        return Part(Status.REFUSED, f"{word} is another masked program than that in {other}")
    return Part(
        Status.CHECKED, f"recorded again, its masked programs are these {found.claim.partition(':')[0]}, and so are its results"
    )
