"""The form of a muGraph: which operators on what, without sizes, schedules and views; and its work: which of what sizes, on
whatever.

What was measured to be the fastest at one size is proposed first at another, where nothing is measured again. Of muGraphs of one
work, which differ in the order of factors, one is compiled at first.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence

from mugraph.ir.graph import VIEWS, Graph, Node, Value
from mugraph.ir.ops import OPERATORS
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


def work_of(graph: Graph, operands: Sequence[Hashable] = ()) -> Hashable:
    """What muGraphs share whose kernels do as much of the same under one schedule: `(x * y) * z` and `x * (z * y)`, if what is
    made in between is of one shape. `operands` say what the iterators of a body read."""

    def described(value: Value) -> Hashable:
        node = graph.nodes[value.node]
        return node.op, node.get("name"), graph.tensor(value)

    def done_by(node: Node) -> Hashable:
        attributes = tuple(
            attribute for attribute in node.attributes if attribute[0] != "operand"
        )  # which is numbered as one likes
        if node.is_iterator:
            return node.op, attributes, node.outputs, operands[node.integer("operand")]
        read = tuple(map(described, node.inputs))
        if node.body is not None:
            return work_of(node.body, read), node.outputs
        ordered = node.op not in OPERATORS or not OPERATORS[node.op].elementwise
        return node.op, attributes, node.outputs, read if ordered else None

    return graph.level, graph.grid, graph.block, graph.loop, frozenset(Counter(map(done_by, graph.nodes)).items())


def one_of_each_work(proposals: Sequence[tuple[Graph, float]]) -> list[tuple[Graph, float]]:
    """Of proposals (muGraph, predicted seconds) the first of each work that is predicted to take as long."""
    seen: dict[Hashable, list[float]] = {}
    chosen: list[tuple[Graph, float]] = []
    for graph, seconds in proposals:
        alike = seen.setdefault(work_of(graph), [])
        if not any(math.isclose(seconds, other) for other in alike):
            chosen.append((graph, seconds))
        alike.append(seconds)
    return chosen


def candidates_by_form(candidates: Sequence[Proposal], likes: Sequence[Graph]) -> dict[object, list[Proposal]]:
    """The candidates that have the forms of some muGraphs, by form in the order of these, compared once thread graphs are
    constructed."""
    found: dict[object, list[Proposal]] = {form_of(like): [] for like in likes}
    for candidate in candidates:
        found.get(form_of(construct(candidate.graph)), []).append(candidate)
    return found


def of_forms(candidates: Sequence[Proposal], likes: Sequence[Graph], program: Graph, most: int | None = None) -> list[Proposal]:
    """The best predicted candidate of each form of `likes`, in their order, and behind them the best of any form: `most` in all,
    or one of each form.

    None of one's form if that is the program as it was written; several of any if these sizes allow none of the forms.
    """
    by_form = candidates_by_form(candidates, likes)
    best = [of_form[0] for of_form in by_form.values() if of_form]
    if most is None:
        most = _PROPOSALS if not best and set(by_form) != {form_of(program)} else len(best)
    others = (candidate for candidate in candidates if candidate not in best)
    return [*itertools.islice(itertools.chain(best, others), most)]
