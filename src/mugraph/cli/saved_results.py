"""`mugraph show`, `mugraph explain` and `mugraph bench`: a saved result printed or written as a page, and timed again.

`explain` prints what each pass of lowering makes of its kernels; `bench` times results on this machine, which need not be the
one that searched.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mugraph.cli.arguments import Json, Traceback, TrustSources
from mugraph.errors import InvalidInput, StorageError, TargetUnavailable

if TYPE_CHECKING:
    from mugraph.cli.arguments import Subject
    from mugraph.frontend.calls.pytree import FunctionCalling
    from mugraph.results.superoptimized import Superoptimized
    from mugraph.runtime.baselines import BaselineComparison
    from mugraph.support.progress import ProgressCallback


def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `mugraph optimize -o` or `opt.save`.")],
    sources: Annotated[bool, typer.Option("--sources", help="Print the generated sources too.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the result as one HTML page to this file (-: stdout).")
    ] = None,
    browser: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the page in a browser (default: on a desktop's terminal)."),
    ] = None,
    trust_sources: TrustSources = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Print a saved result, and open its page where there is a browser, or write the page."""
    from mugraph.api import load
    from mugraph.cli.output import called_text, print_result, result_json

    opt = load(folder, trust_sources)
    if html is not None:
        if str(html) == "-":
            print(opt.to_html())
            return 0
        _write(html, opt.to_html())
        print(f"wrote {html}", file=sys.stderr)
        if not json_output:
            return 0
    if json_output:
        print(json.dumps(result_json(opt)))
        return 0
    print_result(opt)
    print(called_text(opt))
    if sources:
        for name, text in opt.sources.items():
            print(f"\n--- {name}\n{text}")
    if _has_browser() if browser is None else browser:
        _open(folder, opt.to_html())
    return 0


def _has_browser() -> bool:
    """Whether somebody looks at a terminal of a desktop, on which a browser has a window of its own."""
    windows = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return windows and sys.stdout.isatty() and not os.environ.get("SSH_CONNECTION")


def _open(folder: Path, page: str) -> None:
    """Show a page of a saved result in the user's browser; it is kept among what mugraph keeps, for the browser to read again."""
    import webbrowser

    from mugraph.support.private_directories import make_private
    from mugraph.support.store import cache_directory

    file = cache_directory() / "pages" / f"{folder.resolve().name}.html"
    try:
        make_private(file.parent)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror or error}; write the page with --html FILE") from error
    _write(file, page)
    opened = webbrowser.open(file.as_uri())
    print(f"opened {file}" if opened else f"no browser opened {file}; open it yourself", file=sys.stderr)


def _write(path: Path, text: str) -> None:
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
    from mugraph.api import load

    opt = load(folder, trust_sources)
    several = len(opt.results) > 1  # whose kernels have the same names
    stages = [
        (f"program {number}: {kernel}" if several else kernel, name, text)
        for number, result in enumerate(opt.results)
        for kernel, name, text in result.executable.machine.explain(result.graph)
    ]
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


def bench(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders written by `mugraph optimize -o`.")],
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians are reported.")] = 30,
    trust_sources: TrustSources = False,
    trust_origin: Annotated[
        bool, typer.Option("--trust-origin", help="Execute the files that the folders say their functions come from.")
    ] = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Time saved results against PyTorch."""
    from mugraph.cli.output import comparison_json, print_comparison, result_json
    from mugraph.support.progress import Reporter

    records: list[dict[str, Any]] = []
    for folder in folders:
        with contextlib.redirect_stdout(sys.stderr), Reporter() as tell:  # what the user's code prints is no part of the answer
            opt, comparison = _timed(folder, rounds, trust_sources, trust_origin, tell)
        records.append({"folder": str(folder), **result_json(opt), **comparison_json(comparison)})
        if not json_output:
            print(f"{folder}: {opt!r}")
            print_comparison(comparison)
    if json_output:
        print(json.dumps({"results": records}))
    return 0


def _timed(
    folder: Path, rounds: int, trust_sources: bool, trust_origin: bool, tell: ProgressCallback
) -> tuple[Superoptimized, BaselineComparison]:
    """The saved result, and its times beside those of the function it came from."""
    from mugraph.api import load
    from mugraph.runtime.baselines import compare
    from mugraph.support.deadline import Deadline
    from mugraph.support.progress import telling
    from mugraph.targets.machine import machine_for

    opt = load(folder, trust_sources)
    subject = _origin(folder, opt, trust_origin)
    machine = machine_for(opt.target)
    if not machine.available:
        remedy = f"take it to one, or make it for this one: mugraph rebuild {folder} --target cuda -o OTHER"
        raise TargetUnavailable(f"{folder} was made for {opt.target}, which this machine is not; {remedy}")
    inputs = machine.moved(subject.inputs or ())
    calling = _calling(opt, subject)
    if calling is None:
        raise InvalidInput(f"{subject.name} is not the program of {folder}, or no longer; optimize it again")
    given = calling.values(tuple(inputs), {})
    kernels = functools.partial(opt, *given[: len(given) - len(opt.calling.constants)])
    comparing = telling("compare", Deadline(None), tell)
    return opt, compare(lambda *_: kernels(), subject.function, inputs, rounds=rounds, machine=machine, tell=comparing)


def _calling(opt: Superoptimized, subject: Subject) -> FunctionCalling | None:
    """How the function is called, if it is the one that was saved."""
    from mugraph.frontend import record, trace
    from mugraph.frontend.calls.pytree import FunctionCalling
    from mugraph.frontend.recording.recorded_graph import recorded_graph
    from mugraph.pieces.cutting import prepared
    from mugraph.pieces.partitioned import Partitioned
    from mugraph.pieces.saved_graph import calls_to_json
    from mugraph.verifier.certificate import digest

    if not isinstance(opt, Partitioned):
        traced = trace(subject.function, subject.inputs or ())
        return traced if digest(traced.graph) == digest(opt.program) else None
    recorded = prepared(recorded_graph(record(subject.function, subject.inputs or ())))
    same = calls_to_json(recorded) == calls_to_json(opt.cut.recorded)
    return recorded.calling if same and isinstance(recorded.calling, FunctionCalling) else None


def _origin(folder: Path, opt: Superoptimized, trusted: bool) -> Subject:
    """The function that a result came from. Files are executed for that, so whoever wrote the folder must not choose them."""
    from mugraph.cli.arguments import resolve
    from mugraph.frontend.workloads import WORKLOADS

    word = opt.origin.get("word")
    if not trusted and opt.origin and word not in WORKLOADS:
        raise InvalidInput(f"{folder} says that it comes from {word}, which bench would execute; allow that with --trust-origin")
    try:
        subject = resolve(**opt.origin) if opt.origin else None
    except TypeError:
        raise InvalidInput(f"{folder} does not say where it comes from; optimize again with `mugraph optimize -o`") from None
    if subject is None or subject.inputs is None:
        raise InvalidInput(f"{folder} does not come from a PyTorch function; optimize one with `mugraph optimize -o`")
    return subject
