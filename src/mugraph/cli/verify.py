"""`mugraph verify`: are two functions the same program, at all sizes too, and is a saved result what its certificate says?"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mugraph.cli.arguments import Budget, Dynamic, Json, MaxError, Seed, Traceback

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
        typer.Option(
            metavar="DIR|FILE",
            help="Check a saved result instead, and whether it is FILE.py:f where that is given; or a certificate for all sizes, "
            "and whether it is of both functions.",
        ),
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
    dynamic: Dynamic = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="With --dynamic: write a certificate for all sizes, once it is checked."
        ),
    ] = None,
    max_error: MaxError = 2**-40,
    seed: Seed = None,
    budget: Budget = None,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Decide whether two functions are one program, or check a saved result."""
    from mugraph.errors import InvalidInput

    if certificate is not None and certificate.is_file() and not dynamic and output is None:
        return _checked_for_all_sizes(certificate, [word for word in (first, second) if word is not None], rounds, json_output)
    if certificate is not None and second is None and not dynamic and output is None:
        return _checked(certificate, first, rounds, json_output)
    if output is not None and not dynamic:
        raise InvalidInput(
            f"-o {output}: certificates are written of all sizes; give --dynamic, as in --dynamic x:0=batch:1:4096"
        )
    if certificate is not None or rounds is not None or first is None or second is None:
        raise InvalidInput(
            "give two functions FILE.py:f FILE.py:g, or --certificate DIR with or without FILE.py:f and --rounds N"
        )
    asked = _Question(tuple(properties or ()), for_all_weights, max_error, seed, budget)
    if dynamic:
        return _compare_at_all_sizes(first, second, dynamic, asked, output, json_output)
    return _compare(first, second, asked, json_output)


def _checked_for_all_sizes(path: Path, words: list[str], rounds: int | None, json_output: bool) -> int:
    """Check a certificate for all sizes; raises InvalidInput where one function alone is named."""
    from mugraph.cli.all_sizes_check import check_sizes_certificate
    from mugraph.errors import InvalidInput

    if len(words) == 1:
        raise InvalidInput(f"{path} is a certificate for all sizes, of two functions; give both, FILE.py:f FILE.py:g, or none")
    return check_sizes_certificate(path, words, rounds, json_output)


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

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        with each_file_once():
            left, right = resolve(first), resolve(second)
        verdict = decide(left.function, right.function, left.inputs, **asdict(asked))
    return _answered(first, second, verdict, json_output, {}, [])


def _compare_at_all_sizes(
    first: str, second: str, dynamic: list[str], asked: _Question, output: Path | None, json_output: bool
) -> int:
    """Compare two functions at all sizes of ranges, and write a certificate of that; the exit code is that of the answer, and
    3 where there is no certificate of it."""
    from mugraph.cli.all_sizes_check import all_sizes_record, asked_at_all_sizes, written
    from mugraph.cli.arguments import declaration_of, resolve
    from mugraph.frontend.files import each_file_once

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        with each_file_once():
            left, right = resolve(first), resolve(second)
        declared = declaration_of(dynamic, left.function)
        question = asked_at_all_sizes((left.function, right.function), left.inputs, declared, asdict(asked))
        answer = question.answer()
        verdict, refusal = answer.verdict, ""
        if output is not None:
            refusal = written(question, answer, output, asdict(asked)) if verdict.equivalent else "they are not equivalent"
    lines = [verdict.claim] if verdict.claim else []
    if output is not None:
        lines.append(f"no certificate: {refusal}" if refusal else f"certificate: {output}")
    code = _answered(first, second, verdict, json_output, all_sizes_record(verdict, output, refusal), lines)
    return code or (EXIT_CODES["undecided"] if refusal else 0)


def _answered(first: str, second: str, verdict: Verdict, json_output: bool, record: dict[str, object], lines: list[str]) -> int:
    """Print a verdict, with more entries of its JSON object or more lines; the exit code."""
    from mugraph.results.summary import verdict_lines

    if json_output:
        print(json.dumps({**verdict_json(verdict), **record}))
    else:
        opening, *more = verdict_lines(verdict)
        print(f"{verdict.outcome}: {first} and {second}{opening}")
        for line in (*more, *lines):
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
