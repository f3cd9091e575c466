"""`mugraph bench`: time saved results on this machine, which need not be the one that searched."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mugraph.cli.options import Json, Traceback
from mugraph.errors import InvalidInput, TargetUnavailable

if TYPE_CHECKING:
    from mugraph.baselines import Comparison
    from mugraph.result import Superoptimized


def bench(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders written by `mugraph optimize -o`.")],
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 30,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Time saved results against PyTorch."""
    from mugraph.cli.summary import comparison_json, print_comparison, result_json

    records: list[dict[str, Any]] = []
    for folder in folders:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
            opt, comparison = _timed(folder, rounds)
        records.append({"folder": str(folder), **result_json(opt), **comparison_json(comparison)})
        if not json_output:
            print(f"{folder}: {opt!r}")
            print_comparison(comparison)
    if json_output:
        print(json.dumps({"results": records}))
    return 0


def _timed(folder: Path, rounds: int) -> tuple[Superoptimized, Comparison]:
    """The saved result, and its times beside those of the function it came from."""
    from mugraph.baselines import compare
    from mugraph.cli.subjects import resolve
    from mugraph.folder import load
    from mugraph.frontend import trace

    opt = load(folder)
    subject = resolve(**opt.origin) if opt.origin else None
    if subject is None or subject.inputs is None:
        raise InvalidInput(f"{folder} does not come from a PyTorch function; optimize one with `mugraph optimize -o`")
    machine = opt.executable.machine
    if not machine.available:
        raise TargetUnavailable(f"{folder} was made for {opt.target}, which this machine is not; take it to one")
    inputs = machine.moved(subject.inputs)
    tensors = trace(subject.function, subject.inputs).flatten(tuple(inputs), {})
    return opt, compare(functools.partial(opt, *tensors), subject.function, inputs, rounds, machine)
