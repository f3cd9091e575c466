"""`mugraph show`: a saved result as text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.options import Json, Traceback


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `mugraph optimize -o` or `opt.save`.")],
    sources: Annotated[bool, typer.Option("--sources", help="Print the generated sources too.")] = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Print a saved result."""
    import json

    from mugraph.cli.summary import print_result, result_json
    from mugraph.folder import load

    opt = load(folder)
    if json_output:
        print(json.dumps(result_json(opt)))
        return 0
    print_result(opt)
    if sources:
        for name, text in opt.sources.items():
            print(f"\n--- {name}\n{text}")
    return 0
