"""`mugraph verify`: are two functions the same program?"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Annotated

import typer

from mugraph.cli.options import Json, MaxError, Seed, Traceback

_FUNCTION_HELP = "FILE.py:function; the file of the first names example_inputs()."


def verify(
    first: Annotated[str, typer.Argument(metavar="FILE.py:f", help=_FUNCTION_HELP)],
    second: Annotated[str, typer.Argument(metavar="FILE.py:g", help="FILE.py:function to compare it with.")],
    max_error: MaxError = 2**-40,
    seed: Seed = 0,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Decide whether two functions are one program."""
    from mugraph.api import verify as decide
    from mugraph.cli.subjects import resolve
    from mugraph.cli.summary import bound_text

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        left, right = resolve(first), resolve(second)
        verdict = decide(left.function, right.function, left.inputs, max_error=max_error, seed=seed)
    if json_output:
        record = {
            "equivalent": verdict.equivalent,
            "error_bound": verdict.error_bound,
            "counterexample": None if verdict.counterexample is None else str(verdict.counterexample),
            "reason": verdict.reason,
            "certificate": verdict.certificate.to_json(),
        }
        print(json.dumps(record))
    elif verdict.equivalent:
        print(f"equivalent: {first} and {second}; {bound_text(verdict.certificate)}")
    else:
        print(f"not equivalent: {first} and {second}: {verdict.counterexample or verdict.reason}")
    return 0 if verdict.equivalent else 1
