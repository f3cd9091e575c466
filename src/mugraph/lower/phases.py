"""When each node of a block graph runs: once before the for-loop, in every iteration, or once after it."""

from __future__ import annotations

from enum import IntEnum

from mugraph.ir.evaluate import loop_nodes
from mugraph.ir.graph import Graph

ACCUMULATORS = frozenset({"accumulate", "accumulate_rescaled"})


class Phase(IntEnum):
    """Parts of a block's work, in the order they run."""

    BEFORE = 0
    BODY = 1
    AFTER = 2


def phases(graph: Graph) -> tuple[Phase, ...]:
    """The phase of each node; a node inside the loop that no iterator with an fmap reaches runs once before it.

    Accumulators count as AFTER: that is where their result may be read.
    """
    inside = loop_nodes(graph)
    varying: set[int] = set()
    found: list[Phase] = []
    for index, node in enumerate(graph.nodes):
        loads = node.is_iterator and node.get("fmap") is not None
        if loads or any(value.node in varying for value in node.inputs):
            varying.add(index)
        if node.is_constant:
            found.append(Phase.BEFORE)
        elif index not in inside:
            found.append(Phase.AFTER)
        else:
            found.append(Phase.BODY if index in varying else Phase.BEFORE)
    return tuple(found)
