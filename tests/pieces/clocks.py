"""Time for tests of what there is time for."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from mugraph.support import deadline
from mugraph.support.deadline import Deadline


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slowdown: float = 1.0) -> None:
        self.now = 1000.0
        monkeypatch.setattr(deadline, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(deadline.Deadline, "__init__", self._started(deadline.Deadline.__init__))
        monkeypatch.setattr("mugraph.pieces.shares.slowdown", lambda: slowdown)
        monkeypatch.setattr("mugraph.devices.host.slowdown", lambda: slowdown)

    def _started(self, own: Callable[..., None]) -> Callable[..., None]:
        """Deadlines begin by this clock."""

        def init(made: Deadline, budget: float | None, started: float | None = None) -> None:
            own(made, budget, self.now if started is None else started)

        return init
