"""Compiled objects kept in a cache: each is built once, moved into place whole, or kept elsewhere if the cache refuses it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)


def kept_object(path: Path, build: Callable[[Path], None]) -> Path:
    """The object at `path`, built unless it is there; `build` writes it to the path it is given, in a folder of its own.

    A cache that cannot be written (read-only, full) is replaced by a folder of this process, with a warning in the log.
    """
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _built(path, build)
    except OSError as error:
        elsewhere = Path(_substitute(path.parent, str(error)).name, path.name)
        return elsewhere if elsewhere.exists() else _built(elsewhere, build)


@cache
def _substitute(directory: Path, why: str) -> tempfile.TemporaryDirectory[str]:
    """The folder that stands in for a cache until the process ends; it is announced once."""
    folder = tempfile.TemporaryDirectory(prefix="mugraph-")
    _log.warning("cannot write the cache %s (%s); compiling into %s", directory, why, folder.name)
    return folder


def _built(path: Path, build: Callable[[Path], None]) -> Path:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        unfinished = Path(folder, path.name)
        build(unfinished)
        os.replace(unfinished, path)
    return path
