"""`mugraph verify --certificate` of a range of sizes: its results, that they are one slice by slice, and whose they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mugraph.checker import Part, Rejected, Status, Undecided
from mugraph.checker.size_ranges import check_sizes
from mugraph.cli.arguments import resolve
from mugraph.cli.certificate_check import CheckedProgram
from mugraph.cli.folder_answers import answered
from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend import require_torch
from mugraph.frontend.calling import arguments_of
from mugraph.ir.program import Program
from mugraph.ir.serialize import graph_from_json
from mugraph.sizes.dims import Declared, Dim

R = TypeVar("R")

NOBODYS = Part(
    Status.NOT_CHECKED, "nothing in a folder says whose function it is at other sizes; `--certificate DIR FILE.py:f` does"
)


def check_range(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each result, that all are one program of each slice, and whether that is the function `word` at every size."""
    require_torch(f"to read {folder}")
    from mugraph.sizes.saved_sizes import SavedSizes

    programs: dict[Path, CheckedProgram] = {}
    try:
        saved = SavedSizes.of(folder)
        programs = {place: CheckedProgram.of(place, rounds) for place in saved.programs.values()}
        sizes = check_sizes(folder)
        told = ", ".join(map(str, sizes))
        parts = {"slices": Part(Status.CHECKED, f"programs and muGraphs at sizes {told} are one program of each slice")}
        parts["function"] = NOBODYS if word is None else _function(word, saved, programs)
    except Rejected as error:
        status = Status.NOT_CHECKED if isinstance(error, Undecided) else Status.REFUSED
        parts = {"slices": Part(status, str(error)), "function": NOBODYS}
    except MugraphError as error:
        parts = {"slices": Part(Status.REFUSED, str(error))}
    what = f"results at {len(programs)} sizes, which cover all others"
    return answered(folder, what, programs, parts, word is not None, json_output)


def _function(word: str, saved: object, programs: dict[Path, CheckedProgram]) -> Part:
    """Whether a function acts on slices at every size of the range, and these programs are what it is of each."""
    from mugraph.frontend.symbolic_axis import SizeMatters
    from mugraph.sizes.saved_sizes import SavedSizes
    from mugraph.sizes.sliced_functions import sliced_function

    assert isinstance(saved, SavedSizes)
    try:
        sliced = recorded_again(sliced_function, word, saved.dim, saved.dynamic)
    except SizeMatters as error:
        return Part(Status.REFUSED, f"{word} is not what it is of each slice at every size: {error}")
    for place, each in programs.items():
        files = each.examination.saved
        if files is None or not sliced.is_program_of(graph_from_json(files.document("program.json"))):
            return Part(Status.REFUSED, f"{word} is another program of each slice than that in {place}")
    return Part(
        Status.CHECKED, f"recorded again, it acts on slices {sliced.claim.partition(':')[0]}, and is these programs of each"
    )


def recorded_again(
    by: Callable[[Callable[..., Any], Declared, Sequence[Any], Mapping[str, Any]], R],
    word: str,
    dim: Dim,
    dynamic: Iterable[tuple[int | str, int]],
) -> R:
    """What `by` makes of a function that a word names, with a dimension in these places of its arguments; raises SizeMatters."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        subject = resolve(word)
        if isinstance(subject.function, Program) or subject.inputs is None:
            raise InvalidInput(f"{word} is no function of PyTorch")
        declared: dict[int | str, dict[int, Dim]] = {}
        for argument, position in dynamic:
            declared.setdefault(argument, {})[position] = dim
        return by(subject.function, Declared.of(declared), *arguments_of(subject.inputs))
