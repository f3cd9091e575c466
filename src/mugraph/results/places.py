"""Where results may be saved: looked at before anything that takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

from mugraph.errors import InvalidInput, StorageError

MANIFEST = "mugraph.json"
"""The file that every saved result has, and no other folder."""


def check_replaceable(path: Path) -> None:
    """Raise InvalidInput when `path` holds anything but an older result or an empty folder, StorageError where it cannot."""
    existing = next(parent for parent in Path(os.path.realpath(path)).parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {path}: {existing} is no folder that you may write to; choose another one")
    if path.is_dir() and ((path / MANIFEST).is_file() or not any(path.iterdir())):
        return
    if path.exists():
        raise InvalidInput(f"{path} exists and is not a mugraph result; choose another folder or remove it yourself")
