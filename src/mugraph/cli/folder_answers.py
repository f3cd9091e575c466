"""What is said of a saved folder that holds several programs, each of which was checked, beside parts of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mugraph.checker import Part, Status
from mugraph.cli.certificate_check import EXIT_CODES, CheckedProgram, lines_of, record_of


def answered(
    folder: Path,
    what: str,
    programs: Mapping[Path, CheckedProgram],
    parts: Mapping[str, Part],
    asked: bool,
    json_output: bool,
) -> int:
    """Print what became of a folder that holds `what`, and return the exit code; the part `function` counts where it was `asked`
    for."""
    outcome = _outcome([each.outcome for each in programs.values()], parts, asked)
    if json_output:
        record = {
            "outcome": outcome,
            "accepted": outcome == "accepted",
            "parts": record_of(parts),
            "programs": {str(place.relative_to(folder)): each.record() for place, each in programs.items()},
        }
        print(json.dumps(record))
        return EXIT_CODES[outcome]
    print("\n".join([f"{outcome}: {folder}: {what}", *lines_of(parts)]))
    for place, each in programs.items():
        print("\n".join(each.lines(place)))
    return EXIT_CODES[outcome]


def _outcome(programs: list[str], parts: Mapping[str, Part], asked: bool) -> str:
    if "rejected" in programs or any(part.status is Status.REFUSED for part in parts.values()):
        return "rejected"
    statuses = {part.status for name, part in parts.items() if asked or name != "function"}
    return "accepted" if {*programs} <= {"accepted"} and statuses <= {Status.CHECKED} else "undecided"
