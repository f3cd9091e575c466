"""Locks in processes that are forked of others, in which the threads that held them are no more."""

from __future__ import annotations

import os
import threading


def lock_of_process() -> threading.Lock:
    """A lock that nobody holds in a process that is forked of this one; for locks that are never dropped, as of modules."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # as threads of the library do
    return lock
