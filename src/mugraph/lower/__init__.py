"""From muGraphs to the lowered form: thread graphs, tiles, statements, shared memory."""

from mugraph.lower.lower import Launch, kernel_windows, lower
from mugraph.lower.thread_graphs import construct

__all__ = ["Launch", "construct", "kernel_windows", "lower"]
