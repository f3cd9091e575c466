"""What users ask for as workers, and the executor that it stands for."""

from __future__ import annotations

import math
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.search.parallel.executor import Executor, Serial

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
        from mugraph.search.parallel.cluster import RayCluster

        return RayCluster(workers, until)
    count = local_processes(workers)
    if count == 1:
        return Serial()
    from mugraph.search.parallel.processes import Processes

    return Processes(count - 1, until)
