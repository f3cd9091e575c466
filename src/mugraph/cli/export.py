"""`mugraph export`: the Triton kernels of a saved result as one file that tunes itself where it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.arguments import Json, Traceback, TrustSources
from mugraph.errors import InvalidInput


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `mugraph optimize -o` or `opt.save`.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The Python file to write.")],
    trust_sources: TrustSources = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Write the Triton kernels of a saved result as a file that times a few configurations of each at its first launch."""
    from mugraph.api import load
    from mugraph.targets.triton.machine import TritonMachine

    opt = load(folder, trust_sources)
    if len(opt.results) != 1:
        raise InvalidInput(f"{folder} has {len(opt.results)} programs, and a file is of one")
    (result,) = opt.results
    machine = result.executable.machine
    if not isinstance(machine, TritonMachine):
        remedy = f"make one for it: mugraph rebuild {folder} --target triton:sm_90 -o OTHER"
        raise InvalidInput(f"{folder} was made for {opt.target}, and only Triton's kernels tune themselves; {remedy}")
    output.write_text(machine.tuned_source(result.graph, output.name), encoding="utf-8")
    print(json.dumps({"file": str(output), "target": opt.target}) if json_output else f"written to {output} for {opt.target}")
    return 0
