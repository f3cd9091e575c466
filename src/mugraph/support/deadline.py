"""A budget of seconds, shared by the stages of one call."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from mugraph.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Deadline:
    """`budget` seconds from now; None means no limit. Raises InvalidInput for anything but a number of at least 0."""

    budget: float | None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.budget is not None and not (isinstance(self.budget, int | float) and self.budget >= 0):
            raise InvalidInput(f"budget is a number of seconds, at least 0, not {self.budget!r}")

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def remaining(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self.budget is None else max(0.0, self.budget - self.elapsed)

    @property
    def passed(self) -> bool:
        """Whether nothing is left."""
        return self.remaining == 0.0

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self.remaining is None or seconds <= self.remaining

    def share(self, fraction: float) -> float | None:
        """That part of what is left."""
        return None if self.remaining is None else fraction * self.remaining

    def part(self, fraction: float) -> Deadline:
        """One that passes when that part of this one has."""
        return self if self.budget is None else replace(self, budget=fraction * self.budget)

    def leaving(self, seconds: float, most: float) -> Deadline:
        """The same so many seconds earlier, or by the part `most` of what is left where that is less: for what comes behind."""
        if self.budget is None or self.remaining is None:
            return self
        return replace(self, budget=self.budget - min(seconds, most * self.remaining))


NO_LIMIT = Deadline(None)
"""One that never passes."""


def late(deadline: float | None) -> bool:
    """Whether a time of the monotonic clock has passed; None never does."""
    return deadline is not None and time.monotonic() > deadline
