"""`mugraph coverage`: how much of a function runs as kernels, and why the rest does not."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Annotated

import typer

from mugraph.cli.arguments import Budget, Cache, Json, Target, Traceback, Workers


def coverage(
    function: Annotated[str, typer.Argument(metavar="FILE.py:f", help="A function or module; its file has example_inputs().")],
    target: Target = None,
    budget: Budget = None,
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Measure nothing: every kernel that is found counts.")] = False,
    workers: Workers = "1",
    cache: Cache = None,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Say what runs a function: bytes, operations and time of muGraphs, library kernels and PyTorch."""
    from mugraph.cli.arguments import check_word, processes_of
    from mugraph.devices import device_for
    from mugraph.support.store import Mode

    if cache is not None:
        check_word("--cache", cache, tuple(Mode))
    if target is not None:
        device_for(target)
    number = processes_of(workers)
    from mugraph.api import superoptimize
    from mugraph.cli.arguments import resolve
    from mugraph.cli.output import coverage_json, print_coverage
    from mugraph.results.coverage import of_program
    from mugraph.support.progress import Reporter

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        subject = resolve(function)
        with Reporter() as reporter:
            given = (subject.function, subject.inputs, target, budget)
            opt = superoptimize(*given, profile=not no_profile, progress=reporter, workers=number, cache=cache)
    measured = opt.report.coverage or of_program(opt.program, opt.graph if opt.found else None)
    if json_output:
        print(json.dumps({"function": subject.name, "found": opt.found, "target": opt.target, **coverage_json(measured)}))
    else:
        print(f"{subject.name}: {subject.description}")
        print_coverage(measured)
    return 0
