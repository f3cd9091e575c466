"""The command line: `mugraph COMMAND`. Heavy imports stay inside the commands, so that `--help` is instant.

Exit codes: 0 done, 1 nothing better found or different, 3 undecided, 2 bad input (one line on stderr says why).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mugraph.cli import ablate, cache, coverage, doctor, export, optimize, rebuild, saved_results, verify
from mugraph.cli.arguments import CommandSettings
from mugraph.errors import MugraphError
from mugraph.version import __version__

_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of typer's complaints about arguments, which it does not export."""

app = typer.Typer(
    name="mugraph",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def frame(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> int:
    """Discovers, verifies and compiles fused kernels for tensor programs."""
    if version:
        print(f"mugraph {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
    return 0


app.command("optimize")(optimize.optimize)
app.command("verify")(verify.verify)
app.command("coverage")(coverage.coverage)
app.command("show")(saved_results.show)
app.command("explain")(saved_results.explain)
app.command("rebuild")(rebuild.rebuild)
app.command("export")(export.export)
app.command("bench")(saved_results.bench)
app.add_typer(ablate.app, name="ablate")
app.add_typer(cache.app, name="cache")
app.command("doctor")(doctor.doctor)


_INTERRUPTED = 130
"""The exit code of what Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code."""
    # Threads that sleep between kernels instead of spinning: measured times of small kernels on busy machines depend
    # on it, and libgomp reads it once, when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    words = list(sys.argv[1:] if arguments is None else arguments)
    settings = CommandSettings()
    try:
        code = typer.main.get_command(app).main(words, prog_name="mugraph", standalone_mode=False, obj=settings)
        sys.stdout.flush()
        if code == _INTERRUPTED:  # the framework makes Ctrl-C a code
            print("mugraph: interrupted", file=sys.stderr)
        return int(code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:  # the framework exits where a pipe is broken
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # Who reads has seen enough, as in `| head`. What Python still wants to write goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        if settings.traceback:
            raise
        print(f"mugraph: error: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, _USAGE_ERROR):
        text = f"{error.format_message()} (see mugraph --help)"  # type: ignore[attr-defined]  # of every usage error
    elif isinstance(error, (MugraphError, OSError)):
        text = str(error)
    else:
        text = f"internal: {type(error).__name__}: {error}; run again with --traceback and report it"
    return " ".join(text.split())
