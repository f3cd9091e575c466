"""Extraction: all derivations of the goals up to an operator limit, cheapest first.

Every edge makes its target strictly larger (by phase, then by the size of its expression), so the closure's hypergraph is
acyclic. A derivation is a choice of one edge for every needed node; taking the largest undecided node first
visits each derivation exactly once. The order is best-first by the work already chosen plus a lower bound for
what is still needed, and nothing is begun that cannot be finished within the operator limit.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mugraph.search.closure.context import bits
from mugraph.search.closure.min_operators import FewestOperators, Nodes
from mugraph.search.closure.saturation import Closure, Edge
from mugraph.search.closure.sketch import Sketch, SketchWriter

EdgeCost = Callable[[Edge], float]

_State = tuple[float, int, int, Nodes, tuple[Edge, ...]]
"""A partial derivation: lower bound of its cost, tie-breaker, operators so far, nodes still needed, edges chosen."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A way to make a node: its cost, whether it counts as an operator, and what it needs."""

    edge: Edge
    cost: float
    count: int
    operands: Nodes


@dataclass(slots=True)
class ExtractionLimits:
    """Bounds of an extraction; `complete` says afterwards whether none of them was hit."""

    operators: int = 11
    derivations: int = 400
    expansions: int = 40_000
    deadline: float = float("inf")
    complete: bool = True


class Extractor:
    """The useful part of a closure (what its goals can reach backwards), ready for enumeration."""

    def __init__(self, closure: Closure, cost: EdgeCost) -> None:
        self.closure, self.cost = closure, cost
        self.sketches = SketchWriter(closure)
        size = closure.expressions.algebra.size
        self.order = {node.index: (node.phase, size(node.expr), node.index) for node in closure.nodes}
        self.useful = closure.useful()
        self.extra: dict[int, list[Edge]] = {}
        self._concat_contractions()
        self.constants = {node.index for node in closure.nodes if any(edge.is_constant for edge in node.edges)}
        self.ranked = sorted(self.useful, key=self.order.__getitem__)
        self.rank = {node: rank for rank, node in enumerate(self.ranked)}
        self.choices = [self._choices(node) for node in self.ranked]
        self.cheapest = [min((choice.cost for choice in choices), default=0.0) for choices in self.choices]
        self.fewest = FewestOperators([[(choice.operands, choice.count) for choice in choices] for choices in self.choices])

    def edges(self, node: int) -> list[Edge]:
        """All ways to make a node."""
        return [*self.closure.nodes[node].edges, *self.extra.get(node, ())]

    @property
    def edge_count(self) -> int:
        """Edges between useful nodes."""
        return sum(len(self.edges(node)) for node in self.useful)

    def _concat_contractions(self) -> None:
        """W Y + X Z as one operator over (W || X) and (Y || Z), wherever a sum adds two contractions."""
        for index in self.useful:
            for edge in self.closure.nodes[index].edges:
                if edge.op == "add":  # by name: a concat-matmul adds, and no other operator can stand in its place
                    pairs = itertools.product(*(self._contractions(operand, index) for operand in edge.inputs))
                    for first, second in pairs:
                        if self._sides(first) != self._sides(second):
                            continue
                        inputs = (first.inputs[0], second.inputs[0], first.inputs[1], second.inputs[1])
                        reduced = first.reduced | second.reduced
                        self.extra.setdefault(index, []).append(Edge("concat_contract", inputs, index, reduced))

    def _contractions(self, operand: int, total: int) -> list[Edge]:
        """Contractions that make `operand` with the axes of the sum and a row operand on the left."""
        nodes = self.closure.nodes
        if nodes[operand].mask != nodes[total].mask:
            return []
        return [self._oriented(edge, nodes[total].mask) for edge in nodes[operand].edges if edge.op == "contract"]

    def _sides(self, edge: Edge) -> tuple[int, int]:
        """The axes of the rows and of the columns, which both halves of one matrix product share.

        Both are there once an iteration: one may multiply slices, and the other what an iteration adds to a sum.
        """
        left, right = (self.closure.nodes[i].mask for i in edge.inputs)
        mask = self.closure.nodes[edge.target].mask & ~self.closure.context.loop_bit
        return left & ~right & mask, right & ~left & mask

    def _oriented(self, edge: Edge, mask: int) -> Edge:
        """The contraction with the operand holding the lowest free axis first, so that pairs of them agree on rows."""
        left, right = (self.closure.nodes[i].mask for i in edge.inputs)
        free = (left ^ right) & mask
        lowest = free & -free
        return edge if left & lowest else Edge(edge.op, edge.inputs[::-1], edge.target, edge.reduced)

    def operators_of(self, edge: Edge) -> int:
        """What an edge counts against the operator limit (scalings by constants are free)."""
        return int(not edge.is_constant and not any(operand in self.constants for operand in edge.inputs))

    def derivations(self, goals: tuple[int, ...], limits: ExtractionLimits) -> Iterator[tuple[float, Sketch]]:
        """(cost, sketch) of every derivation of `goals` within `limits`, cheapest first."""
        counter = itertools.count()
        start = self._nodes(goals)
        queue: list[_State] = []
        if self.fewest.within(start, limits.operators) <= limits.operators:
            queue.append((self._at_least(start), next(counter), 0, start, ()))
        found = expanded = 0
        while queue:
            bound, _, operators, needed, chosen = heapq.heappop(queue)
            if not needed:
                found += 1
                yield bound, self.sketches.of({edge.target: edge for edge in chosen}, goals)
                if found >= limits.derivations:
                    limits.complete = limits.complete and not queue
                    return
                continue
            expanded += 1
            if expanded > limits.expansions or time.perf_counter() > limits.deadline:
                limits.complete = False
                return
            rank = needed.bit_length() - 1
            rest = needed ^ 1 << rank
            for choice in self.choices[rank]:
                remaining, left = rest | choice.operands, limits.operators - operators - choice.count
                if self.fewest.within(remaining, left) <= left:
                    lower = bound - self.cheapest[rank] + choice.cost + self._at_least(choice.operands & ~rest)
                    heapq.heappush(queue, (lower, next(counter), operators + choice.count, remaining, (*chosen, choice.edge)))

    def fewest_operators(self, most: int) -> int:
        """Operators of the smallest derivation of all outputs; more than `most` if none is within that."""
        return min((self.fewest.within(self._nodes(goals), most) for goals in self.goals()), default=most + 1)

    def count(self, operators: int, most: int, deadline: float = math.inf) -> int:
        """How many derivations of all outputs have at most so many operators; more than `most` if too many to count in time."""
        return sum(self.fewest.completions(self._nodes(goals), operators, most, deadline) for goals in self.goals())

    def goals(self) -> Iterator[tuple[int, ...]]:
        """Every choice of a node for each output."""
        return itertools.product(*self.closure.goals)

    def _choices(self, node: int) -> list[_Choice]:
        """The ways to make a node."""
        return [_Choice(edge, self.cost(edge), self.operators_of(edge), self._nodes(edge.inputs)) for edge in self.edges(node)]

    def _nodes(self, nodes: Iterable[int]) -> Nodes:
        """A set of nodes by their ranks."""
        return sum(1 << self.rank[node] for node in set(nodes))

    def _at_least(self, needed: Nodes) -> float:
        """No derivation of these nodes costs less."""
        return sum(self.cheapest[rank] for rank in bits(needed))
