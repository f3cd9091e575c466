"""`mugraph cache`: the compiled kernels kept between runs."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from mugraph.cli.options import Json, Traceback

app = typer.Typer(help="List or remove compiled kernels.", rich_markup_mode=None)


@app.command("ls")
def ls(json_output: Json = False, traceback: Traceback = False) -> int:
    """List the compiled kernels, newest first."""
    found = _objects()
    if json_output:
        print(json.dumps([{"file": str(entry), "bytes": entry.stat().st_size} for entry in found]))
        return 0
    for entry in found:
        print(f"{entry.stat().st_size:>10}  {entry}")
    print(f"{len(found)} compiled kernel files, {sum(entry.stat().st_size for entry in found) / 2**20:.1f} MiB")
    return 0


@app.command("rm")
def rm(json_output: Json = False, traceback: Traceback = False) -> int:
    """Remove all compiled kernels; they are compiled again when needed."""
    found = _objects()
    for entry in found:
        entry.unlink(missing_ok=True)
    print(json.dumps({"removed": len(found)}) if json_output else f"removed {len(found)} compiled kernel files")
    return 0


def _objects() -> list[Path]:
    from mugraph.runtime.compiler import default_cache

    return sorted(default_cache().glob("objects/*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
