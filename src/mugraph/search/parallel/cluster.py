"""Workers on a Ray cluster: the same items, searched on whichever node has a free core."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any

from mugraph.errors import TargetUnavailable
from mugraph.search.parallel.executor import R, Searchable
from mugraph.search.parallel.pool import Pool, search_item

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
