"""Constants of a graph that were written as other numbers: what a certificate has to say beside the graph."""

from __future__ import annotations

from mugraph.ir.graph import Graph
from mugraph.ir.scalar import Reading, Scalar


def readings(graph: Graph) -> tuple[Reading, ...]:
    """Every float that a constant of the graph, at any level, was read from though it differs: the number as text, the float.

    Sorted by the float. Graphs read back from files have none: their constants are the numbers that they say.
    """
    constants = (node.get("value") for _, node in graph.walk())
    found = {reading for value in constants if isinstance(value, Scalar) for reading in value.readings}
    return tuple(sorted(found, key=lambda reading: (reading[1], reading[0])))
