"""`mugraph verify --certificate` of a function with parts that PyTorch runs: its programs, and what holds them together."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from mugraph.checker import Part, Status
from mugraph.cli.arguments import resolve
from mugraph.cli.certificate_check import EXIT_CODES, CheckedProgram
from mugraph.errors import InvalidInput, MugraphError
from mugraph.frontend import record, require_torch
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.ir.serialize import graph_from_json
from mugraph.verifier.certificate import digest

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
        parts["function"] = _NOBODYS if word is None else _function(word, saved.document)
    except MugraphError as error:
        parts = {"calls": Part(Status.REFUSED, str(error))}
    outcome = _outcome([each.outcome for each in programs.values()], parts, word)
    if json_output:
        print(json.dumps(_record(outcome, folder, programs, parts)))
        return EXIT_CODES[outcome]
    print(f"{outcome}: {folder}: {len(programs)} programs, with calls of PyTorch between them")
    for name, part in parts.items():
        print(f"  {name:<9} {part.status}: {part.reason}")
    for place, each in programs.items():
        print("\n".join(each.lines(place)))
    return EXIT_CODES[outcome]


def _program(checked: CheckedProgram) -> Graph:
    """The program of a folder; raises InvalidInput where it cannot be read."""
    if checked.examination.saved is None:
        raise InvalidInput(checked.refusal or "a program cannot be read")
    return graph_from_json(checked.examination.saved.document("program.json"))


def _outcome(programs: list[str], parts: dict[str, Part], word: str | None) -> str:
    if "rejected" in programs or any(part.status is Status.REFUSED for part in parts.values()):
        return "rejected"
    asked = [part.status for name, part in parts.items() if name != "function" or word is not None]
    return "accepted" if {*programs} <= {"accepted"} and {*asked} <= {Status.CHECKED} else "undecided"


def _function(word: str, document: dict[str, Any]) -> Part:
    """Whether the saved calls are those that PyTorch records of a function."""
    from mugraph.frontend.recorded_graph import recorded_graph
    from mugraph.pieces.cutting import prepared
    from mugraph.pieces.saved_graph import calls_to_json

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        subject = resolve(word)
        if isinstance(subject.function, Program) or subject.inputs is None:
            raise InvalidInput(f"{word} is no function of PyTorch")
        calls = calls_to_json(prepared(recorded_graph(record(subject.function, subject.inputs))))
    differing = [name for name, value in calls.items() if document[name] != value]
    if differing:
        return Part(Status.REFUSED, f"PyTorch records other {', '.join(differing)} of {word} than torch.json has")
    return Part(Status.CHECKED, f"PyTorch records the same calls of {word}")


def _record(outcome: str, folder: Path, programs: dict[Path, CheckedProgram], parts: dict[str, Part]) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "accepted": outcome == "accepted",
        "parts": {name: {"status": part.status, "reason": part.reason} for name, part in parts.items()},
        "programs": {str(place.relative_to(folder)): each.record() for place, each in programs.items()},
    }
