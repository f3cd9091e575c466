"""What a waiting user is told who asks: a bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from mugraph.support.deadline import Deadline

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_SECONDS_BETWEEN_LINES = 5.0
INTERRUPTED = "interrupted"
"""The stage of the event that answers Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Event:
    """One moment of a run: its stage (trace, recall, search, compile, measure, verify, compare; proved when a candidate is),
    where it stands, seconds until it, and which part of the stage is done, where that is known."""

    stage: str
    text: str
    seconds: float
    done: float | None = None

    def __str__(self) -> str:
        return f"{self.stage}: {self.text} ({self.seconds:.1f} s)"


ProgressCallback = Callable[[Event], None]


def silent(event: Event) -> None:
    """The callback of those who did not ask."""


def since(deadline: Deadline, tell: ProgressCallback) -> ProgressCallback:
    """The callback, told the seconds since a deadline began: stages that have a part of its time count from their own start."""
    return lambda event: tell(replace(event, seconds=deadline.elapsed))


def telling(stage: str, deadline: Deadline, tell: ProgressCallback) -> Callable[[str], None]:
    """What tells where a stage stands, in words, with the seconds since a deadline began."""
    return lambda text: tell(Event(stage, text, deadline.elapsed))


class Reporter:
    """Shows events on `stream` (stderr) while it is open; call it with an event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live: Progress | None = None
        self._stage, self._printed = "", 0.0

    def __enter__(self) -> Self:
        console = _live_console(self._stream)
        if console is not None:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
            self._live = Progress(*columns, console=console, transient=True)
            self._live.add_task("mugraph", total=None)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._show(self._live, event)
        elif event.stage != self._stage or now - self._printed >= _SECONDS_BETWEEN_LINES:
            print(event, file=self._stream, flush=True)
            self._stage, self._printed = event.stage, now

    def _show(self, live: Progress, event: Event) -> None:
        if event.stage == INTERRUPTED:  # which stays to be read
            live.console.print(event.text, markup=False, highlight=False)
            return
        (task,) = live.task_ids
        total = None if event.done is None else 1.0
        live.update(task, description=_escaped(f"{event.stage}: {event.text}"), total=total, completed=event.done or 0.0)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _live_console(stream: TextIO) -> Console | None:
    """Where a bar can be shown: a terminal, or the notebook that this process runs the cells of."""
    if not stream.isatty() and "ipykernel" not in sys.modules:  # do not load rich for plain lines
        return None
    from rich.console import Console

    console = Console() if "ipykernel" in sys.modules else Console(file=stream)
    return console if console.is_terminal or console.is_jupyter else None
