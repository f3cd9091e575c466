"""Directories for the length of a piece of work. A process that is killed leaves its own behind; who killed it, or the next one,
removes them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path


def scratch_directory(prefix: str, parent: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """A new directory in `parent` (by default the system's temporary one), for this user alone, removed with the object.

    Its name begins with `prefix`, the machine and the process; those that dead processes of this machine made with the same
    prefix are removed first, once in a process. Raises OSError where none can be made.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    _swept(prefix, place)
    return tempfile.TemporaryDirectory(dir=place, prefix=_beginning(prefix), ignore_cleanup_errors=True)


def abandoned(prefix: str, place: Path) -> list[Path]:
    """The scratch directories in `place` that dead processes of this machine made with a prefix."""
    form = re.compile(re.escape(f"{prefix}{_machine()}-") + r"(\d+)-.+")
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(place):
            match = form.fullmatch(entry.name)
            if match and _is_dead(int(match[1])) and entry.is_dir(follow_symlinks=False):
                found.append(Path(entry.path))
    return found


def remove_scratch_of(process: int, places: Iterable[Path]) -> None:
    """Remove the scratch directories in some places that a process of this machine made, which has been killed."""
    form = re.compile(rf"[.a-z-]+{re.escape(_machine())}-{process}-.+")
    for place in places:
        with contextlib.suppress(OSError):
            for entry in os.scandir(place):
                if form.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)


@functools.cache
def _swept(prefix: str, place: Path) -> None:
    for directory in abandoned(prefix, place):
        shutil.rmtree(directory, ignore_errors=True)


def _beginning(prefix: str) -> str:
    return f"{prefix}{_machine()}-{os.getpid()}-"


@functools.cache
def _machine() -> str:
    """What tells apart the machines, and containers, whose processes have numbers of their own and may share a directory."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(f"{platform.node()} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_dead(process: int) -> bool:
    if sys.platform == "win32":  # where asking whether a process lives would end it
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
