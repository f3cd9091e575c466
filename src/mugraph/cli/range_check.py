"""What `mugraph verify --certificate` does with a folder of several results, whatever they have in common."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from mugraph.checker import Part, Rejected, Status, Undecided
from mugraph.cli.arguments import resolve
from mugraph.cli.certificate_check import CheckedProgram
from mugraph.cli.folder_answers import answered
from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend.calls.calling import arguments_of
from mugraph.ir.program import Program
from mugraph.sizes.dims import Declared, Dim

R = TypeVar("R")
Programs = Mapping[Path, CheckedProgram]
"""By folder of a result, its program and what the checker says of it."""

NOBODYS = Part(
    Status.NOT_CHECKED, "nothing in a folder says whose function it is at other sizes; `--certificate DIR FILE.py:f` does"
)


class Saved(Protocol):
    """What a folder says of several results."""

    @property
    def programs(self) -> Mapping[int, Path]:
        """Their folders, by size."""


S = TypeVar("S", bound=Saved)


@dataclass(frozen=True, slots=True)
class RangeCheck(Generic[S]):
    """What is to be checked of several results."""

    read: Callable[[Path], S]
    """What the folder says; raises InvalidInput."""
    part: str
    """What the results have in common, in a word."""
    common: Callable[[Path], str]
    """What the checker finds of that, in words; raises Rejected."""
    function: Callable[[str, S, Programs], Part]
    """Whether the results are those of the function that a word names."""
    places: str
    """What the results are at, in words."""

    def answer(self, folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
        """Check each result, what they have in common, and whether they are those of the function `word`; print the answer."""
        programs: dict[Path, CheckedProgram] = {}
        try:
            saved = self.read(folder)
            programs = {place: CheckedProgram.of(place, rounds) for place in saved.programs.values()}
            parts = {self.part: Part(Status.CHECKED, self.common(folder))}
            parts["function"] = NOBODYS if word is None else self.function(word, saved, programs)
        except Rejected as error:
            status = Status.NOT_CHECKED if isinstance(error, Undecided) else Status.REFUSED
            parts = {self.part: Part(status, str(error)), "function": NOBODYS}
        except MugraphError as error:
            parts = {self.part: Part(Status.REFUSED, str(error))}
        what = f"results at {len(programs)} {self.places}"
        return answered(folder, what, programs, parts, word is not None, json_output)


def recorded_again(
    by: Callable[[Callable[..., Any], Declared, Sequence[Any], Mapping[str, Any]], R],
    word: str,
    places: Iterable[tuple[int | str, int, Dim]],
) -> R:
    """What `by` makes of a function that a word names, with dimensions in these places of its arguments; raises SizeMatters."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        subject = resolve(word)
        if isinstance(subject.function, Program) or subject.inputs is None:
            raise InvalidInput(f"{word} is no function of PyTorch")
        declared: dict[int | str, dict[int, Dim]] = {}
        for argument, position, dim in places:
            declared.setdefault(argument, {})[position] = dim
        return by(subject.function, Declared.of(declared), *arguments_of(subject.inputs))
