"""Work of a thread that another one may stop: it is asked between its steps, and the compilers that it waits for are killed.

Steps ask by `check`, and run compilers by `run`, in every thread: outside of a `Stoppable` nothing is stopped. Threads that help
are told by `passed_on`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Stopped(BaseException):
    """Work was stopped: no error of what it was doing, and nobody's to answer but who began it."""


class Stoppable:
    """What a thread does inside of the context, until another one calls `stop`; after that too little to be waited for."""

    def __init__(self) -> None:
        self._stopped = False
        self._children = set[subprocess.Popen[str]]()
        self._changes = threading.Lock()
        self._before: Token[Stoppable | None] | None = None

    def __enter__(self) -> None:
        self._before = _current.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._before is not None
        _current.reset(self._before)

    def stop(self) -> None:
        """Have the work end at its next step, and kill the compilers that it waits for."""
        with self._changes:
            self._stopped = True
            for child in self._children:
                _kill(child)

    def check(self) -> None:
        """Raise Stopped if it was stopped."""
        if self._stopped:
            raise Stopped

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None) -> subprocess.CompletedProcess[str]:
        """As `run`, in a group of processes of its own: a compiler has others do the work."""
        with self._changes:
            self.check()
            pipe = subprocess.PIPE
            child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)
            self._children.add(child)
        try:
            with child:
                written, messages = child.communicate()
        finally:
            with self._changes:
                self._children.discard(child)
        self.check()
        return subprocess.CompletedProcess(command, child.returncode, written, messages)


_current: ContextVar[Stoppable | None] = ContextVar("_current", default=None)
"""What this thread is doing, where others may stop that."""


def passed_on(work: Callable[P, R]) -> Callable[P, R]:
    """Work for another thread, which is stopped as that of this one is."""
    current = _current.get()

    def call(*given: P.args, **more: P.kwargs) -> R:
        token = _current.set(current)
        try:
            return work(*given, **more)
        finally:
            _current.reset(token)

    return call


def check() -> None:
    """Raise Stopped where the work of this thread was stopped."""
    work = _current.get()
    if work is not None:
        work.check()


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The end of a process, which has this `environment` (None: that of this one), and what it wrote, as text.

    Raises Stopped where the work of this thread is stopped; the process is killed then, with all that it began. Raises OSError
    where it cannot be started.
    """
    work = _current.get()
    if work is None:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return work.run(command, environment)


def _kill(child: subprocess.Popen[str]) -> None:
    if child.poll() is not None:
        return
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
