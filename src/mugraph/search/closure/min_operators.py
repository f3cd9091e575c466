"""Operators counted: the fewest that make a set of tensors, and the closures that a limit of operators bounds.

Derivations are listed without dead ends. An enumeration that decides the largest needed tensor first never needs a decided one
again. What is left to do then depends on the tensors still needed alone, so their fewest operators, and the number of ways to go
on, are found once for each such set (docs/theory.md, "Listing derivations").

A bounded closure has the tensors that some graph of at most N operators may hold, and no others. A tensor is kept together with
the smallest sets of operators that make it (its supports). It is extended only while a support and the landmarks outside it fit
the limit, best first. Sums multiply into more subexpressions than can be saturated; those that a small graph has room for are
few, so a bounded closure is complete where the whole one is out of reach (docs/theory.md, "Closures bounded by operators").
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mugraph.algebra import Expr
from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.errors import UndefinedInField
from mugraph.search.closure.context import TinyInputs
from mugraph.search.closure.landmarks import Features, Landmarks
from mugraph.search.closure.saturation import Closure, Edge, Limits, Saturation, TensorNode
from mugraph.search.report import Pruning

Nodes = int
"""A set of nodes as bits; the operands of a node have smaller numbers."""

_MOST_SETS = 200_000


class FewestOperators:
    """Lower bounds on the operators of derivations; exact up to the budget asked for, until too many sets are known."""

    def __init__(self, choices: Sequence[Sequence[tuple[Nodes, int]]]) -> None:
        """`choices[node]` are the ways to make a node: its operands, and 1 or 0 for an operator that counts or does not."""
        self._ways = [Counter(ways) for ways in choices]
        self._choices = [sorted(ways) for ways in self._ways]
        self._unavoidable: list[Nodes] = []
        for node, ways in enumerate(self._choices):
            self._unavoidable.append(self._common(node, ways))
        self._known: dict[Nodes, tuple[int, bool]] = {0: (0, True)}
        """A lower bound, and whether it is exact."""

    def _common(self, node: int, ways: Sequence[tuple[Nodes, int]]) -> Nodes:
        """The nodes that every derivation of a node makes by an operator that counts."""
        counts = all(count for _, count in ways)
        below = [self._made_for(operands) for operands, _ in ways]
        common = below[0] if below else 0
        for made in below:
            common &= made
        return common | (counts << node)

    def _made_for(self, needed: Nodes) -> Nodes:
        made = 0
        while needed:
            lowest = needed & -needed
            made |= self._unavoidable[lowest.bit_length() - 1]
            needed ^= lowest
        return made

    def within(self, needed: Nodes, budget: int) -> int:
        """The fewest operators that make the needed nodes if these are at most `budget`, else more than the budget."""
        waiting = [(needed, budget)]
        while waiting:
            nodes, left = waiting[-1]
            if self._settled(nodes, left):
                waiting.pop()
                continue
            node = nodes.bit_length() - 1
            rest = nodes ^ 1 << node
            fewest, missing = left + 1, False
            for operands, count in self._choices[node]:
                if self._settled(rest | operands, left - count):
                    fewest = min(fewest, count + self._known[rest | operands][0])
                else:
                    waiting.append((rest | operands, left - count))
                    missing = True
            if not missing:
                waiting.pop()
                self._known[nodes] = fewest, fewest <= left
        return self._known[needed][0]

    def _settled(self, needed: Nodes, budget: int) -> bool:
        """Whether what is known of the needed nodes is exact, or above the budget; or all that will be known."""
        known = self._known.get(needed)
        if known is None:
            known = self._known[needed] = self._made_for(needed).bit_count(), False
        fewest, exact = known
        return exact or fewest > budget or len(self._known) > _MOST_SETS

    def completions(self, needed: Nodes, budget: int, most: int, deadline: float = math.inf) -> int:
        """How many derivations of the needed nodes have at most `budget` operators; more than `most` where too many to count,
        in all or until the deadline (of `time.perf_counter`)."""
        counted: dict[tuple[Nodes, int], int] = {}

        def known(key: tuple[Nodes, int]) -> int | None:
            if self.within(*key) > key[1]:
                return 0
            return counted.get(key) if key[0] else 1

        waiting = [(needed, budget)]
        while waiting:
            nodes, left = key = waiting[-1]
            if known(key) is None:
                node = nodes.bit_length() - 1
                rest = nodes ^ 1 << node
                total = 0
                for (operands, spent), times in self._ways[node].items():
                    completions = known(next_key := (rest | operands, left - spent))
                    if completions is None:
                        if len(counted) > most or time.perf_counter() > deadline:
                            return most + 1
                        waiting.append(next_key)
                        break
                    total += times * completions
                else:
                    counted[key] = total
                    waiting.pop()
            else:
                waiting.pop()
        return known((needed, budget)) or 0


_FEW = 100
"""Tensors of a bounded closure; with one operator more there are about ten times as many."""

Support = int
"""The nodes that a derivation makes by operators that count, as bits."""


@dataclass(slots=True)
class _Application:
    """An operator on known tensors whose result passed the expression check; `target` once it has been computed.

    `outside` is the landmark bound of the result, `free` says that the operator does not count.
    """

    edge: Edge
    mask: int
    expr: Expr
    value: Callable[[], FieldValue]
    outside: int
    free: bool
    target: int | None = None
    undefined: bool = False


class BoundedSaturation(Saturation):
    """Saturates what graphs of at most `operators` operators can hold; a concat-matmul counts as two products and a sum."""

    def __init__(
        self,
        closure: Closure,
        arith: FieldArithmetic,
        inputs: TinyInputs,
        limits: Limits,
        operators: int,
        tick: Callable[[int], None] = lambda n: None,
    ) -> None:
        super().__init__(closure, arith, inputs, limits, tick)
        self.operators = operators
        self.landmarks = Landmarks(closure)
        self.supports: defaultdict[int, list[Support]] = defaultdict(list)
        self.least: dict[int, int] = {}
        """Operators in the smallest support of every node that was extended."""
        self.applications: dict[Edge, _Application] = {}
        self.uses: defaultdict[int, list[_Application]] = defaultdict(list)
        self.constants: set[int] = set()
        self.queue: list[tuple[int, int, int, Support]] = []
        self.count = itertools.count()
        self.node, self.support = -1, 0
        """What is being extended."""

    def run(self) -> Closure:
        """Extend nodes until nothing fits, then record the goals. Every support that is extended counts against the limit."""
        self._leaves()
        extended = 0
        while self.queue:
            if max(len(self.closure.nodes), extended) > self.limits.nodes or time.perf_counter() > self.limits.deadline:
                break
            extended += 1
            _, count, self.node, self.support = heapq.heappop(self.queue)
            if self.support in self.supports[self.node]:
                self._extend()
            if count % 64 == 0:
                self.tick(len(self.closure.nodes))
        else:
            self.closure.saturated = True
        self._find_goals()
        return self.closure

    def _extend(self) -> None:
        """Apply operators to the current node: those found before, or all again if its support is smaller than ever."""
        size, node = self.support.bit_count(), self.closure.nodes[self.node]
        if size >= self.least.get(self.node, self.operators + 1):
            for use in self.uses[self.node]:
                self._apply(use)
            return
        known = self.node in self.least
        self.least[self.node] = size
        if known:
            self._grow(node)
        else:
            self._expand(node)

    # operators ---------------------------------------------------------------------------------------------------------

    def _combine(self, node: TensorNode, expr: Expr, partners: list[TensorNode]) -> None:
        """Binary operators, unless they do not fit: what loads the inputs of one operand alone the other does not need."""
        mine, theirs = self.landmarks.features(node.expr), self.landmarks.features(expr)
        smallest = self.least[node.index] + (theirs.variables & ~mine.variables).bit_count()
        lacking = (mine.variables & ~theirs.variables).bit_count()
        room = self.operators - self.expressions.constants.isdisjoint((node.expr, expr))
        if not self._has_room(room, smallest, lacking, mine, theirs, partners):
            return
        for op, swapped, result in self._admitted(node.expr, expr):
            left = room - self.landmarks.after(op, *((theirs, mine) if swapped else (mine, theirs)))
            near = [partner for partner in partners if max(smallest, self.least[partner.index] + lacking) <= left]
            if near:
                self._pair(op, swapped, node, near, result)

    def _has_room(
        self, room: int, smallest: int, lacking: int, mine: Features, theirs: Features, partners: list[TensorNode]
    ) -> bool:
        """Whether any operator of a tensor and some others may fit."""
        left = room - self.landmarks.after_any(mine, theirs)
        return smallest <= left and any(self.least[partner.index] + lacking <= left for partner in partners)

    def _reach(self, edge: Edge, mask: int, expr: Expr, value: FieldValue) -> None:
        self._compute(edge, mask, expr, partial(_given, value))

    def _compute(self, edge: Edge, mask: int, expr: Expr, value: Callable[[], FieldValue]) -> None:
        """Note an operator if there is room for it, and apply it with the current support."""
        use = self.applications.get(edge)
        if use is None:
            free = edge.is_constant or any(operand in self.constants for operand in edge.inputs)
            use = _Application(edge, mask, expr, value, self.landmarks.outside(expr), free)
            least = max((self.least[operand] for operand in edge.inputs), default=0)
            if least + (not free) + use.outside > self.operators:
                return
            self.applications[edge] = use
            for operand in set(edge.inputs):
                self.uses[operand].append(use)
        self._apply(use)

    def _apply(self, use: _Application) -> None:
        """Offer the result with the current support of one operand and every support of the other."""
        others = [operand for operand in set(use.edge.inputs) if operand != self.node]
        support = self.support if use.edge.inputs else 0
        for partner in self.supports[others[0]] if others else (0,):
            self._offer(use, support | partner)

    def _offer(self, use: _Application, support: Support) -> None:
        if support.bit_count() + (not use.free) + use.outside <= self.operators:
            target = self._target(use)
            if target is not None:
                self._keep(target, support if use.free else support | 1 << target, use.outside)

    def _target(self, use: _Application) -> int | None:
        """The node of a result, computed when it first fits; None where it has no value in the field."""
        if use.target is None and not use.undefined:
            try:
                value = use.value()
            except UndefinedInField:
                self.closure.pruned[Pruning.UNDEFINED] += 1
                use.undefined = True
                return None
            use.target = self._intern(use.mask, use.expr, value)
            self._link(use.edge, use.target)
            if use.edge.is_constant:
                self.constants.add(use.target)
        return use.target

    def _keep(self, target: int, support: Support, outside: int) -> None:
        """Remember a support unless it contains a smaller one."""
        family = self.supports[target]
        if any(known & support == known for known in family):
            return
        family[:] = [known for known in family if known & support != support]
        family.append(support)
        heapq.heappush(self.queue, (support.bit_count() + outside, next(self.count), target, support))


def _given(value: FieldValue) -> FieldValue:
    return value


def deepened(
    whole: Closure,
    arith: FieldArithmetic,
    inputs: TinyInputs,
    limits: Limits,
    operators: int,
    tick: Callable[[int], None] = lambda n: None,
    most: int = 0,
) -> tuple[Closure, int]:
    """The closure of `whole`'s context for as many operators, up to `operators`, as are saturated within limits; their number.

    Beyond these it goes on up to `most` while so few tensors fit that one operator more is likely to cost little. Where not even
    one operator is saturated, that is `whole` and 0.
    """
    best, reached = whole, 0
    for bound in range(1, max(operators, most) + 1):
        if bound > operators and len(best.nodes) > _FEW:
            break
        closure = Closure(whole.program, whole.context, whole.tier)
        closure.expressions = whole.expressions  # they remember their verdicts
        BoundedSaturation(closure, arith, inputs, limits, bound, tick).run()
        if not closure.saturated:
            break
        best, reached = closure, bound
    return best, reached
