"""What is cut into several kernels: every derivation of a program, in the order of a bound for all of its cuts.

To be cut, a sketch is read as a program again. Where a closure is too large for a tier, there are no derivations of the whole
program. Then the program is taken in two, at every tensor that may be stored, and the derivations of both parts are put together.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mugraph.algebra.fields import NestingArithmetic
from mugraph.ir.axes import AxisProgram, AxisSet, Slots, Term, pruned
from mugraph.search.closure.context import Context, TinyInputs
from mugraph.search.closure.sketch import Sketch, Step
from mugraph.search.partition.cuts import Cut, CutSpace, in_normal_order, stored_slots
from mugraph.search.partition.lower_bounds import Roofline, best_efficiency


@lru_cache(maxsize=1 << 12)
def as_program(sketch: Sketch, program: AxisProgram) -> AxisProgram:
    """A sketch without loop, read as a program."""
    terms: list[Term] = []
    moved: list[int] = []
    for step in sketch.steps:
        inputs = tuple(moved[i] for i in step.inputs)
        for term in _terms_of(step, inputs, terms, frozenset()):
            terms.append(term)
        moved.append(len(terms) - 1)
    outputs = tuple((moved[goal], slots) for goal, (_, slots) in zip(sketch.goals, program.outputs, strict=True))
    return in_normal_order(pruned(replace(program, terms=tuple(terms), outputs=outputs)))


# by name: the steps that lead out of the for-loop are ways in which one row, the accumulator, combines
def iterations_as_parts(sketch: Sketch, program: AxisProgram) -> AxisProgram | None:
    """A sketch with a loop, read as a program in which the iterations are an axis: parts that are summed last.

    The loop axis becomes (parts x rest): the new axis varies slowest, and has size 1 as yet; the rest keeps the old number.
    None where iterations are put side by side, or an operand is read whole in each of them.
    """
    axis, parts = sketch.loop_axis, frozenset({len(program.sizes)})
    if axis is None or any(axis in slot for _, slots in program.outputs for slot in slots):
        return None
    terms: list[Term] = []
    moved: list[int] = []
    looped: list[bool] = []
    """Whether each step's result differs from iteration to iteration."""
    for step in sketch.steps:
        inputs = tuple(moved[i] for i in step.inputs)
        reads = step.leaf is not None and any(axis in slot for slot in step.leaf.slots)
        looped.append(step.in_loop and (reads or any(looped[i] for i in step.inputs)))
        unchanged = step.whole or (reads and not step.in_loop) or (step.op == "accumulate" and not looped[step.inputs[0]])
        if step.op == "concat" or unchanged:
            return None
        if step.op == "carry":
            moved.append(*inputs)
            continue
        if step.op == "accumulate":
            terms.append(Term("sum", inputs, step.axes, parts))
        else:
            for term in _terms_of(step, inputs, terms, parts if looped[-1] else frozenset()):
                terms.append(term)
        if reads:
            terms[-1] = replace(terms[-1], slots=_refined(terms[-1].slots, axis, *parts))
        moved.append(len(terms) - 1)
    outputs = tuple((moved[goal], slots) for goal, (_, slots) in zip(sketch.goals, program.outputs, strict=True))
    return in_normal_order(pruned(AxisProgram(tuple(terms), outputs, (*program.sizes, 1), program.finer)))


def _refined(slots: Slots, axis: int, parts: int) -> Slots:
    """Dimensions in which an axis is (parts x rest)."""
    return tuple(tuple(a for old in slot for a in ((parts, axis) if old == axis else (old,))) for slot in slots)


def _terms_of(step: Step, inputs: tuple[int, ...], terms: Sequence[Term], more: AxisSet) -> Iterator[Term]:
    """The terms of one step, which has `more` axes than it says; `terms` are those before."""
    axes = step.axes | more
    if step.op == "concat_contract":
        for left, right in ((inputs[0], inputs[2]), (inputs[1], inputs[3])):
            yield Term("contract", (left, right), axes, step.reduced & terms[left].axes & terms[right].axes)
        yield Term("add", (len(terms) - 2, len(terms) - 1), axes)
    elif step.leaf is not None:
        yield Term("load", (), axes, source=step.leaf.source, slots=step.leaf.slots)
    else:
        yield Term(step.op, inputs, axes, step.reduced, scalar=step.scalar)


_AT_ONCE = 8
"""Derivations whose cuts are put in one order at first; then twice as many, and so on."""

_OF_A_PART = 4
"""Derivations of each of two parts that are put together with those of the other, cheapest first."""

Bounded = tuple[float, Callable[[], AxisProgram]]
"""Seconds that no cut of a derivation is below, and the derivation as a program."""


@dataclass(frozen=True)
class Parts:
    """Finds the derivations of a part of a program, cheapest first, and numbers the tensor that it stores, until it is `late`."""

    sketches: Callable[[AxisProgram], Sequence[Sketch]]
    store: Callable[[AxisProgram], int]
    late: Callable[[], bool] = lambda: False

    def forms(self, part: AxisProgram) -> list[AxisProgram]:
        """The part as it is written, and its cheapest derivations."""
        sketches = self.sketches(part)[:_OF_A_PART]
        forms = [part.structure, *(as_program(sketch, part.structure) for sketch in sketches)]
        return [form.with_sizes(part.sizes) for form in dict.fromkeys(forms)]


@dataclass(frozen=True)
class Variants:
    """The derivations of `program`, whose outputs are `produces`.

    `sketches` are those of the tier without a for-loop, cheapest first; where these are not all, there are `parts`.
    """

    program: AxisProgram
    produces: tuple[int, ...]
    sketches: Sequence[Sketch]
    parts: Parts | None
    roofline: Roofline
    seed: int
    _seen: set[AxisProgram] = field(default_factory=set)

    def batches(self, below: float = math.inf) -> Iterator[list[Bounded]]:
        """The program as it is written, then its other derivations in the order of their bounds.

        Nothing is derived of its parts unless two launches could take less than `below` seconds, and not before the cuts of the
        program as it is written were looked at: closures of parts may take all the time there is.
        """
        written = in_normal_order(self.program.structure)
        first: list[Bounded] = [(0.0, lambda: written)]
        if self.parts is not None:
            yield first
            first = []
        moved = self.roofline.seconds(self.roofline.memory(self.program, self.produces), 0.0, launches=2)
        of_parts = self._put_together(written) if moved < below else ()
        others = sorted((*self._derived(), *of_parts), key=lambda each: each[0])
        forms = itertools.chain(first, others)
        for size in (_AT_ONCE << count for count in itertools.count()):
            batch = list(itertools.islice(forms, size))
            if not batch:
                return
            yield batch

    def spaces(self, batch: Sequence[Bounded], below: float) -> Iterator[CutSpace]:
        """The cuts of those derivations that some cut could be `below` so many seconds of, each derivation once."""
        for form in (form() for floor, form in batch if floor < below):
            if form not in self._seen:
                self._seen.add(form)
                yield self._space(form.with_sizes(self.program.sizes))

    def _space(self, form: AxisProgram) -> CutSpace:
        context = Context.of(self.program, None)
        values = TinyInputs(self.seed).evaluate(form, context, NestingArithmetic(seed=self.seed))
        digests = [hashlib.blake2b(repr(value.p.shape).encode() + value.p.tobytes()).digest() for value in values]
        one_of_all = bool(self.sketches) and self.parts is None
        return CutSpace(form, self.roofline, self.produces, digests, one_of_all)

    def _derived(self) -> Iterator[Bounded]:
        for sketch in self.sketches:
            floor = self.roofline.of_launches(self.program, sketch, self.produces, best_efficiency(self.roofline.device))
            yield floor, lambda sketch=sketch: as_program(sketch, self.program.structure)  # type: ignore[misc]

    def _put_together(self, written: AxisProgram) -> Iterator[Bounded]:
        """Derivations of the program in two parts, as many as there is time for: of dozens of operators there are hundreds, and
        some take a tenth of a second each."""
        if self.parts is None:
            return
        whole = written.with_sizes(self.program.sizes)
        outputs = tuple(dict.fromkeys(term for term, _ in whole.outputs))
        for term in CutSpace(whole, self.roofline, self.produces).cut_points():
            if term in outputs:
                continue
            cut = Cut(whole, ((term,), outputs), 0.0)
            before = cut.part((term,), {})
            source = self.parts.store(before)
            after = cut.part(outputs, {term: (source, stored_slots(whole, term))})
            for made, rest in itertools.product(self.parts.forms(before), self.parts.forms(after)):
                if self.parts.late():
                    return
                form = _composed(made, rest, source)
                floor = self.roofline.of(form, self.produces, libraries=True) + self.roofline.device.launch_seconds
                yield floor, lambda form=form: form.structure  # type: ignore[misc]


def _composed(made: AxisProgram, rest: AxisProgram, source: int) -> AxisProgram:
    """One program of two, of which the second loads from `source` what the first makes."""
    terms: list[Term] = list(made.terms)
    moved: list[int] = []
    for term in rest.terms:
        if term.op == "load" and term.source == source:
            moved.append(made.outputs[0][0])
        else:
            terms.append(replace(term, inputs=tuple(moved[operand] for operand in term.inputs)))
            moved.append(len(terms) - 1)
    outputs = tuple((moved[term], slots) for term, slots in rest.outputs)
    return in_normal_order(pruned(replace(rest, terms=tuple(terms), outputs=outputs)))
