"""What executors with workers share: a queue, lost workers and retries, and this process as one more worker."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Generic

from mugraph.search.parallel.executor import R, Searchable, Tick

_ATTEMPTS = 3
"""Workers an item may be lost with; then it is searched in this process, where the cause is seen."""

_LOSSES = 32
"""Lost items after which workers are no longer relied on, and everything is searched in this process."""

_LOOK_SECONDS = 0.02
"""While waiting, the queue and the clock are looked at this often."""


@dataclass(eq=False, slots=True)
class Posted(Generic[R]):
    """An item submitted to a pool: waiting (no future), or with a worker."""

    item: Searchable[R]
    pool: Pool[R]
    future: Future[R] | None = None
    lost: int = 0

    @property
    def ready(self) -> bool:
        """Whether no worker has the item, or one is done with it."""
        return self.future is None or self.future.done()

    def result(self, deadline: float, tick: Tick) -> R:
        """What the item holds, from the worker that has the item; one that none has yet is searched in this process."""
        if self.future is None:
            return self.pool.here(self, deadline, tick)
        while True:
            self.pool.dispatch()
            if self.future is None:
                return self.pool.here(self, deadline, tick)
            try:
                return self.future.result(timeout=_LOOK_SECONDS)
            except NotYet:
                if time.perf_counter() > deadline:
                    return self.item.nothing
                tick(self.item.where, 0)
            except self.pool.lost_worker:
                continue  # `dispatch` finds the item among the lost ones


class Pool(ABC, Generic[R]):
    """Workers that search items in the order they were submitted, none beyond the time `until` (of `time.time`)."""

    lost_worker: tuple[type[Exception], ...]
    """What the future of an item, or handing it over, raises when a worker died."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.losses = 0
        self._waiting: deque[Posted[R]] = deque()
        self._running: list[Posted[R]] = []

    @property
    @abstractmethod
    def slots(self) -> int:
        """Items that workers search at the same time."""

    @abstractmethod
    def start(self, item: Searchable[R]) -> Future[R]:
        """Hand an item to a worker."""

    @abstractmethod
    def restart(self) -> None:
        """Replace workers that died."""

    @abstractmethod
    def close(self) -> None:
        """Stop whatever is still being searched."""

    def submit(self, item: Searchable[R]) -> Posted[R]:
        """Queue an item, behind those that were queued before; it is handed over once this process waits or searches."""
        posted = Posted(item, self)
        self._waiting.append(posted)
        return posted

    def dispatch(self) -> None:
        """Take back what died with its worker, and keep the workers busy, one item ahead of what they search at a time."""
        done = [posted for posted in self._running if posted.future is not None and posted.future.done()]
        self._running = [posted for posted in self._running if posted not in done]
        lost = [posted for posted in done if posted.future is not None and self._died(posted.future)]
        if lost:
            self._retry(lost)
        while self._waiting and len(self._running) <= self.slots and self.losses < _LOSSES:
            try:
                self._waiting[0].future = self.start(self._waiting[0].item)
            except self.lost_worker:
                self._retry([])
                continue
            self._running.append(self._waiting.popleft())

    def here(self, posted: Posted[R], deadline: float, tick: Tick) -> R:
        """Search an item in this process, and keep the workers busy meanwhile."""
        if posted in self._waiting:
            self._waiting.remove(posted)

        def report(states: int) -> None:
            self.dispatch()
            tick(posted.item.where, states)

        self.dispatch()
        return posted.item.search(deadline, report)

    def _died(self, future: Future[R]) -> bool:
        return isinstance(future.exception(), self.lost_worker)

    def _retry(self, lost: list[Posted[R]]) -> None:
        """Replace the workers, and put what they had first in the queue: items may be searched any number of times."""
        self.losses += max(1, len(lost))
        self.restart()
        for posted in reversed(lost):
            posted.future = None
            posted.lost += 1
            if posted.lost < _ATTEMPTS:
                self._waiting.appendleft(posted)


def search_item(item: Searchable[R], until: float) -> R:
    """What a worker does: search one item up to the time `until` (of `time.time`, which machines share)."""
    return item.search(time.perf_counter() + (until - time.time()), lambda states: None)
