"""`mugraph show`: a saved result as text, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.options import Json, Traceback, TrustSources


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `mugraph optimize -o` or `opt.save`.")],
    sources: Annotated[bool, typer.Option("--sources", help="Print the generated sources too.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the result as one HTML page to this file.")
    ] = None,
    trust_sources: TrustSources = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Print a saved result, or write it as a page."""
    import json
    import sys

    from mugraph.cli.summary import print_result, result_json
    from mugraph.results.superoptimized import load

    opt = load(folder, trust_sources)
    if html is not None:
        _write(html, opt.to_html())
        print(f"wrote {html}", file=sys.stderr)
        if not json_output:
            return 0
    if json_output:
        print(json.dumps(result_json(opt)))
        return 0
    print_result(opt)
    if sources:
        for name, text in opt.sources.items():
            print(f"\n--- {name}\n{text}")
    return 0


def _write(path: Path, text: str) -> None:
    from mugraph.errors import StorageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; choose another file") from error
