"""Where work items are searched: in this process, in worker processes beside it, or on a Ray cluster; same results.

An executor takes items and gives tasks. Those with workers share a queue (`Pool`): what a lost worker had is searched again, and
this process is one more worker while it waits.
"""

from __future__ import annotations

import math
import pickle
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from mugraph.errors import InvalidInput, TargetUnavailable
from mugraph.support.scratch import scratch_directory

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


def _search_into_file(item: Searchable[R], until: float, directory: str) -> str:
    """What a worker process does: search one item, and say in which file of its parent's directory what it holds is written."""
    found = search_item(item, until)
    handle, path = tempfile.mkstemp(dir=directory)
    with open(handle, "wb") as file:
        pickle.dump(found, file, protocol=pickle.HIGHEST_PROTOCOL)
    return path


def _read_back(written: Future[str]) -> Future[Any]:
    """The future of what a worker of this process wrote into a file of its private directory."""
    future: Future[Any] = Future()

    def read(done: Future[str]) -> None:
        try:
            path = Path(done.result())
            found = pickle.loads(path.read_bytes())
            path.unlink()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    written.add_done_callback(read)
    return future


_IDLE_SECONDS = 60
"""Workers that wait longer than this for an item end."""


class Processes(Pool[R]):
    """`count` worker processes on this machine, started with the first item.

    They are loky's, which need no guarded `__main__`, and can be stopped in the middle of an item. All send to this process
    through one pipe: one that dies while it writes more than a page of memory leaves a message there that nobody ends, and the
    pool waits for the rest of it for ever. So what items hold, which may be megabytes, goes through files.
    """

    def __init__(self, count: int, until: float = math.inf) -> None:
        from loky import BrokenProcessPool, ProcessPoolExecutor  # most searches need no other process
        from loky.process_executor import ShutdownExecutorError

        super().__init__(until)
        self.lost_worker = (BrokenProcessPool, ShutdownExecutorError)  # as `restart` may find an item before loky does
        self._count = count
        self._started = partial(ProcessPoolExecutor, count, timeout=_IDLE_SECONDS, initializer=_begin)
        self._workers: ProcessPoolExecutor | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        """Which only this user may read: the files of the workers."""

    @property
    def slots(self) -> int:
        """One item for each process."""
        return self._count

    def start(self, item: Searchable[R]) -> Future[R]:
        """Hand an item to the processes."""
        if self._workers is None or self._directory is None:
            self._workers, self._directory = self._started(), scratch_directory("mugraph-workers-")
        return _read_back(self._workers.submit(_search_into_file, item, self.until, self._directory.name))

    def restart(self) -> None:
        """Stop all processes: loky gives up a pool when one of them dies. The next item starts others."""
        self.close()

    def close(self) -> None:
        """Stop the processes, whatever they are doing."""
        if self._workers is not None:
            self._workers.shutdown(wait=True, kill_workers=True)
            self._workers = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def _begin() -> None:
    """Ctrl-C is this process's parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_RETRIES = 4
"""How often Ray itself starts an item again whose worker or node died; after that the pool's own attempts count."""


class RayCluster(Pool[R]):
    """The cluster at `address`: `ray` is the one this process is connected to, or else what `ray.init()` finds or starts.

    Nodes need mugraph installed. Raises TargetUnavailable where Ray is not, or where no cluster answers.
    """

    def __init__(self, address: str = "ray", until: float = math.inf) -> None:
        super().__init__(until)
        try:
            import ray
            from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RaySystemError, WorkerCrashedError
        except ImportError:
            raise TargetUnavailable(f"workers={address!r} needs Ray; install it with `pip install mugraph[ray]`") from None
        self._ray: Any = ray
        self.lost_worker = (WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError, RaySystemError)
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            self._connect(None if address == "ray" else address)
        self._search: Any = ray.remote(max_retries=_RETRIES, num_cpus=1)(search_item)
        self._references: list[Any] = []

    def _connect(self, address: str | None) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise TargetUnavailable(f"no Ray cluster answers at {address or 'the default address'}: {error}") from None

    @property
    def slots(self) -> int:
        """One item for each core of the cluster as it is now: nodes come and go."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, item: Searchable[R]) -> Future[R]:
        """Hand an item to the cluster."""
        reference = self._search.remote(item, self.until)
        self._references.append(reference)
        future: Future[R] = reference.future()
        return future

    def restart(self) -> None:
        """Nothing to do: Ray replaces its workers."""

    def close(self) -> None:
        """Cancel what is still being searched, and disconnect if this object connected."""
        for reference in self._references:
            self._ray.cancel(reference, force=True)
        self._references.clear()
        if self._connected_here:
            self._ray.shutdown()


Workers = int | str
"""A number of processes, this one included, or a Ray cluster: `ray` for the one at hand, `ray://HOST:PORT` for another."""


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
        return RayCluster(workers, until)
    count = local_processes(workers)
    if count == 1:
        return Serial()
    return Processes(count - 1, until)
