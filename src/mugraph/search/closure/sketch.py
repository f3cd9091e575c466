"""Sketches: the size-free structure of one graph-defined kernel, and what it computes.

A sketch is a derivation picked from a closure, written as steps in topological order. It names axes, not sizes, so it is
found once per program and instantiated for any sizes, grids and loop counts (`mugraph.search.scheduling.schedule`,
`mugraph.search.scheduling.emission`). `mugraph.search.closure.sketch_text` prints and parses sketches, and an `Evaluator`
computes their steps on samples of the tensors, in any arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from mugraph.errors import InvalidInput
from mugraph.ir.arithmetic import Arithmetic, V
from mugraph.ir.axes import AxisGroup, AxisSet, operands_first
from mugraph.ir.ops import LOWEST, OPERATORS, Call, is_scan
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.context import Context, bits, scalar_value, scanned_along
from mugraph.search.closure.saturation import LOOP, Closure, Edge, Leaf

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

_MOST_GROUPS = 64
"""Ways to take an axis of each output that are looked at, for a grid to cut them together."""

_REDUCING = frozenset({"sum", "max", "contract", "concat_contract", "accumulate", "rescale"})
"""Steps that reduce axes: accumulators that of the for-loop."""

_LEAVING = frozenset({"carry", "concat", "accumulate", "accumulate_max", "rescale"})
"""Steps that lead from inside the for-loop to after it."""

Axes = TypeVar("Axes", int, AxisSet)
"""A set of axes, as bits or as it is."""


def arity_of(op: str) -> int | None:
    """How many steps a step reads; None where there is no such step."""
    row = OPERATORS.get(op)
    return _ARITIES.get(op, row.arity if row is not None and (row.elementwise or is_scan(op)) else None)


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
    rescaled to a running maximum), 'concat', 'carry', 'accumulate_max', a scan, or an elementwise row. `axes` are the logical
    axes of the result, `reduced` those summed over by this step or the one that a scan runs along, `in_loop` its phase. A
    `whole` step has the loop axis inside the loop, but undivided: every iteration sees all of it. `scalar` is the
    number of a constant, or one that a maximum is taken over besides its elements.
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
        return self.leaf is None and not self.inputs

    def reading(self, inputs: tuple[int, ...]) -> Step:
        """The same operator on other steps."""
        if inputs == self.inputs:
            return self
        return Step(self.op, inputs, self.axes, self.in_loop, self.reduced, self.leaf, self.scalar, self.whole)


def check_step(step: Step, operands: Sequence[Step], loop_axis: int | None) -> None:
    """Raise InvalidInput unless a step on these operands has a meaning under a for-loop over `loop_axis` (None: no loop)."""
    _check_operator(step, operands)
    _check_phase(step, operands, loop_axis)


def _check_operator(step: Step, operands: Sequence[Step]) -> None:
    if arity_of(step.op) != len(operands):
        raise InvalidInput(f"a step {step.op!r} with {len(operands)} operands")
    if (step.leaf is None) != (step.op != "load"):  # by name: loads are steps alone, no operator
        raise InvalidInput(f"a step {step.op!r} that reads {'nothing' if step.leaf is None else 'a device tensor'}")
    # by name: of all steps with operands, only a maximum may be over a number besides its elements
    if (step.scalar is None) != (not step.is_constant) and (step.op, step.scalar) != ("max", LOWEST):
        raise InvalidInput(f"a step {step.op!r} with the constant {step.scalar}")
    if step.reduced and step.op not in _REDUCING and not is_scan(step.op):
        raise InvalidInput(f"a step {step.op!r} that reduces axes")
    if is_scan(step.op) and (len(step.reduced) != 1 or not step.reduced <= step.axes):
        raise InvalidInput(f"a step {step.op!r} along the axes {sorted(step.reduced)}, which is not one of its result's")
    if step.axes != (axes := _axes_of(step, operands)):
        raise InvalidInput(f"a step {step.op!r} over the axes {sorted(step.axes)}, whose result has {sorted(axes)}")


def _axes_of(step: Step, operands: Sequence[Step]) -> AxisSet:
    """The axes of a step's result: sums over iterations have those of what they sum up."""
    if step.leaf is not None:
        axes = [axis for slot in step.leaf.slots for axis in slot]
        if len(axes) != len({*axes}):
            raise InvalidInput(f"a step {step.op!r} of a tensor that has an axis twice")
        return frozenset(axes)
    if step.op in _LEAVING:
        return operands[0].axes
    together = frozenset[int]().union(*(operand.axes for operand in operands))
    return together if is_scan(step.op) else together - step.reduced


def _check_phase(step: Step, operands: Sequence[Step], loop_axis: int | None) -> None:
    if step.in_loop and loop_axis is None:
        raise InvalidInput("a step inside the for-loop of a sketch without one")
    if step.whole and not (step.in_loop and loop_axis in step.axes):
        raise InvalidInput(f"a step {step.op!r} that is whole, but not inside a for-loop over one of its axes")
    standing = {operand.whole for operand in operands if loop_axis in operand.axes}
    if len(standing) > 1:
        raise InvalidInput(f"{step.op} joins a slice with a whole tensor")
    if step.in_loop and loop_axis in step.axes and standing and standing != {step.whole}:
        raise InvalidInput(f"{step.op} makes a {'whole tensor of a slice' if step.whole else 'slice of a whole tensor'}")
    if step.op in _LEAVING:
        if step.in_loop or not operands[0].in_loop:
            raise InvalidInput(f"{step.op} does not lead out of the for-loop")
    elif any(operand.in_loop != step.in_loop for operand in operands):
        raise InvalidInput(f"{step.op} joins tensors of different phases")


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
        """Every axis some step sums over or runs along."""
        return frozenset[int]().union(*(step.reduced for step in self.steps))

    @cached_property
    def parallel_axes(self) -> AxisSet:
        """Axes that every output carries and no step reduces: those the grid may cut."""
        common = frozenset.intersection(*(self.steps[goal].axes for goal in self.goals))
        return common - self.reduced_axes

    @cached_property
    def grid_axes(self) -> tuple[AxisGroup, ...]:
        """What a dimension of the grid may cut: a parallel axis, or axes that it cuts together, one of each output."""
        groups: list[AxisGroup] = [(axis,) for axis in sorted(self.parallel_axes)]
        for group in self._axes_of_single_outputs():
            if not any({*group} & {*other} for other in groups):
                groups.append(group)
        return tuple(groups)

    def _axes_of_single_outputs(self) -> Iterator[AxisGroup]:
        """Axes that no step reduces, of which every output has one and no step several: a block has a part of each output."""
        free = [sorted(self.steps[goal].axes - self.reduced_axes - self.parallel_axes) for goal in self.goals]
        for chosen in itertools.islice(itertools.product(*free), _MOST_GROUPS):
            group = frozenset(chosen)
            if len(group) > 1 and all(len(group & step.axes) <= 1 for step in self.steps):
                yield tuple(sorted(group))


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
        # by name: the step that adds up iterations is one of the ways in which the accumulator row combines
        if edge.op == "accumulate" and context.loop_axis is not None:
            reduced = frozenset({context.loop_axis})
        in_loop = tensor.phase == LOOP and context.loop_axis is not None
        whole = in_loop and context.loop_axis in axes and not tensor.mask & context.loop_bit
        return Step(edge.op, edge.inputs, axes, in_loop, reduced, edge.leaf, edge.scalar, whole)


_NO_CALL = Call("", (), {})


class Evaluator(Generic[V]):
    """The meaning of steps where only values up to shifts of exponents count: running maxima and rescalings do nothing.

    `load` gives the sample of a tensor that is read. Arrays have a dimension for every axis, and a last one for the for-loop's
    part of the axis it cuts: the slices of all iterations are computed at once.
    """

    def __init__(self, context: Context, arith: Arithmetic[V], load: Callable[[Leaf], V]) -> None:
        self.context, self.arith, self.load = context, arith, load

    def value(self, sketch: Sketch, step: Step, xs: Sequence[V]) -> V:
        """The result of a step of `sketch` on operands `xs`."""
        # by name: steps that are not elementwise reduce sets of axes or lead out of the for-loop, as no single row does
        match step.op:
            case "load":
                assert step.leaf is not None
                return self.load(step.leaf)
            case "constant":
                assert step.scalar is not None
                return scalar_value(step.scalar, self.context, self.arith)
            case "carry" | "concat":
                return xs[0]
            case "accumulate_max":
                return self.running_maximum(xs[0])
            case "accumulate":
                return self.total(xs[0], [self.context.axes])
            case "rescale":
                return self.rescaled(xs[0], xs[1])
            case "sum" | "contract" | "concat_contract":
                return self._summed(sketch, step, xs)
            case "max":
                value = xs[0]
                for part in self._parts(sketch, step, step.reduced):
                    value = self.arith.max(value, part)
                return value
        if is_scan(step.op):
            return scanned_along(step.op, step.reduced, xs[0], self.arith)
        result: V = OPERATORS[step.op].compute(self.arith, _NO_CALL, xs)
        return result

    def total(self, x: V, parts: Sequence[int]) -> V:
        """The sum of `x` over some of its dimensions."""
        for part in parts:
            x = self.arith.sum(x, part)
        return x

    def running_maximum(self, x: V) -> V:
        """What a maximum over the iterations stands for."""
        return x

    def rescaled(self, x: V, maximum: V) -> V:
        """The sum over iterations of what each shifted by its own `maximum`."""
        return self.total(x, [self.context.axes])

    def _summed(self, sketch: Sketch, step: Step, xs: Sequence[V]) -> V:
        # by name: sums of elements, of products, and of two products are steps, of which only the first is a row
        if step.op == "sum":
            return self.total(xs[0], self._parts(sketch, step, step.reduced))
        if step.op == "contract":
            return self.total(self.arith.mul(xs[0], xs[1]), self._parts(sketch, step, step.reduced))
        operands = [sketch.steps[i] for i in step.inputs]
        halves = [
            self.total(
                self.arith.mul(xs[left], xs[right]),
                self._parts(sketch, step, step.reduced & operands[left].axes & operands[right].axes),
            )
            for left, right in ((0, 2), (1, 3))
        ]
        return self.arith.add(*halves)

    def _parts(self, sketch: Sketch, step: Step, axes: AxisSet) -> list[int]:
        """The parts of `axes` that a step reduces: not that of the loop, unless it is after it or works on whole tensors."""
        mask = self.context.mask(axes)
        if step.in_loop and not any(sketch.steps[i].whole for i in step.inputs):
            mask &= ~self.context.loop_bit
        return bits(mask)
