"""Extraction: all derivations of the goals up to an operator limit, cheapest first.

Every edge makes its target strictly larger (by phase, then by the size of its expression), so the closure's hypergraph is
acyclic. A derivation is a choice of one edge for every needed node; taking the largest undecided node first
visits each derivation exactly once. The order is best-first by the work already chosen plus a lower bound for
what is still needed.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mugraph.search.closure.recipe import Recipe, recipe_of
from mugraph.search.closure.saturation import Closure, Edge

EdgeCost = Callable[[Edge], float]

_State = tuple[float, int, int, frozenset[int], tuple[Edge, ...]]
"""A partial derivation: lower bound of its cost, tie-breaker, operators so far, nodes still needed, edges chosen."""


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
        size = closure.expressions.algebra.size
        self.order = {node.index: (node.phase, size(node.expr), node.index) for node in closure.nodes}
        self.useful = closure.useful()
        self.extra: dict[int, list[Edge]] = {}
        self._concat_contractions()
        self.constants = {node.index for node in closure.nodes if any(edge.op == "constant" for edge in node.edges)}
        self.free = {node for node in self.useful if any(not self.operators_of(edge) for edge in self.edges(node))}
        self.least = self._least_operators()
        self._choices: dict[int, list[tuple[Edge, float, int]]] = {}
        self.cheapest = {index: min((price for _, price, _ in self.choices(index)), default=0.0) for index in self.useful}

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
                if edge.op == "add":
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
        """The axes of the rows and of the columns, which both halves of one matrix product share."""
        left, right = (self.closure.nodes[i].mask for i in edge.inputs)
        mask = self.closure.nodes[edge.target].mask
        return left & ~right & mask, right & ~left & mask

    def _oriented(self, edge: Edge, mask: int) -> Edge:
        """The contraction with the operand holding the lowest free axis first, so that pairs of them agree on rows."""
        left, right = (self.closure.nodes[i].mask for i in edge.inputs)
        free = (left ^ right) & mask
        lowest = free & -free
        return edge if left & lowest else Edge(edge.op, edge.inputs[::-1], edge.target, edge.reduced)

    def operators_of(self, edge: Edge) -> int:
        """What an edge counts against the operator limit (scalings by constants are free)."""
        return int(edge.op != "constant" and not any(operand in self.constants for operand in edge.inputs))

    def derivations(self, goals: tuple[int, ...], limits: ExtractionLimits) -> Iterator[tuple[float, Recipe]]:
        """(cost, recipe) of every derivation of `goals` within `limits`, cheapest first."""
        counter = itertools.count()
        start = frozenset(goals)
        queue: list[_State] = [(sum(self.cheapest[goal] for goal in start), next(counter), 0, start, ())]
        found = expanded = 0
        while queue:
            bound, _, operators, needed, chosen = heapq.heappop(queue)
            if not needed:
                found += 1
                yield bound, recipe_of(self.closure, {edge.target: edge for edge in chosen}, goals)
                if found >= limits.derivations:
                    limits.complete = limits.complete and not queue
                    return
                continue
            expanded += 1
            if expanded > limits.expansions or time.perf_counter() > limits.deadline:
                limits.complete = False
                return
            node = max(needed, key=self.order.__getitem__)
            rest = needed - {node}
            for edge, cost, count in self.choices(node):
                fresh = [operand for operand in dict.fromkeys(edge.inputs) if operand not in rest]
                remaining = rest.union(fresh)
                if operators + count + self._operators_bound(remaining) <= limits.operators:
                    lower = bound - self.cheapest[node] + cost + sum(self.cheapest[operand] for operand in fresh)
                    heapq.heappush(queue, (lower, next(counter), operators + count, remaining, (*chosen, edge)))

    def choices(self, node: int) -> list[tuple[Edge, float, int]]:
        """The edges that make a node, with their cost and operator count."""
        known = self._choices.get(node)
        if known is None:
            known = self._choices[node] = [(edge, self.cost(edge), self.operators_of(edge)) for edge in self.edges(node)]
        return known

    def _operators_bound(self, needed: frozenset[int]) -> int:
        """No derivation of these nodes has fewer operators: one for each that no scaling makes, and a chain below any of them."""
        return max(len(needed - self.free), max((self.least[node] for node in needed), default=0))

    def _least_operators(self) -> dict[int, int]:
        """For every useful node, the length of the shortest longest chain of operators that makes it."""
        least: dict[int, int] = {}
        for node in sorted(self.useful, key=self.order.__getitem__):
            chains = (self.operators_of(edge) + max((least[i] for i in edge.inputs), default=0) for edge in self.edges(node))
            least[node] = min(chains, default=0)
        return least
