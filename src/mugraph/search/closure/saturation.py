"""Closure search: saturate the tensors a block graph could compute, instead of enumerating block graphs.

A node is a tensor *value* (its fingerprint on random finite-field inputs at tiny sizes) with its axes and its abstract
expression; hyperedges are the operators that make it. Equal tensors reached by different algebra share a node, as in an e-graph,
but no rewrite rules are needed: equality is observed. The expression check (paper, section 4.3) keeps the closure finite.
Every graph over these edges that ends in a node whose value is the program's output is a candidate;
`mugraph.search.closure.extraction` enumerates them. For-loops are put in afterwards (`mugraph.search.closure.loop_insertion`).

Where a closure is cut short before any output is reached, as of squares of sums of products, a `Transcription` stands for it: the
program's own terms, which take no time and derive the outputs whatever the program is.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

from mugraph.algebra import Expr
from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.errors import UndefinedInField
from mugraph.ir.axes import AxisProgram, Slots, Term
from mugraph.ir.ops import OPERATORS, Call, Kind, is_scan
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.context import Context, TinyInputs, bits, scanned_along
from mugraph.search.closure.tiers import Expressions, Tier, is_its_expression
from mugraph.search.report import Pruning

LOOP, AFTER = 0, 1
"""Phases: inside the for-loop, and after it (the only phase of a closure without a loop)."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A device tensor a kernel may read: program input `source` (or an intermediate), seen along `slots`."""

    source: int
    slots: Slots


@dataclass(frozen=True, slots=True)
class Edge:
    """`op` makes node `target` from `inputs`; `reduced` are the parts a contraction or reduction sums over."""

    op: str
    inputs: tuple[int, ...]
    target: int
    reduced: int = 0
    leaf: Leaf | None = None
    scalar: Scalar | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is an exact number."""
        return self.leaf is None and not self.inputs


@dataclass(slots=True)
class TensorNode:
    """A tensor value: `mask` = the parts it depends on, `phase` = where it stands once there is a for-loop."""

    index: int
    phase: int
    mask: int
    expr: Expr
    value: FieldValue
    edges: list[Edge] = field(default_factory=list)


@dataclass(slots=True)
class Limits:
    """When a closure stops short of saturation."""

    nodes: int = 20_000
    deadline: float = float("inf")


@dataclass
class Closure:
    """The tensors of one program, tier and context. `goals[i]` holds the nodes equal to output i."""

    program: AxisProgram
    context: Context
    tier: Tier
    nodes: list[TensorNode] = field(default_factory=list)
    edge_count: int = 0
    saturated: bool = False
    goals: list[list[int]] = field(default_factory=list)
    pruned: Counter[Pruning] = field(default_factory=Counter)

    @cached_property
    def expressions(self) -> Expressions:
        """The abstract expressions of the tensors; closures of one program and tier may share them."""
        return Expressions(self.program, self.tier, self.context)

    def useful(self) -> set[int]:
        """The nodes that some goal can reach backwards."""
        found: set[int] = set()
        stack = [goal for goals in self.goals for goal in goals]
        while stack:
            index = stack.pop()
            if index not in found:
                found.add(index)
                stack.extend(operand for edge in self.nodes[index].edges for operand in edge.inputs)
        return found


_NO_CALL = Call("", (), {})


class Saturation:
    """Runs a closure of graphs without a for-loop to its fixed point under limits; `tick` is told the node count now and then."""

    def __init__(
        self,
        closure: Closure,
        arith: FieldArithmetic,
        inputs: TinyInputs,
        limits: Limits,
        tick: Callable[[int], None] = lambda n: None,
    ) -> None:
        assert closure.context.loop_axis is None
        self.closure, self.arith, self.limits, self.tick = closure, arith, limits, tick
        self.context, self.expressions = closure.context, closure.expressions
        self.program = closure.program
        self.known: dict[tuple[int, Expr, bytes], int] = {}
        self.by_expr: dict[Expr, list[TensorNode]] = {}
        self.looked_at: list[tuple[int, Expr, list[TensorNode]]] = []
        """The expressions of the tensors that operators are applied to, with the places where others meet them."""
        self.pending: deque[TensorNode] = deque()
        self.reductions = [self.context.mask(axes) for axes in self.program.reductions]
        vocabulary = {term.op for term in self.program.terms}
        rows = [row for row in OPERATORS.values() if row.elementwise]
        elementwise = [row for row in rows if row.kind is not Kind.OPAQUE or row.name in vocabulary]
        self.unary = [row for row in elementwise if row.arity == 1]
        binary = [row for row in elementwise if row.arity == 2]
        self.oriented = [(row, swapped) for row in binary for swapped in ((False,) if row.commutative else (False, True))]
        """Binary operators, and whether their operands are swapped."""
        self.choices = [term for term in self.program.terms if len(term.inputs) == 3]
        """The program's own operators of three operands: others than with these expressions are not made of tensors."""
        self.any_may_meet = not all(is_its_expression(row) for row in binary)
        """Whether there are operators of which it is not known what their operands must have in common."""
        self.scans = {(term.op, term.reduced) for term in self.program.terms if is_scan(term.op)}
        self.has_max = "max" in vocabulary  # by name: maxima take part in no algebra, so only a program with maxima needs them
        self.values = inputs.evaluate(self.program, self.context, arith)
        self.outer = self._outer_products()

    def _outer_products(self) -> frozenset[int]:
        """Axis sets of the program's own elementwise operators whose operands' axes are not nested."""
        terms = self.program.terms
        found = set()
        for term in terms:
            if len(term.inputs) == 2 and not term.reduced and term.op != "contract":
                left, right = (terms[i].axes for i in term.inputs)
                if not (left <= right or right <= left):
                    found.add(self.context.mask(term.axes))
        return frozenset(found)

    def run(self) -> Closure:
        """Saturate, then record the goals."""
        self._leaves()
        steps = 0
        while self.pending:
            if len(self.closure.nodes) > self.limits.nodes or time.perf_counter() > self.limits.deadline:
                break
            self._expand(self.pending.popleft())
            steps += 1
            if steps % 64 == 0:
                self.tick(len(self.closure.nodes))
        self.closure.saturated = not self.pending
        self._find_goals()
        return self.closure

    # leaves ----------------------------------------------------------------------------------------------------------

    def _leaves(self) -> None:
        for index, term in enumerate(self.program.terms):
            expr = self.expressions.leaves.get(index)
            if expr is None or not self.expressions.oracle.admits(expr):
                continue
            if term.is_constant:
                self._reach(Edge("constant", (), -1, scalar=term.scalar), 0, expr, self.values[index])
            else:
                leaf = Leaf(term.source, term.slots)
                self._reach(Edge("load", (), -1, leaf=leaf), self.context.mask(term.axes), expr, self.values[index])

    # growth ----------------------------------------------------------------------------------------------------------

    def _reach(self, edge: Edge, mask: int, expr: Expr, value: FieldValue) -> None:
        """Record that `edge` makes this tensor; queue the tensor if it is new."""
        known = len(self.closure.nodes)
        index = self._intern(mask, expr, value)
        self._link(edge, index)
        if index == known:
            self.pending.append(self.closure.nodes[index])

    def _intern(self, mask: int, expr: Expr, value: FieldValue) -> int:
        """The node of a tensor, new or known."""
        index = self.known.setdefault((mask, expr, _digest(value)), len(self.closure.nodes))
        if index == len(self.closure.nodes):
            self.closure.nodes.append(TensorNode(index, AFTER, mask, expr, value))
        return index

    def _link(self, edge: Edge, target: int) -> None:
        """Record that `edge` makes a node."""
        found = self.closure.nodes[target].edges
        complete = Edge(edge.op, edge.inputs, target, edge.reduced, edge.leaf, edge.scalar)
        if complete not in found:
            found.append(complete)
            self.closure.edge_count += 1

    def _expand(self, node: TensorNode) -> None:
        if node.expr not in self.by_expr:
            self.by_expr[node.expr] = []
            self.looked_at.append((self.expressions.meeting.places(node.expr).theirs, node.expr, self.by_expr[node.expr]))
            self._count_refused(node.expr)
        self.by_expr[node.expr].append(node)
        self._grow(node)

    def _count_refused(self, expr: Expr) -> None:
        """Count what cannot come of a new expression and those known, without a look at any pair of tensors."""
        mine = self.expressions.meeting.places(expr).mine
        refused = 0 if self.any_may_meet else sum(not mine & theirs for theirs, *_ in self.looked_at)
        self.closure.pruned[Pruning.EXPRESSION] += refused * len(self.oriented)

    def _grow(self, node: TensorNode) -> None:
        """Apply every operator to a node and those known."""
        self._apply_unary(node)
        self._reduce(node)
        self._scan(node)
        self._choose(node)
        mine = self.expressions.meeting.places(node.expr).mine
        for theirs, expr, partners in list(self.looked_at):
            if mine & theirs or self.any_may_meet:
                self._combine(node, expr, partners)

    def _apply_unary(self, node: TensorNode) -> None:
        for row in self.unary:
            expr = self._checked(self.expressions.express(self.expressions.prune, row.name, (node.expr,)))
            if expr is not None:
                self._compute(
                    Edge(row.name, (node.index,), -1),
                    node.mask,
                    expr,
                    partial(row.compute, self.arith, _NO_CALL, [node.value]),
                )

    def _reduce(self, node: TensorNode) -> None:
        for mask in self.reductions:
            if node.mask & mask == mask:
                factor = self.context.reduction_factor(mask)
                expr = self._checked(self.expressions.prune.sum(factor, node.expr))
                if expr is not None:
                    value = partial(self._sum, node.value, mask)
                    self._compute(Edge("sum", (node.index,), -1, mask), node.mask & ~mask, expr, value)
                if self.has_max:
                    expr = self._checked(self.expressions.prune.max(factor, node.expr))
                    if expr is not None:
                        value = partial(self._max, node.value, mask)
                        self._compute(Edge("max", (node.index,), -1, mask), node.mask & ~mask, expr, value)

    def _scan(self, node: TensorNode) -> None:
        """The program's own scans, along the axes along which it has them."""
        for op, along in self.scans:
            mask = self.context.mask(along)
            if node.mask & mask:
                expr = self._checked(self.expressions.express(self.expressions.prune, op, (node.expr,)))
                if expr is not None:
                    value = partial(scanned_along, op, along, node.value, self.arith)
                    self._compute(Edge(op, (node.index,), -1, mask), node.mask, expr, value)

    def _choose(self, node: TensorNode) -> None:
        """Operators of three operands on tensors that have the expressions of the program's own operands, one of them `node`."""
        for term in self.choices:
            wanted = [self.expressions.of_terms[operand] for operand in term.inputs]
            row, mask = OPERATORS[term.op], self.context.mask(term.axes)
            for place in (place for place, expr in enumerate(wanted) if expr == node.expr):
                known = [[node] if other == place else self.by_expr.get(expr, []) for other, expr in enumerate(wanted)]
                for operands in itertools.product(*known):
                    masks = [operand.mask for operand in operands]
                    union = functools.reduce(operator.or_, masks)
                    if union not in masks and union != mask:
                        self.closure.pruned[Pruning.SHAPE] += 1
                        continue
                    expr = self._checked(self.expressions.express(self.expressions.prune, term.op, tuple(wanted)))
                    if expr is not None:
                        values = [operand.value for operand in operands]
                        edge = Edge(term.op, tuple(operand.index for operand in operands), -1)
                        self._compute(edge, union, expr, partial(row.compute, self.arith, _NO_CALL, values))

    def _combine(self, node: TensorNode, expr: Expr, partners: list[TensorNode]) -> None:
        """Binary operators of `node` with every known node of expression `expr`."""
        for op, swapped, result in self._admitted(node.expr, expr):
            self._pair(op, swapped, node, partners, result)

    # by name: contractions are sums of products, whatever other multilinear rows there are
    def _pair(self, op: str, swapped: bool, node: TensorNode, partners: list[TensorNode], result: Expr) -> None:
        """One binary operator of `node` with tensors of one expression; products also as contractions."""
        for partner in partners:
            if partner is not node:
                self._binary(op, *((partner, node) if swapped else (node, partner)), result)
            elif op != "mul" and not swapped:
                self._binary(op, node, node, result)
        if op == "mul":
            self._contractions(node, partners, result)

    def _admitted(self, x: Expr, y: Expr) -> tuple[tuple[str, bool, Expr], ...]:
        """(operator, operands swapped, result) for every binary operator the expression check lets through."""
        refused = self.expressions.refused[min(x, y)]
        if max(x, y) in refused:
            return ()
        known = self.expressions.admitted.get((x, y))
        if known is None:
            known = tuple(self._admit(x, y))
            if known:
                self.expressions.admitted[x, y] = known
            else:
                refused.add(max(x, y))
        return known

    def _admit(self, x: Expr, y: Expr) -> Iterator[tuple[str, bool, Expr]]:
        for row, swapped in self.oriented:
            result: Expr | None = None
            if self.any_may_meet or self.expressions.meeting.possible(x, y, row.name, swapped=swapped):
                result = self.expressions.express(self.expressions.prune, row.name, (y, x) if swapped else (x, y))
            result = self._checked(result)
            if result is not None:
                yield row.name, swapped, result

    def _binary(self, op: str, left: TensorNode, right: TensorNode, expr: Expr) -> None:
        union = left.mask | right.mask
        if union not in (left.mask, right.mask) and union not in self.outer:
            self.closure.pruned[Pruning.SHAPE] += 1
            return
        row = OPERATORS[op]
        if row.commutative and left.index > right.index:
            left, right = right, left
        self._compute(
            Edge(op, (left.index, right.index), -1),
            union,
            expr,
            partial(row.compute, self.arith, _NO_CALL, [left.value, right.value]),
        )

    def _contractions(self, node: TensorNode, partners: list[TensorNode], product: Expr) -> None:
        for mask in self.reductions:
            for partner in partners:
                if partner.mask == node.mask or node.mask & partner.mask & mask != mask:
                    continue
                result = self._checked(self.expressions.prune.sum(self.context.reduction_factor(mask), product))
                if result is None:
                    continue
                left, right = sorted((node, partner), key=lambda n: n.index)
                self._compute(
                    Edge("contract", (left.index, right.index), -1, mask),
                    (left.mask | right.mask) & ~mask,
                    result,
                    partial(self._contract, left, right, mask),
                )

    def _checked(self, expr: Expr | None) -> Expr | None:
        """The result of the expression check, counted."""
        self.closure.pruned[Pruning.EXPRESSION] += expr is None
        return expr

    def _compute(self, edge: Edge, mask: int, expr: Expr, value: Callable[[], FieldValue]) -> None:
        try:
            result = value()
        except UndefinedInField:
            self.closure.pruned[Pruning.UNDEFINED] += 1
            return
        self._reach(edge, mask, expr, result)

    def _sum(self, value: FieldValue, mask: int) -> FieldValue:
        for axis in bits(mask):
            value = self.arith.sum(value, axis)
        return value

    def _contract(self, left: TensorNode, right: TensorNode, mask: int) -> FieldValue:
        return self._sum(self.arith.mul(left.value, right.value), mask)

    def _max(self, value: FieldValue, mask: int) -> FieldValue:
        for axis in bits(mask):
            value = self.arith.max(value, axis)
        return value

    # goals -----------------------------------------------------------------------------------------------------------

    def _find_goals(self) -> None:
        for term, _ in self.program.outputs:
            digest = _digest(self.values[term])
            mask = self.context.mask(self.program.terms[term].axes)
            self.closure.goals.append([n.index for n in self.closure.nodes if n.mask == mask and _digest(n.value) == digest])


def _digest(value: FieldValue) -> bytes:
    digest = hashlib.blake2b(value.p.tobytes(), digest_size=16)
    if value.q is not None:
        digest.update(value.q.tobytes())
    return digest.digest()


class Transcription(Saturation):
    """Runs a closure that holds the tensors of the program alone; loops and kernels are read off it as off any other."""

    def run(self) -> Closure:
        """A node for every term, equal ones once."""
        node_of: list[int] = []
        for index, term in enumerate(self.program.terms):
            edge = self._edge(term, [node_of[i] for i in term.inputs])
            node = self._intern(self.context.mask(term.axes), self.expressions.of_terms[index], self.values[index])
            self._link(edge, node)
            node_of.append(node)
        self.closure.goals = [[node_of[term]] for term, _ in self.program.outputs]
        return self.closure

    def _edge(self, term: Term, operands: list[int]) -> Edge:
        """The operator of a term on the nodes of its operands."""
        if term.op == "load":
            return Edge("load", (), -1, leaf=Leaf(term.source, term.slots))
        nodes, reduced = self.closure.nodes, self.context.mask(term.reduced)
        if term.op != "contract" or nodes[operands[0]].mask != nodes[operands[1]].mask:
            return Edge(term.op, tuple(operands), -1, reduced, scalar=term.scalar)
        left, right = (nodes[operand] for operand in operands)  # operands with the same axes have a product, but no contraction
        expr = self.expressions.express(self.expressions.build, "mul", (left.expr, right.expr))
        assert expr is not None
        product = self._intern(left.mask, expr, self.arith.mul(left.value, right.value))
        self._link(Edge("mul", tuple(operands), -1), product)
        return Edge("sum", (product,), -1, reduced)
