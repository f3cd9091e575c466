"""The form of a muGraph: which operators on what, without sizes, schedules and views.

What was measured to be the fastest at one size is proposed first at another, where nothing is measured again.
"""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.ir.graph import VIEWS, Graph
from mugraph.lower.thread_graphs import construct
from mugraph.search import Proposal

_PROPOSALS = 3
"""Proposals of forms that were not measured, to choose from if some fail."""


def form_of(graph: Graph) -> tuple[object, ...]:
    """What muGraphs of one form share, at whatever sizes."""
    names: dict[int, int] = {}
    described: list[object] = []
    for index, node in enumerate(graph.nodes):
        operands = tuple(names[value.node] for value in node.inputs)
        if node.op in VIEWS:
            (names[index],) = operands
            continue
        names[index] = len(described)
        body = None if node.body is None else form_of(node.body)
        described.append((node.op, operands, node.get("combine"), body))
    return graph.level, graph.loop > 1, *described


def of_form(candidates: Sequence[Proposal], like: Graph, program: Graph) -> list[Proposal]:
    """The best predicted candidate of the form of `like`, to be compared once thread graphs are constructed.

    None if `like` is the program as it was written; several of any form if `like` has a form that these sizes do not allow.
    """
    form = form_of(like)
    same = [candidate for candidate in candidates if form_of(construct(candidate.graph)) == form]
    if same or form == form_of(program):
        return same[:1]
    return list(candidates[:_PROPOSALS])
