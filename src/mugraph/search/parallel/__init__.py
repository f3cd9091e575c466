"""Where work items are searched: in this process, in worker processes beside it, or on a Ray cluster; same results."""

from mugraph.search.parallel.executor import Executor, Searchable, Serial, Task
from mugraph.search.parallel.workers import Workers, check_workers, executor_for, local_processes

__all__ = ["Executor", "Searchable", "Serial", "Task", "Workers", "check_workers", "executor_for", "local_processes"]
