"""What those are told who wait while `torch.compile` makes kernels: what the option `progress` asks for, else one line if that
takes long. A search tells `tell`, which passes it on to whoever waits in this thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from mugraph.support.deadline import Deadline
from mugraph.support.progress import INTERRUPTED, Event, ProgressCallback, Reporter, silent, since
from mugraph.support.stopping import check

_log = logging.getLogger("mugraph.torch_compile")
_LONG = 5.0
"""Seconds after which somebody who asked for nothing wants to know what he waits for."""


class Notice:
    """Says once, of all graphs that it is told of, that one takes long and what can be done about it."""

    def __init__(self) -> None:
        self.said = False

    def __call__(self, event: Event) -> None:
        if not self.said and event.seconds >= _LONG:
            self.said = True
            _log.warning(
                "a call has waited %.0f seconds while kernels are searched for a graph: option budget bounds the seconds for "
                "each, progress=True shows how far it is, background=True answers calls meanwhile",
                event.seconds,
            )


notice = Notice()
"""That of this process."""
_told: ContextVar[ProgressCallback] = ContextVar("_told", default=silent)


def tell(event: Event) -> None:
    """Pass an event on to who waits in this thread, if anybody does; not what answers Ctrl-C, which ends everything here. Raises
    Stopped where what this thread does is stopped."""
    check()
    if event.stage != INTERRUPTED:
        _told.get()(event)


@contextmanager
def waiting(progress: ProgressCallback | bool | None, deadline: Deadline) -> Iterator[None]:
    """Behind which `tell` reaches `progress` (True: stderr; None or False: `notice`), in seconds since the deadline began."""
    with ExitStack() as stack:
        asked = stack.enter_context(Reporter()) if progress is True else progress or notice
        before = _told.set(since(deadline, asked))
        stack.callback(_told.reset, before)
        yield
