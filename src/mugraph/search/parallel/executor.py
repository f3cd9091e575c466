"""The interface of executors, the one that needs no other process, and the choice between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mugraph.errors import InvalidInput

R = TypeVar("R")
Found = TypeVar("Found", covariant=True)

Workers = int | str
"""A number of processes, this one included, or a Ray cluster: `ray` for the one at hand, `ray://HOST:PORT` for another."""

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


def local_processes(workers: Workers) -> int:
    """A number of processes; raises InvalidInput for anything else."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InvalidInput(f"workers is a number of processes, at least 1, not {workers!r}")
    return workers


def check_workers(workers: Workers) -> None:
    """Raises InvalidInput for anything but a positive number or an address of Ray."""
    if not isinstance(workers, str):
        local_processes(workers)
    elif workers != "ray" and not workers.startswith("ray://"):
        raise InvalidInput(f"workers is a number of processes, or 'ray' or 'ray://HOST:PORT' for a cluster, not {workers!r}")


def executor_for(workers: Workers, until: float = math.inf) -> Executor[Any]:
    """The executor of so many workers, whose items end at the time `until` (of `time.time`).

    Raises InvalidInput for anything but a positive number or an address of Ray, and TargetUnavailable where Ray is not
    installed or no cluster answers.
    """
    check_workers(workers)
    if isinstance(workers, str):
        from mugraph.search.parallel.cluster import RayCluster

        return RayCluster(workers, until)
    count = local_processes(workers)
    if count == 1:
        return Serial()
    from mugraph.search.parallel.processes import Processes

    return Processes(count - 1, until)
