"""Compiled objects kept in a cache: each is built once, moved into place whole, and read back only if it is what was written.

An object ends with a hash of its name and content. It is read once, whole, and what was hashed is what is used: the dynamic
loader gets a copy in a folder of this process, made from the bytes that were checked, so that nothing that happens to the cache's
file between the check and the load, or while the object is mapped (truncation is a bus error then), can reach the process.
The copy is removed as soon as it is loaded. A name under /proc/self/fd would save it, but the loader takes an object that it has
loaded under such a name for the next one of that number.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from mugraph.errors import StorageError
from mugraph.support.forking import lock_of_process
from mugraph.support.private_directories import PRIVATE_FILE, check_private, make_private
from mugraph.support.scratch import scratch_directory

_DIGEST_BYTES = 32
_ONE_AT_A_TIME = lock_of_process()
_log = logging.getLogger(__name__)

Build = Callable[[Path], None]
"""Writes an object to the path it is given, in a folder of its own."""


def kept_object(path: Path, build: Build) -> bytes:
    """The content of the object at `path`, built unless it is there and undamaged.

    A cache that cannot be written (read-only, full), or that others can write to, is replaced by a folder of this process,
    with a warning in the log.
    """
    try:
        found = _read(path)
        if found is not None:
            return found
        make_private(path.parent)
        return _built(path, build)
    except (OSError, StorageError) as error:
        with _ONE_AT_A_TIME:  # or threads that compile beside each other have one each
            elsewhere = Path(substitute_directory(path.parent, str(error)).name, path.name)
        found = _read(elsewhere)
        return _built(elsewhere, build) if found is None else found


def rebuilt_object(path: Path, build: Build) -> bytes:
    """The object at `path` made anew, whatever is there."""
    path.unlink(missing_ok=True)
    return kept_object(path, build)


def loaded_object(content: bytes, path: Path) -> ctypes.CDLL:
    """A shared object of the process, from the bytes that the cache has at `path`; raises OSError where the loader refuses them.

    The copy lies beside the cache's object where code from the system's temporary directory may not be run.
    """
    try:
        return _loaded(content, path.name, None)
    except OSError:
        return _loaded(content, path.name, path.parent)


def _loaded(content: bytes, name: str, directory: Path | None) -> ctypes.CDLL:
    with scratch_directory(".loading-" if directory else "mugraph-loading-", directory) as folder:
        file = Path(folder, name)
        file.write_bytes(content)
        return ctypes.CDLL(str(file))


def _read(path: Path) -> bytes | None:
    """The object at `path` without its hash; None where there is none, or a damaged one, which the log then names."""
    if not path.exists():
        return None
    check_private(path.parent)
    stored = path.read_bytes()
    content, digest = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
    if digest == _digest(path.name, content):
        return content
    _log.warning("the compiled object %s is damaged; it is compiled again", path)
    return None


def _digest(name: str, content: bytes) -> bytes:
    """Of the name too: an object that was copied over another is not taken for it."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


@cache
def substitute_directory(directory: Path, why: str) -> tempfile.TemporaryDirectory[str]:
    """The folder that stands in for a cache until the process ends; it is announced once."""
    folder = scratch_directory("mugraph-objects-")
    atexit.register(folder.cleanup)
    _log.warning("cannot use the cache %s (%s); compiling into %s", directory, why, folder.name)
    return folder


def _built(path: Path, build: Build) -> bytes:
    with scratch_directory(".compiling-", path.parent) as folder:
        unfinished = Path(folder, path.name)
        build(unfinished)
        content = unfinished.read_bytes()
        unfinished.write_bytes(content + _digest(path.name, content))
        unfinished.chmod(PRIVATE_FILE)
        os.replace(unfinished, path)
    return content
