"""The memory that packed weights of a graph take beside the weights themselves: how much it is, and how much it may be."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import fx

from mugraph.devices.host import free_memory
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.partitioning.partition import Partition, Piece
from mugraph.frontend.rewriting.graph_passes import owner_of
from mugraph.frontend.rewriting.node_traits import bytes_of
from mugraph.results.superoptimized import Superoptimized

_log = logging.getLogger("mugraph.torch_compile")

_MEMORY = 0.5
"""The part of the memory that is free that packed weights of one graph may take."""


def packed_bytes(partition: Partition, results: Mapping[Piece, Superoptimized]) -> int:
    """What weights take that kernels of a graph and the library's have packed, but for how the library rounds their sizes up.

    What is packed in one way counts once, however many kernels read it.
    """
    by_library = {owner_of(kernel.weight): bytes_of(kernel.weight) for kernel in partition.library}
    return sum(by_library.values()) + packed_by_kernels({piece: results[piece] for piece in partition.pieces})


def packed_by_kernels(results: Mapping[Piece, Superoptimized]) -> int:
    """What weights take that the kernels of pieces have packed."""
    packed = {
        (owner_of(piece.inputs[number]), how): size
        for piece, result in results.items()
        for (number, how), size in result.executable.packed_weights.items()
    }
    return sum(packed.values())


def within_memory(kernels: Sequence[LibraryKernel], beside: int = 0) -> tuple[LibraryKernel, ...]:
    """The first library kernels, as long as their packed weights leave the machine enough of its memory; `beside` are bytes of
    weights that other kernels of the graph pack."""
    weights = {owner_of(kernel.weight): bytes_of(kernel.weight) for kernel in kernels}
    allowed, taken, total = _MEMORY * free_memory(), set[fx.Node](), beside
    for weight, size in weights.items():
        total += size
        if total <= allowed:
            taken.add(weight)
    if len(taken) < len(weights):
        _log.info(
            "%d of %d weights are not packed: their %d MiB would be too much for this machine's memory",
            len(weights) - len(taken),
            len(weights),
            total >> 20,
        )
    return tuple(kernel for kernel in kernels if owner_of(kernel.weight) in taken)
