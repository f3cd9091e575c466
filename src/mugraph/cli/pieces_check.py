"""`mugraph verify --certificate` of a function with parts that PyTorch runs: its programs, and what holds them together."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mugraph.checker import Part, Status
from mugraph.cli.arguments import Subject, resolve
from mugraph.cli.certificate_check import CheckedProgram, other_tensors
from mugraph.cli.folder_answers import answered
from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend import record, require_torch
from mugraph.frontend.calls.calling import same_json, structure_of
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.ir.serialize import graph_from_json
from mugraph.verifier.certificate import digest

if TYPE_CHECKING:
    from mugraph.pieces.saved_pieces import SavedPieces

_NOBODYS = Part(Status.NOT_CHECKED, "nothing in a folder says whose calls torch.json has; `--certificate DIR FILE.py:f` does")


def check_pieces(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check each program, that each is what its calls of PyTorch are, and whether all calls are those of a function."""
    require_torch(f"to read the calls in {folder}")
    from mugraph.pieces.saved_pieces import SavedPieces

    programs: dict[Path, CheckedProgram] = {}
    try:
        saved = SavedPieces.of(folder)
        programs = {place: CheckedProgram.of(place, rounds) for place in saved.programs}
        saved.check([digest(_program(each)) for each in programs.values()])
        parts = {"calls": Part(Status.CHECKED, "each program is what the calls of PyTorch that it stands for are converted to")}
        parts["function"] = _NOBODYS if word is None else _function(word, saved)
    except MugraphError as error:
        parts = {"calls": Part(Status.REFUSED, str(error))}
    what = f"{len(programs)} program{'s' * (len(programs) != 1)}, with calls of PyTorch between them"
    return answered(folder, what, programs, parts, word is not None, json_output)


def _program(checked: CheckedProgram) -> Graph:
    """The program of a folder; raises InvalidInput where it cannot be read."""
    if checked.examination.saved is None:
        raise InvalidInput(checked.refusal or "a program cannot be read")
    return graph_from_json(checked.examination.saved.document("program.json"))


def _function(word: str, saved: SavedPieces) -> Part:
    """Whether the saved calls are those that PyTorch records of a function."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        return same_calls(word, resolve(word), saved)


def same_calls(word: str, subject: Subject, saved: SavedPieces) -> Part:
    """Whether the saved calls are those that PyTorch records of a function, which a word names."""
    from mugraph.frontend.recording.recorded_graph import recorded_graph
    from mugraph.pieces.cutting import prepared
    from mugraph.pieces.saved_graph import calls_to_json

    if isinstance(subject.function, Program) or subject.inputs is None:
        raise InvalidInput(f"{word} is no function of PyTorch")
    recorded = prepared(recorded_graph(record(subject.function, subject.inputs)))
    calls = calls_to_json(recorded)
    differing = [name for name, value in calls.items() if not same_json(saved.document[name], value)]
    if differing:
        return Part(Status.REFUSED, f"PyTorch records other {', '.join(differing)} of {word} than torch.json has")
    ours = saved.recorded.calling
    if not same_json(structure_of(recorded.calling, recorded.returned), structure_of(ours, saved.recorded.returned)):
        return Part(Status.REFUSED, f"{word} returns its tensors in another structure than report.json says")
    other = other_tensors(word, ours.constants, ours.signature_record, recorded.calling)
    return other or Part(Status.CHECKED, f"PyTorch records the same calls of {word}")
