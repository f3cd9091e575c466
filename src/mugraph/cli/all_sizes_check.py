"""`mugraph verify --dynamic` and `--certificate FILE`: certificates for all sizes of ranges, written and checked.

The checker counts and tests by itself, of the file alone. That its programs are those of two functions, PyTorch is asked here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mugraph.checker import Part, Status
from mugraph.checker.all_sizes import SizesExamination, examine_document, examine_sizes
from mugraph.checker.sum_orders import orders_of_outputs
from mugraph.cli.arguments import resolve
from mugraph.cli.certificate_check import lines_of, record_of, told
from mugraph.errors import MugraphError
from mugraph.frontend import require_torch
from mugraph.results.summary import passing_text

if TYPE_CHECKING:
    from mugraph.sizes.cutoff_proofs import Answer, DecidedPart, Question
    from mugraph.sizes.dims import Declaration
    from mugraph.verifier import Verdict

_NOBODYS = Part(
    Status.NOT_CHECKED, "nothing in a certificate says whose its programs are; `--certificate FILE FILE.py:f FILE.py:g` does"
)


def asked_at_all_sizes(functions: tuple[Any, Any], inputs: Any, dynamic: Declaration, options: Mapping[str, Any]) -> Question:
    """What is asked of two functions and ranges of sizes; raises what `mugraph.verify` raises."""
    require_torch("to compare functions at all sizes")
    from mugraph.api import verify
    from mugraph.sizes.cutoff_proofs import Question

    chosen = {name: value for name, value in options.items() if name != "budget"}
    return Question.of(verify, functions, inputs, dynamic, options["budget"], chosen)


def written(question: Question, answer: Answer, path: Path, options: Mapping[str, Any]) -> str:
    """Write the certificate of an answer to a file, once the checker accepts it and its programs are those of the functions;
    why it is not written, or nothing. Raises OSError where it cannot be."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.cutoff_certificates import certificate_of

    try:
        document = certificate_of(question, answer, max_error=options["max_error"], seed=options["seed"])
    except SizeMatters as error:
        return str(error)
    checked = Checked(examine_document(document), None)
    if checked.examination.report is not None:
        checked = Checked(checked.examination, _of_functions(question, document, answer.parts))
    if (why := checked.refusal) or checked.outcome != "accepted":
        return f"the checker does not accept it: {why}"
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(document) + "\n")
    beside.replace(path)
    return ""


def check_sizes_certificate(path: Path, words: Sequence[str], rounds: int | None, json_output: bool) -> int:
    """Check a certificate for all sizes, and whether its programs are those of the two functions that `words` name; the exit
    code."""
    examination = examine_sizes(path, rounds=rounds, tell=lambda line: print(line, file=sys.stderr, flush=True))
    function = _asked_again(examination.document, words) if words and examination.report is not None else None
    return told(Checked(examination, function), path, json_output)


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of a certificate, and of whose its programs are where that was asked."""

    examination: SizesExamination
    function: Part | None

    @property
    def parts(self) -> dict[str, Part]:
        """What became of each part."""
        return {**self.examination.parts, "functions": self.function or _NOBODYS}

    @property
    def _asked(self) -> list[Part]:
        return [*self.examination.parts.values(), *([] if self.function is None else [self.function])]

    @property
    def outcome(self) -> str:
        """`accepted`, `rejected` or `undecided`."""
        if any(part.status is Status.REFUSED for part in self._asked):
            return "rejected"
        return "accepted" if all(part.status is Status.CHECKED for part in self._asked) else "undecided"

    @property
    def refusal(self) -> str:
        """Why it is not accepted, by the first part that is not; "" where it is."""
        return next((part.reason for part in self._asked if part.status is not Status.CHECKED), "")

    def lines(self, path: Path) -> list[str]:
        """The outcome in a line, then what is claimed, then a line for each part."""
        report = self.examination.report
        if report is None:
            opening = [f"{self.outcome}: {path}: {self.refusal}"]
        else:
            agreed = f"{report.rounds} tests at {report.sizes} sizes agreed; {passing_text(report.error_bound)}"
            opening = [f"{self.outcome}: {path}: {agreed}", f"  claim: {report.claim}"]
        return [*opening, *lines_of(self.parts)]

    def record(self) -> dict[str, Any]:
        """The JSON object of the check."""
        record: dict[str, Any] = {
            "outcome": self.outcome,
            "accepted": self.outcome == "accepted",
            "parts": record_of(self.parts),
            "reason": self.refusal,
        }
        if (report := self.examination.report) is not None:
            names = ("rounds", "sizes", "error_bound", "max_error", "claim")
            record |= {name: getattr(report, name) for name in names}
        return record


def _asked_again(document: Any, words: Sequence[str]) -> Part:
    """Whether the programs of a certificate that was checked are those of two functions in files."""
    from mugraph.frontend.files import each_file_once
    from mugraph.sizes.dims import Dim

    dims = {each["name"]: Dim.of_json(each) for each in document["dimensions"]}
    dynamic: dict[int | str, dict[int, Dim]] = {}
    for argument, position, name in document["places"]:
        dynamic.setdefault(argument, {})[position] = dims[name]
    options = {"max_error": document["max_error"], "seed": None, "properties": (), "for_all_weights": False, "budget": None}
    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        with each_file_once():
            left, right = map(resolve, words)
        return _of_functions(asked_at_all_sizes((left.function, right.function), left.inputs, dynamic, options), document)


def _of_functions(question: Question, document: Any, decided: Sequence[DecidedPart] = ()) -> Part:
    """Whether the programs of a certificate that was checked are those of the functions that are asked about."""
    from mugraph.frontend.symbolic_sizes.axes import SizeMatters
    from mugraph.sizes.cutoff_links import check_programs

    try:
        check_programs(question, document, orders_of_outputs, decided)
    except SizeMatters as error:
        return Part(Status.REFUSED, f"its programs are not those of the functions: {error}")
    except MugraphError as error:
        return Part(Status.NOT_CHECKED, f"whether its programs are those of the functions was not decided: {error}")
    return Part(Status.CHECKED, "recorded again for all sizes, they are its programs at as many sizes as decide")


def all_sizes_record(verdict: Verdict, path: Path | None, refusal: str) -> dict[str, object]:
    """What the JSON object of a verdict on all sizes has besides that of others."""
    return {
        "sizes": [dict(each) for each in verdict.sizes],
        "claim": verdict.claim,
        "saved": None if path is None or refusal else str(path),
        "not_saved": refusal,
    }
