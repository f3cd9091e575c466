"""From muGraphs to the lowered form: thread graphs, tiles, statements, shared memory, threads and barriers."""

from mugraph.lower.lower import Launch, concatenations, kernel_windows, lower, needed_nodes, with_shared_kernels
from mugraph.lower.pipeline import ALL_PASSES, Passes, cooperative
from mugraph.lower.thread_graphs import construct

__all__ = [
    "ALL_PASSES",
    "Launch",
    "Passes",
    "concatenations",
    "construct",
    "cooperative",
    "kernel_windows",
    "lower",
    "needed_nodes",
    "with_shared_kernels",
]
