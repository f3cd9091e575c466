"""`mugraph verify`: are two functions the same program, and is a saved result what its certificate says?"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mugraph.cli.arguments import Budget, Json, MaxError, Seed, Traceback

if TYPE_CHECKING:
    from mugraph.verifier import Verdict

EXIT_CODES = {"equivalent": 0, "different": 1, "undecided": 3}
"""Of the answers; 2 is bad input, as everywhere."""

_FUNCTION_HELP = "FILE.py:function; the file of the first names example_inputs()."


def verify(
    first: Annotated[str | None, typer.Argument(metavar="FILE.py:f", help=_FUNCTION_HELP)] = None,
    second: Annotated[str | None, typer.Argument(metavar="FILE.py:g", help="FILE.py:function to compare it with.")] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Check a saved result instead, and whether it is FILE.py:f where that is given."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tests of a saved result (default: as many as its bound takes).")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="EQUATION", help="A property of operators to use, such as 'relu(relu(x)) == relu(x)'."
        ),
    ] = None,
    for_all_weights: Annotated[
        bool,
        typer.Option(
            "--for-all-weights", help="Compare for all values of the tensors the functions bring along, matched by name."
        ),
    ] = False,
    max_error: MaxError = 2**-40,
    seed: Seed = None,
    budget: Budget = None,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Decide whether two functions are one program, or check a saved result."""
    from mugraph.errors import InvalidInput

    if certificate is not None and second is None:
        return _checked(certificate, first, rounds, json_output)
    if certificate is not None or rounds is not None or first is None or second is None:
        raise InvalidInput(
            "give two functions FILE.py:f FILE.py:g, or --certificate DIR with or without FILE.py:f and --rounds N"
        )
    asked = _Question(tuple(properties or ()), for_all_weights, max_error, seed, budget)
    return _compare(first, second, asked, json_output)


def _checked(folder: Path, word: str | None, rounds: int | None, json_output: bool) -> int:
    """Check a saved result; raises InvalidInput for what is none, or is one of another format."""
    from mugraph.errors import InvalidInput
    from mugraph.results.serialization import BATCHES, CAPACITIES, ONE_PROGRAM, PIECED, RANGE, kind_of, read_manifest

    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; give one that opt.save or -o wrote")
    kind = kind_of(read_manifest(folder))
    if kind == ONE_PROGRAM:
        from mugraph.cli.certificate_check import check

        return check(folder, word, rounds, json_output)
    if kind == RANGE:
        from mugraph.cli.sizes_check import check_range

        return check_range(folder, word, rounds, json_output)
    if kind == CAPACITIES:
        from mugraph.cli.capacities_check import check_range_of_capacities

        return check_range_of_capacities(folder, word, rounds, json_output)
    if kind == PIECED:
        from mugraph.cli.pieced_check import check_range_in_pieces

        return check_range_in_pieces(folder, word, rounds, json_output)
    if kind == BATCHES:
        from mugraph.cli.batches_check import check_range_of_batches

        return check_range_of_batches(folder, word, rounds, json_output)
    from mugraph.cli.pieces_check import check_pieces

    return check_pieces(folder, word, rounds, json_output)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked of two functions, besides whether they are one program."""

    properties: tuple[str, ...]
    for_all_weights: bool
    max_error: float
    seed: int | None
    budget: float | None


def _compare(first: str, second: str, asked: _Question, json_output: bool) -> int:
    """Compare two functions; the exit code is that of the answer."""
    from mugraph.api import verify as decide
    from mugraph.cli.arguments import resolve
    from mugraph.frontend.files import each_file_once
    from mugraph.results.summary import verdict_lines

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        with each_file_once():
            left, right = resolve(first), resolve(second)
        verdict = decide(left.function, right.function, left.inputs, **asdict(asked))
    if json_output:
        print(json.dumps(verdict_json(verdict)))
    else:
        opening, *more = verdict_lines(verdict)
        print(f"{verdict.outcome}: {first} and {second}{opening}")
        for line in more:
            print(line)
    return EXIT_CODES[verdict.outcome]


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """The JSON object of a verdict."""
    witness = verdict.counterexample
    return {
        "outcome": verdict.outcome,
        "equivalent": verdict.equivalent,
        "error_bound": verdict.error_bound,
        "domain": verdict.domain,
        "question": verdict.question,
        "counterexample": None if witness is None else witness.to_json(),
        "reason": verdict.reason,
        "properties": verdict.properties,
        "certificate": verdict.certificate.to_json(),
    }
