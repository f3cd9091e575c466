"""Memory between kernels: the tensors that one kernel makes and others read share a workspace, which a call allocates once.

Two of them share bytes unless there is a step at which both are needed, as buffers in shared memory do (`memory.py`). What a
caller gets has memory of its own, and so has what the array library makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import GRAPH_DEFINED
from mugraph.lower.allocation import Request, allocate
from mugraph.lower.lower import kernel_windows, needed_nodes
from mugraph.lower.tile_form import Tile

ALIGNMENT = 256
"""Bytes: what GPUs' allocators align to, and a multiple of whatever kernels copy at once."""
_MAKES_ITS_OWN = frozenset({"input", "constant", "matmul"})
"""Pre-defined operators whose results never lie in an operand's memory; any other may give its operand back, as views do."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The first byte of each tensor that lies in the workspace, and the bytes it takes: no plan takes fewer than `bound`.

    `memories` are the results of generated kernels in whose memory each value of the graph may lie.
    """

    offsets: Mapping[Value, int]
    bytes: int
    bound: int
    memories: Mapping[Value, frozenset[Value]]


def plan_workspace(graph: Graph) -> Workspace:
    """The workspace of a kernel graph whose nodes run in the order of `needed_nodes`."""
    windows = kernel_windows(graph)
    memories = _memories(graph, windows)
    steps = needed_nodes(graph)
    births: dict[Value, int] = {}
    deaths: dict[Value, int] = {}
    for step, index in enumerate(steps):
        node = graph.nodes[index]
        if node.op == GRAPH_DEFINED:
            for number in range(len(node.outputs)):
                births.setdefault(windows[Value(index, number)][0], step)
        results = (Value(index, number) for number in range(len(node.outputs)))
        deaths |= {memory: step for value in (*node.inputs, *results) for memory in memories[value]}
    escaped = {memory for value in graph.outputs for memory in memories[value]}
    tensors = [value for value in births if value not in escaped]
    requests = [Request(-(-graph.tensor(value).bytes // ALIGNMENT), births[value], deaths[value]) for value in tensors]
    allocation = allocate(requests)
    offsets = {value: offset * ALIGNMENT for value, offset in zip(tensors, allocation.offsets, strict=True)}
    return Workspace(offsets, allocation.height * ALIGNMENT, allocation.bound * ALIGNMENT, memories)


def _memories(graph: Graph, windows: Mapping[Value, tuple[Value, Tile]]) -> dict[Value, frozenset[Value]]:
    """The results of generated kernels, or what these are parts of, in whose memory each value may lie."""
    memories: dict[Value, frozenset[Value]] = {}
    for index, node in enumerate(graph.nodes):
        read = () if node.op in _MAKES_ITS_OWN else node.inputs
        shared = frozenset(memory for value in read for memory in memories[value])
        for number in range(len(node.outputs)):
            value = Value(index, number)
            memories[value] = frozenset({windows[value][0]}) if node.op == GRAPH_DEFINED else shared
    return memories
