"""Triton's cache of compiled kernels, in a directory of the user's own and with hashes.

Triton writes what it compiled beside a list of the files, and reads both back as they are. Here every file has its hash with it:
a group of which one file is missing, damaged or elsewhere counts as absent, and is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mugraph.errors import StorageError
from mugraph.support.private_directories import make_private
from mugraph.support.store import cache_directory

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def kept_by_hash() -> Iterator[None]:
    """Within it, Triton keeps what it compiles in mugraph's cache, and takes nothing from there that is not what was written.

    A cache that cannot be used is replaced by a folder of this process, with a warning in the log.
    """
    import triton

    directory = cache_directory() / "triton"
    try:
        make_private(directory)
    except (OSError, StorageError) as error:
        directory = Path(_substitute(directory, str(error)).name)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(directory)
        triton.knobs.cache.manager_class = _manager()
        yield


@cache
def _substitute(directory: Path, why: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="mugraph-")
    _log.warning("cannot use the cache %s (%s); compiling into %s", directory, why, folder.name)
    return folder


@cache
def _manager() -> type[Any]:
    """The class of caches that Triton makes one of for each kernel."""
    from triton.runtime.cache import FileCacheManager

    class HashedFiles(FileCacheManager):  # type: ignore[misc]  # Triton is not typed
        """Triton's files, each with the SHA-256 of its name and content beside it."""

        def put(self, data: str | bytes, filename: str, binary: bool = True) -> str:
            path: str = super().put(data, filename, binary)
            super().put(_digest(Path(path)), f"{filename}.sha256", False)
            return path

        def get_file(self, filename: str) -> str | None:
            path: str | None = super().get_file(filename)
            return path if path is not None and _is_whole(Path(path)) else None

        def get_group(self, filename: str) -> dict[str, str] | None:
            if self.get_file(f"__grp__{filename}") is None:
                return None
            group: dict[str, str] = super().get_group(filename) or {}
            whole = filename in group and all(os.path.dirname(path) == self.cache_dir for path in group.values())
            return group if whole and all(_is_whole(Path(path)) for path in group.values()) else None

    return HashedFiles


def _is_whole(path: Path) -> bool:
    try:
        if path.with_name(f"{path.name}.sha256").read_text() == _digest(path):
            return True
    except (OSError, UnicodeDecodeError):
        pass  # as good as another hash
    _log.warning("the compiled kernel %s is damaged; it is compiled again", path)
    return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.name.encode() + b"\0" + path.read_bytes()).hexdigest()
