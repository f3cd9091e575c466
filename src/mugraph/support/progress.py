"""What a waiting user is told: a live line on a terminal, plain lines elsewhere, nothing in a library by default."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.status import Status

_SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True, slots=True)
class Event:
    """One moment of a run: its stage (trace, recall, search, compile, measure, verify), where it stands, seconds until it."""

    stage: str
    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.stage}: {self.text} ({self.seconds:.1f} s)"


ProgressCallback = Callable[[Event], None]


def silent(event: Event) -> None:
    """The callback of those who did not ask."""


class Reporter:
    """Shows events on `stream` (stderr) while it is open; call it with an event."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live: Status | None = None
        self._stage, self._printed = "", 0.0

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console

            self._live = Console(file=self._stream).status("mugraph")
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if self._live is not None:
            self._live.update(str(event))
        elif event.stage != self._stage or now - self._printed >= _SECONDS_BETWEEN_LINES:
            print(event, file=self._stream, flush=True)
            self._stage, self._printed = event.stage, now
