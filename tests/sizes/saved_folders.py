"""Folders of results that were changed by somebody who writes the right hashes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def changed(folder: Path, to: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A copy with another document, and the hashes that it has."""
    shutil.copytree(folder, to)
    file = to / name
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return listed_again(to)


def with_another(folder: Path, to: Path, place: str, save: Callable[[Path], object]) -> Path:
    """A copy with another result in one of its folders."""
    shutil.copytree(folder, to)
    shutil.rmtree(to / place)
    save(to / place)
    return listed_again(to)


def unlisted(folder: Path, place: str) -> Path:
    """The folder, whose manifest says nothing of one of its folders."""
    manifest = folder / "mugraph.json"
    listed = json.loads(manifest.read_text())
    listed["files"] = {name: digest for name, digest in listed["files"].items() if not name.startswith(f"{place}/")}
    manifest.write_text(json.dumps(listed))
    return folder


def listed_again(folder: Path) -> Path:
    """The folder, with the hashes of all its files in its manifest."""
    manifest = folder / "mugraph.json"
    listed = json.loads(manifest.read_text())
    files = [file for file in folder.rglob("*") if file.is_file() and file != manifest]
    listed["files"] = {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    manifest.write_text(json.dumps(listed))
    return folder
