"""Row maxima of softmax: dropped from programs, and derived again for the kernels that need them.

Programs subtract row maxima to keep exp in range. A maximum is neutral if the outputs stay the same in the field when it is
replaced by an unrelated random row value: the search drops it and works on the plain program.

exp overflows in real programs, though, and maxima are outside LAX. So the shifts are derived for each sketch: if multiplying all
exponentials of a row by one random unit leaves every output unchanged in the field, the exponent may be shifted by any row value.
The running maximum is generated, and the accumulators on the way are rescaled (online softmax). The maximum of a part of a row, a
tile of a for-loop or a partial result, is at least the lowest number: where a mask fills the part with -inf, it is shifted by a
number, as the program's row is. A whole row of -inf is 0 / 0 in the program, too. A sketch whose factor does not cancel is left
as it is, and must survive the floating-point check unshifted.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.ir.axes import AxisProgram, AxisSet, Term, pruned
from mugraph.ir.ops import LOWEST
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Evaluator, Sketch, Step


# by name: a maximum bounds the exponents that it is subtracted from; that its row is an opaque reduction does not say so
def without_neutral_maxima(program: AxisProgram, arith: FieldArithmetic, inputs: TinyInputs) -> AxisProgram:
    """The program with every subtraction of a neutral maximum replaced by what it subtracts from."""
    context = Context.of(program, None)
    for index, term in enumerate(program.terms):
        if term.op == "max" and _neutral(program, index, context, arith, inputs):
            program = _dropped(program, index)
    return pruned(program)


# by name: exp alone turns a difference into a factor
def _neutral(program: AxisProgram, index: int, context: Context, arith: FieldArithmetic, inputs: TinyInputs) -> bool:
    """Whether the outputs are the same with an unrelated random row value in place of a maximum.

    Where all that reads the differences are exponentials, that scales them by a random row value instead; where they are
    exponentials of exponentials, which are random functions, only the latter shows it.
    """
    users = [i for i, term in enumerate(program.terms) if index in term.inputs]
    if not all(_subtracts(program.terms[i], index) for i in users):
        return False
    rows = set(program.terms[index].inputs)
    if any(program.terms[i].inputs[0] not in rows for i in users):
        return False  # part of a softmax, whose exponents no maximum of their own rows would shift alike
    values = inputs.evaluate(program, context, arith)
    other = arith.random(values[index].p.shape, np.random.default_rng((inputs.seed, index)))
    readers = [i for i, term in enumerate(program.terms) if not set(users).isdisjoint(term.inputs)]
    changed = {index: other}
    if all(program.terms[i].op == "exp" for i in readers) and not any(term in users for term, _ in program.outputs):
        factor = FieldValue(other.p, None)
        changed = {i: arith.mul(values[i], factor) for i in readers}
    replaced = inputs.evaluate(program, context, arith, changed)
    return all(_equal(values[term], replaced[term]) for term, _ in program.outputs)


# by name: exponents are shifted by a difference, and the rows of add and sub differ in their meaning alone
def _subtracts(term: Term, maximum: int) -> bool:
    return term.op == "sub" and term.inputs[1] == maximum != term.inputs[0]


def _equal(x: FieldValue, y: FieldValue) -> bool:
    return bool(np.array_equal(x.p, y.p))


# by name: as in `_subtracts`
def _dropped(program: AxisProgram, maximum: int) -> AxisProgram:
    """Readers of `x - max` read x."""
    plain = {i: term.inputs[0] for i, term in enumerate(program.terms) if term.op == "sub" and term.inputs[1] == maximum}
    terms = tuple(replace(term, inputs=tuple(plain.get(i, i) for i in term.inputs)) for term in program.terms)
    outputs = tuple((plain.get(term, term), slots) for term, slots in program.outputs)
    return AxisProgram(terms, outputs, program.sizes)


@dataclass(frozen=True, slots=True)
class _Shift:
    """An exponential whose rows may be shifted: the step, the axes of its row value, and the accumulators it scales.

    `partial` says that what the kernel sees of a row at once may be a part of it.
    """

    exponential: int
    row: AxisSet
    accumulators: tuple[int, ...]
    partial: bool


_MINUS_ONE = Scalar.of(-1)

_MOST_READERS = 6
"""Steps that read an exponential, of which all subsets are looked at."""


class Stabilizer:
    """Evaluates sketches of one program and context at tiny sizes, to see which factors cancel."""

    def __init__(self, program: AxisProgram, context: Context, arith: FieldArithmetic, inputs: TinyInputs) -> None:
        self.program, self.context, self.arith, self.inputs = program, context, arith, inputs
        values = inputs.evaluate(program, context, arith)
        loads = {Leaf(term.source, term.slots): values[index] for index, term in program.loads()}
        self.meaning = Evaluator(context, arith, loads.__getitem__)
        self._units: dict[int, FieldValue] = {}
        self._computed: dict[tuple[Step, int | None], tuple[int, FieldValue]] = {}
        """What was computed so far, numbered: steps whose inputs are such numbers, and the row by which they were scaled."""

    def stabilize(self, sketch: Sketch) -> Sketch:
        """The sketch with every shiftable exponential shifted."""
        while True:
            shift = next(filter(None, (self.shift_of(sketch, i) for i in exponentials(sketch))), None)
            if shift is None:
                return sketch
            apart = self._apart(sketch, shift)
            sketch = _shifted(sketch, shift)[0] if apart is None else apart

    def _apart(self, sketch: Sketch, shift: _Shift) -> Sketch | None:
        """The sketch with two exponentials in place of one of which rows along different axes are summed, each of which may be
        shifted by a value for fewer elements; None where it has no such thing.

        The greatest of all elements keeps one exponential in range, but rows of much smaller ones would sum up to nothing.
        """
        index = shift.exponential
        reduced = sketch.steps[index].axes - shift.row
        sums = (sketch.steps[step].reduced & reduced for step in _downstream(sketch, index))
        if all(axes in (frozenset(), reduced) for axes in sums):
            return None
        readers = [position for position, step in enumerate(sketch.steps) if index in step.inputs]
        if len(readers) > _MOST_READERS:
            return None
        for count in range(1, len(readers)):
            for some in itertools.combinations(readers, count):
                divided = _divided(sketch, index, some)
                shifts = (self.shift_of(divided, exponential) for exponential in (index, index + 1))
                if all(each is not None and each.row > shift.row for each in shifts):
                    return divided
        return None

    def export(self, sketch: Sketch) -> Sketch | None:
        """The sketch shifted by a row maximum that becomes its last output; None unless every output scales with its row.

        For projective programs: whoever reads the outputs rescales them by the exported maximum.
        """
        unsafe = exponentials(sketch)
        shift = self.shift_of(sketch, unsafe[0], projective=True) if len(unsafe) == 1 else None
        if shift is None:
            return None
        shifted, maximum = _shifted(sketch, shift)
        step = shifted.steps[maximum]
        if not step.in_loop:
            return replace(shifted, goals=(*shifted.goals, maximum))
        if sketch.loop_axis in step.axes:
            return None
        steps = (*shifted.steps, Step("accumulate_max", (maximum,), step.axes, False))
        return replace(shifted, steps=steps, goals=(*shifted.goals, len(steps) - 1))

    def shift_of(self, sketch: Sketch, index: int, projective: bool = False) -> _Shift | None:
        """How the exponential at `index` may be shifted; None when it may not.

        The outputs must not change under the shift; those of a projective program must all change by its factor.
        """
        steps = sketch.steps
        downstream = _downstream(sketch, index)
        reduced: AxisSet = frozenset()
        for step in downstream:
            if more := (steps[step].reduced & steps[index].axes) - reduced:
                reduced |= more
                if (shift := self._shift_along(sketch, index, downstream, reduced, projective)) is not None:
                    return shift
        return None

    def _shift_along(
        self, sketch: Sketch, index: int, downstream: Sequence[int], reduced: AxisSet, projective: bool
    ) -> _Shift | None:
        """The shift by a row value over the axes `reduced`, as few as possible: rows of their own stay in range each."""
        steps = sketch.steps
        row = steps[index].axes - reduced
        scale = self._row_units(row)
        plain, scaled = self.run(sketch), self.run(sketch, index, row)
        for goal in sketch.goals:
            if not _same(self.arith.mul(plain[goal], scale) if projective else plain[goal], scaled[goal]):
                return None
            if projective and not row <= steps[goal].axes:
                return None
        # by name: two of the ways in which the accumulator row combines; maxima follow the shift by themselves
        affected = tuple(i for i in downstream if steps[i].op in ("accumulate", "concat"))
        if sketch.loop_axis in reduced and steps[index].in_loop and not steps[index].whole:
            if any(steps[i].op == "rescale" for i in downstream):
                return None  # an accumulator follows the running maximum of one exponential only
            for accumulator in affected:
                once = self.arith.mul(plain[accumulator], scale)
                # by name: concatenation is the way of the accumulator row that sums nothing
                if steps[accumulator].op == "concat" or not _same(scaled[accumulator], once):
                    return None
            return _Shift(index, row, affected, partial=True)
        return _Shift(index, row, (), partial=projective)

    def _row_units(self, row: AxisSet) -> FieldValue:
        """A random unit for every row."""
        mask = self.context.mask(row)
        if mask not in self._units:
            shape = tuple(size if mask >> part & 1 else 1 for part, size in enumerate(self.context.shape))
            unit = self.arith.random(shape, np.random.default_rng((self.inputs.seed, 1 + mask)))
            self._units[mask] = FieldValue(unit.p, None)
        return self._units[mask]

    def run(self, sketch: Sketch, scaled: int | None = None, row: AxisSet = frozenset()) -> list[FieldValue]:
        """All step values at tiny sizes, with the rows of step `scaled` multiplied by random units."""
        values: list[FieldValue] = []
        numbers: list[int] = []
        for index, step in enumerate(sketch.steps):
            known = (
                step.reading(tuple([numbers[i] for i in step.inputs])),
                self.context.mask(row) if index == scaled else None,
            )
            if known not in self._computed:
                value = self.meaning.value(sketch, step, [values[i] for i in step.inputs])
                value = self.arith.mul(value, self._row_units(row)) if index == scaled else value
                self._computed[known] = len(self._computed), value
            number, value = self._computed[known]
            numbers.append(number)
            values.append(value)
        return values


# by name: exp alone overflows where no maximum was subtracted, and turns a shift into a factor
def exponentials(sketch: Sketch) -> list[int]:
    """The exponentials of a sketch that no row maximum keeps in range."""
    shifted = {i for i, s in enumerate(sketch.steps) if s.op == "exp" and _is_shift(sketch, s.inputs[0])}
    return [i for i, step in enumerate(sketch.steps) if step.op == "exp" and i not in shifted]


# by name: the pattern is x - max(x), or less where the larger of that and something else is subtracted; -max is added
def _is_shift(sketch: Sketch, index: int) -> bool:
    step = sketch.steps[index]
    if step.op not in ("sub", "add"):
        return False
    sides = (step.inputs,) if step.op == "sub" else (step.inputs, step.inputs[::-1])
    return any(_bounds(sketch, subtracted, exponent, step.op == "add") for exponent, subtracted in sides)


# by name: as in `_is_shift`, where a largest number is -max(-m, -c)
def _bounds(sketch: Sketch, index: int, exponent: int, negated: bool) -> bool:
    """Whether a row value is the maximum of an exponent, clamped or not; `negated`, if it is that times -1."""
    step = sketch.steps[index]
    if step.op == "max":
        return not negated and step.inputs[0] == exponent
    turned = step.op == "mul" and any(sketch.steps[i].scalar == _MINUS_ONE for i in step.inputs)
    return (turned or step.op == "maximum") and any(_bounds(sketch, i, exponent, negated != turned) for i in step.inputs)


def _downstream(sketch: Sketch, index: int) -> list[int]:
    reached = {index}
    for position in range(index + 1, len(sketch.steps)):
        if reached.intersection(sketch.steps[position].inputs):
            reached.add(position)
    return sorted(reached - {index})


def _shifted(sketch: Sketch, shift: _Shift) -> tuple[Sketch, int]:
    """Insert the row maximum before the exponential, and rescale the accumulators it reaches; also the maximum's step."""
    steps: list[Step] = []
    moved: dict[int, int] = {}
    maximum = -1
    for index, step in enumerate(sketch.steps):
        inputs = tuple([moved[i] for i in step.inputs])
        if index == shift.exponential:
            (exponent,) = inputs
            least = LOWEST if shift.partial else None
            steps.append(Step("max", (exponent,), shift.row, step.in_loop, step.axes - shift.row, scalar=least))
            maximum = len(steps) - 1
            steps.append(Step("sub", (exponent, maximum), step.axes, step.in_loop, whole=step.whole))
            inputs = (len(steps) - 1,)
        if index in shift.accumulators:
            step = replace(step, op="rescale")
            inputs = (*inputs, maximum)
        steps.append(step.reading(inputs))
        moved[index] = len(steps) - 1
    return replace(sketch, steps=tuple(steps), goals=tuple(moved[goal] for goal in sketch.goals)), maximum


def _divided(sketch: Sketch, index: int, readers: Collection[int]) -> Sketch:
    """The sketch with a step twice in a row, the second of which `readers` read."""

    def moved(position: int, reader: int) -> int:
        return position + (position > index or (position == index and reader in readers))

    steps = [step.reading(tuple([moved(i, number) for i in step.inputs])) for number, step in enumerate(sketch.steps)]
    steps.insert(index, steps[index])
    return replace(sketch, steps=tuple(steps), goals=tuple(goal + (goal > index) for goal in sketch.goals))


def _same(x: FieldValue, y: FieldValue) -> bool:
    """Whether two values that broadcast are equal everywhere."""
    return bool(np.all(x.p == y.p))
