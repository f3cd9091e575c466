"""Recipes: the size-free structure of one graph-defined kernel.

A recipe is a derivation picked from a closure, written as steps in topological order. It names axes, not sizes, so it is
found once per program and instantiated for any sizes, grids and loop counts (`mugraph.search.scheduling.schedule`,
`mugraph.search.scheduling.emission`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mugraph.ir.scalar import Scalar
from mugraph.search.axes import AxisSet
from mugraph.search.closure.context import bits
from mugraph.search.closure.saturation import LOOP, Closure, Edge, Leaf


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a recipe.

    `op`: 'load', 'constant', 'contract', 'concat_contract', 'sum', 'max', 'accumulate', 'rescale' (accumulation
    rescaled to a running maximum), 'concat', 'carry', 'accumulate_max', or an elementwise row. `axes` are the logical
    axes of the result, `reduced` those summed over by this step, `in_loop` its phase. A `whole` step has the loop axis
    inside the loop, but undivided: every iteration sees all of it.
    """

    op: str
    inputs: tuple[int, ...]
    axes: AxisSet
    in_loop: bool
    reduced: AxisSet = frozenset()
    leaf: Leaf | None = None
    scalar: Scalar | None = None
    whole: bool = False


@dataclass(frozen=True)
class Recipe:
    """Steps of one kernel; `goals` are the steps its outputs save."""

    steps: tuple[Step, ...]
    goals: tuple[int, ...]
    loop_axis: int | None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.goals, self.loop_axis))

    def __reduce__(self) -> tuple[type[Recipe], tuple[object, ...]]:
        """What travels between processes: not the hash, because strings hash differently in each of them."""
        return Recipe, (self.steps, self.goals, self.loop_axis)

    @cached_property
    def operators(self) -> int:
        """Block operators as limits count them: loads and computations, scalings by constants not counted."""
        return sum(self.counts(step) for step in self.steps)

    def counts(self, step: Step) -> int:
        """1 when a step counts as an operator."""
        return int(step.op != "constant" and not any(self.steps[i].op == "constant" for i in step.inputs))

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


def recipe_of(closure: Closure, chosen: dict[int, Edge], goals: tuple[int, ...]) -> Recipe:
    """The recipe of a derivation: `chosen` gives the edge that makes each needed node."""
    context = closure.context
    order: list[int] = []
    seen: set[int] = set()

    def visit(node: int) -> None:
        if node not in seen:
            seen.add(node)
            for operand in chosen[node].inputs:
                visit(operand)
            order.append(node)

    for goal in goals:
        visit(goal)
    position = {node: index for index, node in enumerate(order)}
    steps: list[Step] = []
    for node in order:
        edge, tensor = chosen[node], closure.nodes[node]
        axes = frozenset(axis for axis in bits(tensor.mask) if axis < context.axes)
        reduced = frozenset(axis for axis in bits(edge.reduced) if axis < context.axes)
        if edge.op == "accumulate" and context.loop_axis is not None:
            reduced = frozenset({context.loop_axis})
        in_loop = tensor.phase == LOOP and context.loop_axis is not None
        whole = in_loop and context.loop_axis in axes and not tensor.mask & context.loop_bit
        inputs = tuple(position[i] for i in edge.inputs)
        steps.append(Step(edge.op, inputs, axes, in_loop, reduced, edge.leaf, edge.scalar, whole))
    return Recipe(tuple(steps), tuple(position[goal] for goal in goals), context.loop_axis)
