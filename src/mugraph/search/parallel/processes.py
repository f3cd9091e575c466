"""Worker processes on this machine, by loky: they need no guarded `__main__`, and can be stopped in the middle of an item."""

from __future__ import annotations

import math
import signal
from concurrent.futures import Future

from loky import BrokenProcessPool, ProcessPoolExecutor

from mugraph.search.parallel.executor import R, Searchable
from mugraph.search.parallel.pool import Pool, search_item

_IDLE_SECONDS = 60
"""Workers that wait longer than this for an item end."""


class Processes(Pool[R]):
    """`count` worker processes, started with the first item."""

    lost_worker = (BrokenProcessPool,)

    def __init__(self, count: int, until: float = math.inf) -> None:
        super().__init__(until)
        self._count = count
        self._workers: ProcessPoolExecutor | None = None

    @property
    def slots(self) -> int:
        """One item for each process."""
        return self._count

    def start(self, item: Searchable[R]) -> Future[R]:
        """Hand an item to the processes."""
        if self._workers is None:
            self._workers = ProcessPoolExecutor(self._count, timeout=_IDLE_SECONDS, initializer=_begin)
        future: Future[R] = self._workers.submit(search_item, item, self.until)
        return future

    def restart(self) -> None:
        """Stop all processes: loky gives up a pool when one of them dies. The next item starts others."""
        self.close()

    def close(self) -> None:
        """Stop the processes, whatever they are doing."""
        if self._workers is not None:
            self._workers.shutdown(wait=True, kill_workers=True)
            self._workers = None


def _begin() -> None:
    """Ctrl-C is this process's parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
