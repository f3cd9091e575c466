"""Questions about programs with lookups, asked of their cores (`mugraph.ir.cores`)."""

from __future__ import annotations

from dataclasses import dataclass

from mugraph.ir.cores import cores_of
from mugraph.ir.graph import Graph
from mugraph.verifier.known_values import Known


@dataclass(frozen=True, slots=True)
class CorePair:
    """The cores of two kernel graphs on the same inputs, and the values of those of their inputs that have one value each."""

    left: Graph
    right: Graph
    known: Known
    realisable: bool
    """Whether tables and integers can give whatever the cores take, so that what tells the cores apart tells the graphs apart."""


def core_pair(left: Graph, right: Graph, known: Known) -> CorePair | None:
    """The cores of two graphs; None where neither looks anything up, or they do not take inputs of the same shapes.

    What is looked up is a variable, whatever is known of tables and integers.
    """
    shapes = [[node.output.shape for node in graph.inputs()] for graph in (left, right)]
    cores = cores_of(left, right) if shapes[0] == shapes[1] else None
    if cores is None:
        return None
    values = {cores.kept.index(number): array for number, array in known.items() if number in cores.kept}
    ours, theirs = cores.cores
    return CorePair(ours, theirs, values, cores.realisable)
