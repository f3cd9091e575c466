"""`mugraph verify`: are two functions the same program, and is a saved result what its certificate says?"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.options import Json, MaxError, Seed, Traceback

_FUNCTION_HELP = "FILE.py:function; the file of the first names example_inputs()."


def verify(
    first: Annotated[str | None, typer.Argument(metavar="FILE.py:f", help=_FUNCTION_HELP)] = None,
    second: Annotated[str | None, typer.Argument(metavar="FILE.py:g", help="FILE.py:function to compare it with.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Check a saved result instead, from its files alone.")
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
    max_error: MaxError = 2**-40,
    seed: Seed = 0,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Decide whether two functions are one program, or check a saved result."""
    from mugraph.errors import InvalidInput

    if certificate is not None and first is None:
        return _check(certificate, rounds, json_output)
    if certificate is not None or rounds is not None or first is None or second is None:
        raise InvalidInput("give two functions FILE.py:f FILE.py:g, or --certificate DIR with or without --rounds N")
    return _compare(first, second, properties or (), max_error, seed, json_output)


def _check(folder: Path, rounds: int | None, json_output: bool) -> int:
    """Check a saved result with code that shares nothing with what made it."""
    from mugraph.checker import Rejected, check_folder
    from mugraph.describe import passing_text
    from mugraph.errors import InvalidInput

    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; give one that opt.save or -o wrote")
    record: dict[str, object]
    try:
        report = check_folder(folder, rounds=rounds, tell=lambda line: print(line, file=sys.stderr, flush=True))
    except Rejected as error:
        accepted, text, record = False, f"rejected: {folder}: {error}", {"reason": str(error)}
    else:
        accepted = report.reached
        record = {
            "rounds": report.rounds,
            "error_bound": report.error_bound,
            "max_error": report.max_error,
            "axes": report.axes,
            "float_error": report.float_error,
            "recorded_error": report.recorded_error,
        }
        bound = "no bound" if report.error_bound is None else passing_text(report.error_bound)
        outcome = "accepted" if accepted else f"not decided (asked for {report.max_error:.3g})"
        floats = f"stable in float32 (error {report.float_error:.1e})"
        if report.recorded_error is not None:
            floats += f", and its kernels by their record (error {report.recorded_error:.1e})"
        text = f"{outcome}: {folder}: {report.rounds} test{'s' * (report.rounds != 1)} agreed; {bound}; {floats}"
    print(json.dumps({"accepted": accepted, **record}) if json_output else text)
    return 0 if accepted else 1


def _compare(first: str, second: str, properties: Sequence[str], max_error: float, seed: int, json_output: bool) -> int:
    """Compare two functions."""
    from mugraph.api import verify as decide
    from mugraph.cli.subjects import resolve
    from mugraph.describe import bound_text

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        left, right = resolve(first), resolve(second)
        verdict = decide(left.function, right.function, left.inputs, max_error=max_error, seed=seed, properties=properties)
    if json_output:
        record = {
            "equivalent": verdict.equivalent,
            "error_bound": verdict.error_bound,
            "counterexample": None if verdict.counterexample is None else str(verdict.counterexample),
            "reason": verdict.reason,
            "properties": verdict.properties,
            "certificate": verdict.certificate.to_json(),
        }
        print(json.dumps(record))
    elif verdict.equivalent:
        proved = f"; by {', '.join(verdict.properties)}, and for the rest" if verdict.properties else ";"
        print(f"equivalent: {first} and {second}{proved} {bound_text(verdict.certificate)}")
    else:
        print(f"not equivalent: {first} and {second}: {verdict.counterexample or verdict.reason}")
    return 0 if verdict.equivalent else 1
