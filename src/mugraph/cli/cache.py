"""`mugraph cache`: results and compiled kernels kept between runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.arguments import Json, Traceback
from mugraph.errors import InvalidInput
from mugraph.support.store import Entry, Store, cache_directory

_OBJECT = "kernel"
"""What compiled kernels are called among the kinds of documents."""
_SHOWN = 12
"""Digits of a key that a list for people shows."""
KINDS = ("result", "structures", "duel", "calls", "library", "joins", "plan", "cubin", "host", _OBJECT)
"""What mugraph keeps."""
_PLAN, _DECIDING = "plan", ("result", "duel", "library", "joins")
"""How graphs are cut goes by what else was found out: without it, they are cut anew."""

app = typer.Typer(help="List, remove or carry away results and compiled kernels.", rich_markup_mode=None)
Kind = Annotated[str | None, typer.Argument(metavar="[KIND]", help="Only this kind, as `ls` names it.")]
Archive = Annotated[Path, typer.Argument(metavar="FILE", help="A text file, one JSON object a line.")]


@app.command("ls")
def ls(kind: Kind = None, json_output: Json = False, traceback: Traceback = False) -> int:
    """List what is kept, the last used first: when that was, the size, the kind, the key's beginning, what it is about."""
    _check(kind)
    entries = [entry for entry in [*Store().entries(), *map(_object_entry, _objects())] if kind in (None, entry.kind)]
    if json_output:
        print(json.dumps({"directory": str(cache_directory()), "entries": [asdict(entry) for entry in entries]}))
        return 0
    for entry in entries:
        used = f"{datetime.fromtimestamp(entry.used):%Y-%m-%d %H:%M}"
        print(f"{used}  {entry.bytes / 2**10:>8.1f} KiB  {entry.kind:<10}  {entry.key[:_SHOWN]}  {entry.about}".rstrip())
    print(f"{len(entries)} entries, {sum(entry.bytes for entry in entries) / 2**20:.1f} MiB in {cache_directory()}")
    return 0


@app.command("rm")
def rm(kind: Kind = None, json_output: Json = False, traceback: Traceback = False) -> int:
    """Remove what is kept; it is computed again when needed."""
    _check(kind)
    removed = 0 if kind == _OBJECT else Store().remove(kind)
    removed += Store().remove(_PLAN) if kind in _DECIDING else 0
    for file in _objects() if kind in (None, _OBJECT) else ():
        file.unlink(missing_ok=True)
        removed += 1
    print(json.dumps({"removed": removed}) if json_output else f"removed {removed} entries")
    return 0


@app.command("export")
def export(file: Archive, json_output: Json = False, traceback: Traceback = False) -> int:
    """Write the results to a file, for another machine; kernels are compiled there."""
    count = Store().export_to(file)
    print(json.dumps({"exported": count}) if json_output else f"exported {count} entries to {file}")
    return 0


@app.command("import")
def import_(file: Archive, json_output: Json = False, traceback: Traceback = False) -> int:
    """Add the results of an exported file; every line's hash is checked first."""
    count = Store().import_from(file)
    print(json.dumps({"imported": count}) if json_output else f"imported {count} entries from {file}")
    return 0


def _check(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"nothing of kind {kind!r} is ever kept; use one of {', '.join(KINDS)}")


def _objects() -> list[Path]:
    """The compiled kernels, newest first."""
    return sorted((cache_directory() / "objects").glob("*.so"), key=lambda path: path.stat().st_mtime, reverse=True)


def _object_entry(file: Path) -> Entry:
    status = file.stat()
    return Entry(_OBJECT, file.stem, status.st_size, status.st_mtime)
