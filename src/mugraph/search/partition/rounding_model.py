"""What plans make of numbers that do harm: each is computed in float32 and in float64, on samples of its tensors.

Plans compute the same function, but not with the same rounding errors: `E[x^2] - E[x]^2` loses what `E[(x - E[x])^2]`
keeps, and `exp` overflows where no maximum was subtracted. A few elements of every axis show it, if sums count each as often
as there are elements of its kind: constants like 1/n mean what they say then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.axes import AxisProgram, Slots
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.scans import SCANS
from mugraph.search.closure.context import Context
from mugraph.search.closure.safe_softmax import exponentials
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Evaluator, Sketch, Step
from mugraph.search.closure.two_pass_mean import centred
from mugraph.search.kernels import ScheduledSketch
from mugraph.search.partition.plan import Library, Plan, Stage
from mugraph.search.structures import Recent

Errors = tuple[float, ...]
"""For each kind of inputs the largest error of an output, relative to its largest element; infinity beyond float32's range."""

_SAMPLE, _SMALL_SAMPLE = 4, 2
"""Elements of an axis; fewer where a program has many axes."""
_FEW_AXES, _MOST_AXES = 6, 12
"""Axes of a program, and those that one step may work on."""
_PARTS = 2
"""Parts of a divided axis, and iterations of a for-loop."""
_LARGE = 1e3
"""How much larger than normal numbers the large ones are."""
_LEVEL, _DEVIATION = 64.0, 2.0**-4
"""Size of the elements of a nearly constant input, and of their deviations."""
_HARMLESS = frozenset({"load", "constant", "add", "mul", "square", "sqrt", "div", "sum", "contract", "concat_contract", "max",
                       "maximum", "accumulate", "accumulate_max", "concat", "carry", *SCANS})  # fmt: skip
"""Steps that neither cancel nor overflow, but for inputs of which the program itself does the same."""
_AGREEMENT = 1e-9
"""Relative deviation of equal outputs in float64."""
NO_ERROR = 2.0**-20
"""Errors below some units in the last place of float32 are as good as none."""
_FAR = 8.0
"""How many times less an error must be for differences to be taken twice: they cost a further pass over rows."""


class _Unrehearsed(Exception):
    """A tensor is read along axes whose samples have not as many elements as those it was made along, or has too many axes."""


@dataclass(frozen=True, slots=True)
class RehearsedLaunch:
    """What a launch computes, whatever its schedule.

    For each goal, `writes` has the sources that it is read as, and its dimensions. Of each axis `sample` elements are computed,
    and each stands for `counts` of those that are summed up.
    """

    sketch: Sketch
    writes: tuple[tuple[tuple[int, ...], Slots], ...]
    sample: tuple[int, ...]
    counts: tuple[float, ...]

    @property
    def iterations(self) -> int:
        """Parts of the sample of the loop axis."""
        axis = self.sketch.loop_axis
        return 1 if axis is None else _PARTS if self.sample[axis] % _PARTS == 0 else self.sample[axis]

    def parts(self, slot: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The dimensions of arrays that the axes of a slot are, slowest varying first, and their sizes."""
        for axis in slot:
            looped = self.iterations if axis == self.sketch.loop_axis else 1
            if axis == self.sketch.loop_axis:
                yield len(self.sample), looped
            yield axis, self.sample[axis] // looped

    def spread(self, tensor: Array, slots: Slots) -> Array:
        """A tensor of dimensions `slots` (and the kinds of inputs) as an array: a dimension for every axis, loop, kinds."""
        shape = tuple(math.prod(size for _, size in self.parts(slot)) for slot in slots)
        if shape != tensor.shape[:-1]:
            raise _Unrehearsed
        parts = [part for slot in slots for part in self.parts(slot)]
        order = sorted(range(len(parts)), key=lambda i: parts[i])
        full = [1] * (len(self.sample) + 1)
        for part, size in parts:
            full[part] = size
        fine = tensor.reshape(*(size for _, size in parts), -1)
        return fine.transpose(*order, len(parts)).reshape(*full, -1)

    def gathered(self, array: Array, slots: Slots) -> Array:
        """The reverse of `spread`; what does not depend on an axis is repeated along it."""
        parts = [part for slot in slots for part in self.parts(slot)]
        full = [1] * (len(self.sample) + 1)
        for part, size in parts:
            full[part] = size
        whole = np.broadcast_to(array, (*full, array.shape[-1]))
        others = [part for part in range(len(full)) if part not in dict(parts)]
        in_order = whole.transpose(*(part for part, _ in parts), *others, len(full))
        return in_order.reshape(*(math.prod(size for _, size in self.parts(slot)) for slot in slots), -1)


class _Floats(Evaluator[Array]):
    """Steps of a launch in floating point."""

    def __init__(self, launch: RehearsedLaunch, dtype: type[np.floating[Any]], tensors: Mapping[int, Array]) -> None:
        context = Context(len(launch.sample), launch.sketch.loop_axis, frozenset())
        super().__init__(context, FloatArithmetic(dtype), lambda leaf: launch.spread(tensors[leaf.source], leaf.slots))
        self.counts = [dtype(count) for count in (*launch.counts, 1)]

    def total(self, x: Array, parts: Sequence[int]) -> Array:
        for part in parts:
            x = np.asarray(self.arith.sum(x, part) * self.counts[part])
        return x

    def running_maximum(self, x: Array) -> Array:
        return self.arith.max(x, self.context.axes)

    def rescaled(self, x: Array, maximum: Array) -> Array:
        shift = self.arith.sub(maximum, self.running_maximum(maximum))
        return super().rescaled(self.arith.mul(x, self.arith.exp(shift)), maximum)


_PRECISIONS: tuple[type[np.floating[Any]], ...] = (np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class _Value:
    """A result by precision, and the number it is known by."""

    number: int
    arrays: tuple[Array, ...]


class Rehearsal:
    """Computes plans of a program with so many `inputs`; `read_as` is `PlanSearch.read_as`."""

    def __init__(self, program: AxisProgram, inputs: int, read_as: Mapping[int, int]) -> None:
        self.program, self.sizes, self.inputs, self.read_as = program, program.sizes, inputs, read_as
        self.sample = _SAMPLE if len(self.sizes) <= _FEW_AXES else _SMALL_SAMPLE
        self._errors: dict[tuple[object, ...], Errors] = {}
        self._steps: dict[tuple[object, ...], _Value] = {}
        """Results of steps whose inputs are numbers of results: plans have most of them in common."""

    def errors(self, plan: Plan) -> Errors:
        """The errors of a plan. Plans of harmless steps alone have none.

        Where they cannot be told, only unshifted exponentials count: no samples fit, or normal numbers are not what the program
        is meant for.
        """
        structure = tuple((stage.produces, _sketch(stage.kernel), stage.kernel.sizes) for stage in plan.stages)
        if structure not in self._errors:
            self._errors[structure] = self._errors_of(self.launches(plan))
        return self._errors[structure]

    def _errors_of(self, launches: tuple[RehearsedLaunch, ...]) -> Errors:
        if all(step.op in _HARMLESS for launch in launches for step in launch.sketch.steps):
            return (0.0,) * self._kinds
        key = launches, self.inputs
        known = _KNOWN.get(key)
        if known is None:
            known = self._compared(launches) if self._defined else None
            if known is None:
                overflows = any(exponentials(launch.sketch) for launch in launches)
                known = (math.inf if overflows else 0.0,) * self._kinds
            _KNOWN.put(key, known)
        return known

    @property
    def _defined(self) -> bool:
        """Whether the program itself has a result for normal numbers."""
        return self.own_errors is not None and math.isfinite(self.own_errors[0])

    @cached_property
    def own_errors(self) -> Errors | None:
        """The errors of the program's operators one by one; None where they cannot be told."""
        steps = tuple(
            Step(t.op, t.inputs, t.axes, False, t.reduced, Leaf(t.source, t.slots) if t.op == "load" else None, t.scalar)
            for t in self.program.terms
        )
        sketch = Sketch(steps, tuple(term for term, _ in self.program.outputs), None)
        writes = tuple(((-1 - index,), slots) for index, (_, slots) in enumerate(self.program.outputs))
        return self._compared((self._sampled(sketch, writes, self.sizes),))

    def within(self, plan: Plan, wanted: Errors | None) -> bool:
        """Whether a plan leaves the range of numbers only on kinds of inputs on which errors that are `wanted` are infinite."""
        if wanted is None:
            return True
        return all(map(math.isfinite, itertools.compress(self.errors(plan), map(math.isfinite, wanted))))

    def centred(self, plan: Plan) -> tuple[Sketch, ...]:
        """The sketches of the plan's launches, with differences taken twice wherever that makes its outputs more precise."""
        launches = self.launches(plan)
        key = launches, self.inputs
        known = _CENTRED.get(key)
        if known is None:
            known = tuple(launch.sketch for launch in self._centred(launches))
            _CENTRED.put(key, known)
        return known

    def _centred(self, launches: tuple[RehearsedLaunch, ...]) -> tuple[RehearsedLaunch, ...]:
        for position, launch in enumerate(launches):
            for sketch in centred(launch.sketch):
                other = (*launches[:position], replace(launch, sketch=sketch), *launches[position + 1 :])
                if self._more_precise(other, launches):
                    return self._centred(other)
        return launches

    def _more_precise(self, launches: tuple[RehearsedLaunch, ...], others: tuple[RehearsedLaunch, ...]) -> bool:
        """Whether some errors are less by far and none is more than doubled, and the outputs are those of the others."""
        errors, before = self._compared(launches), self._compared(others)
        if errors is None or before is None or not self._defined:
            return False
        pairs = zip(self.outputs(launches)[1], self.outputs(others)[1], strict=True)
        return (
            any(_FAR * max(now, NO_ERROR) < then for now, then in zip(errors, before, strict=True))
            and all(now <= max(2 * then, NO_ERROR) for now, then in zip(errors, before, strict=True))
            and all(np.allclose(x[..., 0], y[..., 0], rtol=_AGREEMENT, atol=_AGREEMENT) for x, y in pairs)
        )

    def launches(self, plan: Plan) -> tuple[RehearsedLaunch, ...]:
        """What the launches of a plan compute, and on which samples."""
        return tuple(map(self._launch, plan.stages))

    @property
    def _kinds(self) -> int:
        return 2 + self.inputs

    def _launch(self, stage: Stage) -> RehearsedLaunch:
        kernel = stage.kernel
        slots = kernel.outputs if isinstance(kernel, Library) else tuple(output.slots for output in kernel.outputs)
        sketch = _sketch(kernel)
        names = [(source, *([self.read_as[source]] if source in self.read_as else [])) for source in stage.produces]
        return self._sampled(sketch, tuple(zip(names, slots, strict=True)), kernel.sizes)

    def _sampled(
        self, sketch: Sketch, writes: tuple[tuple[tuple[int, ...], Slots], ...], sizes: tuple[int, ...]
    ) -> RehearsedLaunch:
        """A launch on samples of axes of `sizes`: an axis of another size than the program's is divided."""
        whole = (*self.sizes, *sizes[len(self.sizes) :])
        sample = tuple(
            _PARTS if axis >= len(self.sizes) else min(size, self.sample) if size == whole[axis] else self.sample // _PARTS
            for axis, size in enumerate(sizes)
        )
        summed = sketch.reduced_axes
        counts = tuple(size / few if axis in summed else 1.0 for axis, (size, few) in enumerate(zip(sizes, sample, strict=True)))
        return RehearsedLaunch(sketch, writes, sample, counts)

    def _compared(self, launches: tuple[RehearsedLaunch, ...]) -> Errors | None:
        """The errors of launches; None where no samples of their tensors fit."""
        errors = np.zeros(self._kinds)
        try:
            with np.errstate(all="ignore"):
                for rounded, exact in zip(*self.outputs(launches), strict=True):
                    rows, wanted = (x.reshape(-1, x.shape[-1]) for x in (rounded, exact))  # one kind, if no input is read
                    largest = np.maximum(np.abs(wanted).max(axis=0), np.finfo(np.float32).tiny)
                    error = np.nan_to_num(np.abs(rows - wanted).max(axis=0) / largest, nan=0.0)
                    errors = np.maximum(errors, np.where(np.isfinite(rows).all(axis=0), error, np.inf))
        except _Unrehearsed:
            return None
        return tuple(errors.tolist())

    def outputs(self, launches: tuple[RehearsedLaunch, ...]) -> tuple[list[Array], ...]:
        """The program's outputs in float32 and in float64; the kinds of inputs are their last dimension."""
        tensors: dict[int, _Value] = {}
        for launch in launches:
            for leaf in launch.sketch.leaves:
                if leaf.source < self.inputs and leaf.source not in tensors:
                    tensors[leaf.source] = _Value(-1 - leaf.source, self._input(launch, leaf))
            values = self._run(launch, tensors)
            for goal, (names, slots) in zip(launch.sketch.goals, launch.writes, strict=True):
                arrays = tuple(launch.gathered(array, slots) for array in values[goal].arrays)
                tensors.update((name, _Value(values[goal].number, arrays)) for name in names)
        outputs = sorted((source for source in tensors if source < 0), reverse=True)
        return tuple([tensors[source].arrays[precision] for source in outputs] for precision in range(len(_PRECISIONS)))

    def _run(self, launch: RehearsedLaunch, tensors: Mapping[int, _Value]) -> list[_Value]:
        evaluators = [
            _Floats(launch, dtype, {source: tensor.arrays[which] for source, tensor in tensors.items()})
            for which, dtype in enumerate(_PRECISIONS)
        ]
        values: list[_Value] = []
        for step in launch.sketch.steps:
            if len(step.axes | step.reduced) > _MOST_AXES:
                raise _Unrehearsed
            xs = [values[i] for i in step.inputs]
            read = None if step.leaf is None else tensors[step.leaf.source].number
            key = replace(step, inputs=tuple(x.number for x in xs)), read, launch.sample, launch.counts, launch.sketch.loop_axis
            if key not in self._steps:
                arrays = [[x.arrays[which] for x in xs] for which in range(len(_PRECISIONS))]
                made = (e.value(launch.sketch, step, operands) for e, operands in zip(evaluators, arrays, strict=True))
                self._steps[key] = _Value(len(self._steps), tuple(made))
            values.append(self._steps[key])
        return values

    def _input(self, launch: RehearsedLaunch, leaf: Leaf) -> tuple[Array, ...]:
        """Samples of an input by kind: normal numbers, large ones, and for each input a kind where that is nearly constant."""
        shape = tuple(math.prod(size for _, size in launch.parts(slot)) for slot in leaf.slots)
        rng = np.random.default_rng([0x5A, leaf.source])
        normal = rng.standard_normal((*shape, self._kinds))
        normal[..., 1] *= _LARGE
        nearly = 2 + leaf.source
        normal[..., nearly] = _LEVEL + _DEVIATION * normal[..., nearly]
        rounded = normal.astype(np.float32)
        return tuple(rounded.astype(dtype) for dtype in _PRECISIONS)


_KNOWN: Recent[tuple[tuple[RehearsedLaunch, ...], int], Errors] = Recent(capacity=1 << 12)
_CENTRED: Recent[tuple[tuple[RehearsedLaunch, ...], int], tuple[Sketch, ...]] = Recent(capacity=1 << 10)


def _sketch(kernel: ScheduledSketch | Library) -> Sketch:
    """What a kernel computes; a library's matrix product has no sketch of its own."""
    if isinstance(kernel, ScheduledSketch):
        return kernel.sketch
    loads = [Step("load", (), term.axes, False, leaf=Leaf(term.source, term.slots)) for term in (kernel.left, kernel.right)]
    axes = (kernel.left.axes | kernel.right.axes) - kernel.reduced
    return Sketch((*loads, Step("contract", (0, 1), axes, False, kernel.reduced)), (2,), None)
