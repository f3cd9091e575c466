"""Stages of a run: their shares of the budget, the seconds that they took, and what Ctrl-C does to them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from mugraph.support.deadline import Deadline
from mugraph.support.progress import INTERRUPTED, Event, ProgressCallback

Stage = Literal["compile", "measure", "verify"]


class Stages:
    """What goes through stages until a deadline, and tells of its progress."""

    deadline: Deadline
    progress: ProgressCallback
    seconds: dict[Stage, float]
    interrupted: bool

    def share(self, fraction: float) -> float:
        """Seconds that are that part of what is left of the budget."""
        left = self.deadline.share(fraction)
        return math.inf if left is None else left

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Time a stage. Ctrl-C ends it, and what it has found until then stands."""
        with self.timed(stage):
            try:
                yield
            except KeyboardInterrupt:
                self.answer_interruption()

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Add what is done to the seconds of a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - started

    def tell(self, stage: str, text: str, done: float | None = None) -> None:
        """Report where a stage stands."""
        self.progress(Event(stage, text, self.deadline.elapsed, done))

    def answer_interruption(self) -> None:
        """Say that what there is so far is made ready, or give up where that was asked for before; raises KeyboardInterrupt."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.tell(INTERRUPTED, "finishing with the best so far; again to stop")
