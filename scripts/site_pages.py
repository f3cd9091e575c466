"""What `mkdocs` reads besides docs/: pages of the repository's own, and references made from the code.

The README is the front page, CONTRIBUTING, CHANGELOG and the examples' README have pages too, with links as the site needs them.
The reference of the command line is made from its commands, that of Python lists the public names, whose docstrings mkdocstrings
reads.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Pages that stand elsewhere in the repository, by their places on the site."""

_LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)", re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; called by mkdocs."""
    from mkdocs.structure.files import File

    made = {place: relinked((ROOT / source).read_text(encoding="utf-8"), source) for source, place in PAGES.items()}
    for place, text in (made | {"python.md": python_reference(), "command-line.md": command_reference()}).items():
        files.append(File.generated(config, place, content=text))
    return files


def relinked(text: str, source: str) -> str:
    """A page of the repository with links to other pages of the site; what is no page there is shown as its path."""

    def link(match: re.Match[str]) -> str:
        words, path, anchor = match[1], match[2], match[3] or ""
        target = (ROOT / source).parent.joinpath(path).resolve()
        where = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else path
        if where in PAGES:
            return f"{words}({PAGES[where]}{anchor})"
        if where.startswith("docs/"):
            return f"{words}({where.removeprefix('docs/')}{anchor})"
        return f"{words[1:-1]} (`{where}`)"

    return _LINK.sub(link, text)


def python_reference() -> str:
    """The public names of `mugraph`, for mkdocstrings."""
    import mugraph

    names = [name for name in mugraph.__all__ if not name.startswith("_")]
    functions = sorted((name for name in names if name[0].islower()), key=lambda name: (name != "superoptimize", name))
    classes = sorted(name for name in names if name[0].isupper())
    parts = ["# Python", "", "What `import mugraph` has. Shapes, dtypes, units and errors are in each docstring.", ""]
    return "\n".join([*parts, *(f"::: mugraph.{name}\n" for name in [*functions, *classes])])


def command_reference() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    import typer

    from mugraph.cli import app

    parts = ["# Commands and options", "", "Made from the command line itself; [Command line](cli.md) explains it.", ""]

    def describe(name: str, command: Any) -> None:
        nested = getattr(command, "commands", None)
        if nested is not None:
            for child, one in nested.items():
                describe(f"{name} {child}", one)
            return
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
        parts.extend([f"## {name}", "", (command.help or "").strip(), ""])
        usage = " ".join([name, *(p.metavar or p.name.upper() for p in arguments), *(["[OPTIONS]"] if options else [])])
        parts.extend(["```text", usage, "```", ""])
        if arguments or options:
            parts.extend(["| Argument or option | |", "|---|---|"])
            parts.extend(f"| `{p.metavar or p.name.upper()}` | {_cell(getattr(p, 'help', ''))} |" for p in arguments)
            parts.extend(f"| `{', '.join([*p.opts, *p.secondary_opts])}` | {_cell(getattr(p, 'help', ''))} |" for p in options)
            parts.append("")

    describe("mugraph", typer.main.get_command(app))
    return "\n".join(parts)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
