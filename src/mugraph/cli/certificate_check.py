"""`mugraph verify --certificate`: what of a saved result was checked, and by what; whose function it is, where that is asked.

The checker, which shares no code with what made the result, looks at the graphs and the record. What it cannot do is done here:
sources are printed again, and a function of the user's is traced and compared with the program.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

from mugraph.checker import CheckReport, Examination, Part, Status, examine
from mugraph.checker.saved_files import SavedFiles
from mugraph.cli.arguments import Subject, resolve
from mugraph.errors import MugraphError, TargetUnavailable
from mugraph.frontend.calls.calling import Calling, SignatureRecord, same_json, structure_of
from mugraph.frontend.calls.saved_constants import SavedConstant, constants_from_json
from mugraph.frontend.comparison import as_stored
from mugraph.ir.graph import Graph
from mugraph.ir.program import Program
from mugraph.ir.serialize import graph_from_json
from mugraph.results.proof_bindings import check_sources
from mugraph.results.serialization import CONSTANTS, check_manifest
from mugraph.results.summary import passing_text
from mugraph.verifier import verify_graphs
from mugraph.version import __version__

EXIT_CODES = {"accepted": 0, "rejected": 1, "undecided": 3}
_NOBODYS = Part(Status.NOT_CHECKED, "nothing in a folder says whose function program.json is; `--certificate DIR FILE.py:f` does")


def check(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check a saved result of one program, and whether that is the function which `word` names; the exit code."""
    checked = CheckedProgram.of(folder, rounds)
    if checked.examination.saved is None or checked.examination.report is None:
        parts = {"function": Part(Status.NOT_CHECKED, "what comes before it was refused")} if word is not None else {}
    else:
        parts = {} if word is None else {"function": _function(word, checked.examination.saved)}
    return told(
        replace(checked, parts=checked.parts | {"function": _NOBODYS} | parts, asked=word is not None), folder, json_output
    )


class Told(Protocol):
    """What was found of something at a place, as it is told."""

    @property
    def outcome(self) -> str:
        """`accepted`, `rejected` or `undecided`."""

    def lines(self, place: Path, /) -> list[str]:
        """It for people."""

    def record(self) -> dict[str, Any]:
        """It as a JSON object."""


def told(checked: Told, place: Path, json_output: bool) -> int:
    """Print what was found of a place; the exit code."""
    print(json.dumps(checked.record()) if json_output else "\n".join(checked.lines(place)))
    return EXIT_CODES[checked.outcome]


def lines_of(parts: Mapping[str, Part]) -> list[str]:
    """A line for each part of a check."""
    return [f"  {name:<9} {part.status}: {part.reason}" for name, part in parts.items()]


def record_of(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The parts of a check as JSON values."""
    return {name: {"status": part.status, "reason": part.reason} for name, part in parts.items()}


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """What was found of the saved result of a program."""

    examination: Examination
    parts: dict[str, Part]
    asked: bool = False
    """Whether the part `function` was asked for."""

    @classmethod
    def of(cls, folder: Path, rounds: int | None) -> CheckedProgram:
        """What the checker says of the graphs and the record in a folder, and whether its sources are those of the muGraph."""
        examination = examine(folder, rounds=rounds, tell=lambda line: print(line, file=sys.stderr, flush=True))
        parts = dict(examination.parts)
        if examination.report is not None and examination.saved is not None:
            check_manifest(folder, examination.saved.manifest)
            parts["sources"] = _sources(folder, examination.saved)
        return cls(examination, parts)

    @property
    def outcome(self) -> str:
        """`accepted`, `rejected` or `undecided`."""
        if any(part.status is Status.REFUSED for part in self.parts.values()):
            return "rejected"
        asked = [part for name, part in self.parts.items() if name != "function" or self.asked]
        decided = self.examination.report is not None and all(part.status is Status.CHECKED for part in asked)
        return "accepted" if decided else "undecided"

    @property
    def refusal(self) -> str:
        """Why it is refused; "" where it is not."""
        return next((part.reason for part in self.parts.values() if part.status is Status.REFUSED), "")

    def lines(self, folder: Path) -> list[str]:
        """The outcome in a line, then a line for each part."""
        report = self.examination.report
        said = _tests_text(report) if report is not None and not self.refusal else self.refusal or self.examination.refusal
        opening = f"{self.outcome}: {folder}: {said}"
        return [opening, *lines_of(self.parts)]

    def record(self) -> dict[str, Any]:
        """The JSON object of the check."""
        report = self.examination.report
        record: dict[str, Any] = {
            "outcome": self.outcome,
            "accepted": self.outcome == "accepted",
            "parts": record_of(self.parts),
            "reason": self.refusal or str(self.examination.refusal or ""),
        }
        if report is not None:
            names = ("rounds", "error_bound", "max_error", "axes", "float_error", "recorded_error")
            record |= {name: getattr(report, name) for name in names}
        return record


def _tests_text(report: CheckReport) -> str:
    bound = "no bound" if report.error_bound is None else passing_text(report.error_bound)
    floats = f"stable in float32 (error {report.float_error:.1e})"
    if report.recorded_error is not None:
        floats += f", and its kernels by their record (error {report.recorded_error:.1e})"
    return f"{report.rounds} test{'s' * (report.rounds != 1)} agreed; {bound}; {floats}"


# --- sources -----------------------------------------------------------------------------------------------------------


def _sources(folder: Path, saved: SavedFiles) -> Part:
    """Whether the sources, and where tensors lie, are those of the muGraph."""
    if saved.manifest["version"] != __version__:
        return Part(
            Status.NOT_CHECKED,
            f"printed by mugraph {saved.manifest['version']}; {__version__} cannot compare them, nor runs them",
        )
    try:
        check_sources(saved.contents, graph_from_json(saved.document("graph.json")), saved.manifest, folder)
    except TargetUnavailable as error:
        return Part(Status.NOT_CHECKED, str(error))
    except MugraphError as error:
        return Part(Status.REFUSED, str(error))
    return Part(Status.CHECKED, "printed again from graph.json with placement.json, and the same byte for byte")


# --- whose function it is ----------------------------------------------------------------------------------------------


def _function(word: str, saved: SavedFiles) -> Part:
    """Whether the program is what a function computes, for all values of its tensors, captured ones and parameters included."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        return same_program(word, resolve(word), saved)


def same_program(word: str, subject: Subject, saved: SavedFiles) -> Part:
    """Whether the program is what a function computes, which a word names."""
    program = graph_from_json(saved.document("program.json"))
    graph, structure, calling = _traced(subject)
    if _signature(graph) != _signature(program):
        return Part(Status.REFUSED, f"{word} takes or returns tensors of other shapes or types than program.json")
    if structure is not None and not same_json(structure, saved.document("report.json").get("structure")):
        return Part(Status.REFUSED, f"{word} returns its tensors in another structure than report.json says")
    if calling is not None:
        constants = constants_in(saved)
        said = SignatureRecord.from_json(saved.document("report.json").get("signature"))
        if (other := other_tensors(word, constants, said, calling)) is not None:
            return other
    elif CONSTANTS in saved.contents:
        return Part(Status.NOT_CHECKED, f"{word} is a program, which says nothing of the constants in {CONSTANTS}")
    verdict = verify_graphs(*as_stored(graph, program))
    if verdict.counterexample is not None:
        return Part(Status.REFUSED, f"{word} is another function than program.json: {verdict.counterexample}")
    if not verdict.equivalent or verdict.error_bound is None:
        return Part(
            Status.NOT_CHECKED, f"whether {word} is program.json was not decided: {verdict.reason or 'no bound is known'}"
        )
    if verdict.certificate.untested:
        return Part(Status.CHECKED, f"{word} is program.json, operator by operator")
    return Part(Status.CHECKED, f"{word} computes program.json; {passing_text(verdict.error_bound)}")


def constants_in(saved: SavedFiles) -> tuple[SavedConstant, ...]:
    """The constants of a folder that the checker has read."""
    return constants_from_json(saved.document(CONSTANTS)) if CONSTANTS in saved.contents else ()


def other_tensors(word: str, constants: Sequence[SavedConstant], said: SignatureRecord | None, calling: Calling) -> Part | None:
    """What is to be said where a function does not compute the constants of a folder bit by bit, or where results that are bound
    to it would read other tensors than the folder says; None where all is the same. Folders that say nothing of how the function
    is called may have no constants, which are inputs like others there."""
    ours = calling.constants if constants or said is not None else ()
    for saved, computed in zip_longest(constants, ours):
        if saved != computed:
            name = (saved or computed).name
            return Part(Status.REFUSED, f"{word} does not compute the constant {name} that {CONSTANTS} has, bit by bit")
    record = calling.signature_record
    if said is not None and (record is None or not said.is_called_as(record)):
        return Part(Status.NOT_CHECKED, f"{word} is called otherwise than report.json says, or reads tensors of other names")
    return None


def _traced(subject: Subject) -> tuple[Graph, Any, Calling | None]:
    """The program of a function, and the structure in which it returns its outputs; None where it has none."""
    if isinstance(subject.function, Program):
        return subject.function.graph, None, None
    from mugraph.frontend import trace  # loads PyTorch

    traced = trace(subject.function, subject.inputs or ())
    return traced.graph, structure_of(traced, len(traced.graph.outputs)), traced


def _signature(graph: Graph) -> tuple[list[object], list[object]]:
    """Shapes and types of inputs and outputs."""
    inputs = [(node.output.shape, node.output.dtype) for node in graph.inputs()]
    return list(inputs), [(tensor.shape, tensor.dtype) for tensor in graph.output_tensors]
