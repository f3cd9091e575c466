"""Sketches: the size-free structure of one graph-defined kernel.

A sketch is a derivation picked from a closure, written as steps in topological order. It names axes, not sizes, so it is
found once per program and instantiated for any sizes, grids and loop counts (`mugraph.search.scheduling.schedule`,
`mugraph.search.scheduling.emission`). Its text is that of `mugraph.search.closure.sketch_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from mugraph.ir.axes import AxisSet, operands_first
from mugraph.ir.ops import OPERATORS
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.saturation import LOOP, Closure, Edge, Leaf
from mugraph.search.closure.semantic import bits

_ARITIES = {
    "load": 0,
    "constant": 0,
    "sum": 1,
    "max": 1,
    "contract": 2,
    "concat_contract": 4,
    "carry": 1,
    "concat": 1,
    "accumulate": 1,
    "accumulate_max": 1,
    "rescale": 2,
}
"""Operands of the steps that are not elementwise operators."""

Axes = TypeVar("Axes", int, AxisSet)
"""A set of axes, as bits or as it is."""


def arity_of(op: str) -> int | None:
    """How many steps a step reads; None where there is no such step."""
    row = OPERATORS.get(op)
    return _ARITIES.get(op, row.arity if row is not None and row.elementwise else None)


def sums(op: str, reduced: Axes, operands: Sequence[Axes]) -> tuple[Axes, ...]:
    """What the sums of an operator that reduces `reduced` run over: of concatenations, each product what its factors share."""
    if op != "concat_contract":
        return (reduced,)
    first, second, first_right, second_right = operands
    return (reduced & first & first_right, reduced & second & second_right)


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a sketch.

    `op`: 'load', 'constant', 'contract', 'concat_contract', 'sum', 'max', 'accumulate', 'rescale' (accumulation
    rescaled to a running maximum), 'concat', 'carry', 'accumulate_max', or an elementwise row. `axes` are the logical
    axes of the result, `reduced` those summed over by this step, `in_loop` its phase. A `whole` step has the loop axis
    inside the loop, but undivided: every iteration sees all of it. `scalar` is the number of a constant, or one that a maximum is
    taken over besides its elements.
    """

    op: str
    inputs: tuple[int, ...]
    axes: AxisSet
    in_loop: bool
    reduced: AxisSet = frozenset()
    leaf: Leaf | None = None
    scalar: Scalar | None = None
    whole: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether it is an exact number."""
        return self.op == "constant"

    def reading(self, inputs: tuple[int, ...]) -> Step:
        """The same operator on other steps."""
        if inputs == self.inputs:
            return self
        return Step(self.op, inputs, self.axes, self.in_loop, self.reduced, self.leaf, self.scalar, self.whole)


@dataclass(frozen=True)
class Sketch:
    """Steps of one kernel; `goals` are the steps its outputs save."""

    steps: tuple[Step, ...]
    goals: tuple[int, ...]
    loop_axis: int | None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.goals, self.loop_axis))

    def __reduce__(self) -> tuple[type[Sketch], tuple[object, ...]]:
        """What travels between processes: not the hash, because strings hash differently in each of them."""
        return Sketch, (self.steps, self.goals, self.loop_axis)

    @cached_property
    def operators(self) -> int:
        """Block operators as limits count them: loads and computations, scalings by constants not counted."""
        return sum(self.counts(step) for step in self.steps)

    def counts(self, step: Step) -> int:
        """1 when a step counts as an operator."""
        return int(not step.is_constant and not any(self.steps[i].is_constant for i in step.inputs))

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The device tensors the kernel reads, one entry per load."""
        return tuple(step.leaf for step in self.steps if step.leaf is not None)

    @cached_property
    def reduced_axes(self) -> AxisSet:
        """Every axis some step sums over."""
        return frozenset[int]().union(*(step.reduced for step in self.steps))

    @cached_property
    def parallel_axes(self) -> AxisSet:
        """Axes that every output carries and no step reduces: those the grid may cut."""
        common = frozenset.intersection(*(self.steps[goal].axes for goal in self.goals))
        return common - self.reduced_axes


class SketchTuple(tuple[Sketch, ...]):
    """Some sketches, which may be a thousand: their hash is computed once."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> tuple[type[SketchTuple], tuple[object, ...]]:
        """What travels between processes: not the hash, because strings hash differently in each of them."""
        return SketchTuple, (tuple(self),)


class SketchWriter:
    """Writes derivations of one closure as sketches; what a step says apart from its operands is the same in all of them."""

    def __init__(self, closure: Closure) -> None:
        self._closure = closure
        self._steps: dict[Edge, Step] = {}

    def of(self, chosen: dict[int, Edge], goals: tuple[int, ...]) -> Sketch:
        """The sketch of a derivation: `chosen` gives the edge that makes each needed node."""
        position: dict[int, int] = {}
        steps: list[Step] = []

        for node in operands_first(goals, lambda node: chosen[node].inputs):
            edge = chosen[node]
            position[node] = len(steps)
            steps.append(self._step(edge).reading(tuple([position[i] for i in edge.inputs])))
        return Sketch(tuple(steps), tuple(position[goal] for goal in goals), self._closure.context.loop_axis)

    def _step(self, edge: Edge) -> Step:
        """An operator as a step that reads nodes."""
        step = self._steps.get(edge)
        if step is None:
            step = self._steps[edge] = self._described(edge)
        return step

    def _described(self, edge: Edge) -> Step:
        context, tensor = self._closure.context, self._closure.nodes[edge.target]
        axes = frozenset(axis for axis in bits(tensor.mask) if axis < context.axes)
        reduced = frozenset(axis for axis in bits(edge.reduced) if axis < context.axes)
        if edge.op == "accumulate" and context.loop_axis is not None:
            reduced = frozenset({context.loop_axis})
        in_loop = tensor.phase == LOOP and context.loop_axis is not None
        whole = in_loop and context.loop_axis in axes and not tensor.mask & context.loop_bit
        return Step(edge.op, edge.inputs, axes, in_loop, reduced, edge.leaf, edge.scalar, whole)
