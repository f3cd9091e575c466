"""The interface of executors, and the one that needs no other process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

R = TypeVar("R")
Found = TypeVar("Found", covariant=True)

Tick = Callable[[str, int], None]
"""Told now and then what is being searched, and how many tensors it has."""


class Searchable(Protocol[Found]):
    """An item: it says everything that what is found depends on, and travels between processes."""

    @property
    def where(self) -> str:
        """The item in words."""

    @property
    def nothing(self) -> Found:
        """What stands for an item whose search did not end in time."""

    def search(self, deadline: float, tick: Callable[[int], None]) -> Found:
        """Everything the item holds, or what was found of it by `deadline` (of `time.perf_counter`)."""


class Task(Protocol[Found]):
    """An item on its way to what it holds."""

    @property
    def ready(self) -> bool:
        """Whether asking for the result waits for no other process."""

    def result(self, deadline: float, tick: Tick) -> Found:
        """What it holds, waited for until `deadline` (of `time.perf_counter`); what was found until then, if anything."""


class Executor(Protocol[R]):
    """Searches items; what it returns does not depend on where, in which order, or how often they are searched."""

    def submit(self, item: Searchable[R]) -> Task[R]:
        """Announce that an item will be needed. Items submitted first are searched first."""

    def close(self) -> None:
        """Stop whatever is still being searched."""


@dataclass(frozen=True, slots=True)
class Later(Generic[R]):
    """A task that is searched in this process when its result is asked for."""

    item: Searchable[R]

    @property
    def ready(self) -> bool:
        """There is nobody to wait for."""
        return True

    def result(self, deadline: float, tick: Tick) -> R:
        """The item, searched here and now."""
        return self.item.search(deadline, partial(tick, self.item.where))


class Serial(Generic[R]):
    """Everything in this process, and only what is asked for."""

    def submit(self, item: Searchable[R]) -> Later[R]:
        """Remember the item."""
        return Later(item)

    def close(self) -> None:
        """Nothing to stop."""
