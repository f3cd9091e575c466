"""Loops put into loopless graphs: the closure of a context with a for-loop, read off the one without.

A block graph whose for-loop runs once is a graph without a loop, so every tensor of a graph with a loop is, seen whole, a
tensor of some loopless graph of the same program. The useful tensors of the loopless closure are therefore all there is to
put into loops: each may stand inside the loop whole, as a slice, or as a summand, and after it. No expression is checked and
no value computed again (docs/theory.md, "For-loops").
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from enum import Enum, IntEnum

from mugraph.algebra.linearity import is_linear
from mugraph.ir.axes import AxisProgram
from mugraph.ir.ops import is_reduction, is_scan
from mugraph.search.closure.context import Context
from mugraph.search.closure.saturation import AFTER, LOOP, Closure, Edge, TensorNode
from mugraph.search.closure.sketch import Sketch


class Variation(IntEnum):
    """How a tensor stands in a graph with a for-loop over one axis.

    Inside the loop: FIXED, whole and the same in every iteration; SLICE, its part along the axis; SHARE, one of the summands
    that add up to it. After the loop: FOLDED, the sum of its slices, still to be reduced along the axis; DONE, itself; and KEPT,
    itself, made of an operand that was put past the loop as it was read.
    """

    FIXED = 0
    SLICE = 1
    SHARE = 2
    FOLDED = 3
    DONE = 4
    KEPT = 5

    @property
    def phase(self) -> int:
        """Inside the for-loop, or after it."""
        return LOOP if self < Variation.FOLDED else AFTER


FIXED, SLICE, SHARE, FOLDED, DONE, KEPT = Variation


class Fmaps(Enum):
    """Which ways to read operands that have the loop axis are looked at.

    ALIGNED: all are cut along it, and their slices are computed with. WORTHWHILE: they may also be read whole, and put past
    the loop where they meet finished sums, as `loops_to_some_end` demands. ALL: any of that anywhere.
    """

    ALIGNED = "aligned"
    WORTHWHILE = "worthwhile"
    ALL = "all"


_NEUTRAL = {SHARE: FIXED, FOLDED: DONE}
"""What a sum that is not complete may be multiplied with, if that does not vary along the loop axis."""


def with_loop(loopless: Closure, loop_axis: int, fmaps: Fmaps) -> Closure:
    """The tensors of block graphs with a for-loop over `loop_axis`, from the closure of those without."""
    return _Lifting(loopless, loop_axis, fmaps).run()


def worthwhile(program: AxisProgram, loop_axis: int) -> Fmaps:
    """Which ways to read operands the search looks at: nothing waits for sums over an axis that is not reduced."""
    return Fmaps.WORTHWHILE if any(loop_axis in axes for axes in program.reductions) else Fmaps.ALIGNED


def loops_to_some_end(sketch: Sketch) -> bool:
    """Whether the for-loop of a sketch, if it has one, does what it is there for.

    Each operand is read in one way, slices are computed with inside the loop, and what is put past the loop as it was read
    meets sums over the iterations there, but is not reduced along the loop axis: what waits for no sum might as well run
    inside, and what needs the whole axis at once might do without a loop.
    """
    steps, axis = sketch.steps, sketch.loop_axis
    if axis is None:
        return True
    slices = {i for i, step in enumerate(steps) if step.leaf and axis in step.axes and not step.whole}
    wholes = {step.leaf for step in steps if step.whole}
    # by name: concatenation is the way of the accumulator row that computes nothing
    computed_with = {operand for step in steps if step.op != "concat" for operand in step.inputs}
    if not slices or not slices <= computed_with or any(steps[i].leaf in wholes for i in slices):
        return False
    as_read: set[int] = set()
    waiting: set[int] = set()
    for index, step in enumerate(steps):
        # by name: a kind of steps, and the way of the accumulator row that computes nothing
        if step.op in ("carry", "concat") and axis in step.axes and steps[step.inputs[0]].leaf:
            as_read.add(index)
            continue
        # by name: the step that adds up iterations is one of three ways in which the accumulator row combines
        if step.op == "accumulate" or not waiting.isdisjoint(step.inputs):
            waiting.add(index)
        if not as_read.isdisjoint(step.inputs):
            if index not in waiting or axis in step.reduced:
                return False
            as_read.add(index)
    return True


class _Lifting:
    def __init__(self, loopless: Closure, loop_axis: int, fmaps: Fmaps) -> None:
        self.loopless, self.axis, self.fmaps = loopless, 1 << loop_axis, fmaps
        self.lifted = Closure(loopless.program, Context.of(loopless.program, loop_axis), loopless.tier)
        self.lifted.expressions = loopless.expressions
        self.loop_bit = self.lifted.context.loop_bit
        self.folds = any(loop_axis in axes for axes in loopless.program.reductions)
        self.indices: dict[tuple[int, Variation], int] = {}
        self.variations: defaultdict[int, list[Variation]] = defaultdict(list)

    def run(self) -> Closure:
        """Lift every useful tensor after its operands."""
        size, nodes = self.lifted.expressions.algebra.size, self.loopless.nodes
        for index in sorted(self.loopless.useful(), key=lambda index: size(nodes[index].expr)):
            for edge in nodes[index].edges:
                self._lift(edge)
            self._leave_loop(nodes[index])
        self.lifted.saturated = self.loopless.saturated
        for goals in self.loopless.goals:
            found = (self.indices.get((goal, variation)) for goal in goals for variation in (DONE, KEPT))
            self.lifted.goals.append([index for index in found if index is not None])
        return self.lifted

    def varies(self, node: int) -> bool:
        """Whether a tensor has the loop axis."""
        return bool(self.loopless.nodes[node].mask & self.axis)

    def is_operand(self, node: int) -> bool:
        """Whether a tensor is read from device memory."""
        return any(edge.op == "load" for edge in self.loopless.nodes[node].edges)

    # operators ---------------------------------------------------------------------------------------------------------

    def _lift(self, edge: Edge) -> None:
        """Every way in which the operands may stand."""
        if not edge.inputs:
            for variation in self._starts(edge):
                self._make(edge, variation, ())
            return
        for standing in itertools.product(*(self.variations[operand] for operand in edge.inputs)):
            result = self._result(edge, standing)
            if result is not None:
                self._make(edge, result, standing)

    def _starts(self, edge: Edge) -> Sequence[Variation]:
        """How a leaf stands in the graph."""
        if edge.is_constant:
            return FIXED, DONE
        if not self.varies(edge.target):
            return (FIXED,)
        return (SLICE,) if self.fmaps is Fmaps.ALIGNED else (FIXED, SLICE)

    def _result(self, edge: Edge, standing: Sequence[Variation]) -> Variation | None:
        """How the result of an operator stands; None where the operator has no meaning on operands that stand so."""
        joined = self._joined(edge, standing)
        if joined is None or not edge.reduced & self.axis:
            return joined
        if is_scan(edge.op):  # iterations do not know what those before them came to
            return None
        if joined is KEPT or (joined is SLICE and is_reduction(edge.op) and not is_linear(edge.op, (0,))):
            return None
        return {SLICE: SHARE, FOLDED: DONE}.get(joined, joined)

    def _joined(self, edge: Edge, standing: Sequence[Variation]) -> Variation | None:
        """How the operands stand together, before anything is reduced."""
        widest = max(standing, key=_PRECEDENCE.index)
        if widest in _NEUTRAL:
            summed = tuple(position for position, each in enumerate(standing) if each is widest)
            others = [(each, node) for each, node in zip(standing, edge.inputs, strict=True) if each is not widest]
            neutral = all(each is _NEUTRAL[widest] and not self.varies(node) for each, node in others)
            return widest if neutral and is_linear("matmul" if edge.op == "contract" else edge.op, summed) else None
        if widest is SLICE:
            aligned = (each is SLICE or not self.varies(node) for each, node in zip(standing, edge.inputs, strict=True))
            return SLICE if DONE not in standing and all(aligned) else None
        if widest is KEPT:
            computed = any(each is DONE or not self.is_operand(node) for each, node in zip(standing, edge.inputs, strict=True))
            return KEPT if {KEPT, DONE}.issuperset(standing) and computed else None
        return widest if len(set(standing)) == 1 else None

    def _leave_loop(self, node: TensorNode) -> None:
        """Accumulators: summands add up, slices are added or put side by side, and operands read whole are carried."""
        variations = self.variations[node.index]
        loaded = self.is_operand(node.index)
        if SHARE in variations:
            self._make(Edge("accumulate", (node.index,), node.index, self.loop_bit), DONE, (SHARE,))
        as_read = KEPT if self.varies(node.index) and self.fmaps is Fmaps.WORTHWHILE else DONE
        if SLICE in variations:
            if not loaded or self.fmaps is not Fmaps.ALIGNED:
                self._make(Edge("concat", (node.index,), node.index, self.loop_bit), as_read if loaded else DONE, (SLICE,))
            if self.folds:
                self._make(Edge("accumulate", (node.index,), node.index, self.loop_bit), FOLDED, (SLICE,))
        if FIXED in variations and loaded:
            self._make(Edge("carry", (node.index,), node.index), as_read, (FIXED,))

    # nodes -------------------------------------------------------------------------------------------------------------

    def _make(self, edge: Edge, variation: Variation, standing: Sequence[Variation]) -> None:
        """Record that an edge makes the variation of its target from those of its operands."""
        target = self._node(edge.target, variation)
        inputs = tuple(self.indices[pair] for pair in zip(edge.inputs, standing, strict=True))
        self.lifted.nodes[target].edges.append(Edge(edge.op, inputs, target, edge.reduced, edge.leaf, edge.scalar))
        self.lifted.edge_count += 1

    def _node(self, node: int, variation: Variation) -> int:
        key = node, variation
        if key not in self.indices:
            whole = self.loopless.nodes[node]
            complete = variation in (DONE, KEPT) and self.varies(node)
            mask = whole.mask | (self.loop_bit if complete or variation in (SLICE, SHARE) else 0)
            self.indices[key] = len(self.lifted.nodes)
            self.variations[node].append(variation)
            self.lifted.nodes.append(TensorNode(self.indices[key], variation.phase, mask, whole.expr, whole.value))
        return self.indices[key]


_PRECEDENCE = (FIXED, DONE, SLICE, SHARE, FOLDED, KEPT)
"""Of several operands, the one that stands last here decides how the result may stand."""
