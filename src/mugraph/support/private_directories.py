"""Directories that nobody else can change: what lies in them is loaded as code, or believed, when a later process starts.

Hashes beside cached files tell accidents from what was written; against other users of a machine only the right to write helps,
since whoever replaces a file can replace its hash. So caches lie in directories of the user's own, made with mode 0700 whatever
the umask, and one that somebody else can write to, directly or by renaming what it lies in, is refused with the remedy.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from mugraph.errors import StorageError

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
_ROOT = 0
_ELSEWHERE = "set MUGRAPH_CACHE_DIR to a directory of your own"


class NotPrivate(StorageError):
    """A directory that others can write to, and from which nothing is loaded; the text names it and the remedy."""


def make_private(directory: Path) -> None:
    """Create a directory and those above it that are missing, for this user alone; raises OSError, and NotPrivate."""
    missing = [directory]
    while not missing[-1].exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
    check_private(directory)


def check_private(directory: Path) -> None:
    """Raise NotPrivate where others could put something into an existing directory, or another in its place; OSError.

    The directory belongs to this user or to root, and nobody else may write to it. So do those above it, but for sticky ones
    such as /tmp, whose entries only their owners rename, and symbolic links on the way. Platforms without user ids are believed.
    """
    if hasattr(os, "geteuid"):
        directory.stat()  # raises where links go round in circles
        _check_way(directory.absolute(), sticky_helps=False)


def _check_way(path: Path, sticky_helps: bool) -> None:
    """Check a path and all above it; `sticky_helps` says whether its last directory may be sticky."""
    for place in (*reversed(path.parents), path):
        helps = sticky_helps or place != path
        status = place.lstat()
        if not _is_trusted(status.st_uid):
            raise NotPrivate(
                f"{place} belongs to user {status.st_uid}, who could change what is loaded from there; {_ELSEWHERE}, "
                "or run `chown` on it"
            )
        if stat.S_ISLNK(status.st_mode):
            _check_way(Path(os.path.normpath(place.parent / os.readlink(place))), helps)
        elif not (helps and status.st_mode & stat.S_ISVTX) and _others_write(place, status):
            raise NotPrivate(f"{place} can be written to by other users; run `chmod go-w {place}`, or {_ELSEWHERE}")


def _others_write(place: Path, status: os.stat_result) -> bool:
    group = status.st_mode & stat.S_IWGRP and not _only_this_user(place, status.st_gid)
    return bool(status.st_mode & stat.S_IWOTH or group)


def _is_trusted(owner: int) -> bool:
    """This user, root, who can do everything anyway, and in a container the owner of what it was given from outside."""
    return owner in (os.geteuid(), _ROOT) or owner == _unmapped_owner()


@functools.cache
def _unmapped_owner() -> int | None:
    """The id that a container shows for users it does not have, root of the host among them; None outside of containers."""
    try:
        ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if sum(count for _, _, count in ranges) >= 2**32 - 1:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def _only_this_user(path: Path, gid: int) -> bool:
    """Whether a group has nobody in it but this user, as with user-private groups and umask 002, and no further names have
    been given rights by an access control list, which the bits of the group stand for then."""
    import grp  # there is none on Windows
    import pwd

    try:
        owner = pwd.getpwuid(os.geteuid())
        members = {*grp.getgrgid(gid).gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
    except KeyError:
        return False
    return members == {owner.pw_name} and not _has_access_list(path)


def _has_access_list(path: Path) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # another platform or file system, which has none
        return False
