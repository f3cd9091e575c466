"""`mugraph show`, a saved result as text or as a page, and `mugraph explain`, what each pass of lowering makes of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.arguments import Json, Traceback, TrustSources


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

    from mugraph.cli.output import print_result, result_json
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


def explain(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `mugraph optimize -o` or `opt.save`.")],
    after: Annotated[str | None, typer.Option("--after", metavar="PASS", help="Print kernels after this pass alone.")] = None,
    trust_sources: TrustSources = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Print the kernels of a saved result after every pass that changes them, or after one pass."""
    import json

    from mugraph.errors import InvalidInput
    from mugraph.results.superoptimized import load

    opt = load(folder, trust_sources)
    stages = list(opt.executable.machine.explain(opt.graph))
    passes = list(dict.fromkeys(name for _, name, _ in stages))
    if after is not None and after not in passes:
        raise InvalidInput(f"no pass {after!r} for {opt.target}; use one of {', '.join(passes) or 'none: it has no kernels'}")
    shown = [stage for stage in stages if after in (None, stage[1])]
    if json_output:
        print(json.dumps({"stages": [{"kernel": kernel, "pass": name, "text": text} for kernel, name, text in shown]}))
        return 0
    before: dict[str, str] = {}
    for kernel, name, text in shown:
        print(f"// {kernel} after {name}" + (": as before" if before.get(kernel) == text else f"\n{text}"))
        before[kernel] = text
    return 0
